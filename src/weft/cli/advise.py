"""`weft advise`: how a GEMM and a collective should share a GPU, what that brings, and what to set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft import report
from weft.cli.beside import parse_collective
from weft.cli.options import (
    clock_option,
    dtype_option,
    examples,
    file_option,
    folder_option,
    given,
    gpu_options,
    jobs_option,
    machine,
    request_option,
    store_option,
    whole_numbers,
)
from weft.cli.progress import progress_bar
from weft.cli.tables import print_table
from weft.errors import InputError
from weft.files import write_json

if TYPE_CHECKING:
    from weft.sweep import Store
    from weft.tuning.advice import Advice, Option

_EXAMPLES = examples(
    "weft advise --gemm 8192,8192,8192 --beside all_gather:896MiB --gpu mi300x",
    "weft advise --gemm 4096,14336,4096 --beside reduce_scatter:128MiB --gpu h100-sxm --out out/advice",
)


@click.command(epilog=_EXAMPLES)
@click.option(
    "--gemm", required=True, callback=whole_numbers, metavar="M,N,K", help="The GEMM that each GPU computes."
)
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
    "Write report.html with the pictures, and tables.json that a runtime can choose from, to this folder."
)
@jobs_option
@store_option
def advise(
    gemm: tuple[int, ...],
    beside: str,
    gpu: str,
    assignments: tuple[str, ...],
    dtype: str,
    ranks: int,
    clock: str,
    request_bytes: int | None,
    quick: bool,
    json_file: Path | None,
    folder: Path | None,
    jobs: int,
    store: Store | None,
) -> None:
    """Say how a GEMM and a collective should share a GPU: which strategy, how many compute units, what gain.

    The machine's slowdown tables are simulated when it is first asked about, and kept; then the best choices are
    simulated to confirm them.
    """
    from weft.tuning import advise as ask
    from weft.workload import Gemm

    if len(gemm) != 3:
        raise InputError(f"--gemm has {len(gemm)} numbers; write M,N,K, like 8192,8192,8192")
    name, bytes_ = parse_collective(beside)
    shape, where = Gemm(*gemm, dtype), machine(gpu, assignments)
    with progress_bar("advise") as progress:
        advice = ask(
            shape, name, bytes_, where, ranks=ranks, clock=clock, spread=not quick, jobs=jobs, progress=progress,
            store=store, **given(request_bytes=request_bytes),
        )  # fmt: skip
    _print(advice)
    if json_file is not None:
        click.echo(f"figures: {write_json(json_file, advice.as_json())}")
    if folder is not None:
        click.echo(f"tables:  {advice.tables.save(folder / 'tables.json')}")
        click.echo(f"report:  {report.advice_report(advice, folder)}")


def _print(advice: Advice) -> None:
    from weft.units import format_bytes

    g = advice.gemm
    title = (
        f"GEMM {g.m} x {g.n} x {g.k} {g.dtype} beside {advice.collective} of {format_bytes(advice.bytes_, 4)} "
        f"on each of {advice.tables.ranks} x {advice.gpu.name}"
    )
    columns = [
        "way to share",
        f"{advice.units_word} apart",
        "expected us",
        "simulated us",
        "speedup",
        "of the ideal",
    ]
    print_table(title, columns, [_row(advice, option) for option in advice.ranked], numbers=columns[1:])
    for sentence in advice.sentences:
        click.echo(sentence)
    print_table("What to set", ["what", "says"], [list(knob) for knob in advice.knobs])
    columns = ["reason to doubt", "low", "high"]
    rows = [[doubt.why, f"{doubt.low:.2f}x", f"{doubt.high:.2f}x"] for doubt in advice.felt]
    print_table("How sure that is", columns, rows, numbers=columns[1:])


def _row(advice: Advice, option: Option) -> list[str]:
    run = option.run
    return [
        option.strategy,
        "" if option.units is None else str(option.units),
        f"{option.forecast_s * 1e6:.0f}",
        "" if run is None else f"{run.makespan_s * 1e6:.0f}",
        f"{advice.speedup_of(option):.2f}x",
        f"{advice.share_of(option):.0%}",
    ]
