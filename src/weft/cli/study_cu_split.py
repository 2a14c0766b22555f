"""`weft study cu-split`: compute units split between a GEMM and an all-reduce, published figures beside Weft's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft import report
from weft.cli.options import (
    comma_list,
    examples,
    given,
    machine,
    parse_split,
)
from weft.cli.progress import progress_bar
from weft.cli.studies import print_headline, study_options, sub_layer_options, write_study
from weft.cli.tables import print_table
from weft.units import Dimension, parse

if TYPE_CHECKING:
    from weft.studies.cu_split import CuSplitStudy
    from weft.sweep import Store


@click.command(
    "cu-split",
    epilog=examples(
        "weft study cu-split --out out/cu-split",
        "weft study cu-split --models t-nlg --tp 8 --split 76-4,48-32",
    ),
)
@study_options("cu-split")
@click.option(
    "--split",
    "splits",
    callback=comma_list,
    metavar="72-8,64-16",
    help="The GEMM's compute units and the all-reduce's, together all of the GPU's.  [default: 8 and 16 apart]",
)
@sub_layer_options
@click.option(
    "--in-flight",
    metavar="SIZE",
    help="What a workgroup of the all-reduce has on its way, half of it where it adds.  [default: 16 KiB]",
)
def cu_split(
    json_file: Path | None,
    folder: Path | None,
    splits: tuple[str, ...] | None,
    models: tuple[str, ...] | None,
    tps: tuple[int, ...] | None,
    in_flight: str | None,
    jobs: int,
    store: Store | None,
    gpu: str,
    assignments: tuple[str, ...],
    request_bytes: int | None,
) -> None:
    """T3's motivation: a GEMM beside a whole ring all-reduce, each on compute units of its own.

    The 16 sub-layers of T3's main study. What either loses on its share of the compute units bounds what overlap can
    gain; a run of both at once says what is left when memory and cache are shared too. What has been simulated before
    comes from the cache.
    """
    from weft.studies import cu_split as paper

    chosen = machine(gpu, assignments)
    apart = None if splits is None else [parse_split(split, chosen) for split in splits]
    bytes_ = None if in_flight is None else round(parse(in_flight, Dimension.BYTES))
    with progress_bar("CU-split study") as progress:
        done = paper.run(
            models, tps, jobs, progress, gpu=chosen, splits=apart, store=store,
            **given(request_bytes=request_bytes, in_flight=bytes_),
        )  # fmt: skip
    _print_cases(done)
    print_headline(
        done,
        f"The split on {', '.join((done.gpu, *done.changed))}",
        ", against the GEMM and then the all-reduce on all compute units",
    )

    write_study(
        done,
        json_file,
        folder,
        lambda to: report.cu_split_report(done, to, chosen, done.watch(chosen)),
    )


def _print_cases(done: CuSplitStudy) -> None:
    columns = ["model", "TP", "layer", "GEMM us", "AR us", "ideal"]
    columns += [f"{done.name(apart)}{what}" for apart in done.splits for what in ("", " at once")]
    rows = [
        [
            case.case[0],
            str(case.case[1]),
            case.case[2],
            f"{case.gemm_s[0] * 1e6:.0f}",
            f"{case.ring_s[0] * 1e6:.0f}",
            f"{case.speedup(0):.2f}",
            *(
                f"{value:.2f}"
                for apart in done.splits
                for value in (case.speedup(apart), case.simulated(apart))
            ),
        ]
        for case in done.cases
    ]
    changed = "".join(f", {change}" for change in done.changed)
    title = f"Sub-layers on {done.gpu}{changed}: times alone, and speedups by times alone and of both at once"
    print_table(title, columns, rows, numbers=set(columns) - {"model", "layer"})
