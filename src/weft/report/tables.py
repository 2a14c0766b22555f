"""The tables of a report as rows of ready-made texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.hardware import Gpu
from weft.result import Comparison

if TYPE_CHECKING:
    from weft.studies.headline import HeadlineRow, Published

_PHASES = ("GEMM", "RS", "AG", "sequential")
_PERCENT = ("fraction", "share")
_RARE = ("tracker_", "communication_waited_past_limit")
"""What only T3's tracker and arbiter count: left out where no run did."""
_COUNTERS = {
    "cache_hits": "L2: hits [requests]",
    "cache_merged_misses": "L2: joined a load under way [requests]",
    "cache_misses": "L2: misses [requests]",
    "cache_write_backs": "L2: lines written back",
    "memory_cache_hits": "memory-side cache: hits [requests]",
    "memory_cache_merged_misses": "memory-side cache: joined a load under way [requests]",
    "memory_cache_misses": "memory-side cache: misses [requests]",
    "memory_cache_writes": "memory-side cache: writes [requests]",
    "memory_cache_write_backs": "memory-side cache: lines written back",
    "tracker_most_live": "tracker: most entries in use",
    "tracker_spills": "tracker: entries spilled",
    "tracker_refills": "tracker: entries fetched again",
    "dram_activations": "DRAM: rows opened",
    "dram_turnarounds": "DRAM: changes between reading and writing",
    "dram_bus_utilization": "DRAM: time that channels moved data",
    "dram_queue_mean_accesses": "DRAM: queue of a channel, mean [64 B accesses]",
    "dram_queue_most_accesses": "DRAM: queue of a channel, longest [64 B accesses]",
    "communication_waited_past_limit": "DRAM: communication let through after its longest wait [requests]",
    "compute_unit_utilization": "compute units: time that matrix units computed",
    "link_bytes": "link: sent [B]",
    "link_utilization": "link: time that it was busy",
    "arbiter_intensity": "arbiter: memory intensity seen",
    "arbiter_threshold_accesses": "arbiter: threshold chosen [64 B accesses]",
}


@dataclass(frozen=True)
class Table:
    """Column heads and rows; the first `text_columns` columns are text, the others numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1


def headline_table(rows: Sequence[HeadlineRow]) -> Table:
    """Published figure, Weft's, and the difference, for every row; Weft's alone where nothing is published."""
    cells = [(row.what, *headline_cells(row)) for row in rows]
    if any(row.published is not None for row in rows):
        return Table(("figure", "published", "weft", "difference"), cells)
    return Table(("figure", "weft"), [(what, weft) for what, _, weft, _ in cells])


def headline_cells(row: HeadlineRow) -> tuple[str, str, str]:
    """Published figure, Weft's with a digit more, and the difference; blank where nothing is published."""
    weft = amount(row.weft, row.unit, more=True)
    if row.published is None or row.difference is None:
        return "", weft, ""
    return amount(row.published, row.unit), weft, gap(row.difference, row.unit)


def amount(value: Published, unit: str, more: bool = False) -> str:
    """A headline figure, or a range of it, with its unit: fractions and shares in percent.

    `more` tells as many digits as a simulated figure deserves, instead of those of a published one.
    """
    if isinstance(value, tuple):
        return " to ".join(amount(end, unit, more) for end in value)
    if unit in _PERCENT:
        sign = "+" if unit == "fraction" else ""
        return f"{100 * value:{sign}{'.1f' if more else '.3g'}}%"
    return f"{value:.{3 if more else 2}f}x" if unit == "ratio" else f"{value:.4g} {unit}"


def percent(share: float | None) -> str:
    """A share in whole percent, never "-0%"; a dash for none."""
    return "–" if share is None else f"{round(share, 2) + 0:.0%}"


def gap(value: float, unit: str) -> str:
    """A difference of headline figures as text, with its sign; of fractions and shares in percentage points."""
    if unit in _PERCENT:
        return f"{100 * value:+.1f} pp"
    return f"{value:+.3f}" if unit == "ratio" else f"{value:+.4g}"


def sub_layer_table(comparisons: Sequence[Comparison]) -> Table:
    """Times of the sequential run and every overlap's speedup, sub-layer by sub-layer."""
    names = [name for name in comparisons[0].results if name != "sequential"]
    rows = []
    for case in comparisons:
        c, t = case.baseline.config, case.baseline.times
        times = (t.gemm, t.reduce_scatter, t.all_gather, t.total)
        speedups = (f"{case.speedup(name):.3f}" for name in names)
        rows.append(
            (
                c.model or "custom",
                c.sublayer,
                str(c.tp),
                f"{c.m}×{c.n}×{c.k}",
                *(f"{s * 1e6:,.0f}" for s in times),
                *speedups,
            )
        )
    heads = ("model", "sub-layer", "TP", "M×N×K", *(f"{phase} [µs]" for phase in _PHASES), *names)
    return Table(heads, rows, text_columns=4)


def overlap_table(comparison: Comparison) -> Table:
    """Times, speedup and DRAM traffic of each overlap of one sub-layer."""
    with_speedup = "sequential" in comparison.results
    rows = []
    for result in comparison:
        t = result.times
        times = (f"{s * 1e6:,.1f}" for s in (t.gemm, t.reduce_scatter, t.all_gather, t.total))
        speedup = (f"{comparison.speedup(result.config.overlap):.3f}",) if with_speedup else ()
        rows.append((result.config.overlap, *times, *speedup, f"{result.total_bytes / 1e6:,.1f}"))
    heads = ("overlap", *(f"{phase} [µs]" for phase in ("GEMM", "RS", "AG", "total")))
    return Table((*heads, *(("speedup",) if with_speedup else ()), "DRAM traffic [MB]"), rows)


def counter_table(comparison: Comparison) -> Table:
    """What the blocks of the machine counted in every simulated run."""
    runs = [result for result in comparison if not result.parts]
    names = dict.fromkeys(name for run in runs for name in run.counters)
    rows = [
        (_COUNTERS.get(name, name.replace("_", " ")), *(_count(name, run.counters.get(name)) for run in runs))
        for name in names
        if not name.startswith(_RARE) or any(run.counters.get(name) for run in runs)
    ]
    rows.append(("simulated events", *(f"{run.events:,}" for run in runs)))
    rows.append(("memory requests", *(f"{run.requests:,}" for run in runs)))
    rows.append(("time to simulate [s]", *(f"{run.wall_s:.2f}" for run in runs)))
    return Table(("counter", *(run.config.overlap for run in runs)), rows)


def machine_table(
    gpu: Gpu, kinds: Sequence[str] = ("published", "peak", "measured", "derived", "set by user")
) -> Table:
    """The machine's values of those kinds with their sources."""
    rows = [(path, p.text, p.kind, p.source) for path, p in gpu.provenance.items() if p.kind in kinds]
    return Table(("value", "is", "kind", "source"), rows, text_columns=4)


def assumed_table(gpu: Gpu) -> Table:
    """The machine's assumed values, each with its plausible range and the reason."""
    rows = [
        (path, p.text, f"{p.low} to {p.high}", p.source)
        for path, p in gpu.provenance.items()
        if p.kind == "assumed"
    ]
    return Table(("value", "is", "plausible range", "reason"), rows, text_columns=4)


def _count(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name.endswith(("utilization", "intensity")):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
