"""Tables on the terminal; rich is imported when the first one is printed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import click

from weft.report.tables import Table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

    from weft.hardware import Provenance

# Below this width [columns] sources would be a column of a few letters: they become numbered notes instead.
_ROOM_FOR_SOURCES = 130
# A last column of prose with less room than this [columns] becomes a table of its own.
_LEAST_PROSE = 30
# Width of tables that go to a file or a pipe [columns].
_WIDTH_OF_FILES = 160


def print_table(table: Table) -> None:
    """Print a table.

    Where there is little room, its `spare` columns are left out, first the first, and told. A last column of prose that
    would be a few letters wide becomes a table of its own.
    """
    console, heads = _console(), [_plain(head) for head in table.heads]
    rows = [[_plain(cell) for cell in row] for row in table.rows]
    right = {head for at, head in enumerate(heads) if table.is_number(at)}
    dropped = _to_drop(console.width, heads, rows, table.spare)
    kept = [position for position, name in enumerate(heads) if name not in dropped]
    heads, rows = [heads[i] for i in kept], [[row[i] for i in kept] for row in rows]
    title = _plain(table.title)
    if _is_narrow(console.width, heads, rows, right):
        lead = next((i for i, name in enumerate(heads) if name in right), 1)
        _print_table(console, title, heads[:-1], [row[:-1] for row in rows], right)
        _print_table(console, heads[-1], [*heads[:lead], ""], [[*row[:lead], row[-1]] for row in rows], right)
    else:
        _print_table(console, title, heads, rows, right)
    if dropped:
        console.print(f"no room for {', '.join(dropped)}: widen the terminal to see more", soft_wrap=True)


def print_parts(parts: Iterable[Table | str]) -> None:
    """Print tables, and sentences on a line each."""
    for part in parts:
        if isinstance(part, str):
            click.echo(part)
        else:
            print_table(part)


_PLAIN = str.maketrans({"×": "x", "µ": "u", "–": "-"})


def _plain(text: str) -> str:
    """Signs of a page as every terminal and every search knows them."""
    return text.translate(_PLAIN)


def _to_drop(width: int, columns: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str]) -> list[str]:
    """The spare columns that must go so that no other is broken."""
    widths = _widths(columns, rows)
    dropped: list[str] = []
    for name in (name for name in spare if name in widths):
        if _needed(widths.values()) <= width:
            break
        dropped.append(name)
        del widths[name]
    return dropped


def _is_narrow(width: int, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str]) -> bool:
    """Whether the last column is prose and would be broken into a few letters a line."""
    widths = _widths(columns, rows)
    if len(columns) < 3 or columns[-1] in right or not any(" " in row[-1] for row in rows):
        return False
    prose = widths[columns[-1]]
    room = width - _needed(widths.values()) + prose
    return room < min(prose, _LEAST_PROSE)


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, int]:
    """The width that each column would like [columns of the terminal]."""
    cells = {name: [name, *(row[i] for row in rows)] for i, name in enumerate(columns)}
    return {name: max(len(line) for cell in of for line in cell.split("\n")) for name, of in cells.items()}


def _needed(widths: Collection[int]) -> int:
    """The width of a table without padding: a space between columns and at both edges."""
    return sum(widths) + len(widths) + 1


def print_sourced(title: str, name: str, values: Mapping[str, str], provenance: Mapping[str, Provenance]) -> None:
    """Print values by what `name` calls their key, each with its kind, plausible range and source."""
    console = _console()
    known = [(key, text, provenance.get(key)) for key, text in values.items()]
    columns = [name, "value", "kind", "plausible range", "source"]
    rows = [[key, text, from_.kind if from_ else "", _range(from_)] for key, text, from_ in known]
    sources = [from_.source if from_ else "" for _, _, from_ in known]
    notes = {source: str(number) for number, source in enumerate(filter(None, dict.fromkeys(sources)), 1)}
    wide = console.width >= _ROOM_FOR_SOURCES
    marks = sources if wide else [notes.get(source, "") for source in sources]
    cells = [[*row, mark] for row, mark in zip(rows, marks, strict=True)]
    _print_table(console, title, columns, cells, () if wide else ("source",))
    if not wide:
        _print_table(console, "Sources", ["", ""], [[mark, source] for source, mark in notes.items()])


def _console() -> Console:
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_FILES
    return console


def _print_table(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
) -> None:
    from rich import box
    from rich.table import Table as RichTable

    table = RichTable(box=box.SIMPLE_HEAD, show_header=any(columns))
    for position, column in enumerate(columns):
        side: Literal["left", "right"] = "right" if column in right else "left"
        # A name or a number in two lines would be misread; prose may be broken.
        whole = side == "right" or not any(" " in row[position] for row in rows)
        table.add_column(column, justify=side, overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*row)
    # Not the table's own title, which would be broken at the table's width.
    console.print(title, style="italic")
    _print_fitted(console, table)


def _print_fitted(console: Console, table: RichTable) -> None:
    """Print a table in less room where there is little, and beyond the edge rather than with digits cut off."""
    from rich.measure import Measurement

    unlimited = console.options.update(max_width=10_000)
    if Measurement.get(console, unlimited, table).maximum > console.width:
        table.padding, table.pad_edge = (0, 0), False
    needed = Measurement.get(console, unlimited, table).minimum
    table.width = needed if needed > console.width else None
    console.print(table, crop=False)


def _range(provenance: Provenance | None) -> str:
    if provenance is None or provenance.low is None:
        return ""
    return f"{provenance.low} to {provenance.high}"
