"""`weft advise`, `tune` and `tiles`: how kernels share a GPU, and which kernels to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

import weft
from weft.cli.options import (
    as_run_options,
    clock_option,
    dtype_option,
    examples,
    many_options,
    option,
    run_options,
    set_option,
)
from weft.cli.output import Outputs, file_option, folder_option, pass_outputs, print_path, shows
from weft.cli.progress import progress_bar
from weft.cli.values import COLLECTIVE, GPU, RANKS, SHAPE
from weft.core.answer import Answer
from weft.core.errors import InputError
from weft.core.files import written_together
from weft.core.options import RunOptions
from weft.core.store import Store
from weft.hardware import Gpu


@click.command(
    epilog=examples(
        "weft advise --gemm 8192,8192,8192 --corun all_gather:896MiB --gpu mi300x",
        "weft advise --gemm 4096,14336,4096 --corun reduce_scatter:128MiB --gpu h100-sxm --out out/advice",
    )
)
@option("--gemm", "The GEMM that each GPU computes.", SHAPE, required=True)
@option(
    "--corun",
    "The collective, which does not depend on it, like all_gather:896MiB; SIZE is that of the whole buffer.",
    COLLECTIVE,
    required=True,
)
@option("--ranks", "GPUs of the collective.", RANKS, default=8)
@option(
    "--channels",
    "Channels of the collective where compute units drive it, each one workgroup.  [default: the library's own number; "
    "one for each reserved compute unit]",
    int,
    metavar="N",
)
@dtype_option("the GEMM")
@run_options()
@option("--quick", "Leave out what the assumed values of the machine could change.", is_flag=True)
@file_option("--json", "Write the advice and every number behind it as JSON.")
@folder_option(
    "Write report.html with the pictures, and tables.json that a runtime can choose from, to this folder.",
    "tables.json",
)
@many_options
@pass_outputs
def advise(
    outputs: Outputs,
    gemm: tuple[int, int, int],
    corun: tuple[str, int],
    ranks: int,
    gpu: Gpu,
    changes: Mapping[str, str],
    dtype: str,
    channels: int | None,
    quick: bool,
    jobs: int,
    store: Store | None,
    options: RunOptions,
) -> None:
    """Advise how a GEMM and an independent collective should share a GPU: co-run strategy, reserved CUs, gain.

    The machine's slowdown tables are simulated once and cached; then the best candidates are simulated to confirm them.
    """
    work = weft.Gemm(*gemm, dtype), weft.Collective(*corun, ranks, dtype)
    how: dict[str, Any] = {"spread": not quick, "jobs": jobs, "store": store, "channels": channels}
    with progress_bar("advise") as progress:
        advice = weft.advise(*work, gpu.replace(changes), options, progress=progress, **how)
    outputs.show(advice, files={"tables.json": advice.tables.save})


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
    from weft.plan.tune import lists

    wanted, machine = lists.read_gemms(gemms), gpu.replace(changes)
    if outputs.trace is not None and all(line.count < 2 for line in wanted):
        raise InputError("--trace needs a line with a count of 2 or more: nothing else runs together")
    with progress_bar("tuning") as progress:
        done = lists.tune(wanted, machine, options, jobs=jobs, progress=progress, store=store)
    with written_together():
        outputs.show(done)
        if outputs.out is not None:
            print_path("kernels", done.library.save(outputs.out))
        if outputs.trace is not None:
            (queue,) = done.watch(most=1)
            outputs.write_trace(queue.chosen[0], f" ({queue.title})")


@click.command(epilog=examples("weft tiles 128,4096,4096 --gpu h100-sxm"))
@click.argument("shape", type=SHAPE)
@option("--gpu", "The GPU, see 'weft hardware list'.", GPU, default="h100-sxm")
@dtype_option("A and B")
@set_option("the GPU")
@clock_option()
@shows(csv="Write the fastest kernels as CSV.")
@as_run_options
def tiles(shape: tuple[int, int, int], gpu: Gpu, dtype: str, changes: Mapping[str, str], options: RunOptions) -> Answer:
    """Time every kernel of a template for C[M,N] = A[M,K] B[K,N]: the best, and what was pruned why."""
    return weft.tiles(weft.Gemm(*shape, dtype), gpu.replace(changes), options=options)
