"""`weft tune`: how many independent GEMMs to run together on a GPU, and with which kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft import view
from weft.cli.options import (
    clock_option,
    examples,
    file_option,
    folder_option,
    gpu_options,
    jobs_option,
    machine,
    run_options,
    store_option,
)  # fmt: skip
from weft.cli.output import write_traces
from weft.cli.progress import progress_bar
from weft.errors import InputError
from weft.files import write_json
from weft.view.terminal import print_table

if TYPE_CHECKING:
    from weft.options import RunOptions
    from weft.run.sweep import Store
    from weft.search.tune import TunedList


@click.command(
    epilog=examples(
        "weft tune gemms.csv --gpu mi100",
        "weft tune gemms.csv --gpu mi300x --page out/tune",
    )
)
@click.argument("gemms", type=click.Path(path_type=Path), metavar="FILE")
@gpu_options()
@clock_option()
@file_option("--out", "library_file", "Write the kernel library, for a runtime to load, to this JSON file.")
@folder_option("Write report.html, with who held which compute unit when, to this folder.", flag="--page")
@file_option(
    "--trace",
    "trace_file",
    "Write a trace for Perfetto of the line that gains most: the first batch that runs together.",
    several=True,
)
@file_option("--json", "json_file", "Write every line's degree, kernel and gains as JSON.")
@jobs_option
@store_option
@run_options
def tune(
    gemms: Path,
    gpu: str,
    assignments: tuple[str, ...],
    library_file: Path | None,
    folder: Path | None,
    trace_file: Path | None,
    json_file: Path | None,
    jobs: int,
    store: Store | None,
    options: RunOptions,
) -> None:
    """Tune independent GEMMs for a GPU that runs several of them together.

    FILE is a CSV with the columns m, n, k, dtype, count and maybe name: so many GEMMs of a shape are queued together.
    For each line: how many to run at once, with which kernel, and the gain over all at once with the kernel that is
    fastest alone and over one after another, with its range where uncertain values of the machine take their ends.
    """
    from weft.search.gemm_list import read_gemms
    from weft.search.tune import tune_list
    from weft.view.tune import tuned_table

    wanted, chosen = read_gemms(gemms), machine(gpu, assignments)
    if trace_file is not None and all(line.count < 2 for line in wanted):
        raise InputError("--trace needs a line with a count of 2 or more: nothing else runs together")
    with progress_bar("tuning") as progress:
        done = tune_list(wanted, chosen, options, jobs=jobs, progress=progress, store=store)
    print_table(tuned_table(done))
    if library_file is not None:
        click.echo(f"kernels: {done.library.save(library_file)}")
    if json_file is not None:
        click.echo(f"figures: {write_json(json_file, done.to_dict())}")
    if trace_file is not None:
        _trace(done, trace_file)
    if folder is not None:
        click.echo(f"report:  {view.tune_report(done, folder, chosen, done.watch())}")


def _trace(done: TunedList, file: Path) -> None:
    (queue,) = done.watch(most=1)
    write_traces(queue.chosen[0], file, f" ({queue.title})")
