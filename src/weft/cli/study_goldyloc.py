"""`weft study goldyloc`: independent GEMMs on one GPU, published figures beside Weft's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft import report
from weft.cli.options import clock_option, examples, gpu_options, machine
from weft.cli.progress import progress_bar
from weft.cli.studies import (
    print_headline,
    sensitivity_option,
    show_sensitivity,
    study_options,
    suite_option,
    write_study,
)
from weft.cli.tables import print_table

if TYPE_CHECKING:
    from weft.studies.goldyloc import Case, GoldylocStudy
    from weft.sweep import Store


@click.command(
    "goldyloc",
    epilog=examples("weft study goldyloc --jobs 2 --out out/goldyloc", "weft study goldyloc --gpu mi300x"),
)
@study_options("goldyloc")
@suite_option("--suite", "GEMMs")
@gpu_options("mi100")
@clock_option()
@sensitivity_option
def goldyloc(
    json_file: Path | None,
    folder: Path | None,
    jobs: int,
    store: Store | None,
    file: Path | None,
    gpu: str,
    assignments: tuple[str, ...],
    clock: str,
    sensitivity: bool,
) -> None:
    """GOLDYLOC (TACO 2025): independent GEMMs together on one GPU, with kernels for the share they get.

    A declared suite of GEMMs of seven networks on MI100: one after another, all at once with the kernels that are
    fastest alone, with GO-kernels at fixed degrees, with the degree that a predictor chooses, and the best of all.
    What has been simulated before comes from the cache.
    """
    from weft.studies import goldyloc as paper

    chosen = machine(gpu, assignments)
    suite = paper.load_suite(file) if file is not None else paper.declared_suite()
    if sensitivity:
        from weft.studies.goldyloc import sensitivity as moving

        with progress_bar("GOLDYLOC sensitivity") as progress:
            moved = moving.run(suite, jobs, progress, gpu=chosen, clock=clock, store=store)
        show_sensitivity(
            "What the figures become at either end of each range, kernels unchanged", moved, json_file, folder
        )
        return
    with progress_bar("GOLDYLOC study") as progress:
        done = paper.run(suite, jobs, progress, gpu=chosen, clock=clock, store=store)
    _print_cases(done)
    print_headline(done, f"Figures for {done.gpu}")
    write_study(done, json_file, folder, lambda to: report.goldyloc_report(done, to, chosen, done.watch()))


def _print_cases(done: GoldylocStudy) -> None:
    columns = [
        "network",
        "layer",
        "GEMM",
        "queued",
        "sequential",
        "default",
        "degree",
        "GOLDYLOC",
        "over\ndefault",
        "over\nsequential",
        "of oracle",
    ]
    rows = [
        [
            case.network,
            case.layer,
            _shape(case),
            str(len(case.judged.queue.gemms)),
            f"{case.judged.sequential * 1e6:.1f}",
            f"{case.judged.default * 1e6:.1f}",
            str(case.degree),
            f"{case.goldyloc * 1e6:.1f}",
            f"{case.over_default:.2f}",
            f"{case.over_sequential:.2f}",
            f"{case.of_oracle:.1%}",
        ]
        for case in done.cases
    ]
    print_table(f"{done.suite.title}: {done.gpu}, times [us]", columns, rows, numbers=columns[3:])


def _shape(case: Case) -> str:
    gemm = case.judged.queue.gemms[0]
    return "mixed" if case.mixed else f"{gemm.m}x{gemm.n}x{gemm.k}"
