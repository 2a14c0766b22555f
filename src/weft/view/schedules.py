"""A pipeline schedule that was found or checked: the verdict, its table beside named schedules, picture and page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.report import Part, Report
from weft.core.report.table import Table, number, text
from weft.view.figure import Figure
from weft.view.pipeline import MOST_DRAWN, pipeline_with_memory

if TYPE_CHECKING:
    from weft.plan.schedules import TimedSchedule
    from weft.step.pipeline import PipelineTimes

_PROVEN = 5e-5
"""Gap below which an order is said to be the best: less than the last digit of a table."""


def schedule_verdict(answer: TimedSchedule) -> str:
    """Return the bubble, the memory, and how far the order is from the bound, in a sentence."""
    what = _objective(answer)
    name = "The order found" if answer.searched else f"'{answer.schedule.name}'"
    peak, limit = f"{answer.peaks.max():.4g}", f"{max(answer.limit):.4g}"
    memory = f"holds at most {peak} of {limit} micro-batches' activations"
    if answer.gap is None:
        memory = f"holds up to {peak} micro-batches' activations, more than a limit of {min(answer.limit):.4g} admits"
    return (
        f"{name} idles {answer.bubble(answer.times):.2%} of its {what}, {1e3 * answer.cost(answer.times):,.1f} ms, and "
        f"{memory}{_proof(answer)}."
    )


def _proof(answer: TimedSchedule) -> str:
    if answer.gap is None:
        return ""
    if answer.gap < _PROVEN:
        return "; no order of one stage a device within this memory is shorter"
    return f"; no order of one stage a device within this memory is more than {answer.gap:.2%} shorter"


def better_named(answer: TimedSchedule) -> str:
    """The best named schedule within the limit that is shorter than this one, in a sentence; empty if there is none."""
    cost = {name: answer.cost(times) for name, times in answer.named.items() if answer.fits(times)}
    best = min(cost, key=cost.__getitem__, default="")
    if not best or cost[best] >= answer.cost(answer.times) * (1 - _PROVEN):
        return ""
    chunks = answer.named[best].schedule.stages // answer.schedule.devices
    what = f", which needs {chunks} chunks of the model on each device," if chunks > 1 else ""
    return f"'{best}'{what} idles {answer.bubble(answer.named[best]):.2%} within the same limit."


def _bound(answer: TimedSchedule) -> str:
    return f"which is at least {1e3 * answer.least:,.1f} ms in orders of one stage a device within the limit"


def _objective(answer: TimedSchedule) -> str:
    return "longest span" if answer.objective == "span" else "makespan"


def _row(answer: TimedSchedule, name: str, times: PipelineTimes) -> tuple[object, ...]:
    return (
        name, 1e3 * float(times.span.max()), 1e3 * times.makespan, answer.bubble(times),
        float(answer.most_held(times).max()), "yes" if answer.fits(times) else "no",
    )  # fmt: skip


class ScheduleReport(Report["TimedSchedule"]):
    """A schedule beside named ones, and its picture."""

    explained = "schedule"

    def title(self) -> str:
        """Return the schedule, its stages and micro-batches."""
        order = self.answer.schedule
        return f"Pipeline schedule '{order.name}': {order.micro_batches} micro-batches on {order.devices} stages"

    def sentences(self) -> list[str]:
        """Return the bubble, the memory, and how far the order is from the bound."""
        return [schedule_verdict(self.answer)]

    def notes(self) -> list[str]:
        """Return what to know about the table."""
        answer = self.answer
        notes = list(filter(None, [better_named(answer)]))
        if len(answer.named) > 4:
            notes.append(
                "interleaved:2, zb-v, v-half and v-min run two chunks of half a stage on each device, which send twice "
                "as often; the bound is of orders with one stage a device."
            )
        if answer.activations:
            size = max(peak * bytes_ for peak, bytes_ in zip(answer.peaks, answer.activations, strict=True))
            notes.append(f"At its peak a stage holds {size / 1e9:,.2f} GB of activations.")
        return notes

    def table(self) -> Table:
        """Return the schedule beside named ones: span, makespan, bubble, memory."""
        answer = self.answer
        rows = [_row(answer, answer.schedule.name, answer.times)]
        rows += [_row(answer, name, times) for name, times in answer.named.items()]
        columns = [
            text("schedule"), number("span_ms", "longest span", "ms", ",.1f"),
            number("makespan_ms", "makespan", "ms", ",.1f"), number("bubble", format_=".2%"),
            number("peak", "activations", "micro-batches", ".2f"), text("fits", "within the limit"),
        ]  # fmt: skip
        return Table(columns, rows, f"Bubble: idle share of the {_objective(answer)}, {_bound(answer)}")

    def figures(self) -> list[Figure]:
        """Devices over time, and the memory of each below; none for more tasks than a picture shows."""
        answer = self.answer
        drawn = answer.schedule.tasks <= MOST_DRAWN
        return [pipeline_with_memory(answer.times, answer.kept, max(answer.limit))] if drawn else []

    def sections(self) -> list[Part]:
        """Return the picture, or why there is none, and the table."""
        none: list[Part] = [
            f"A picture of {self.answer.schedule.tasks:,} tasks would show nothing; schedule.json holds all times."
        ]
        return [*(self.figures() or none), *self.tables()]
