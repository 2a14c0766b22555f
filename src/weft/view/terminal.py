"""Tables on a terminal; rich is imported when the first one is printed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Literal

import click

from weft.view.table import Column, Table, text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

# Below this width [columns] sources would be a column of a few letters: they become numbered notes instead.
_ROOM_FOR_NOTES = 130
# A last column of prose with less room than this [columns] becomes a table of its own.
_LEAST_PROSE = 30
# Width of tables that go to a file or a pipe [columns].
_WIDTH_OF_FILES = 160
_PLAIN = str.maketrans({"×": "x", "µ": "u", "–": "-", "−": "-"})


def print_table(table: Table) -> None:
    """Print a table.

    Where there is little room, its `spare` columns are left out, first the first, and told, and a last column of prose
    that would be a few letters wide becomes a table of its own.
    """
    console = _console()
    notes: list[Table] = []
    if table.narrow and console.width < _ROOM_FOR_NOTES:
        table, notes = _noted(table)
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
    """A table as text, as a file or a pipe gets it."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False, width=_WIDTH_OF_FILES, file=StringIO())
    _print(console, table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def print_parts(parts: Iterable[Table | str]) -> None:
    """Print tables, and sentences on a line each."""
    for part in parts:
        if isinstance(part, str):
            click.echo(part)
        else:
            print_table(part)


def _plain(words: str) -> str:
    """Signs of a page as every terminal and every search knows them."""
    return words.translate(_PLAIN)


def _noted(table: Table) -> tuple[Table, list[Table]]:
    """The table with numbers in the place of long texts, and the texts by their numbers."""
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
    """The spare columns that must go so that no other is broken."""
    widths = _widths(table)
    dropped: list[str] = []
    for column in (column for column in table.columns if column.spare):
        if _needed(widths.values()) <= width:
            break
        dropped.append(column.key)
        del widths[column.key]
    return dropped


def _is_narrow(width: int, table: Table) -> bool:
    """Whether the last column is prose and would be broken into a few letters a line."""
    widths, last = _widths(table), table.columns[-1]
    if len(table.columns) < 3 or last.is_number or not any(" " in row[-1] for row in table.cells()):
        return False
    room = width - _needed(widths.values()) + widths[last.key]
    return room < min(widths[last.key], _LEAST_PROSE)


def _widths(table: Table) -> dict[str, int]:
    """The width that each column would like [columns of the terminal]."""
    cells = [table.heads, *table.cells()]
    return {
        key: max(len(line) for cell in column for line in cell.split("\n"))
        for key, column in zip(table.keys, zip(*cells, strict=True), strict=True)
    }


def _needed(widths: Collection[int]) -> int:
    """The width of a table without padding: a space between columns and at both edges."""
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
    for position, column in enumerate(table.columns):
        side: Literal["left", "right"] = "right" if column.is_number else "left"
        # A name or a number in two lines would be misread; prose may be broken.
        whole = column.is_number or not any(" " in row[position] for row in rows)
        made.add_column(_plain(column.title).strip(), justify=side, overflow="fold", no_wrap=whole)
    for row in rows:
        made.add_row(*row)
    # Not the table's own title, which would be broken at the table's width.
    console.print(_plain(table.title), style="italic")
    _print_fitted(console, made)


def _print_fitted(console: Console, table: RichTable) -> None:
    """Print a table in less room where there is little, and beyond the edge rather than with digits cut off."""
    from rich.measure import Measurement

    unlimited = console.options.update(max_width=10_000)
    if Measurement.get(console, unlimited, table).maximum > console.width:
        table.padding, table.pad_edge = (0, 0), False
    needed = Measurement.get(console, unlimited, table).minimum
    table.width = needed if needed > console.width else None
    console.print(table, crop=False)
