"""The diagram of a pipeline schedule: devices, and what each does over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.core.errors import InputError
from weft.core.report.table import Table, number, text
from weft.models.parallel.plan import schedule_name
from weft.step.pipeline import PipelineTimes
from weft.view.figure import Axis, Color, Figure, Label, Lane, stack_figures, step_lines, timeline_bars
from weft.view.looks import BLUE, GREEN, ORANGE, Looks
from weft.view.memory import memory_curve
from weft.view.plans import shown_devices

if TYPE_CHECKING:
    from weft.step.result.step import Step

KINDS: Looks = {"forward": BLUE, "backward": GREEN, "weight gradient": ORANGE}
"""Kinds of tasks; a backward without a weight gradient of its own is whole."""
MOST_DRAWN, _MOST_NUMBERED, _MOST_BESIDE = 20_000, 240, 1200
_CURVES = 8
"""Devices whose memory a figure shows, at most."""


def pipeline_diagram(times: PipelineTimes) -> Figure:
    """Devices over time [ms]: the tasks of a pipeline schedule, numbered by micro-batch where there is room.

    Where a device runs a forward and a backward together, forwards are drawn above all else.

    Raises InputError for more than 20,000 tasks.
    """
    drawn = times.schedule
    if drawn.tasks > MOST_DRAWN:
        raise InputError(
            f"a diagram of {drawn.tasks} tasks shows nothing; draw at most {MOST_DRAWN}, with fewer micro-batches"
        )
    figure = timeline_bars(
        f"{drawn.name}: {drawn.micro_batches} micro-batches on {drawn.devices} devices", pipeline_table(times),
        lane=Lane("device", "row" if len(drawn.pairs) else ""), start="start_ms",
        end=Axis("end_ms", title="time [ms]", domain=[0.0, 1e3 * times.makespan]), color=Color("kind", KINDS),
        over=[Label("micro_batch" if drawn.tasks <= _MOST_NUMBERED else "", inside=True)],
    )  # fmt: skip
    return figure.with_caption(
        f"Idle {times.idle_share:z.1%} of the time; at most {_in_flight_words(times)} in flight on a device."
    )


def pipeline_with_memory(times: PipelineTimes, kept: Sequence[float], limit: float | None = None) -> Figure:
    """The diagram of a pipeline schedule, and below it how many micro-batches' activations devices hold over time.

    `kept` is the share of a micro-batch's activations that each device holds from B until W; `limit` is drawn as a
    line. Raises InputError for more than 20,000 tasks.
    """
    diagram, until = pipeline_diagram(times), 1e3 * times.makespan
    held = step_lines(
        "activations", memory_table(times, kept), x=Axis("time_ms", domain=[0, until]), y="held", series="device",
        limit=limit,
    )  # fmt: skip
    line = "; the dashed line is the limit" if limit is not None else ""
    return stack_figures(
        diagram.title, [diagram, held], f"{diagram.caption} Below: the activations that devices hold{line}."
    )


def schedule_with_memory(answer: Step) -> Figure:
    """The beginning of a step's schedule on every device, above the memory of the fullest one, on one axis of time [s].

    A schedule of few tasks is drawn to its end.
    """
    times = answer.pipeline
    begins = np.sort(times.start[~np.isnan(times.start)])
    until = float(begins[_MOST_BESIDE]) if len(begins) > _MOST_BESIDE else times.makespan
    rows = [(*row[:4], row[4] / 1e3, row[5] / 1e3) for row in pipeline_table(times).rows if row[4] < until * 1e3]
    columns = [
        text("lane", "device"), text("kind"), number("stage"), number("micro_batch", "micro-batch"),
        number("start_s", "start", "s", ",.4f"), number("end_s", "end", "s", ",.4f"),
    ]  # fmt: skip
    tasks = timeline_bars(
        schedule_name(times.schedule.name).words, Table(columns, rows), lane="lane", start="start_s",
        end=Axis("end_s", title="time [s]", domain=[0.0, until]), color=Color("kind", KINDS), name="tasks",
    )  # fmt: skip
    below = memory_curve(answer, until)
    said = f"The first {until:,.3g} of {times.makespan:,.3g} s; what follows repeats until the last micro-batches leave"
    if until == times.makespan:
        said = f"All {until:,.3g} s of the pipeline"
    caption = (
        f"{said}. Idle {times.idle_share:z.1%} of the time; at most {_in_flight_words(times)} in flight on a device."
    )
    return stack_figures(
        "What does every stage do when, and what does it hold?", [tasks, *([below] if below else [])],
        f"{caption} {below.caption if below else ''}".strip(),
    )  # fmt: skip


def memory_table(times: PipelineTimes, kept: Sequence[float]) -> Table:
    """Activations that devices hold from each start of a task on; of many devices, some that are spread evenly."""
    rows = []
    for device in shown_devices(times.schedule.devices, _CURVES):
        for when, held in zip(*times.in_flight(device, kept[device]), strict=True):
            rows.append((f"device {device}", float(1e3 * when), float(held)))
    columns = [
        text("device"), number("time_ms", "time", "ms", ",.3f"), number("held", "held", "micro-batches", ".2f"),
    ]  # fmt: skip
    return Table(columns, rows)


def pipeline_table(times: PipelineTimes) -> Table:
    """Return a row per task, device by device in the order in which they run."""
    columns = [
        text("device"), text("kind"), number("stage"), number("micro_batch", "micro-batch"),
        number("start_ms", "start", "ms", ",.3f"), number("end_ms", "end", "ms", ",.3f"), text("row", " "),
    ]  # fmt: skip
    rows = []
    for device, order in enumerate(times.schedule.orders):
        kinds, stages, numbers = np.unravel_index(order, times.schedule.shape)
        spans = zip(1e3 * times.start.flat[order], 1e3 * times.end.flat[order], strict=True)
        for kind, stage, micro_batch, (start, end) in zip(kinds, stages, numbers, spans, strict=True):
            row = "above" if kind == 0 else "below"
            rows.append(
                (f"device {device}", [*KINDS][kind], int(stage), int(micro_batch), float(start), float(end), row)
            )
    return Table(columns, rows)


def _in_flight_words(times: PipelineTimes) -> str:
    """Return the largest number of micro-batches in flight on a device, in words."""
    most = float(times.peak_in_flight.max())
    return f"{most:g} micro-batch{'es' * (most != 1)}"
