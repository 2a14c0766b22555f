"""Sweeps of a file: the rows as a table, the best against the last value that varies, and why others do not work."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, UnitError
from weft.report import Part, Report
from weft.report.table import Column, Table, number, text
from weft.units import common_unit
from weft.view.figure import Figure, curves

if TYPE_CHECKING:
    from weft.sweep.outcome import Runs

_SHOWN = ("seconds", "mfu", "tokens_per_s_per_gpu", "peak_bytes", "fits")
_REASONS = 5
_NONE = ", but none fits the memory of its GPUs"


def runs_table(answer: Runs) -> Table:
    """Every row with all of its columns."""
    names = answer.columns.names
    columns = [_column(answer, name) for name in names]
    return Table(columns, [[row.get(name) for name in names] for row in answer], title(answer))


def _column(answer: Runs, name: str) -> Column:
    if answer.columns.kind(name) in (int, float):
        return number(name, format_=".6g")
    return text(name)


def title(answer: Runs) -> str:
    """What was asked, on one line."""
    data = answer.matrix.data
    words = [data["run"], *(str(data[name]) for name in ("model", "work", "system") if name in data)]
    return f"{' '.join(words)}: {' x '.join(f'{len(v)} {name}' for name, v in answer.matrix.axes.items()) or 'one run'}"


def best_table(answer: Runs) -> Table:
    """The best rows: the values that vary, and the figures by which plans are compared."""
    names = [*answer.axes, *(name for name in _SHOWN if name in answer.columns.types)]
    rows = [[row.get(name) for name in names] for row in answer.summary.best]
    return Table([_column(answer, name) for name in names], rows, title(answer))


def runs_figure(answer: Runs) -> Figure:
    """The goal over the last axis of numbers, a line for each combination of the other axes.

    Raises InputError if no axis has numbers, or no combination works.
    """
    rows = [row for row in answer if not row["why"]]
    found = next(filter(None, (_numbers(rows, name) for name in reversed(answer.axes))), None)
    if found is None or not rows:
        raise InputError("no axis of this sweep has numbers to draw against; save('table.csv') holds its rows")
    name, places, unit = found
    others = [other for other in answer.axes if other != name]
    lines = [", ".join(f"{other} {row[other]}" for other in others) or answer.goal for row in rows]
    drawn = sorted(zip(places, lines, (row[answer.goal] for row in rows), strict=True))
    columns = [number("value", name, unit, "g"), text("series", ", ".join(others) or " "), number("goal", answer.goal)]
    shown = Table(columns, drawn)
    return curves("How does it change?", shown, x="value", y="goal", series="series").captioned(title(answer))


def _numbers(rows: Sequence[Any], name: str) -> tuple[str, list[float], str] | None:
    """An axis with the number of each row on it and their unit; None for words."""
    values = [row[name] for row in rows]
    if values and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return name, list(map(float, values)), ""
    with suppress(UnitError):
        numbers, unit = common_unit(values)
        return name, numbers, unit
    return None


class RunsReport(Report["Runs"]):
    """A sweep of a file: how many combinations work, the best rows, and why others do not work."""

    def title(self) -> str:
        """What was asked."""
        return title(self.answer)

    def sentences(self) -> list[str]:
        """How many combinations work, and the best one."""
        whole, best, reasons = self.answer.summary
        works = whole - sum(reasons.values())
        said = f"{works:,} of {whole:,} combinations work"
        return [f"{said}; the best by {self.answer.goal}:" if best else f"{said}{_NONE * (works > 0)}."]

    def notes(self) -> list[str]:
        """Why combinations do not work, the most frequent reasons first."""
        _, _, reasons = self.answer.summary
        shown = [f"{count:,} do not work: {why}" for why, count in list(reasons.items())[:_REASONS]]
        hidden = len(reasons) - _REASONS
        return [*shown, *([f"{hidden:,} more reasons are in the column why of the table"] if hidden > 0 else [])]

    def tables(self) -> list[Table]:
        """Every row."""
        return [runs_table(self.answer)]

    def figures(self) -> Sequence[Figure]:
        """The goal over the last axis of numbers; none if no axis has numbers."""
        with suppress(InputError):
            return [runs_figure(self.answer)]
        return []

    def on_terminal(self) -> list[Table]:
        """The best rows."""
        return [best_table(self.answer)] if self.answer.summary.best else []

    def sections(self) -> list[Part]:
        """The best rows, the picture, and all rows."""
        return [*self.on_terminal(), *self.figures(), replace(self.tables()[0], title="")]
