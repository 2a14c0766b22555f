"""The page of one piece of advice: what to do, what that brings, how sure it is, and the pictures that show why."""

from __future__ import annotations

from pathlib import Path

from weft.report.page import Figure, write_page
from weft.report.plots import advice as plots
from weft.report.tables import Table, percent
from weft.tuning.advice import Advice, Option
from weft.units import format_bytes


def advice_report(advice: Advice, out_dir: str | Path) -> Path:
    """Write `report.html` with the advice to a folder and return its path; OutputError if that cannot be done."""
    gpu, gemm = advice.gpu, advice.gemm
    return write_page(
        "advice.html.j2",
        out_dir,
        title=f"{advice.collective} of {format_bytes(advice.bytes_, 4)} beside a GEMM on {gpu.name}",
        shape=f"{gemm.m} × {gemm.n} × {gemm.k} {gemm.dtype}",
        sentences=advice.sentences,
        knobs=advice.knobs,
        options=_options(advice),
        figures=_figures(advice),
        doubts=Table(
            ("reason", "low", "high"),
            [(one.why, f"{one.low:.2f}×", f"{one.high:.2f}×") for one in advice.felt],
        ),
        gpu=gpu,
    )


def _options(advice: Advice) -> Table:
    heads = (
        "way to share",
        "expected [µs]",
        "simulated [µs]",
        "speedup",
        "of the ideal",
        "GEMM ends",
        "collective ends",
    )
    return Table(heads, [_option(advice, one) for one in advice.ranked])


def _option(advice: Advice, option: Option) -> tuple[str, ...]:
    run = option.run
    times = ("–", "–", "–")
    if run is not None:
        found = (run.makespan_s, run.gemm_s or 0.0, run.collective_s or 0.0)
        times = tuple(f"{seconds * 1e6:,.0f}" for seconds in found)  # type: ignore[assignment]
    return (
        advice.name_of(option),
        f"{option.forecast_s * 1e6:,.0f}",
        times[0],
        f"{advice.speedup_of(option):.2f}×",
        percent(advice.share_of(option)),
        *times[1:],
    )


def _figures(advice: Advice) -> list[Figure]:
    return [
        Figure(
            plots.ways_to_share(advice),
            "Every way to share that was simulated, the best last but for the ideal, with its speedup.",
        ),
        Figure(
            plots.gain_against_units(advice),
            "The speedup against the compute units set apart: lines are expected, filled marks simulated.",
        ),
        Figure(
            plots.collective_times(advice),
            "The collective alone: few compute units move large buffers slower"
            + ("." if advice.why_no_dma else ", DMA engines start small ones later."),
        ),
    ]
