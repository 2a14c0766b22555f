"""`weft advise`: how a GEMM and a collective should share a GPU, what that brings, and what to set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from weft.cli.options import (
    beside_options,
    dtype_option,
    examples,
    many_options,
    option,
    run_options,
)
from weft.cli.output import Outputs, file_option, folder_option, pass_outputs
from weft.cli.progress import progress_bar
from weft.graph import Collective, Gemm
from weft.hardware import Gpu
from weft.options import RunOptions
from weft.store import Store
from weft.tune import advise as search


@click.command(
    epilog=examples(
        "weft advise --gemm 8192,8192,8192 --beside all_gather:896MiB --gpu mi300x",
        "weft advise --gemm 4096,14336,4096 --beside reduce_scatter:128MiB --gpu h100-sxm --out out/advice",
    )
)
@beside_options(
    gemm="The GEMM that each GPU computes.",
    beside="The collective, which does not depend on it, like all_gather:896MiB",
    ranks="GPUs of the collective.",
    required=True,
)
@option(
    "--channels",
    "Channels of the collective where compute units drive it, each one workgroup.  [default: the library's own number; "
    "one for each compute unit set apart]",
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
    beside: tuple[str, int],
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
    """Say how a GEMM and a collective should share a GPU: which strategy, how many compute units, what gain.

    The machine's slowdown tables are simulated once and cached; then the best candidates are simulated to confirm them.
    """
    work, where = (Gemm(*gemm, dtype), Collective(*beside, ranks, dtype)), gpu.replace(changes)
    with progress_bar("advise") as progress:
        how: dict[str, Any] = {"spread": not quick, "jobs": jobs, "progress": progress, "store": store}
        advice = search(*work, where, options, channels=channels, **how)
    outputs.show(advice, files={"tables.json": advice.tables.save})
