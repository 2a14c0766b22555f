"""Where a command writes its answer: options that check the path at parse time, and the writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import click

from weft.core.errors import InputError
from weft.core.files import (
    STDOUT,
    check_out_dir,
    check_writable,
    keep_stdout_for_data,
    release,
    reserve,
    to_json,
    write_atomically,
    write_json,
    written_together,
)

if TYPE_CHECKING:
    from weft.core.answer import Answer
    from weft.core.report import Report
    from weft.core.report.table import Table
    from weft.simulate.result import Timeline

Save = Callable[[Path], Path]
"""Writes to a file or a folder, and returns the file that it wrote."""
Traces = Callable[[Path], list[Path]]
"""Writes traces to a file, or one for each GPU, and returns the files."""
Option = Callable[[Callable[..., Any]], Any]
"""A decorator that adds an option to a command."""


@dataclass
class Outputs:
    """Paths of --json, --csv, --trace and --out, and the folder of a page; None for options not given."""

    json: Path | None = None
    csv: Path | None = None
    trace: Path | None = None
    out: Path | None = None
    folder: Path | None = None
    details: bool = True
    """Whether long tables are printed, too; False unless asked for by the commands that have --details."""
    state: str = ""
    """The first line of the answer: what the machine is assumed to do, if that is not the default."""

    def show(
        self,
        shown: Answer | Report[Any] | Iterable[Table | str],
        save: Save | None = None,
        *,
        rows: Sequence[Mapping[str, Any]] = (),
        traced: Timeline | None = None,
        trace: Traces | None = None,
        files: Mapping[str, Save] = MappingProxyType({}),
        page: Save | None = None,
        place: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the files that the options ask for, print a report, or tables and sentences, and the paths.

        An answer brings what `save`, `rows` and `page` write, unless they are given; its report opens with the
        conclusion, and ends with how sure it is. `save` writes --json, `rows` go to --csv, the run `traced` to
        --trace, or what `trace` writes. In the folder of --out each entry of `files` writes the file of its name, and
        `page` the page. Files come first, also those that `place` moves there: a closed pipe does not cost them.
        """
        from weft.core.answer import Answer
        from weft.core.report import Report
        from weft.view.terminal import print_parts

        parts: Any = shown
        if isinstance(shown, Answer | Report):
            from weft.view import answers
            from weft.view.page import write_report

            report = answers.report(shown) if isinstance(shown, Answer) else shown
            parts, page = answers.parts(report, self.details), page or partial(write_report, report)
            save = save or (lambda file: write_json(file, report.record()))
            rows = rows or (report.rows() if self.csv is not None else ())
            if isinstance(shown, Answer) and self.folder is not None:
                files = {**files, **{name: partial(_write, text) for name, text in shown.launch_files.items()}}
        paths: list[tuple[str, Path]] = []
        try:
            with written_together():
                paths.extend(self._save(save, rows, trace or _traces_of(traced), files, page))
            place()
        finally:
            print_parts([*filter(None, [self.state]), *parts])
        for what, path in paths:
            print_path(what, path)

    def _save(
        self,
        save: Save | None,
        rows: Sequence[Mapping[str, Any]],
        trace: Traces | None,
        files: Mapping[str, Save],
        page: Save | None,
    ) -> Iterator[tuple[str, Path]]:
        """Write each file that the options ask for; yields what it holds and its path."""
        from weft.core.report.table import csv_text

        if self.json is not None and save is not None:
            yield "figures", save(self.json)
        if self.csv is not None:
            yield "table", write_atomically(self.csv, csv_text(rows))
        if self.trace is not None and trace is not None:
            yield from (("trace", path) for path in trace(self.trace))
        if self.folder is not None:
            for name, save_file in files.items():
                yield "figures", save_file(self.folder / name)
            if page is not None:
                yield "report", page(self.folder)

    def write_trace(self, run: Timeline, note: str = "") -> None:
        """Write the trace of a run for --trace, one file per GPU."""
        from weft import view

        for path in view.write_trace(run, self.trace) if self.trace is not None else ():
            print_path("trace", path, note)


def _write(text: str, file: Path) -> Path:
    return write_atomically(file, text)


def _traces_of(run: Timeline | None) -> Traces | None:
    if run is None:
        return None
    from weft import view

    return partial(view.write_trace, run)


def json_of(answer: Answer, **more: Any) -> Save:
    """Return a function that writes an answer as JSON, with `more` added to its keys."""
    return lambda file: write_json(file, {**answer.report().record(), **more})


pass_outputs = click.make_pass_decorator(Outputs, ensure=True)
"""Pass a command its `Outputs` as the first argument."""


def print_path(what: str, path: Path, note: str = "") -> None:
    """Print the path of a written file."""
    click.echo(f"{what + ':':<8} {path}{note}")


def file_option(flag: str, help_text: str) -> Option:
    """Add --json, --csv, --trace or --out as a file: the field of that name in the command's `Outputs`.

    A path that cannot be written is rejected before any work. "-" is standard output, which then holds nothing else.
    """

    def check(context: click.Context, option: click.Parameter, path: Path) -> Path:
        if path == STDOUT and flag == "--trace":
            raise InputError("--trace writes a file for each GPU; give a name that ends in .json")
        _reserve(context, option, check_writable(path))
        if path == STDOUT:
            keep_stdout_for_data()
        return path

    return _option(flag, flag.removeprefix("--"), "FILE", help_text, check)


def details_option(
    command: Callable[..., Any],
    flag: str = "--details",
    help_text: str = "Print long tables, too, and how figures are counted.",
) -> Any:
    """Add --details, or another flag, which prints long tables, too: `details` of the command's `Outputs`."""

    def keep(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        if not context.resilient_parsing:
            context.ensure_object(Outputs).details = wanted

    return click.option(flag, is_flag=True, callback=keep, expose_value=False, help=help_text)(command)


def folder_option(help_text: str, *files: str, flag: str = "--out") -> Option:
    """Add --out as a folder for report.html and `files`: the field `folder` of the command's `Outputs`."""

    def check(context: click.Context, option: click.Parameter, path: Path) -> Path:
        check_out_dir(path)
        for name in ("report.html", *files):
            _reserve(context, option, path / name)
        return path

    return _option(flag, "folder", "DIR", help_text, check)


def _option(
    flag: str, field: str, metavar: str, help_text: str, check: Callable[[click.Context, click.Parameter, Path], Path]
) -> Option:
    """Return an option whose checked path becomes a field of the command's `Outputs`."""

    def keep(context: click.Context, option: click.Parameter, path: Path | None) -> None:
        if path is not None and not context.resilient_parsing:
            setattr(context.ensure_object(Outputs), field, check(context, option, path))

    type_ = click.Path(path_type=Path)
    return click.option(flag, field, type=type_, callback=keep, expose_value=False, metavar=metavar, help=help_text)


def _reserve(context: click.Context, option: click.Parameter, path: Path) -> None:
    """Reserve a path for an option until the command ends; InputError if another option writes there."""
    if not context.meta.get(__name__):
        context.meta[__name__] = True
        release()  # left behind by a command line that was rejected
        context.call_on_close(release)
    reserve(path, option.opts[0])


def shows(file: str = "", *, csv: str = "", out: str = "", trace: str = "") -> Option:
    """Show the answer that a command returns, and add --json and, with texts for their help, --csv, --out and --trace.

    `file` is the name of the answer's JSON in the folder of --out.
    """

    def add(command: Callable[..., Answer]) -> Any:
        @wraps(command)
        def call(outputs: Outputs, /, **values: Any) -> None:
            with ExitStack() as files:
                files.enter_context(written_together())
                answer = command(**values)
                traces = _list_traces(answer) if outputs.trace is not None else None
                named = {file: json_of(answer)} if file else {}
                outputs.show(answer, trace=traces, files=named, place=files.close)

        shown = pass_outputs(call)
        if out:
            shown = folder_option(out, *filter(None, [file]))(shown)
        if trace:
            shown = file_option("--trace", trace)(shown)
        if csv:
            shown = file_option("--csv", csv)(shown)
        return file_option("--json", "Write the answer as JSON.")(shown)

    return add


def _list_traces(answer: Answer) -> Traces:
    """Return what writes the trace of a step, or of a graph's; InputError for an answer that has none."""
    from weft import view

    writers = {"step": view.write_step_trace, "graph step": view.write_graph_trace}
    if answer.kind not in writers:
        raise InputError("--trace writes one step; leave it out with --against and --compare-overlaps")
    return partial(cast("Callable[..., list[Path]]", writers[answer.kind]), answer)


def json_or_tables(function: Callable[..., tuple[Any, Iterable[Table | str]]]) -> Callable[..., None]:
    """Add --json to a command that returns plain data and tables: it prints the data, otherwise the tables."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
    @wraps(function)
    def command(as_json: bool, **given: Any) -> None:
        from weft.view.terminal import print_parts

        record, parts = function(**given)
        if as_json:
            click.echo(to_json(record, indent=2))
        else:
            print_parts(parts)

    return command
