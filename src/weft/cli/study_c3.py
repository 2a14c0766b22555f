"""`weft study c3`: a GEMM beside a collective under six strategies, published figures beside Weft's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft import report
from weft.cli.options import examples, given, gpu_options, machine, request_option
from weft.cli.progress import progress_bar
from weft.cli.studies import (
    print_headline,
    sensitivity_option,
    show_sensitivity,
    study_options,
    suite_option,
    write_study,
)
from weft.cli.tables import print_table, two_lines
from weft.units import format_bytes

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.studies.c3 import C3Study
    from weft.sweep import Store


@click.command(
    "c3",
    epilog=examples("weft study c3 --out out/c3", "weft study c3 --scenarios mine.toml --gpu mi355x"),
)
@study_options("c3")
@suite_option("--scenarios", "scenarios")
@gpu_options("mi300x")
@click.option(
    "--ranks", type=click.IntRange(2), metavar="N", help="GPUs that the collectives join.  [default: 8]"
)
@request_option()
@sensitivity_option
def c3(
    json_file: Path | None,
    folder: Path | None,
    file: Path | None,
    gpu: str,
    assignments: tuple[str, ...],
    ranks: int | None,
    request_bytes: int | None,
    sensitivity: bool,
    jobs: int,
    store: Store | None,
) -> None:
    """C3 and ConCCL (ISPASS 2025): what a GEMM and a collective cost each other, and which strategy costs least.

    30 declared scenarios of Llama-70B and -405B GEMMs beside all-gathers and all-to-alls on eight MI300X: streams,
    priority, partition of compute units, both, and DMA engines, with the curves that explain them. What has been
    simulated before comes from the cache.
    """
    from weft.studies import c3 as paper

    chosen = machine(gpu, assignments)
    suite = paper.load_suite(file) if file is not None else paper.declared_suite()
    options = given(ranks=ranks, request_bytes=request_bytes)
    if sensitivity:
        from weft.studies.c3 import sensitivity as moved

        with progress_bar("C3 sensitivity") as progress:
            rows = moved.run(suite, jobs, progress, gpu=chosen, store=store, **options)
        show_sensitivity("What the shares become at either end of each range", rows, json_file, folder)
        return
    with progress_bar("C3 study") as progress:
        done = paper.run(suite, jobs, progress, gpu=chosen, store=store, **options)
    _print_scenarios(done)
    _print_classes(done)
    print_headline(done, f"Figures for {done.ranks} x {done.gpu}", ", against serial execution")
    write_study(done, json_file, folder, lambda to: _page(done, to, chosen))


def _page(done: C3Study, folder: Path, gpu: Gpu) -> Path:
    from weft.studies.c3.timeline import shown_scenario, timelines

    with progress_bar("C3 page") as progress:
        shown = timelines(done, gpu, progress)
    return report.c3_report(done, folder, gpu, shown, shown_scenario(done).title)


def _print_scenarios(done: C3Study) -> None:
    names = list(done.cases[0].sharing.runs)
    columns = [
        "GEMM",
        "collective",
        "size",
        "class",
        "G us",
        "C us",
        "ideal",
        *map(two_lines, names),
        "best",
    ]
    rows = [
        [
            "x".join(map(str, case.scenario.gemm)),
            case.scenario.collective,
            format_bytes(case.scenario.size, 4),
            case.sharing.kind,
            f"{case.sharing.gemm_s * 1e6:.0f}",
            f"{case.sharing.collective_s * 1e6:.0f}",
            f"{case.sharing.ideal:.2f}",
            *(f"{case.sharing.speedup(name):.2f}" for name in names),
            f"{case.best[0]}{'' if case.best[1] is None else f' {case.best[1]}'}",
        ]
        for case in done.cases
    ]
    title = f"{done.suite.title}: {done.ranks} x {done.gpu}, times alone [us], speedups over serial execution"
    print_table(title, columns, rows, numbers=columns[4:-1])


def _print_classes(done: C3Study) -> None:
    from weft.report.tables import percent
    from weft.result.sharing import CLASSES

    names = list(done.cases[0].sharing.runs)
    rows = [[name, *(percent(done.share(name, kind)) for kind in (None, *CLASSES))] for name in names]
    print_table(
        "Mean share of the ideal speedup",
        ["strategy", "all", *CLASSES.values()],
        rows,
        numbers=["all", *CLASSES.values()],
    )
