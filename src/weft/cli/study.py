"""`weft study`: a paper's study as one command, its published figures beside Weft's."""

from __future__ import annotations

import click

from weft.cli.lazy import LazyCommand, LazyGroup
from weft.cli.options import examples

STUDIES = {
    "t3": LazyCommand(
        "weft.cli.study_t3:t3", "T3 (ASPLOS 2024): sub-layers that overlap with their own collective."
    ),
    "c3": LazyCommand(
        "weft.cli.study_c3:c3", "C3 and ConCCL (ISPASS 2025): a GEMM beside an independent collective."
    ),
    "cu-split": LazyCommand(
        "weft.cli.study_cu_split:cu_split",
        "T3's motivation: compute units split between a GEMM and an all-reduce.",
    ),
    "goldyloc": LazyCommand(
        "weft.cli.study_goldyloc:goldyloc", "GOLDYLOC (TACO 2025): independent GEMMs together on one GPU."
    ),
    "sensitivity": LazyCommand(
        "weft.cli.study_sensitivity:sensitivity", "What assumed values decide of the T3 figures."
    ),
}


@click.command(
    cls=LazyGroup,
    lazy=STUDIES,
    epilog=examples(
        "weft study t3 --models t-nlg --tp 8", "weft study c3 --json c3.json --out out/c3", "weft cache show"
    ),
)
def study() -> None:
    """Repeat a paper's study and stand beside its figures.

    Every study takes --json and --out for its figures and pages, --jobs for the processes that simulate, and
    --no-cache to simulate anew what has been simulated before. A study that was interrupted goes on where it stopped.
    """
