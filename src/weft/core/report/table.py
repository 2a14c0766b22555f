"""The table model: typed columns over raw values, rendered to terminal, page, CSV and JSON."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from weft.core.files import write_csv

NONE = "–"
"""The text of a missing value."""


class Shown(NamedTuple):
    """A cell with a text of its own, because its unit differs from the column's."""

    value: Any
    text: str


@dataclass(frozen=True)
class Column:
    """A column: its `key` in files, its head with unit, and the format of its values.

    `format` is a format specification (",.1f"), a template ("{:.3f}×"), or a function. Numbers are right-aligned and
    sort by value. `spare` columns are dropped first on narrow terminals; a last column of `prose` may wrap.
    """

    key: str
    head: str = ""
    unit: str = ""
    format: str | Callable[[Any], str] = ""
    is_number: bool = False
    spare: bool = False
    prose: bool = False

    @property
    def title(self) -> str:
        """The head with its unit in brackets."""
        head = self.head or self.key
        return f"{head} [{self.unit}]" if self.unit else head

    def text(self, value: Any) -> str:
        """Return a cell as readable text."""
        if isinstance(value, Shown):
            return value.text
        if value is None:
            return NONE if self.is_number else ""
        if callable(self.format):
            return self.format(value)
        written = self.format.format(value) if "{" in self.format else format(value, self.format)
        zero = self.is_number and not any(sign in "123456789" for sign in written)
        return written.removeprefix("-") if zero else written


def text(key: str, head: str = "", **more: Any) -> Column:
    """Return a column of words."""
    return Column(key, head, format=str, **more)


def number(key: str, head: str = "", unit: str = "", format_: str | Callable[[Any], str] = ",", **more: Any) -> Column:
    """Return a column of numbers."""
    return Column(key, head, unit, format_, is_number=True, **more)


def texts(heads: Sequence[str], **more: Any) -> list[Column]:
    """Return columns of words, named by their heads."""
    return [text(key_of(head), head, **more) for head in heads]


def microseconds(key: str, head: str, digits: int = 1) -> Column:
    """Return a column of times in microseconds."""
    return number(f"{key}_us", head, "µs", f",.{digits}f")


def milliseconds(key: str, head: str, longest: float, **more: Any) -> Column:
    """A column of times in milliseconds, shown in the unit that suits the `longest` [ms]; files keep milliseconds."""
    scale, unit = (1e-3, "s") if longest >= 1e3 else (1.0, "ms") if longest >= 1 else (1e3, "µs")
    shown = longest * scale
    digits = 1 if shown >= 100 else 2 if shown >= 10 else 3
    return number(key, head, unit, lambda value: f"{value * scale:,.{digits}f}", **more)


def times_faster(key: str, head: str = "", format_: str = ".3f") -> Column:
    """Return a column of speedups or slowdowns."""
    return number(key, head, format_=format_)


def key_of(head: str) -> str:
    """Return the name of a column in a file: lower-case letters, digits and underscores."""
    return re.sub(r"\W+", "_", head.lower().replace("µ", "u").replace("%", "percent")).strip("_")


@dataclass(frozen=True)
class Table:
    """Columns, rows of raw values, and a title."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    narrow: Mapping[str, str] = field(default_factory=dict)
    """Columns whose texts become numbered notes on narrow terminals, with the title of the notes."""

    @property
    def heads(self) -> list[str]:
        """The heads, each with its unit."""
        return [column.title for column in self.columns]

    @property
    def keys(self) -> list[str]:
        """The columns' names in files."""
        return [column.key for column in self.columns]

    def column(self, key: str) -> list[Any]:
        """Return the raw values of a column."""
        at = self.keys.index(key)
        return [row[at] for row in self.rows]

    def distinct(self, key: str) -> list[Any]:
        """Return the distinct values of a column, in the order of the rows."""
        return list(dict.fromkeys(self.column(key)))

    def cells(self) -> list[list[str]]:
        """Return every row as readable text."""
        return [[c.text(value) for c, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def values(self) -> Iterator[list[Any]]:
        """Yield every row as written to files."""
        for row in self.rows:
            yield [plain(value) for value in row]

    def without(self, keys: Collection[str]) -> Table:
        """Return the table without some columns."""
        kept = [at for at, column in enumerate(self.columns) if column.key not in keys]
        rows = [[row[at] for at in kept] for row in self.rows]
        return Table([self.columns[at] for at in kept], rows, self.title, self.narrow)

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as objects, for JSON."""
        return [dict(zip(self.keys, row, strict=True)) for row in self.values()]

    def csv(self) -> str:
        """Return the rows as CSV, with the keys as header."""
        return csv_text(self.records(), self.keys)


def plain(value: Any) -> Any:
    """Return a cell's raw value, numpy scalars as Python numbers."""
    if isinstance(value, Shown):
        value = value.value
    return value.item() if isinstance(value, np.generic) else value


def csv_text(rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> str:
    """Return rows as CSV; missing values are empty. Without `names`, the columns are the union of all rows' keys."""
    out = io.StringIO()
    found = names or list(dict.fromkeys(name for row in rows for name in row))
    write_csv(out, rows, found)
    return out.getvalue()
