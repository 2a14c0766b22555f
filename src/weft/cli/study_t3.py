"""`weft study t3`: the T3 paper's study as one command, its published figures beside Weft's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft import report
from weft.cli.options import examples, given, machine
from weft.cli.progress import progress_bar
from weft.cli.studies import print_headline, study_options, sub_layer_options, write_study
from weft.cli.tables import print_table, two_lines

if TYPE_CHECKING:
    from weft.result import Comparison
    from weft.studies.t3 import T3Study
    from weft.sweep import Store


@click.command(
    "t3",
    epilog=examples(
        "weft study t3 --models t-nlg --tp 8 --out out/t3",
        "weft study t3 --gpu h100-sxm --json h100.json",
    ),
)
@study_options("t3")
@sub_layer_options
def t3(
    json_file: Path | None,
    folder: Path | None,
    models: tuple[str, ...] | None,
    tps: tuple[int, ...] | None,
    jobs: int,
    store: Store | None,
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
        done = paper.run(
            models, tps, jobs, progress, gpu=chosen, store=store, **given(request_bytes=request_bytes)
        )
    _print_sublayers(done)
    print_headline(
        done, f"What T3 would buy on {', '.join((done.gpu, *done.changed))}", ", all against sequential"
    )
    for note in dict.fromkeys(case.baseline.config.link_note for case in done.comparisons.values()):
        if note:
            click.echo(f"link: {note}")
    write_study(done, json_file, folder, lambda to: report.t3_report(done, to, chosen))


def _print_sublayers(done: T3Study) -> None:
    first = next(iter(done.comparisons.values()))
    faster = [result.config.overlap for result in first if result.config.overlap != "sequential"]
    columns = ["model", "TP", "layer", "GEMM", "RS", "AG", "total", *map(two_lines, faster)]
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


def _sequential_times(comparison: Comparison) -> list[str]:
    t = comparison.baseline.times
    return [f"{seconds * 1e6:.1f}" for seconds in (t.gemm, t.reduce_scatter, t.all_gather, t.total)]
