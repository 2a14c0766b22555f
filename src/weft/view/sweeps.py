"""Sweeps: the points as a table, the best against the last value that varies, and why others do not work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.report import Part, Report
from weft.report.table import Column, Table, microseconds, number, text, times_faster
from weft.sweep.questions import listed, named
from weft.view import looks
from weft.view.figure import Figure, bars, curves

if TYPE_CHECKING:
    from weft.sweep.answer import Point, Sweep

_SHOWN = {
    "bound": (text("bound"), 1),
    "mfu": (number("mfu", "MFU", "%", ".1f"), 100),
    "tokens_per_s_per_gpu": (number("tokens_per_s_per_gpu", "tokens/s per GPU", format_=",.0f"), 1),
    "peak_bytes": (number("peak_gb", "peak memory", "GB", ".1f"), 1e-9),
    "fits": (text("fits"), 1),
}
"""Figures beside the time: their columns, and the factor to the column's unit."""
_REASONS = 5
_NONE = ", but none fits the memory of its GPUs"
_GOALS = {"memory": number("peak_gb", "peak memory", "GB", ".2f"), "step": number("step_s", "step time", "s", ".4g")}
_PER_UNIT = {"memory": 1e-9, "step": 1.0}


def sweep_table(answer: Sweep) -> Table:
    """Every point: the values that vary, its time or memory, and its speedup over the first overlap or its bound."""
    return _table(answer, list(answer))


def best_table(answer: Sweep) -> Table:
    """The best points, best first."""
    return _table(answer, answer.summary.best)


def _table(answer: Sweep, points: Sequence[Point]) -> Table:
    goal = _goal(answer)
    shown = [name for name in _SHOWN if name in answer.columns.types and name != answer.goal]
    columns = [*(text(name) for name in answer.axes), goal, *(_SHOWN[name][0] for name in shown)]
    rows = [
        [*map(_text, point.values), _reached(answer, point), *(_figure(point, name) for name in shown)]
        for point in points
    ]
    if "overlap" in answer.axes:
        columns.append(times_faster("speedup"))
        rows = [[*row, point.speedup] for row, point in zip(rows, points, strict=True)]
    if answer.summary.reasons and any(point.why for point in points):
        columns.append(text("why"))
        rows = [[*row, point.why] for row, point in zip(rows, points, strict=True)]
    return Table(columns, rows, answer.title)


def _goal(answer: Sweep) -> Column:
    """The column of what is compared: a time in microseconds or seconds, or a peak of memory."""
    return _GOALS.get(answer.matrix.data["run"]) or microseconds("time", "time", 2)


def _reached(answer: Sweep, point: Point) -> float | None:
    if point.why:
        return None
    return float(point[answer.goal]) * _PER_UNIT.get(answer.matrix.data["run"], 1e6)


def _figure(point: Point, name: str) -> Any:
    """A figure of a point in the unit of its column."""
    value, factor = point.get(name), _SHOWN[name][1]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value * factor if isinstance(value, int | float) else value


def _text(value: Any) -> str:
    return str(listed(named(value)))


def sweep_figure(answer: Sweep) -> Figure:
    """Time or memory over the last axis of numbers, a line for each combination of the others; else bars.

    Raises InputError if no combination works.
    """
    points = [point for point in answer if not point.why]
    if not points:
        raise InputError("no combination of this sweep works, so there is nothing to draw; its table says why")
    name, places, unit = answer.scale or (answer.axes[0] if answer.axes else "work", [], "")
    goal, others = _goal(answer), [axis for axis in answer.axes if axis != name]
    reached = [_reached(answer, point) or 0.0 for point in points]
    lines = list(_lines(answer, points, name))
    said = [format(value, ",.1f" if goal.unit == "µs" else ",.4g") for value in reached]
    series = [text("series", ", ".join(others) or "time"), goal, text("said", " ")]
    colors = looks.overlap_looks(list(dict.fromkeys(lines)))
    if places:
        drawn = sorted(zip(places, lines, reached, said, strict=True), key=lambda row: row[0])
        shown = Table([number("value", name, unit, "g"), *series], drawn)
        return curves(
            f"How does the {goal.head} change?", shown, x="value", y=goal.key, series="series", looks=colors
        ).captioned(answer.title)
    at = answer.axes.index(name) if answer.axes else None
    values = [answer.title if at is None else _text(point.values[at]) for point in points]
    shown = Table([text("value", name), *series], list(zip(values, lines, reached, said, strict=True)))
    return bars(
        "Which one takes how long?",
        shown,
        lane="value",
        offset="series",
        kind="series",
        end=goal.key,
        label="said",
        looks=colors,
    ).captioned(answer.title)


def _lines(answer: Sweep, points: Sequence[Point], drawn: str) -> Iterator[str]:
    """The name of each point's line: its values on the axes that the figure does not draw against."""
    for point in points:
        values = [
            f"{axis} {value}" if isinstance(value, int | float) else _text(value)
            for axis, value in zip(answer.axes, point.values, strict=True)
            if axis != drawn
        ]
        yield ", ".join(values) or "time"


class SweepReport(Report["Sweep"]):
    """A sweep: how many combinations work, the best points, the picture, and why others do not work."""

    def title(self) -> str:
        """What was asked."""
        return self.answer.title

    def sentences(self) -> list[str]:
        """How many combinations work, and by which figure the best are chosen."""
        whole, best, reasons = self.answer.summary
        works = whole - sum(reasons.values())
        said = f"{works:,} of {whole:,} combinations work"
        return [f"{said}; the best by {self.answer.goal}:" if best else f"{said}{_NONE * (works > 0)}."]

    def notes(self) -> list[str]:
        """Why combinations do not work, the most frequent reasons first."""
        reasons = self.answer.summary.reasons
        shown = [f"{count:,} do not work: {why}" for why, count in list(reasons.items())[:_REASONS]]
        hidden = len(reasons) - _REASONS
        return [*shown, *([f"{hidden:,} more reasons are in the column why of the table"] if hidden > 0 else [])]

    def tables(self) -> list[Table]:
        """Every point."""
        return [sweep_table(self.answer)]

    def figures(self) -> Sequence[Figure]:
        """Time or memory over the last axis of numbers; none if no combination works."""
        with suppress(InputError):
            return [sweep_figure(self.answer)]
        return []

    def on_terminal(self) -> list[Table]:
        """The best points."""
        return [best_table(self.answer)] if self.answer.summary.best else []

    def sections(self) -> list[Part]:
        """The best points, the picture, and all points."""
        return [*self.on_terminal(), *self.figures(), replace(self.tables()[0], title="Every combination")]
