"""`weft validate`: the models against measured rows, one's own or public ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from weft import view
from weft.cli.options import comma_list, data_option, examples, file_option, folder_option, refuse_given
from weft.cli.progress import progress_bar
from weft.view.terminal import print_parts, print_table

if TYPE_CHECKING:
    from weft.validation.run import Validation
    from weft.validation.tables import Kind

KINDS = ("gemm", "collective", "overlap", "contention", "layer", "dram")
_PROBLEMS_SHOWN = 20


@click.command("validate", epilog=examples("weft validate --data measurements --gpu h100-sxm --out out/validate"))
@data_option
@click.option("--gpu", "gpus", callback=comma_list, metavar="A,B", help="Only rows of these GPUs: names or TOML files.")
@click.option(
    "--library",
    "libraries",
    callback=comma_list,
    metavar="FILE,...",
    help="Profiles of collective libraries, as 'weft calibrate --system' writes them.",
)
@click.option(
    "--kinds",
    callback=comma_list,
    metavar="A,B",
    help=f"Only these kinds of measurements, of {', '.join(KINDS)}.",
)
@click.option(
    "--bar",
    is_flag=True,
    help="Also fit to 70 % of the rows and to the other machines, and say line by line what holds.",
)
@file_option("--json", "json_file", "Write the errors, the worst rows and every problem as JSON.")
@folder_option("Write report.html with the pictures, and validation.json, to this folder.", "validation.json")
def validate(
    data: Path | None,
    gpus: tuple[str, ...] | None,
    libraries: tuple[str, ...] | None,
    kinds: tuple[str, ...] | None,
    bar: bool,
    json_file: Path | None,
    folder: Path | None,
) -> None:
    """How far the models are off: predictions of the catalogue's machines against measured rows.

    Errors are told per GPU and data type, and per system and collective, over every row that can be true; rows
    that cannot are named and left out.
    """
    from weft.validation import run
    from weft.validation.bar import judged

    if kinds is not None and not {"collective", "overlap", "contention", "layer"} & {*kinds}:
        refuse_given("where --kinds leaves out every collective", "libraries")
    with progress_bar("validation") as progress:
        done = run.validate(data, gpus=gpus or (), libraries=libraries or (), kinds=_kinds(kinds), progress=progress)
        lines = [line.to_dict() for line in judged(done, progress)] if bar else []
    _print_errors(done)
    _print_problems(done)
    if lines:
        _print_bar(lines)
    more = {"bar": lines} if lines else {}
    if json_file is not None:
        click.echo(f"errors: {done.save(json_file, **more)}")
    if folder is not None:
        click.echo(f"errors: {done.save(folder / 'validation.json', **more)}")
        click.echo(f"report: {view.validation_report(done, folder, lines)}")


def _kinds(names: tuple[str, ...] | None) -> list[Kind] | None:
    from weft.errors import UnknownNameError
    from weft.validation.tables import Kind

    for name in names or ():
        if name not in get_args(Kind):
            raise UnknownNameError("kind of measurement", name, list(KINDS))
    return None if names is None else [kind for kind in get_args(Kind) if kind in names]


def _print_errors(done: Validation) -> None:
    from weft.view.error_tables import errors_table, streams_table, worst_table

    data = done.to_dict()
    used = f"{done.rows_used:,} of {done.rows_read:,} rows have a prediction"
    each = "Errors of each group: |predicted / measured - 1|, and the bias with its sign"
    overall, groups = errors_table(data["overall"], used), errors_table(data["groups"], each)
    streams = [streams_table(data["streams"])] if "streams" in data else []
    print_parts([overall, *streams, groups, worst_table(data["worst"])])


def _print_problems(done: Validation) -> None:
    found = done.complaints()
    for problem in found[:_PROBLEMS_SHOWN]:
        click.echo(f"problem: {problem}")
    if len(found) > _PROBLEMS_SHOWN:
        click.echo(f"and {len(found) - _PROBLEMS_SHOWN} more problems; --json lists them all")


def _print_bar(lines: Sequence[Mapping[str, Any]]) -> None:
    from weft.view.error_tables import bar_table, without_rows

    table = bar_table(lines)
    if table.rows:
        print_table(table)
    if silent := without_rows(lines):
        click.echo(silent)
