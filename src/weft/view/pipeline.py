"""The diagram of a pipeline schedule: devices, and what each does over time."""

from __future__ import annotations

import numpy as np

from weft.errors import InputError
from weft.schedule.pipeline import PipelineTimes
from weft.view.figure import Figure, bars
from weft.view.looks import BLUE, GREEN, ORANGE, Looks
from weft.view.table import Table, number, text

KINDS: Looks = {"forward": BLUE, "backward": GREEN, "weight gradient": ORANGE}
"""Kinds of tasks; a backward without a weight gradient of its own is whole."""
_MOST_DRAWN, _MOST_NUMBERED = 20_000, 240


def pipeline_diagram(times: PipelineTimes) -> Figure:
    """Devices over time [ms]: the tasks of a pipeline schedule, numbered by micro-batch where there is room.

    Where a device runs a forward and a backward together, forwards are drawn above all else.

    Raises InputError for more than 20,000 tasks.
    """
    drawn = times.schedule
    if drawn.tasks > _MOST_DRAWN:
        raise InputError(
            f"a diagram of {drawn.tasks} tasks shows nothing; draw at most {_MOST_DRAWN}, with fewer micro-batches"
        )
    figure = bars(
        f"{drawn.name}: {drawn.micro_batches} micro-batches on {drawn.devices} devices",
        pipeline_table(times), lane="device", start="start_ms", end="end_ms", kind="kind", looks=KINDS,
        offset="row" if len(drawn.pairs) else "", inside="micro_batch" if drawn.tasks <= _MOST_NUMBERED else "",
        axis="time [ms]",
    )  # fmt: skip
    return figure.captioned(f"Idle {times.idle_share:.1%} of the time; at most {_held(times)} in flight on a device.")


def pipeline_table(times: PipelineTimes) -> Table:
    """A row per task, device by device in the order in which they run."""
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


def _held(times: PipelineTimes) -> str:
    """The largest number of micro-batches in flight on a device, in words."""
    most = float(times.peak_in_flight.max())
    return f"{most:g} micro-batch{'es' * (most != 1)}"
