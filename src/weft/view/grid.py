"""Sweeps over values: a row per combination, and its time over the last axis of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.report import Part, Report
from weft.report.table import Table, microseconds, number, text, times_faster
from weft.result import Timeline
from weft.view import looks
from weft.view.figure import Figure, bars, curves
from weft.view.run import with_hypothetical

if TYPE_CHECKING:
    from weft.sweep.grid import Sweep


class SweepReport(Report["Sweep"]):
    """A sweep: the time of each combination."""

    def title(self) -> str:
        """What was varied."""
        return super().title() or "Sweep"

    def sentences(self) -> list[str]:
        """The shortest time and its values."""
        answer, best = self.answer, self.answer.best
        values = ", ".join(_series(name, value) for name, value in zip(answer.axes, best.values, strict=True))
        return [f"The shortest of {len(answer)} times is {best.seconds * 1e6:,.1f} µs: {values}."]

    def tables(self) -> list[Table]:
        """A row per combination: its values, its time, and its speedup or bound."""
        return [_sweep_table(self.answer)]

    def figures(self) -> Sequence[Figure]:
        """Time over the last numeric axis."""
        return [_sweep_figure(self.answer)]

    def sections(self) -> list[Part]:
        """The picture and the table."""
        return [*self.figures(), replace(self.tables()[0], title="")]


def _text(value: Any) -> str:
    """An axis value in words."""
    return value if isinstance(value, str) else str(getattr(value, "name", None) or value)


def _series(axis: str, value: Any) -> str:
    """An axis value in a legend; a bare number gets its axis' name."""
    return f"{axis} {value}" if isinstance(value, int | float) else _text(value)


def _sweep_table(answer: Sweep) -> Table:
    """A row per combination: its values, its time, and its speedup over the first overlap, or its bound."""
    first = answer.points[0]
    title = with_hypothetical(answer.title, (p.answer for p in answer if isinstance(p.answer, Timeline)))
    columns = [*map(text, answer.axes), microseconds("time", "time", 2)]
    rows = [[*map(_text, point.values), point.seconds * 1e6] for point in answer]
    if isinstance(first.answer, Timeline) and first.speedup is None:
        return Table(columns, rows, title)
    last = [point.speedup if isinstance(point.answer, Timeline) else point.answer.bound for point in answer]
    column = times_faster("speedup") if isinstance(first.answer, Timeline) else text("bound")
    return Table([*columns, column], [[*row, end] for row, end in zip(rows, last, strict=True)], title)


def _sweep_figure(answer: Sweep) -> Figure:
    """Time over the last numeric axis, a line per combination of the others; bars if no axis is numeric."""
    name, numbers, unit = answer.scale or (answer.axes[0], [], "")
    at = answer.axes.index(name)
    others = ", ".join(axis for axis in answer.axes if axis != name)
    rows = [
        (
            numbers[place] if numbers else _text(point.values[at]),
            ", ".join(_series(answer.axes[i], value) for i, value in enumerate(point.values) if i != at) or "time",
            point.seconds * 1e6,
            f"{point.seconds * 1e6:,.1f}",
        )
        for place, point in enumerate(answer)
    ]
    colors = looks.overlap_looks(list(dict.fromkeys(row[1] for row in rows)))
    more = [text("series", others or "time"), microseconds("time", "time"), text("said", " ")]
    if numbers:
        shown = Table([number("value", name, unit, "g"), *more], sorted(rows, key=lambda row: row[0]))
        return curves(
            "How does the time change?", shown, x="value", y="time_us", series="series", looks=colors
        ).captioned(answer.title)
    shown = Table([text("value", name), *more], rows)
    title = "Which one takes how long?"
    return bars(
        title, shown, lane="value", offset="series", kind="series", end="time_us", label="said", looks=colors
    ).captioned(answer.title)
