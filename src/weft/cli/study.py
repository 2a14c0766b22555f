"""`weft study`: a paper's study as one command, its published figures beside Weft's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft import report
from weft.cli.options import (
    clock_option,
    comma_list,
    examples,
    file_option,
    folder_option,
    given,
    gpu_options,
    jobs_option,
    machine,
    parse_split,
    request_option,
    run_options,
    store_option,
    together,
    whole_numbers,
)  # fmt: skip
from weft.cli.progress import progress_bar
from weft.cli.tables import print_parts, print_table

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.options import RunOptions
    from weft.report.tables import Table
    from weft.run.sweep import Store
    from weft.search.perturb import Sensitivity
    from weft.studies.headline import PaperStudy

F = TypeVar("F", bound=Callable[..., Any])
_MOVED = "What the figures become at either end of each range"


@click.group(
    epilog=examples(
        "weft study t3 --models t-nlg --tp 8", "weft study c3 --json c3.json --out out/c3", "weft cache show"
    )
)
def study() -> None:
    """Repeat a paper's study and stand beside its figures.

    Every study takes --json and --out for its figures and pages, --jobs for the processes that simulate, and
    --no-cache to simulate anew what has been simulated before. A study that was interrupted goes on where it stopped.
    """


def _study_options(name: str) -> Callable[[F], F]:
    """Add --json, --out, --jobs and --no-cache: the command's json_file, folder, jobs and store."""
    return together(
        file_option("--json", "json_file", "Write the headline and every run as JSON."),
        folder_option(
            f"Write report.html with the pictures, and {name}.json, to this folder.", f"{name}.json", "sensitivity.json"
        ),
        jobs_option,
        store_option,
    )


_sub_layers = together(
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
"""Which sub-layers of the T3 paper: the command's models and tps; on which machine: gpu, assignments, options."""
_sensitivity = click.option(
    "--sensitivity",
    is_flag=True,
    help="Move assumed values to both ends of their ranges instead; --out then writes sensitivity.json.",
)


def _suite_option(flag: str, what: str) -> Callable[[F], F]:
    """Add an option for a TOML file in the place of the declared suite: the command's `file`."""
    return click.option(
        flag,
        "file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"A TOML file with {what} of your own instead of the declared ones.",
    )


@study.command(
    "t3",
    short_help="T3 (ASPLOS 2024): sub-layers that overlap with their own collective.",
    epilog=examples(
        "weft study t3 --models t-nlg --tp 8 --out out/t3",
        "weft study t3 --gpu h100-sxm --json h100.json",
    ),
)
@_study_options("t3")
@_sub_layers
@run_options
def t3(
    json_file: Path | None, folder: Path | None, models: tuple[str, ...] | None, tps: tuple[int, ...] | None, jobs: int,
    store: Store | None, gpu: str, assignments: tuple[str, ...], options: RunOptions,
) -> None:  # fmt: skip
    """T3 (ASPLOS 2024): sub-layer speedups and data movement of five models under five configurations.

    The whole study simulates 28 sub-layers; --models and --tp choose some of them. On the paper's machine, Weft's
    figures stand beside the published ones; --gpu says what T3 would buy on another.
    """
    from weft.report.t3 import link_notes, sub_layer_table
    from weft.studies import t3 as paper

    chosen = machine(gpu, assignments)
    with progress_bar("T3 study") as progress:
        done = paper.run(models, tps, jobs, progress, gpu=chosen, options=options, store=store)
    title = f"What T3 would buy on {_where(chosen)}", ", all against sequential"
    print_study([sub_layer_table(done)], done, *title)
    for note in filter(None, link_notes(done)):
        click.echo(f"link: {note}")
    write_study(done, json_file, folder, lambda to: report.t3_report(done, to))


@study.command(
    "c3",
    short_help="C3 and ConCCL (ISPASS 2025): a GEMM beside an independent collective.",
    epilog=examples("weft study c3 --out out/c3", "weft study c3 --scenarios mine.toml --gpu mi355x"),
)
@_study_options("c3")
@_suite_option("--scenarios", "scenarios")
@gpu_options("mi300x")
@click.option("--ranks", type=click.IntRange(2), metavar="N", help="GPUs that the collectives join.  [default: 8]")
@request_option()
@_sensitivity
@run_options
def c3(
    json_file: Path | None, folder: Path | None, file: Path | None, gpu: str, assignments: tuple[str, ...],
    ranks: int | None, options: RunOptions, sensitivity: bool, jobs: int, store: Store | None,
) -> None:  # fmt: skip
    """C3 and ConCCL (ISPASS 2025): what a GEMM and a collective cost each other, and which strategy costs least.

    30 declared scenarios of Llama-70B and -405B GEMMs beside all-gathers and all-to-alls on eight MI300X: streams,
    priority, partition of compute units, both, and DMA engines, with the curves that explain them. What has been
    simulated before comes from the cache.
    """
    from weft.report.c3 import class_table, scenario_table
    from weft.studies import c3 as paper

    chosen, more = machine(gpu, assignments), given(ranks=ranks)
    suite = paper.load_suite(file) if file is not None else paper.declared_suite()
    if sensitivity:
        from weft.studies.c3 import sensitivity as moved

        with progress_bar("C3 sensitivity") as progress:
            rows = moved.run(suite, jobs, progress, gpu=chosen, options=options, store=store, **more)
        show_sensitivity("What the shares become at either end of each range", rows, json_file, folder)
        return
    with progress_bar("C3 study") as progress:
        done = paper.run(suite, jobs, progress, gpu=chosen, options=options, store=store, **more)
    title = f"Figures for {done.ranks} x {done.gpu}", ", against serial execution"
    print_study([scenario_table(done), class_table(done)], done, *title)
    write_study(done, json_file, folder, lambda to: _c3_page(done, to))


def _c3_page(done: Any, folder: Path) -> Path:
    from weft.studies.c3.timeline import shown_scenario, timelines

    with progress_bar("C3 page") as progress:
        shown = timelines(done, progress)
    return report.c3_report(done, folder, shown, shown_scenario(done).title)


@study.command(
    "cu-split",
    short_help="T3's motivation: compute units split between a GEMM and an all-reduce.",
    epilog=examples(
        "weft study cu-split --out out/cu-split",
        "weft study cu-split --models t-nlg --tp 8 --split 76-4,48-32",
    ),
)
@_study_options("cu-split")
@click.option(
    "--split",
    "splits",
    callback=comma_list,
    metavar="72-8,64-16",
    help="The GEMM's compute units and the all-reduce's, together all of the GPU's.  [default: 8 and 16 apart]",
)
@_sub_layers
@click.option(
    "--in-flight",
    metavar="SIZE",
    help="What a workgroup of the all-reduce has on its way, half of it where it adds.  [default: 16 KiB]",
)
@run_options
def cu_split(
    json_file: Path | None, folder: Path | None, splits: tuple[str, ...] | None, models: tuple[str, ...] | None,
    tps: tuple[int, ...] | None, in_flight: str | None, jobs: int, store: Store | None, gpu: str,
    assignments: tuple[str, ...], options: RunOptions,
) -> None:  # fmt: skip
    """T3's motivation: a GEMM beside a whole ring all-reduce, each on compute units of its own.

    The 16 sub-layers of T3's main study. What either loses on its share of the compute units bounds what overlap can
    gain; a run of both at once says what is left when memory and cache are shared too. What has been simulated before
    comes from the cache.
    """
    from weft.report.cu_split import case_table
    from weft.studies import cu_split as paper
    from weft.units import Dimension, parse

    chosen = machine(gpu, assignments)
    apart = None if splits is None else [parse_split(split, chosen) for split in splits]
    bytes_ = None if in_flight is None else round(parse(in_flight, Dimension.BYTES))
    more = given(in_flight=bytes_)
    with progress_bar("CU-split study") as progress:
        done = paper.run(models, tps, jobs, progress, gpu=chosen, splits=apart, options=options, store=store, **more)
    against = ", against the GEMM and then the all-reduce on all compute units"
    print_study([case_table(done)], done, f"The split on {_where(chosen)}", against)
    write_study(done, json_file, folder, lambda to: report.cu_split_report(done, to, done.watch()))


@study.command(
    "goldyloc",
    short_help="GOLDYLOC (TACO 2025): independent GEMMs together on one GPU.",
    epilog=examples("weft study goldyloc --jobs 2 --out out/goldyloc", "weft study goldyloc --gpu mi300x"),
)
@_study_options("goldyloc")
@_suite_option("--suite", "GEMMs")
@gpu_options("mi100")
@clock_option()
@_sensitivity
@run_options
def goldyloc(
    json_file: Path | None, folder: Path | None, jobs: int, store: Store | None, file: Path | None, gpu: str,
    assignments: tuple[str, ...], options: RunOptions, sensitivity: bool,
) -> None:  # fmt: skip
    """GOLDYLOC (TACO 2025): independent GEMMs together on one GPU, with kernels for the share they get.

    A declared suite of GEMMs of seven networks on MI100: one after another, all at once with the kernels that are
    fastest alone, with GO-kernels at fixed degrees, with the degree that a predictor chooses, and the best of all.
    What has been simulated before comes from the cache.
    """
    from weft.report.goldyloc import case_table
    from weft.studies import goldyloc as paper

    chosen = machine(gpu, assignments)
    suite = paper.load_suite(file) if file is not None else paper.declared_suite()
    if sensitivity:
        from weft.studies.goldyloc import sensitivity as moving

        with progress_bar("GOLDYLOC sensitivity") as progress:
            moved = moving.run(suite, jobs, progress, gpu=chosen, options=options, store=store)
        show_sensitivity(f"{_MOVED}, kernels unchanged", moved, json_file, folder)
        return
    with progress_bar("GOLDYLOC study") as progress:
        done = paper.run(suite, jobs, progress, gpu=chosen, options=options, store=store)
    print_study([case_table(done)], done, f"Figures for {done.gpu}")
    write_study(done, json_file, folder, lambda to: report.goldyloc_report(done, to, done.watch()))


@study.command(
    "sensitivity",
    short_help="What assumed values decide of the T3 figures.",
    epilog=examples("weft study sensitivity --values memory.latency,dma.engines --json moved.json"),
)
@file_option("--json", "json_file", "Write every row as JSON.")
@click.option("--values", callback=comma_list, metavar="PATH,PATH", help="Only these assumed values.")
@jobs_option
@store_option
def sensitivity(json_file: Path | None, values: tuple[str, ...] | None, jobs: int, store: Store | None) -> None:
    """Move each assumed value of the T3 paper's machine to both ends of its plausible range.

    Shows what that does to the geomean speedups and to the DRAM traffic of four sub-layers.
    """
    from weft.studies import sensitivity as moved

    with progress_bar("sensitivity") as progress:
        done = moved.run(values, jobs, progress, store=store)
    show_sensitivity(_MOVED, done, json_file)


def _where(gpu: Gpu) -> str:
    return ", ".join((gpu.name, *gpu.changes))


def print_study(tables: Sequence[Table], done: PaperStudy, elsewhere: str, against: str = "") -> None:
    """Print a study's tables, then its figures beside the published ones where those hold, and what must be known.

    `elsewhere` is the headline's title where they do not hold; `against` says what the figures are measured against.
    """
    from weft.report.tables import headline_table

    title = "Published figures beside Weft's" if done.comparable else elsewhere
    headline = headline_table(done.headline(), f"{title}{against}")
    print_parts([*tables, headline, *(f"note: {note}" for note in done.notes)])


def write_study(done: PaperStudy, json_file: Path | None, folder: Path | None, page: Callable[[Path], Path]) -> None:
    """Write the files that --json and --out ask for, and say where they are; `page` writes a page to a folder."""
    if json_file is not None:
        click.echo(f"figures: {done.save(json_file)}")
    if folder is not None:
        click.echo(f"figures: {done.save(folder / f'{done.NAME}.json')}")
        click.echo(f"report:  {page(folder)}")


def show_sensitivity(title: str, moved: Sensitivity, json_file: Path | None, folder: Path | None = None) -> None:
    """Print what the figures become, and write it to where --json and --out say."""
    from weft.report.tables import Table

    heads, rows = moved.table()
    print_table(Table(heads, rows, text_columns=len(heads), title=title))
    for path in (json_file, folder and folder / "sensitivity.json"):
        if path is not None:
            click.echo(f"figures: {moved.save(path)}")
