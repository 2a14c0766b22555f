"""`weft study`: a paper's study as one command, its published figures beside Weft's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft.cli.options import (
    comma_list,
    file_option,
    folder_option,
    given,
    jobs_option,
    machine,
    machine_options,
    whole_numbers,
)
from weft.cli.progress import progress_bar
from weft.cli.tables import print_table

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.result import Comparison
    from weft.studies.headline import HeadlineRow
    from weft.studies.t3 import T3Study


@click.group()
def study() -> None:
    """Repeat a paper's study and stand beside its figures."""


@study.command("t3", epilog="Example: weft study t3 --models t-nlg --tp 8 --out out/t3")
@file_option("--json", "json_file", "Write the headline and every run as JSON.")
@folder_option("Write report.html with the pictures, and t3.json, to this folder.")
@click.option("--models", callback=comma_list, metavar="A,B", help="Only these models of the study.")
@click.option(
    "--tp", "tps", callback=whole_numbers, metavar="8,16", help="Only these degrees of tensor parallelism."
)
@jobs_option
@machine_options
def t3(
    json_file: Path | None,
    folder: Path | None,
    models: tuple[str, ...] | None,
    tps: tuple[int, ...] | None,
    jobs: int,
    gpu: str,
    assignments: tuple[str, ...],
    request_bytes: int | None,
) -> None:
    """T3 (ASPLOS 2024): sub-layer speedups and data movement of five models under five configurations.

    The whole study simulates 28 sub-layers; --models and --tp choose some of them. On the paper's machine, Weft's
    figures stand beside the published ones; --gpu says what T3 would buy on another.
    """
    from weft.studies import t3 as paper

    chosen = machine(gpu, assignments)
    with progress_bar("T3 study") as progress:
        done = paper.run(models, tps, jobs, progress, gpu=chosen, **given(request_bytes=request_bytes))
    _print_sublayers(done)
    _print_headline(done)
    for note in dict.fromkeys(case.baseline.config.link_note for case in done.comparisons.values()):
        if note:
            click.echo(f"link: {note}")
    for note in done.notes:
        click.echo(f"note: {note}")
    if json_file is not None:
        done.save(json_file)
        click.echo(f"figures: {json_file}")
    if folder is not None:
        _write_report(done, folder, chosen)


def _write_report(done: T3Study, folder: Path, gpu: Gpu) -> None:
    from weft.report import study_report

    click.echo(f"figures: {done.save(folder / 't3.json')}")
    click.echo(f"report:  {study_report(done, folder, gpu)}")


def _print_sublayers(done: T3Study) -> None:
    first = next(iter(done.comparisons.values()))
    faster = [result.config.overlap for result in first if result.config.overlap != "sequential"]
    columns = ["model", "TP", "layer", "GEMM", "RS", "AG", "total", *map(_two_lines, faster)]
    rows = [
        [
            model,
            str(tp),
            name,
            *_sequential_times(comparison),
            *(f"{comparison.speedup(o):.3f}" for o in faster),
        ]
        for (model, tp, name), comparison in done.comparisons.items()
    ]
    changed = "".join(f", {change}" for change in done.changed)
    title = f"Sub-layers on {done.gpu}{changed}: times under sequential [us], speedups over it"
    print_table(title, columns, rows, numbers=set(columns) - {"model", "layer"})


def _two_lines(name: str) -> str:
    """A long name broken at its first hyphen, for a narrow column."""
    return name.replace("-", "-\n", 1) if len(name) > 8 else name


def _sequential_times(comparison: Comparison) -> list[str]:
    t = comparison.baseline.times
    return [f"{seconds * 1e6:.1f}" for seconds in (t.gemm, t.reduce_scatter, t.all_gather, t.total)]


def _print_headline(done: T3Study) -> None:
    columns = ["figure", "published", "weft", "difference"] if done.comparable else ["figure", "weft"]
    title = "Published figures beside Weft's" if done.comparable else f"What T3 would buy on {done.gpu}"
    cells = [[row.what, *_figures(row)] for row in done.headline()]
    print_table(f"{title}, all against sequential", columns, cells, numbers=columns[1:])


def _figures(row: HeadlineRow) -> tuple[str, ...]:
    """Published, Weft's and the difference: ratios as such, fractions in percent and percentage points."""
    fraction = row.unit == "fraction"
    weft = f"{row.weft:+.1%}" if fraction else f"{row.weft:.3f}x"
    if row.published is None:
        return (weft,)
    difference = row.weft - row.published
    if fraction:
        return f"{row.published:+.0%}", weft, f"{difference * 100:+.1f} pp"
    return f"{row.published:.2f}x", weft, f"{difference:+.3f}"


@study.command("sensitivity", epilog="Example: weft study sensitivity --values memory.latency,dma.engines")
@file_option("--json", "json_file", "Write every row as JSON.")
@click.option("--values", callback=comma_list, metavar="PATH,PATH", help="Only these assumed values.")
@jobs_option
def sensitivity(json_file: Path | None, values: tuple[str, ...] | None, jobs: int) -> None:
    """Move each assumed value of the T3 paper's machine to both ends of its plausible range.

    Shows what that does to the geomean speedups and to the DRAM traffic of four sub-layers.
    """
    from weft.studies import sensitivity as moved

    with progress_bar("sensitivity") as progress:
        done = moved.run(values, jobs, progress)
    columns = ["assumed value", "low / high", *moved.FIGURES]
    print_table("What the figures become at either end of each range", columns, done.table())
    if json_file is not None:
        click.echo(f"figures: {done.save(json_file)}")
