"""`weft advise`: how a GEMM and a collective should share a GPU, what that brings, and what to set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft import view
from weft.cli.options import (
    clock_option,
    dtype_option,
    examples,
    file_option,
    folder_option,
    gpu_options,
    jobs_option,
    machine,
    parse_collective,
    request_option,
    run_options,
    store_option,
    three_sizes,
    whole_numbers,
)  # fmt: skip
from weft.cli.progress import progress_bar
from weft.files import write_json
from weft.view.terminal import print_parts

if TYPE_CHECKING:
    from weft.options import RunOptions
    from weft.run.sweep import Store

_EXAMPLES = examples(
    "weft advise --gemm 8192,8192,8192 --beside all_gather:896MiB --gpu mi300x",
    "weft advise --gemm 4096,14336,4096 --beside reduce_scatter:128MiB --gpu h100-sxm --out out/advice",
)


@click.command(epilog=_EXAMPLES)
@click.option("--gemm", required=True, callback=whole_numbers, metavar="M,N,K", help="The GEMM that each GPU computes.")
@click.option(
    "--beside",
    required=True,
    metavar="COLLECTIVE:SIZE",
    help="The collective, which does not depend on it, like all_gather:896MiB; SIZE is that of the whole buffer.",
)
@gpu_options()
@dtype_option("bf16", "the GEMM")
@click.option("--ranks", type=int, default=8, show_default=True, metavar="N", help="GPUs of the collective.")
@clock_option()
@request_option()
@click.option("--quick", is_flag=True, help="Leave out what the assumed values of the machine could change.")
@file_option("--json", "json_file", "Write the advice and every number behind it as JSON.")
@folder_option(
    "Write report.html with the pictures, and tables.json that a runtime can choose from, to this folder.",
    "tables.json",
)
@jobs_option
@store_option
@run_options
def advise(
    gemm: tuple[int, ...],
    beside: str,
    gpu: str,
    assignments: tuple[str, ...],
    dtype: str,
    ranks: int,
    quick: bool,
    json_file: Path | None,
    folder: Path | None,
    jobs: int,
    store: Store | None,
    options: RunOptions,
) -> None:
    """Say how a GEMM and a collective should share a GPU: which strategy, how many compute units, what gain.

    The machine's slowdown tables are simulated when it is first asked about, and kept; then the best choices are
    simulated to confirm them.
    """
    from weft.graph import Collective, Gemm
    from weft.search import advise as ask
    from weft.view.advice import doubt_table, knob_table, option_table

    shape = Gemm(*three_sizes(gemm), dtype)
    moved = Collective(*parse_collective(beside), ranks, dtype)
    where = machine(gpu, assignments)
    with progress_bar("advise") as progress:
        advice = ask(shape, moved, where, options, spread=not quick, jobs=jobs, progress=progress, store=store)
    print_parts([option_table(advice), *advice.sentences, knob_table(advice), doubt_table(advice)])
    if json_file is not None:
        click.echo(f"figures: {write_json(json_file, advice.to_dict())}")
    if folder is not None:
        click.echo(f"tables:  {advice.tables.save(folder / 'tables.json')}")
        click.echo(f"report:  {view.advice_report(advice, folder)}")
