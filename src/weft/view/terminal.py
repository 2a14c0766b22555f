"""Print tables on a terminal; rich is imported when the first one is printed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Literal

import click

from weft.core.report.table import Column, Table, text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

# Below this width [characters] sources become numbered notes, since their column would be too narrow.
_ROOM_FOR_NOTES = 130
# A last column of prose narrower than this [characters] becomes a separate table.
_LEAST_PROSE = 30
# Width of tables in a file or a pipe [characters].
_WIDTH_OF_FILES = 160
_PLAIN = str.maketrans({"×": "x", "µ": "u", "–": "-", "−": "-"})


def print_table(table: Table) -> None:
    """Print a table.

    On a narrow terminal `spare` columns are dropped, in order, with a note, and a last column of prose that would be
    only a few letters wide becomes a separate table.
    """
    console = _console()
    notes: list[Table] = []
    if table.narrow and console.width < _ROOM_FOR_NOTES:
        table, notes = _note_texts(table)
    dropped = _to_drop(console.width, table)
    shown = table.without(dropped)
    if _is_narrow(console.width, shown):
        numbers = [at for at, column in enumerate(shown.columns) if column.is_number]
        lead, prose = shown.keys[: numbers[0] if numbers else 1], shown.columns[-1]
        _print(console, shown.without([prose.key]))
        rest = shown.without([key for key in shown.keys[:-1] if key not in lead])
        unnamed = [*rest.columns[:-1], Column(prose.key, " ", format=prose.format)]
        _print(console, Table(unnamed, rest.rows, prose.title))
    else:
        _print(console, shown)
    for more in notes:
        _print(console, more)
    if dropped:
        named = ", ".join(column.title for column in table.columns if column.key in dropped)
        console.print(f"no room for {_plain(named)}: widen the terminal to see more", soft_wrap=True)


def table_text(table: Table) -> str:
    """Return a table as text, as a file or a pipe gets it."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False, width=_WIDTH_OF_FILES, file=StringIO())
    _print(console, table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def print_parts(parts: Iterable[Table | str]) -> None:
    """Print tables and sentences, each sentence on a line."""
    for part in parts:
        if isinstance(part, str):
            click.echo(part)
        else:
            print_table(part)


def _plain(words: str) -> str:
    """Replace typographic characters by ASCII ones, which every terminal shows and every search finds."""
    return words.translate(_PLAIN)


def _note_texts(table: Table) -> tuple[Table, list[Table]]:
    """Return the table with long texts replaced by numbers, and the texts by number."""
    rows, notes = [list(row) for row in table.rows], []
    columns = list(table.columns)
    for at, column in enumerate(table.columns):
        if column.key in table.narrow:
            found = {words: str(n) for n, words in enumerate(filter(None, dict.fromkeys(row[at] for row in rows)), 1)}
            for row in rows:
                row[at] = found.get(row[at], "")
            columns[at] = Column(column.key, column.head, format=str, is_number=True)
            numbered = [(number, words) for words, number in found.items()]
            notes.append(Table([text("number", " "), text("note", " ")], numbered, table.narrow[column.key]))
    return Table(columns, rows, table.title), notes


def _to_drop(width: int, table: Table) -> list[str]:
    """Return the spare columns to drop so that no other column wraps."""
    widths = _widths(table)
    dropped: list[str] = []
    for column in (column for column in table.columns if column.spare):
        if _needed_width(widths.values()) <= width:
            break
        dropped.append(column.key)
        del widths[column.key]
    return dropped


def _is_narrow(width: int, table: Table) -> bool:
    """Return whether the last column is prose and would wrap after a few letters."""
    widths, last = _widths(table), table.columns[-1]
    if len(table.columns) < 3 or last.is_number or not any(" " in row[-1] for row in table.cells()):
        return False
    room = width - _needed_width(widths.values()) + widths[last.key]
    return room < min(widths[last.key], _LEAST_PROSE)


def _widths(table: Table) -> dict[str, int]:
    """Return the preferred width of each column [characters]."""
    cells = [table.heads, *table.cells()]
    return {
        key: max(len(line) for cell in column for line in cell.split("\n"))
        for key, column in zip(table.keys, zip(*cells, strict=True), strict=True)
    }


def _needed_width(widths: Collection[int]) -> int:
    """Return the width of a table without padding: one space between columns and at both edges."""
    return sum(widths) + len(widths) + 1


def _console() -> Console:
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    return console


def _print(console: Console, table: Table) -> None:
    from rich import box
    from rich.table import Table as RichTable

    rows: Sequence[Sequence[str]] = [[_plain(cell) for cell in row] for row in table.cells()]
    made = RichTable(box=box.SIMPLE_HEAD, show_header=any(head.strip() for head in table.heads))
    widths = _widths(table)
    for position, column in enumerate(table.columns):
        side: Literal["left", "right"] = "right" if column.is_number else "left"
        # Names and numbers must not wrap; prose may.
        whole = column.is_number or not any(" " in row[position] for row in rows)
        least = widths[column.key] if whole else None
        made.add_column(_plain(column.title).strip(), justify=side, overflow="fold", no_wrap=whole, min_width=least)
    for row in rows:
        made.add_row(*row)
    # Printed separately: rich would wrap the table's own title at the table's width.
    console.print(_plain(table.title), style="italic")
    _print_fitted(console, made)


def _print_fitted(console: Console, table: RichTable) -> None:
    """Print a table compactly if it does not fit, and past the edge rather than with digits cut off."""
    from rich.measure import Measurement

    unlimited = console.options.update(max_width=10_000)
    if Measurement.get(console, unlimited, table).maximum > console.width:
        table.padding, table.pad_edge = (0, 0), False
    needed = Measurement.get(console, unlimited, table).minimum
    table.width = needed if needed > console.width else None
    console.print(table, crop=False)
