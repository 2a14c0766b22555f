"""Where a command writes its answer: options that check the place while the command line is parsed, and the writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from json import dumps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

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

if TYPE_CHECKING:
    from weft.answer import Answer
    from weft.result import Timeline
    from weft.view.table import Table

Save = Callable[[Path], Path]
"""Writes to a file or a folder, and returns the file that it wrote."""
Option = Callable[[Callable[..., Any]], Any]
"""A decorator that adds an option to a command."""


@dataclass
class Outputs:
    """The files of --json, --csv, --trace and --out, and the folder of a page; None for what was not given."""

    json: Path | None = None
    csv: Path | None = None
    trace: Path | None = None
    out: Path | None = None
    folder: Path | None = None

    def show(
        self,
        parts: Iterable[Table | str],
        save: Save,
        *,
        rows: Sequence[Mapping[str, Any]] = (),
        traced: Timeline | None = None,
        files: Mapping[str, Save] = MappingProxyType({}),
        page: Save | None = None,
    ) -> None:
        """Print tables and sentences, write what the options ask for, and print where it is.

        `save` writes the file of --json; --csv gets the `rows`, --trace the run `traced`. In the folder `files` write
        what their names say, and `page` the page.
        """
        from weft.view.table import csv_text
        from weft.view.terminal import print_parts

        print_parts(parts)
        if self.json is not None:
            written("figures", save(self.json))
        if self.csv is not None:
            written("table", write_atomically(self.csv, csv_text(rows)))
        if self.trace is not None and traced is not None:
            self.write_trace(traced)
        if self.folder is not None:
            for name, save_file in files.items():
                written("figures", save_file(self.folder / name))
            if page is not None:
                written("report", page(self.folder))

    def write_trace(self, run: Timeline, note: str = "") -> None:
        """Write the trace of a run for --trace, a file for each GPU."""
        from weft import view

        for path in view.write_trace(run, self.trace) if self.trace is not None else ():
            written("trace", path, note)


def json_of(answer: Answer, **more: Any) -> Save:
    """What writes an answer as JSON, with `more` beside its own keys."""
    return lambda file: write_json(file, {**answer.to_dict(), **more})


pass_outputs = click.make_pass_decorator(Outputs, ensure=True)
"""Hand a command its `Outputs` as the first argument."""


def written(what: str, path: Path, note: str = "") -> None:
    """Print where a file was written."""
    click.echo(f"{what + ':':<8} {path}{note}")


def file_option(flag: str, help_text: str) -> Option:
    """Add --json, --csv, --trace or --out as a file to write: the field of that name of the command's `Outputs`.

    A path that cannot be written is refused before any work. "-" is standard output, which then holds nothing else.
    """

    def check(context: click.Context, option: click.Parameter, path: Path) -> Path:
        if path == STDOUT and flag == "--trace":
            raise InputError("--trace writes a file for each GPU; give a name that ends in .json")
        _reserve(context, option, check_writable(path))
        if path == STDOUT:
            keep_stdout_for_data()
        return path

    return _option(flag, flag.removeprefix("--"), "FILE", help_text, check)


def folder_option(help_text: str, *files: str, flag: str = "--out") -> Option:
    """Add the `folder` of the command's `Outputs`, which gets report.html and `files`; refused before any work."""

    def check(context: click.Context, option: click.Parameter, path: Path) -> Path:
        check_out_dir(path)
        for name in ("report.html", *files):
            _reserve(context, option, path / name)
        return path

    return _option(flag, "folder", "DIR", help_text, check)


def _option(
    flag: str, field: str, metavar: str, help_text: str, check: Callable[[click.Context, click.Parameter, Path], Path]
) -> Option:
    """An option that keeps a checked path in a field of the command's `Outputs`."""

    def keep(context: click.Context, option: click.Parameter, path: Path | None) -> None:
        if path is not None and not context.resilient_parsing:
            setattr(context.ensure_object(Outputs), field, check(context, option, path))

    type_ = click.Path(path_type=Path)
    return click.option(flag, field, type=type_, callback=keep, expose_value=False, metavar=metavar, help=help_text)


def _reserve(context: click.Context, option: click.Parameter, path: Path) -> None:
    """Reserve a path for an option until the command ends; InputError if another option writes there."""
    if not context.meta.get(__name__):
        context.meta[__name__] = True
        release()  # what a refused command line may have left
        context.call_on_close(release)
    reserve(path, option.opts[0])


def json_or_tables(function: Callable[..., tuple[Any, Iterable[Table | str]]]) -> Callable[..., None]:
    """Add --json to a command that returns plain data and its tables: it prints the one instead of the other."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
    @wraps(function)
    def command(as_json: bool, **given: Any) -> None:
        from weft.view.terminal import print_parts

        record, parts = function(**given)
        if as_json:
            click.echo(dumps(record, indent=2))
        else:
            print_parts(parts)

    return command
