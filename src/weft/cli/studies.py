"""What the commands of all studies share: their options, the headline table, notes, and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.cli.options import (
    comma_list,
    file_option,
    folder_option,
    gpu_options,
    jobs_option,
    request_option,
    store_option,
    together,
    whole_numbers,
)
from weft.cli.tables import print_table

if TYPE_CHECKING:
    from weft.studies.headline import PaperStudy
    from weft.studies.moved import Sensitivity

F = TypeVar("F", bound=Callable[..., Any])


sub_layer_options = together(
    click.option("--models", callback=comma_list, metavar="A,B", help="Only these models of the study."),
    click.option(
        "--tp",
        "tps",
        callback=whole_numbers,
        metavar="8,16",
        help="Only these degrees of tensor parallelism.",
    ),
    gpu_options("t3-paper"),
    request_option("512"),
)
"""Which sub-layers of the T3 paper: the command's models and tps; on which machine: gpu, assignments, request_bytes."""
sensitivity_option = click.option(
    "--sensitivity",
    is_flag=True,
    help="Move assumed values to both ends of their ranges instead; --out then writes sensitivity.json.",
)


def study_options(name: str) -> Callable[[F], F]:
    """Add --json, --out, --jobs and --no-cache: the command's json_file, folder, jobs and store."""
    return together(
        file_option("--json", "json_file", "Write the headline and every run as JSON."),
        folder_option(f"Write report.html with the pictures, and {name}.json, to this folder."),
        jobs_option,
        store_option,
    )


def suite_option(flag: str, what: str) -> Callable[[F], F]:
    """Add an option for a TOML file in the place of the declared suite: the command's `file`."""
    return click.option(
        flag,
        "file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"A TOML file with {what} of your own instead of the declared ones.",
    )


def print_headline(done: PaperStudy, elsewhere: str, against: str = "") -> None:
    """Print Weft's figures, beside the published ones where those hold, and what must be known to read them.

    `elsewhere` is the table's title where they do not hold; `against` says what the figures are measured against.
    """
    from weft.report.tables import headline_table

    table = headline_table(done.headline())
    title = "Published figures beside Weft's" if done.comparable else elsewhere
    print_table(f"{title}{against}", table.heads, table.rows, numbers=table.heads[1:])
    for note in done.notes:
        click.echo(f"note: {note}")


def write_study(
    done: PaperStudy, json_file: Path | None, folder: Path | None, page: Callable[[Path], Path]
) -> None:
    """Write the files that --json and --out ask for, and say where they are; `page` writes a page to a folder."""
    if json_file is not None:
        click.echo(f"figures: {done.save(json_file)}")
    if folder is not None:
        click.echo(f"figures: {done.save(folder / f'{done.NAME}.json')}")
        click.echo(f"report:  {page(folder)}")


def show_sensitivity(
    title: str, moved: Sensitivity, json_file: Path | None, folder: Path | None = None
) -> None:
    """Print what the figures become, and write it to where --json and --out say."""
    columns, cells = moved.table()
    print_table(title, columns, cells)
    for path in (json_file, folder and folder / "sensitivity.json"):
        if path is not None:
            click.echo(f"figures: {moved.save(path)}")
