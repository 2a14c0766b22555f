"""What the commands of all studies share: their options, the headline table, notes, and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from weft.cli.options import file_option, folder_option, jobs_option, store_option
from weft.cli.tables import print_table

if TYPE_CHECKING:
    from weft.studies.headline import HeadlineRow

F = TypeVar("F", bound=Callable[..., Any])


class Saved(Protocol):
    """A study that can be written as JSON."""

    def save(self, path: str | Path) -> Path:
        """Write the study and return the path; OutputError if that cannot be done."""


def examples(*commands: str) -> str:
    """The end of a help page: commands to type, one a line."""
    title = "Example:" if len(commands) == 1 else "Examples:"
    return "\n".join(("\b", title, *(f"  {command}" for command in commands)))


def study_options(name: str) -> Callable[[F], F]:
    """Add --json, --out, --jobs and --no-cache: the command's json_file, folder, jobs and store."""

    def add(command: F) -> F:
        for option in (
            store_option,
            jobs_option,
            folder_option(f"Write report.html with the pictures, and {name}.json, to this folder."),
            file_option("--json", "json_file", "Write the headline and every run as JSON."),
        ):
            command = option(command)
        return command

    return add


def print_headline(title: str, rows: Sequence[HeadlineRow]) -> None:
    """Print Weft's figures, beside the published ones where there are any."""
    beside = any(row.published is not None for row in rows)
    columns = ["figure", "published", "weft", "difference"] if beside else ["figure", "weft"]
    cells = [[row.what, *(_beside(row) if beside else [_amount(row.weft, row.unit, 1)])] for row in rows]
    print_table(title, columns, cells, numbers=columns[1:])


def _beside(row: HeadlineRow) -> list[str]:
    """Published, Weft's and the difference: fractions and shares in percent and percentage points."""
    weft = _amount(row.weft, row.unit, 1)
    if row.published is None:
        return ["", weft, ""]
    difference = row.weft - row.published
    if row.unit in ("fraction", "share"):
        return [_amount(row.published, row.unit, 0), weft, f"{difference * 100:+.1f} pp"]
    shown = f"{difference:+.3f}" if row.unit == "ratio" else f"{difference:+.4g}"
    return [_amount(row.published, row.unit, 0), weft, shown]


def _amount(value: float, unit: str, more: int) -> str:
    """A figure with its unit; `more` is how many digits more than a published one has."""
    if unit == "fraction":
        return f"{value:+.{more}%}"
    if unit == "share":
        return f"{value:.{more}%}"
    return f"{value:.{2 + more}f}x" if unit == "ratio" else f"{value:.4g} {unit}"


def print_notes(notes: Sequence[str]) -> None:
    """Print what must be known to read the figures."""
    for note in notes:
        click.echo(f"note: {note}")


def write_study(
    name: str, done: Saved, json_file: Path | None, folder: Path | None, report: Callable[[Path], Path]
) -> None:
    """Write the files that --json and --out ask for, and say where they are; `report` writes a page to a folder."""
    if json_file is not None:
        click.echo(f"figures: {done.save(json_file)}")
    if folder is not None:
        click.echo(f"figures: {done.save(folder / f'{name}.json')}")
        click.echo(f"report:  {report(folder)}")
