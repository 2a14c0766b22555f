"""A tuned list of independent GEMMs: degree and kernel of every line, and a page with compute units over time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.view.page import Section, machine_section, write_page
from weft.view.studies import held_by_gemms
from weft.view.table import Shown, Table, microseconds, number, text

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.tune.lists import Gain, Tuned, TunedList
    from weft.tune.queues import Watched


def tuned_table(tuned: TunedList) -> Table:
    """Every line: how many to run together, with which kernel, and the gain."""
    columns = [
        text("gemm", "GEMM"), text("kernel"), text("alone", "kernel alone"), number("count"), number("together"),
        microseconds("time", "time"), number("over_default", "over all at once"),
        number("over_sequential", "over one by one"),
    ]  # fmt: skip
    title = f"Independent GEMMs on {tuned.gpu}: how many together, and with which tile"
    return Table(columns, list(map(_row, tuned.rows)), title)


def _row(row: Tuned) -> tuple[Any, ...]:
    kernel, alone, gemm = row.kernel, row.kernels.isolated, row.wanted.gemm
    named = "" if row.wanted.name == f"{gemm.m}x{gemm.n}x{gemm.k}" else f"{row.wanted.name}: "
    kernels = f"{named}{gemm}", str(kernel), "the same" if kernel == alone else str(alone)
    time = row.judged.at_degree[row.degree] * 1e6
    return *kernels, row.wanted.count, row.degree, time, _gain(row.over_default), _gain(row.over_sequential)


def _gain(gain: Gain) -> Shown:
    return Shown(gain.value, f"{gain.value:.2f}× ({gain.low:.2f} to {gain.high:.2f})")


def tune_report(tuned: TunedList, out_dir: str | Path, gpu: Gpu, queues: Iterable[Watched] = ()) -> Path:
    """Write `report.html` on a tuned list to a folder and return its path; OutputError if it cannot be written.

    `queues` are the queues whose runs are shown, such as `tuned.watch()`.
    """
    best = max(tuned.rows, key=lambda row: row.over_default.value)
    told = (
        f"Of {len(tuned.rows)} lines {best.wanted.name} gains most, {best.over_default.value:.2f} times over all at "
        f"once, {best.degree} together, because kernels and degree suit the share of the GPU that each GEMM gets."
    )
    meaning = (
        f"For each line: how many of its GEMMs to run at once, and with which kernel; compute units at the "
        f"{tuned.clock} clock. All at once and one by one use the kernel that is fastest alone. Ranges: uncertain "
        "values of the machine at either end."
    )
    return write_page(
        out_dir,
        f"Independent GEMMs on {tuned.gpu}: how many together, and with which kernels?",
        told,
        [
            Section("What to do", [meaning, tuned_table(tuned)]),
            Section("Compute unit by compute unit", list(map(held_by_gemms, queues))),
            machine_section(gpu),
        ],
        "goldyloc",
    )
