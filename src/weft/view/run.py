"""A sub-layer under one or several overlaps: the tables that a terminal shows, and the page with the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.lower.machine import ring_link, ring_note
from weft.result import Comparison, Span, Timeline
from weft.result.timeline import Cause, words_of
from weft.units import format_rate
from weft.view import looks
from weft.view.explorer import phases, timeline, waits_table, words
from weft.view.figure import Figure, Lines, grouped_bars, spans, stacked_bars
from weft.view.page import Part, Section, simulated_section, write_page
from weft.view.table import NONE, Column, Shown, Table, microseconds, number, text, times_faster
from weft.view.words import case_label, changed, effort, percent, us

_PHASES = {"gemm": "GEMM", "reduce_scatter": "RS", "all_gather": "AG"}
_WAITS = {"compute": "computed", "memory": "loads", "matrix_unit": "matrix", "store": "stores", "chunk": "chunks"}
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
    "dram_queue_mean_accesses": "DRAM: queue of a channel, mean [32 B accesses]",
    "dram_queue_most_accesses": "DRAM: queue of a channel, longest [32 B accesses]",
    "communication_waited_past_limit": "DRAM: communication let through after its longest wait [requests]",
    "compute_unit_utilization": "compute units: time that matrix units computed",
    "link_bytes": "link: sent [B]",
    "link_utilization": "link: time that it was busy",
    "drained_s": "DRAM: when the last write had arrived [µs]",
    "arbiter_intensity": "arbiter: memory intensity seen",
    "arbiter_threshold_accesses": "arbiter: threshold chosen [32 B accesses]",
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
    first = answer.baseline
    # Passes may run other operators, such as an all-reduce of its own.
    others = [name for run in answer for name in run.durations if name not in _PHASES]
    phases = {**_PHASES, **{name: name for name in others}}
    columns = [
        text("overlap"), *(microseconds(name, head) for name, head in phases.items()), microseconds("total", "total"),
        times_faster("speedup"), number("traffic_mb", "DRAM traffic", "MB", ",.1f"),
    ]  # fmt: skip
    times = {run.overlap: [run.duration(name) * 1e6 for name in phases] for run in answer}
    rows = [
        (run.overlap, *times[run.overlap], run.seconds * 1e6, answer.speedup(run.overlap), run.total_bytes / 1e6)
        for run in answer
    ]
    gemm = f"{first.gemm} on each " if first.gemm else ""
    table = Table(columns, rows, f"{case_label(first.graph)}: {gemm}{first.gpu.name}{changed(first.gpu)}")
    return table if len(answer) > 1 else table.without(["speedup"])


def wait_table(runs: Sequence[Timeline]) -> Table:
    """Shares of the time that a kernel's workgroups spent on a compute unit, the mean of all GPUs."""
    rows = [
        (run.overlap, name, *_wait_shares([span for span in run.spans if span.kernel == name]))
        for run in runs
        for name in dict.fromkeys(span.kernel for span in run.spans)
    ]
    columns = [number(f"{key}_percent", head, format_=".1f") for key, head in _WAITS.items()]
    title = "What workgroups spent their time on, or waited for [%]"
    return Table([text("overlap"), text("kernel"), number("time_us", "µs", format_=",.1f"), *columns], rows, title)


def _wait_shares(found: Sequence[Span]) -> list[float]:
    spent = {what: sum(span.waits.get(what, 0) for span in found) for what in _WAITS}
    whole = max(sum(spent.values()), 1)
    duration = max(span.end_fs - span.start_fs for span in found)
    return [duration * 1e-9, *(100 * time / whole for time in spent.values())]


def traffic_table(runs: Sequence[Timeline]) -> Table:
    """What DRAM moved by cause, a column per run."""
    rows: list[Sequence[Any]] = [
        (words_of(cause), *(run.traffic.get(cause, 0) / 1e6 or None for run in runs))
        for cause in sorted({cause: 0 for run in runs for cause in run.traffic}, key=_computes, reverse=True)
    ]
    rows.append(("all", *(run.total_bytes / 1e6 or None for run in runs)))
    columns = [text("cause"), *(number(run.overlap, format_=",.2f") for run in runs)]
    return Table(columns, rows, "DRAM traffic of a GPU by cause [MB = 10^6 bytes]")


def _computes(cause: Cause) -> bool:
    return cause[0].startswith("gemm")


def counter_table(runs: Sequence[Timeline]) -> Table:
    """What the blocks of the machine counted in every simulated run."""
    names = dict.fromkeys(name for run in runs for name in run.counters)
    rows: list[Sequence[Any]] = [
        (_COUNTERS.get(name, name.replace("_", " ")), *(_count(name, run.counters.get(name)) for run in runs))
        for name in names
        if not name.startswith(_RARE) or any(run.counters.get(name) for run in runs)
    ]
    rows.append(("simulated events", *(Shown(run.events, f"{run.events:,}") for run in runs)))
    rows.append(("memory requests", *(Shown(run.requests, f"{run.requests:,}") for run in runs)))
    rows.append(("time to simulate [s]", *(Shown(run.wall_s, f"{run.wall_s:.2f}") for run in runs)))
    columns = [text("counter"), *(Column(run.overlap, is_number=True) for run in runs)]
    return Table(columns, rows, "What the blocks counted")


def _count(name: str, value: float | None) -> Shown:
    if value is None:
        return Shown(None, NONE)
    if name.endswith(("utilization", "intensity")):
        return Shown(value, f"{value:.1%}")
    if name.endswith("_s"):
        return Shown(value * 1e6, us(value))
    return Shown(value, f"{value:,}" if isinstance(value, int) else f"{value:,.2f}")


def run_record(answer: Comparison) -> dict[str, object]:
    """The runs as plain data for JSON, with speedups if there are several."""
    return {"runs": answer.rows() if len(answer) > 1 else [answer.baseline.record()]}


def run_report(answer: Comparison | Timeline | Mapping[str, Timeline], out_dir: str | Path) -> Path:
    """Write `report.html` on runs to a folder and return its path; OutputError if that cannot be done.

    A mapping sets runs side by side by its names, such as those of one graph on two machines.
    """
    if isinstance(answer, Timeline):
        answer = Comparison({answer.overlap: answer})
    runs = dict(answer.timelines if isinstance(answer, Comparison) else answer)
    compared = answer if isinstance(answer, Comparison) else Comparison(_named(runs))
    first, simulated = compared.baseline, {name: run for name, run in runs.items() if not run.parts}
    shown = [compared.timelines[name] for name in simulated]
    machines = list({(run.gpu.name, run.gpu.changes): run for run in runs.values()}.values())
    return write_page(
        out_dir,
        f"{case_label(first.graph)}, on {' and '.join(dict.fromkeys(run.gpu.name for run in machines))}",
        told(compared),
        [
            f"{first.gemm} on each GPU.".replace(" x ", " × ") if first.gemm else [],
            time_table(compared),
            Section("How much is hidden", [sub_layer_times(compared)]),
            Section("What happens when", [timeline(simulated), waits_table(simulated)] if simulated else []),
            Section("What moves through memory", _moved(compared) if shown else []),
            Section("What workgroups wait for", [waits(shown), wait_table(shown)] if shown else []),
            Section("What the blocks counted", [counter_table(shown)] if shown else []),
            *(simulated_section(run) for run in machines),
        ],
        "t3",
    )  # fmt: skip


def _moved(answer: Comparison) -> list[Part]:
    return [traffic_by_cause(answer), traffic_table(list(answer))]


def _named(runs: Mapping[str, Timeline]) -> Mapping[str, Timeline]:
    """The runs under the names by which they are told apart."""
    from dataclasses import replace

    return {name: replace(run, overlap=name) for name, run in runs.items()}


def told(answer: Comparison) -> str:
    """What happened and why, in a sentence."""
    first = answer.baseline
    if len(answer) == 1:
        alone = f"Under {first.overlap} it takes {us(first.seconds)} µs"
        return f"{alone}, {percent(first.duration('gemm') / first.seconds)} of them the GEMM's: {_hidden(first)}."
    best = answer[_fastest(answer)]
    if best is first:
        return f"Nothing is faster than {first.overlap}, which takes {us(first.seconds)} µs: {_hidden(first)}."
    moved = best.total_bytes / first.total_bytes - 1
    return (
        f"{best.overlap} is {answer.speedup(best.overlap):.2f} times as fast as {first.overlap}, {us(best.seconds)} "
        f"instead of {us(first.seconds)} µs: {_hidden(best)}, and DRAM moves {abs(moved):.0%} "
        f"{'less' if moved < 0 else 'more'}."
    )


def _fastest(answer: Comparison) -> str:
    """The simulated run that takes least time, or the ideal if all are."""
    return min(answer.timelines, key=lambda name: (bool(answer[name].parts), answer[name].seconds))


def _hidden(run: Timeline) -> str:
    """How much of the reduce-scatter runs beside the GEMM, in words."""
    found = phases(run)
    if "gemm" not in found or "reduce_scatter" not in found:
        return "its operators follow one another"
    (begin, end), (start, over) = found["gemm"], found["reduce_scatter"]
    hidden = max(0.0, min(end, over) - max(begin, start)) / max(over - start, 1e-12)
    return (
        f"{hidden:.0%} of the reduce-scatter runs beside the GEMM" if hidden > 0 else "communication waits for the GEMM"
    )


def sub_layer_times(answer: Comparison) -> Figure:
    """When each overlap computes and communicates, on one axis of time."""
    rows = [
        (run.overlap, words(phase), begin, end, end - begin)
        for run in answer
        for phase, (begin, end) in phases(run).items()
    ]
    columns = [text("overlap"), text("phase", "what"), *(microseconds(key, key) for key in ("start", "end", "takes"))]
    said = [
        (run.overlap, run.seconds * 1e6, f"{run.seconds * 1e6:,.0f} µs"
         + ("" if run is answer.baseline else f", {answer.speedup(run.overlap):.2f}×"))
        for run in answer
    ]  # fmt: skip
    whole = Table([text("overlap"), microseconds("total", "total"), text("said", " ")], said)
    colors = {words(name): color for name, (_, color) in looks.PHASES.items()}
    return spans(
        "How much communication hides behind the GEMM?", Table(columns, rows), lane="overlap", start="start_us",
        end="end_us", kind="phase", looks={**looks.spread([row[1] for row in rows]), **colors}, offset="phase",
        words=Lines(whole, "total_us", "said", "overlap"), row_px=46,
    ).captioned(
        "What lies under a GEMM bar is hidden. A fused reduce-scatter runs from its first byte's arrival to its last "
        "chunk's completion."
    )  # fmt: skip


def waits(runs: Timeline | Sequence[Timeline], gpu: int = 0) -> Figure:
    """What the workgroups of every kernel did or waited for, as shares of their time."""
    several = [runs] if isinstance(runs, Timeline) else list(runs)
    rows = [
        (f"{run.overlap}: {words(span.operator)}{f' {span.iteration}' if span.iteration else ''}", what, spent / whole)
        for run in several
        for span in run.spans
        if span.gpu == gpu and (whole := sum(span.waits.values()))
        for why, (what, _) in looks.WAITS.items()
        if (spent := span.waits.get(why, 0))
    ]
    table = Table([text("kernel"), text("what"), number("share", "share of the workgroups' time", format_=".1%")], rows)
    return stacked_bars(
        "What do workgroups wait for?", table, lane="kernel", part="what", value="share", share=True,
        looks=dict(looks.WAITS.values()),
    ).captioned(
        "Each kernel's workgroups, all their time added up. Two workgroups share a compute unit's matrix unit, so a "
        "busy GEMM shows half its time as waiting for it; time spent on loads and stores is what memory costs."
    )  # fmt: skip


def traffic_by_cause(
    answers: Comparison | Mapping[object, Comparison] | Iterable[Comparison], overlaps: Sequence[str] | None = None
) -> Figure:
    """DRAM traffic in all, stacked by cause: one sub-layer in MB, several as a share of their sequential run.

    `overlaps` stand side by side; by default sequential and t3-mca, or all simulated ones of one comparison.
    """
    if isinstance(answers, Comparison):
        names = overlaps or [run.overlap for run in answers if not run.parts]
        return _one_sub_layer(answers, [answers[name] for name in names])
    cases = list(answers.values() if isinstance(answers, Mapping) else answers)
    return _many_sub_layers(cases, overlaps or ("sequential", "t3-mca"))


def _one_sub_layer(case: Comparison, runs: Sequence[Timeline]) -> Figure:
    rows = []
    for run in runs:
        change = "" if run is case.baseline else f" ({run.total_bytes / case.baseline.total_bytes - 1:+.0%})"
        said = f"{run.total_bytes / 1e6:,.0f} MB{change}"
        rows += [(run.overlap, words_of(cause), moved / 1e6, said) for cause, moved in run.traffic.items() if moved]
    columns = [text("overlap"), text("cause"), number("mb", "DRAM traffic of one GPU", "MB", ",.1f"), text("said", " ")]
    return stacked_bars(
        "Which traffic does each overlap cause?", Table(columns, rows), lane="overlap", part="cause", value="mb",
        looks=looks.cause_looks([cause for run in runs for cause in run.traffic]), end="said",
    ).captioned("All bytes between the memory controllers and DRAM of one GPU, by what caused them.")  # fmt: skip


def _many_sub_layers(cases: Sequence[Comparison], overlaps: Sequence[str]) -> Figure:
    rows = []
    for case in cases:
        for name in overlaps:
            whole, base = case[name].total_bytes, case.baseline.total_bytes
            said = "" if name == "sequential" else f"{whole / base - 1:+.0%}"
            moved = case[name].traffic.items()
            rows += [(case_label(case.baseline.graph), name, words_of(of), n / base, said) for of, n in moved if n]
    share = number("share", "DRAM traffic, share of sequential", format_=".1%")
    columns = [text("layer", "sub-layer"), text("overlap"), text("cause"), share, text("said", " ")]
    causes = [cause for case in cases for name in overlaps for cause in case[name].traffic]
    return stacked_bars(
        "Where is DRAM traffic saved?", Table(columns, rows), lane="layer", part="cause", value="share", end="said",
        looks=looks.cause_looks(causes), offset="overlap", percent=True,
    )  # fmt: skip


def speedups(
    answers: Mapping[object, Comparison] | Iterable[Comparison],
    published: Mapping[str, float] | None = None,
    title: str = "How much faster than sequential is each overlap?",
) -> Figure:
    """Bars of speedup over sequential for every sub-layer, with each overlap's geometric mean below them.

    `published` gives geometric means to mark as lines, by overlap. The first comparison says which overlaps.
    """
    from statistics import geometric_mean

    cases = list(answers.values() if isinstance(answers, Mapping) else answers)
    names = [name for name in cases[0].timelines if name != "sequential"]
    rows = [(case_label(case.baseline.graph), name, case.speedup(name), "") for case in cases for name in names]
    means = {name: geometric_mean([case.speedup(name) for case in cases]) for name in names}
    rows += [("geometric mean", name, mean, f"{mean:.2f}") for name, mean in means.items()]
    speedup = number("speedup", "speedup over sequential", "×", ".3f")
    marks = [(name, value) for name, value in (published or {}).items() if name in names]
    lines = Table([text("overlap"), number("speedup", "published geometric mean", "×", ".2f")], marks)
    return grouped_bars(
        title, Table([text("layer", "sub-layer"), text("overlap"), speedup, text("said", " ")], rows), group="layer",
        series="overlap", value="speedup", looks=looks.overlap_looks(names), base=1.0, label="said",
        marks=Lines(lines, "speedup", "overlap") if marks else None,
    )  # fmt: skip
