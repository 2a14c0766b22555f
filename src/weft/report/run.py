"""A sub-layer under one or several overlaps: the tables that a terminal shows, and the page with the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.lower.machine import ring_link, ring_note
from weft.report import plots
from weft.report.page import Figure, Section, simulated_section, write_page
from weft.report.tables import Table, case_label, changed, effort, us
from weft.result import Comparison, Span, Timeline
from weft.result.timeline import Cause, words_of
from weft.units import format_rate

_PHASES = {"gemm": "GEMM [µs]", "reduce_scatter": "RS [µs]", "all_gather": "AG [µs]"}
_WAITS = {
    "compute": "computed",
    "memory": "loads",
    "matrix_unit": "matrix",
    "store": "stores",
    "chunk": "chunks",
}
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
    "drained_s": "DRAM: when the last write had arrived [µs]",
    "arbiter_intensity": "arbiter: memory intensity seen",
    "arbiter_threshold_accesses": "arbiter: threshold chosen [64 B accesses]",
}


def run_parts(answer: Comparison) -> list[Table | str]:
    """What a terminal shows of the runs of a graph: times, waits, traffic, counters, and what it took."""
    runs = list(answer)
    simulated = [run for run in runs if not run.parts]
    parts: list[Table | str] = [time_table(answer)]
    parts += [wait_table(simulated)] if simulated else []
    parts.append(traffic_table(runs))
    parts += [counter_table(simulated)] if simulated else []
    if note := ring_note(runs[0].system):
        parts.append(f"link: {format_rate(ring_link(runs[0].system).bandwidth, 4)}, {note}")
    return [*parts, effort(runs)]


def time_table(answer: Comparison) -> Table:
    """Times, speedup over the first if there are several, and DRAM traffic of each overlap."""
    first, several = answer.baseline, len(answer) > 1
    # Passes may run other operators, such as an all-reduce of its own.
    others = {name: f"{name} [µs]" for run in answer for name in run.durations if name not in _PHASES}
    phases = _PHASES | others
    rows = []
    for run in answer:
        speedup = [f"{answer.speedup(run.overlap):.3f}"] if several else []
        times = (*(us(run.duration(name)) for name in phases), us(run.seconds))
        rows.append((run.overlap, *times, *speedup, f"{run.total_bytes / 1e6:,.1f}"))
    heads = ("overlap", *phases.values(), "total [µs]", *(["speedup"] if several else []), "DRAM traffic [MB]")
    gemm = f"{first.gemm} on each " if first.gemm else ""
    return Table(heads, rows, title=f"{case_label(first.graph)}: {gemm}{first.gpu.name}{changed(first.gpu)}")


def wait_table(runs: Sequence[Timeline]) -> Table:
    """Shares of the time that a kernel's workgroups spent on a compute unit, the mean of all GPUs."""
    rows = [
        (run.overlap, name, *_wait_shares([span for span in run.spans if span.kernel == name]))
        for run in runs
        for name in dict.fromkeys(span.kernel for span in run.spans)
    ]
    title = "What workgroups spent their time on, or waited for [%]"
    return Table(("overlap", "kernel", "µs", *_WAITS.values()), rows, text_columns=2, title=title)


def _wait_shares(spans: Sequence[Span]) -> list[str]:
    spent = {what: sum(span.waits.get(what, 0) for span in spans) for what in _WAITS}
    whole = max(sum(spent.values()), 1)
    duration = max(span.end_fs - span.start_fs for span in spans)
    return [us(duration * 1e-15), *(f"{100 * time / whole:.1f}" for time in spent.values())]


def traffic_table(runs: Sequence[Timeline]) -> Table:
    """What DRAM moved by cause, a column per run."""
    rows = [
        (words_of(cause), *(_megabytes(run.traffic.get(cause, 0)) for run in runs))
        for cause in sorted({cause: 0 for run in runs for cause in run.traffic}, key=_computes, reverse=True)
    ]
    rows.append(("all", *(_megabytes(run.total_bytes) for run in runs)))
    title = "DRAM traffic of a GPU by cause [MB = 10^6 bytes]"
    return Table(("cause", *(run.overlap for run in runs)), rows, title=title)


def _computes(cause: Cause) -> bool:
    return cause[0].startswith("gemm")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.2f}" if count else "–"


def counter_table(runs: Sequence[Timeline]) -> Table:
    """What the blocks of the machine counted in every simulated run."""
    names = dict.fromkeys(name for run in runs for name in run.counters)
    rows = [
        (_COUNTERS.get(name, name.replace("_", " ")), *(_count(name, run.counters.get(name)) for run in runs))
        for name in names
        if not name.startswith(_RARE) or any(run.counters.get(name) for run in runs)
    ]
    rows.append(("simulated events", *(f"{run.events:,}" for run in runs)))
    rows.append(("memory requests", *(f"{run.requests:,}" for run in runs)))
    rows.append(("time to simulate [s]", *(f"{run.wall_s:.2f}" for run in runs)))
    return Table(("counter", *(run.overlap for run in runs)), rows, title="What the blocks counted")


def _count(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name.endswith(("utilization", "intensity")):
        return f"{value:.1%}"
    if name.endswith("_s"):
        return us(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def run_record(answer: Comparison) -> dict[str, object]:
    """The runs as plain data for JSON, with speedups if there are several."""
    return {"runs": answer.rows() if len(answer) > 1 else [answer.baseline.record()]}


def run_report(answer: Comparison | Timeline, out_dir: str | Path) -> Path:
    """Write `report.html` on a graph's runs to a folder and return its path; OutputError if that cannot be done."""
    if isinstance(answer, Timeline):
        answer = Comparison({answer.overlap: answer})
    first, simulated = answer.baseline, [run for run in answer if not run.parts]
    counted = [Section("What the blocks counted", [counter_table(simulated)])] if simulated else []
    return write_page(
        out_dir,
        f"{case_label(first.graph)}, on {first.gpu.name}",
        f"{first.gemm} on each GPU.".replace(" x ", " × "),
        [time_table(answer), Section("Pictures", _figures(answer, simulated)), *counted, simulated_section(first)],
    )  # fmt: skip


def _figures(answer: Comparison, simulated: Sequence[Timeline]) -> list[Figure]:
    figures = [
        Figure(
            plots.sub_layer_times(answer),
            "GEMM above, communication below it, on one time axis: what lies under a GEMM bar is hidden. "
            "A fused reduce-scatter runs from its first byte's arrival to its last chunk's completion.",
        )
    ]
    if not simulated:
        return figures
    by_cause = plots.traffic_by_cause(answer, [run.overlap for run in simulated])
    return [
        *figures,
        Figure(by_cause, "All bytes between the memory controllers and DRAM of one GPU, by what caused them."),
        *(Figure(plots.traffic_over_time(run, plots.busiest_stages(run)), _TRAFFIC) for run in simulated),
        *(Figure(plots.timeline(run), timeline_caption(run)) for run in simulated),
        Figure(plots.waits(simulated), _WAITED),
    ]


_TRAFFIC = (
    "DRAM traffic over time. Above, the whole run; below, if communication meets the GEMM, the shaded stages. "
    "Blue is the GEMM's, warm colours are the reduce-scatter's."
)
_WAITED = (
    "Each kernel's workgroups, all their time added up. Two workgroups share a compute unit's matrix unit, "
    "so a busy GEMM shows half its time as waiting for it; time spent on loads and stores is what memory costs."
)


def timeline_caption(run: Timeline) -> str:
    """What to see in a run's timeline."""
    if any(dma.gpu == 0 for dma in run.dmas):
        return (
            "Every tile of a chunk must be written here and arrive from the neighbour before DMA sends it "
            "on. The chunk that the GEMM makes first is not shown: its stores go straight to the "
            "neighbour, as chunk 1 there."
        )
    return "Chunks go round the ring one after the other once the GEMM is done."
