"""A tuned list of independent GEMMs: degree and kernel of every line, and the page of who held which unit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from weft.report import plots
from weft.report.page import Figure, Section, machine_section, write_page
from weft.report.tables import Table, us

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.search.degree import Watched
    from weft.search.tune import Gain, Tuned, TunedList


def tuned_table(tuned: TunedList) -> Table:
    """Every line: how many to run together, with which kernel, and what that gains."""
    heads = (
        "GEMM", "kernel", "kernel alone", "count", "together", "time [µs]", "over all at once", "over one by one",
    )  # fmt: skip
    title = f"Independent GEMMs on {tuned.gpu}: how many together, and with which tile"
    return Table(heads, [_row(row) for row in tuned.rows], text_columns=3, title=title)


def _row(row: Tuned) -> tuple[str, ...]:
    kernel, alone, gemm = row.kernel, row.kernels.isolated, row.wanted.gemm
    named = "" if row.wanted.name == f"{gemm.m}x{gemm.n}x{gemm.k}" else f"{row.wanted.name}: "
    return (
        f"{named}{gemm}",
        str(kernel),
        "the same" if kernel == alone else str(alone),
        str(row.wanted.count),
        str(row.degree),
        us(row.judged.at_degree[row.degree]),
        _gain(row.over_default),
        _gain(row.over_sequential),
    )


def _gain(gain: Gain) -> str:
    return f"{gain.value:.2f}× ({gain.low:.2f} to {gain.high:.2f})"


def tune_report(tuned: TunedList, out_dir: str | Path, gpu: Gpu, queues: Iterable[Watched] = ()) -> Path:
    """Write `report.html` on a tuned list to a folder and return its path; OutputError if it cannot be written.

    `queues` are those whose runs are shown, such as `tuned.watch()`.
    """
    lead = (
        "For each line of the list: how many of its GEMMs to run at once, and with which kernel. Compute units at the "
        f"{tuned.clock} clock."
    )
    gains = (
        "All at once and one by one use the kernel that is fastest alone. Ranges: uncertain values of the machine at "
        "either end."
    )
    return write_page(
        out_dir,
        f"Independent GEMMs on {tuned.gpu}: how many together, and with which kernels?",
        lead,
        [
            Section("What to do", [gains, tuned_table(tuned)]),
            Section("Compute unit by compute unit", list(map(held_figure, queues))),
            machine_section(gpu),
        ],
        ("Independent GEMMs together", "goldyloc"),
    )


def held_figure(queue: Watched) -> Figure:
    """Who held which compute unit when, as a queue ran all at once and as chosen."""
    return Figure(
        plots.goldyloc.held_by_gemms(queue),
        f"{queue.title}: which GEMM held which compute unit when. A line per unit, shared by all workgroups that it "
        "holds at a time; white is idle. Older GEMMs are served first, and the next one takes what they leave. "
        "Dotted lines part batches.",
    )
