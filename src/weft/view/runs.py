"""Sweeps of a file: the rows as a table, the best against the last value that varies, and why others do not work."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, UnitError
from weft.units import common_unit
from weft.view.figure import Figure, curves
from weft.view.page import write_page
from weft.view.table import Column, Table, number, text

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


def runs_parts(answer: Runs) -> list[Table | str]:
    """The best rows, and in a sentence for each reason how many combinations do not work."""
    whole, best, reasons = answer.summary
    works = whole - sum(reasons.values())
    said = f"{works:,} of {whole:,} combinations work"
    shown: list[Table | str] = (
        [f"{said}; the best by {answer.goal}:", best_table(answer)] if best else [f"{said}{_NONE * (works > 0)}."]
    )
    shown += [f"{count:,} do not work: {why}" for why, count in list(reasons.items())[:_REASONS]]
    hidden = len(reasons) - _REASONS
    return [*shown, *([f"{hidden:,} more reasons are in the column why of the table"] if hidden > 0 else [])]


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


def runs_page(answer: Runs, folder: Path) -> Path:
    """A page of the best rows, the picture and all rows."""
    head, *rest = runs_parts(answer)
    pictures: list[Figure] = []
    with suppress(InputError):
        pictures = [runs_figure(answer)]
    lead = " ".join(str(part) for part in (head, *rest) if isinstance(part, str))
    return write_page(
        folder, title(answer), lead, [best_table(answer), *pictures, replace(runs_table(answer), title="")]
    )
