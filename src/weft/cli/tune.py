"""`weft tune`: how many independent GEMMs to run together on a GPU, and with which kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from weft.cli.options import examples, many_options, run_options
from weft.cli.output import Outputs, file_option, folder_option, pass_outputs, written
from weft.cli.progress import progress_bar
from weft.errors import InputError
from weft.hardware import Gpu
from weft.options import RunOptions
from weft.store import Store
from weft.tune import lists
from weft.tune.lists import read_gemms


@click.command(
    epilog=examples("weft tune gemms.csv --gpu mi100", "weft tune gemms.csv --gpu mi300x --page out/tune"),
)
@click.argument("gemms", type=click.Path(path_type=Path), metavar="FILE")
@run_options(requests=None)
@file_option("--out", "Write the kernel library, for a runtime to load, to this JSON file.")
@folder_option("Write report.html, with the compute units of each GEMM over time, to this folder.", flag="--page")
@file_option("--trace", "Write a trace for Perfetto of the line that gains most: the first batch that runs together.")
@file_option("--json", "Write every line's degree, kernel and gains as JSON.")
@many_options
@pass_outputs
def tune(
    outputs: Outputs,
    gemms: Path,
    gpu: Gpu,
    changes: Mapping[str, str],
    jobs: int,
    store: Store | None,
    options: RunOptions,
) -> None:
    """Tune independent GEMMs for a GPU that runs several of them together.

    FILE is a CSV with the columns m, n, k, dtype, count and optionally name; `count` GEMMs of that shape are queued.
    The answer per line: how many to run at once, with which kernel, and the gain over (1) all at once with the kernel
    that is fastest alone and (2) one after another. Ranges show what uncertain values of the machine do to the gain.
    """
    wanted, machine = read_gemms(gemms), gpu.replace(changes)
    if outputs.trace is not None and all(line.count < 2 for line in wanted):
        raise InputError("--trace needs a line with a count of 2 or more: nothing else runs together")
    with progress_bar("tuning") as progress:
        done = lists.tune(wanted, machine, options, jobs=jobs, progress=progress, store=store)
    outputs.show(done)
    if outputs.out is not None:
        written("kernels", done.library.save(outputs.out))
    if outputs.trace is not None:
        (queue,) = done.watch(most=1)
        outputs.write_trace(queue.chosen[0], f" ({queue.title})")
