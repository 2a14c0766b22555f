"""Where a command may write, checked while the command line is read; and files that say where they are once written.

Use: `@click.option("--json", "json_file", type=click.Path(path_type=Path), callback=writable_file)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft import view
from weft.errors import InputError
from weft.files import (
    STDOUT,
    check_out_dir,
    check_writable,
    keep_stdout_for_data,
    release,
    reserve,
    write_atomically,
    write_json,
)
from weft.view.table import csv_text

if TYPE_CHECKING:
    from weft.result import Timeline


def writable_file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """The file that a command will write (None stays None), refused at once if it cannot be written there.

    "-" is standard output, which then holds nothing else: what people read goes to standard error.
    """
    if path is None:
        return None
    _reserve(context, option, check_writable(path))
    if path == STDOUT:
        keep_stdout_for_data()
    return path


def _reserve(context: click.Context, option: click.Parameter, path: Path) -> None:
    """Keep a place for an option until the command has ended; InputError if another one writes there."""
    if not context.meta.get(__name__):
        context.meta[__name__] = True
        release()  # what a command line that was refused may have left
        context.call_on_close(release)
    reserve(path, option.opts[0])


def named_file(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """As `writable_file`, for what may become several files, which standard output cannot hold."""
    if path == STDOUT:
        raise InputError(f"{option.opts[0]} writes a file for each GPU; give a name that ends in .json")
    return writable_file(context, option, path)


def writable_folder(*files: str) -> Callable[[click.Context, click.Parameter, Path | None], Path | None]:
    """What checks the folder that a command will write `files` to: it is refused at once if that cannot work."""

    def check(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
        if path is None:
            return None
        check_out_dir(path)
        for name in files:
            _reserve(context, option, path / name)
        return path

    return check


def write_tables(json_file: Path | None, record: Any, csv_file: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write what --json and --csv ask for: plain data, and rows as a table; what a row lacks is empty there."""
    if json_file is not None:
        click.echo(f"figures: {write_json(json_file, record)}")
    if csv_file is not None:
        click.echo(f"table:   {write_atomically(csv_file, csv_text(rows))}")


def write_answer(
    json_file: Path | None,
    record: Any,
    trace_file: Path | None,
    traced: Timeline,
    folder: Path | None,
    page: Callable[[Path], Path],
) -> None:
    """Write what --json, --trace and --out ask for: plain data, the trace of a run, a page in a folder."""
    if json_file is not None:
        click.echo(f"figures: {write_json(json_file, record)}")
    if trace_file is not None:
        write_traces(traced, trace_file)
    if folder is not None:
        click.echo(f"report:  {page(folder)}")


def write_traces(run: Timeline, file: Path, what: str = "") -> None:
    """Write the trace of a run, a file for each rank."""
    for path in view.write_trace(run, file):
        click.echo(f"trace:   {path}{what}")
