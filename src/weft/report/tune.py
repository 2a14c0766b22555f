"""The page of a tuned list of independent GEMMs: degree and kernel of every line, and who held which unit when."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from weft.hardware import Gpu
from weft.report.goldyloc import held_figure
from weft.report.page import write_page
from weft.report.tables import Table
from weft.tuning.tune import Gain, Tuned, TunedList
from weft.tuning.watched import Watched


def tune_report(tuned: TunedList, out_dir: str | Path, gpu: Gpu, queues: Iterable[Watched] = ()) -> Path:
    """Write `report.html` on a tuned list to a folder and return its path; OutputError if it cannot be written.

    `queues` are those whose runs are shown, such as `tuned.watch()`.
    """
    return write_page(
        "tune.html.j2",
        out_dir,
        title=f"Independent GEMMs on {tuned.gpu}: how many together, and with which kernels?",
        clock=tuned.clock,
        rows=_rows(tuned),
        figures=list(map(held_figure, queues)),
        gpu=gpu,
    )


def _rows(tuned: TunedList) -> Table:
    heads = (
        "GEMM", "kernel", "alone", "queued", "together", "time [µs]", "over all at once", "over one by one",
    )  # fmt: skip
    return Table(heads, [_row(row) for row in tuned.rows], text_columns=3)


def _row(row: Tuned) -> tuple[str, ...]:
    return (
        row.wanted.name,
        str(row.kernel),
        str(row.kernels.isolated),
        str(row.wanted.count),
        str(row.degree),
        f"{row.judged.at_degree[row.degree] * 1e6:,.1f}",
        _gain(row.over_default),
        _gain(row.over_sequential),
    )


def _gain(gain: Gain) -> str:
    return f"{gain.value:.2f}× ({gain.low:.2f} to {gain.high:.2f})"
