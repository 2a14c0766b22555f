"""A piece of advice: its tables, and the page of what to do, what that brings, how sure it is, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from weft.report import plots
from weft.report.page import Figure, Section, machine_section, write_page
from weft.report.tables import Table, percent, us
from weft.units import format_bytes

if TYPE_CHECKING:
    from weft.search.advice import Advice, Option


def option_table(advice: Advice) -> Table:
    """Every way to share, the best first: what the tables expect, what was simulated, and what it gains."""
    heads = (
        "way to share", f"{advice.units_word} apart", "expected [µs]", "simulated [µs]", "speedup", "of the ideal",
        "GEMM ends [µs]", "collective ends [µs]",
    )  # fmt: skip
    title = (
        f"GEMM {advice.gemm} beside {advice.collective.name} of {format_bytes(advice.collective.bytes, 4)} "
        f"on each of {advice.tables.ranks} x {advice.gpu.name}"
    )
    return Table(heads, [_option(advice, one) for one in advice.ranked], title=title)


def _option(advice: Advice, option: Option) -> tuple[str, ...]:
    run, times = option.run, ("–", "–", "–")
    if run is not None:
        both, gemm, collective = run.makespan, run.end("gemm"), run.end(advice.collective.name)
        times = us(both, 0), us(gemm, 0), us(collective, 0)
    speedup = f"{advice.speedup_of(option):.2f}×"
    share = percent(advice.share_of(option))
    apart = "–" if option.units is None else str(option.units)
    return option.strategy, apart, us(option.forecast_s, 0), times[0], speedup, share, *times[1:]


def knob_table(advice: Advice) -> Table:
    """What to set for the best way, and who says so."""
    return Table(("what", "says"), [tuple(knob) for knob in advice.knobs], text_columns=2, title="What to set")


def doubt_table(advice: Advice) -> Table:
    """What the speedup of the best way would be for each reason to doubt it."""
    rows = [(one.why, f"{one.low:.2f}×", f"{one.high:.2f}×") for one in advice.felt]
    return Table(("reason to doubt", "low", "high"), rows, title="How sure that is")


def advice_report(advice: Advice, out_dir: str | Path) -> Path:
    """Write `report.html` with the advice to a folder and return its path; OutputError if that cannot be done."""
    gpu, moved = advice.gpu, advice.collective
    gemm = str(advice.gemm).replace(" x ", " × ")
    expected = "Expected is what the machine's slowdown tables say; simulated is request by request."
    sure = (
        "The speedup of the best way if one thing were as bad, or as good, as it may be. The range above joins them as "
        "the root of their squares: typical, no bound."
    )
    return write_page(
        out_dir,
        f"{moved.name} of {format_bytes(moved.bytes, 4)} beside a GEMM on {gpu.name}",
        f"GEMM of {gemm} on each GPU; the collective does not depend on it. Sizes are those of the whole buffer.",
        [
            advice.sentences,
            Section("What to set", [knob_table(advice)]),
            Section("Why", _figures(advice)),
            Section("Every way to share", [expected, option_table(advice)]),
            Section("How sure this is", [sure, doubt_table(advice)]),
            machine_section(gpu),
        ],
        ("A GEMM and a collective on one GPU", "concurrency"),
    )


def _figures(advice: Advice) -> list[Figure]:
    later = "." if advice.why_no_dma else ", DMA engines start small ones later."
    return [
        Figure(
            plots.advice.ways_to_share(advice),
            "Every way to share that was simulated, the best last but for the ideal, with its speedup.",
        ),
        Figure(
            plots.advice.gain_against_units(advice),
            "The speedup against the compute units set apart: lines are expected, filled marks simulated.",
        ),
        Figure(
            plots.advice.collective_times(advice),
            f"The collective alone: few compute units move large buffers slower{later}",
        ),
    ]
