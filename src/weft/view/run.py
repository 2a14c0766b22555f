"""A sub-layer under one or several overlaps: tables for the terminal, and the page with figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from weft.core.report import Part, Report, Section
from weft.core.report.table import NONE, Column, Shown, Table, microseconds, number, text, times_faster
from weft.core.units import format_rate
from weft.estimate import BenchmarkProtocol, estimate
from weft.estimate.errors import operator_errors
from weft.graph import Collective, LibraryCollective, RemoteLoads
from weft.graph.moe import routing_of
from weft.kernels.library.collectives import KERNELS
from weft.overlaps import SEQUENTIAL
from weft.overlaps.lower.machine import ring_link
from weft.simulate.result import Comparison, Span, Timeline
from weft.simulate.result.timeline import words_of
from weft.view import looks
from weft.view.explorer import phases, timeline, waits_table, words
from weft.view.figure import Axis, Color, Figure, Label, Lane, Lines, bars, stacked_bars, timeline_bars
from weft.view.heat import heat_parts, heat_section
from weft.view.interference import interference_parts, interference_section
from weft.view.page import simulated_section
from weft.view.words import case_label, changed_values, effort, link_note, percent, us

_PHASES = {"gemm": "GEMM", "reduce_scatter": "RS", "all_gather": "AG"}
_WAITS = {"compute": "computed", "memory": "loads", "matrix_unit": "matrix", "store": "stores", "chunk": "chunks"}
_RARE = ("tracker_", "communication_waited_past_limit")
"""Counters of T3's tracker and arbiter alone: omitted if zero in every run."""
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
    "network_bytes": "network between nodes: sent [B]",
    "merge_most_entries": "switch: most entries of a table in use",
    "merge_evicted": "switch: requests that left a full table early",
    "merge_expired": "switch: requests that left when their window was over",
    "link_utilization": "link: time that it was busy",
    "drained_s": "DRAM: when the last write had arrived [µs]",
    "arbiter_intensity": "arbiter: memory intensity seen",
    "arbiter_threshold_accesses": "arbiter: threshold chosen [32 B accesses]",
}


_NOTABLE = 1.05
"""How much longer a forced algorithm takes than the library's own before the answer says so."""
_ALONE = (
    "No baseline was simulated, so nothing here says what the overlap gains. To compare, add --compare sequential "
    'to the command, or call weft.compare(graph, system, ["sequential", ...]) in Python.'
)


class RunReport(Report[Comparison]):
    """The runs of a graph: times, what is hidden, what happens when, traffic, waits and counters."""

    explained = "t3"

    @property
    def simulated_runs(self) -> list[Timeline]:
        """The runs without ideals, which are assembled from others."""
        return [run for run in self.answer if not run.parts]

    @property
    def machines(self) -> list[Timeline]:
        """A run on each machine."""
        return list({(run.gpu.name, run.gpu.changes): run for run in self.answer}.values())

    def title(self) -> str:
        """Return the graph and the GPUs."""
        names = dict.fromkeys(run.gpu.name for run in self.machines)
        return f"{case_label(self.answer.baseline.graph)}, on {' and '.join(names)}"

    def sentences(self) -> list[str]:
        """Return the outcome, why a run beats an ideal, and hardware that cannot be bought."""
        needed = hypothetical(self.answer)
        return [*self._conclusion(), *above_ideal(self.answer), *([needed] if needed else [])]

    def lead(self) -> str:
        """Return the outcome, after hardware that cannot be bought."""
        return " ".join(filter(None, [hypothetical(self.answer), *self._conclusion()]))

    def _conclusion(self) -> list[str]:
        """Return the outcome, what the user's changes gain, and what slows the baseline or a GPU."""
        answer = self.answer
        return [_outcome(answer), *unchanged_sentence(answer), *_slow_baseline(answer), *_late(answer)]

    def notes(self) -> list[str]:
        """Return the link, how to get a baseline, the simulation's effort, and the typical errors."""
        first = self.answer.baseline
        note = link_note(first)
        link = [f"link: {format_rate(ring_link(first.system).bandwidth, 4)}, {note}"] if note else []
        alone = [_ALONE] if len(self.answer) == 1 and self.answer.baseline.graph.gemms else []
        timed = [(node.op, first.duration(node.name)) for node in first.graph if node.name in first.durations]
        each = first.system.gpus_per_node if first.system.nodes > 1 else 0
        errors = operator_errors(timed, first.gpu, each)
        sure = [f"expected error of operators in closed form: {why}" for why in errors]
        return [*link, *alone, *left_out(self.answer), effort(self.answer), *sure]

    def tables(self) -> list[Table]:
        """Return the time of each overlap."""
        return [time_table(self.answer), *late_tables(self.answer)]

    def on_terminal(self) -> Sequence[Table | str]:
        """Return the time of each overlap, its traffic by cause, and what was recorded on request."""
        answer = self.answer
        traffic = traffic_table(list(answer))
        return [time_table(answer), *late_tables(answer), traffic, *recorded_parts(self.simulated_runs)]

    def details(self) -> list[Table | str]:
        """Waits, and counters."""
        some = self.simulated_runs
        return [wait_table(some), counter_table(some)] if some else []

    def figure(self) -> Figure:
        """Return when each overlap computes and communicates."""
        return sub_layer_times(self.answer)

    def sections(self) -> list[Part]:
        """Return the page: what is hidden, what happens when, what moves, waits, interference, load, and counters."""
        answer, shown = self.answer, self.simulated_runs
        simulated, traffic = {run.overlap: run for run in shown}, traffic_table(list(answer))
        gemm = answer.baseline.gemm
        return [
            f"{gemm} on each GPU.".replace(" x ", " × ") if gemm else [],
            time_table(answer),
            *late_tables(answer),
            Section("How much is hidden", [sub_layer_times(answer)] if answer.baseline.graph.gemms else []),
            Section("What happens when", [timeline(simulated), waits_table(simulated)] if shown else []),
            Section("What moves through memory", [traffic_by_cause(answer), traffic] if shown else []),
            Section("What workgroups wait for", [waits(shown), wait_table(shown)] if shown else []),
            interference_section(shown),
            heat_section(shown),
            Section("Hardware counters", [counter_table(shown)] if shown else [], folded=bool(shown)),
        ]

    def appendix(self) -> list[Part]:
        """Return every machine that was simulated."""
        return [simulated_section(run) for run in self.machines]


class TimelineReport(RunReport):
    """One run, without a baseline."""

    def __init__(self, answer: Timeline) -> None:
        super().__init__(Comparison({answer.overlap: answer}))
        self.run = answer

    def tables(self) -> list[Table]:
        """Return the times, and the traffic by cause."""
        return [time_table(self.answer), traffic_table([self.run])]

    def figure(self) -> Figure:
        """Every kernel over time; for an ideal, which was not simulated, its compute and communication phases."""
        return sub_layer_times(self.answer) if self.run.parts else timeline(self.run)


def time_table(answer: Comparison) -> Table:
    """Return times and DRAM traffic of each overlap, and its speedup over the first if there are several."""
    first = answer.baseline
    # Passes may run other operators, such as a separate all-reduce.
    others = [name for run in answer for name in run.durations if name not in _PHASES]
    usual = _PHASES if first.graph.gemms else {name: _PHASES[name] for name in _PHASES if name in first.durations}
    phases = {**usual, **{name: name for name in others}}
    columns = [
        text("overlap"), *(microseconds(name, head) for name, head in phases.items()), microseconds("total", "total"),
        *([times_faster("speedup")] if len(answer) > 1 else []), number("traffic_mb", "DRAM traffic", "MB", ",.1f"),
    ]  # fmt: skip
    rows = [
        (run.overlap, *(run.duration(name) * 1e6 for name in phases), run.seconds * 1e6,
         *([answer.speedup(run.overlap)] if len(answer) > 1 else []), run.total_bytes / 1e6)
        for run in answer
    ]  # fmt: skip
    gemm = f"{first.gemm} on each " if first.gemm else ""
    title = f"{case_label(first.graph)}: {gemm}{first.gpu.name}{changed_values(first.gpu)}"
    return Table(columns, rows, with_hypothetical(title, answer))


def recorded_parts(runs: Sequence[Timeline]) -> list[Table | str]:
    """The tables of what runs recorded on request: interference in memory, and the load of channels or banks."""
    met = interference_parts(runs) if any(run.interference is not None for run in runs) else []
    return [*met, *(heat_parts(runs) if any(run.heat is not None for run in runs) else [])]


def unchanged_sentence(answer: Comparison) -> list[str]:
    """State the time on the machine without the user's changes, and what the changes gain; empty without changes."""
    before = answer.unchanged
    if before is None:
        return []
    after = answer[before.overlap]
    gain = before.seconds / after.seconds
    ratio = f"{gain:.2f} times as fast" if gain >= 1 else f"{1 / gain:.2f} times as long"
    took = f"{before.overlap} takes {us(after.seconds)} µs instead of {us(before.seconds)} µs"
    return [f"With {'; '.join(after.system.changes)}, {took} on {before.gpu.name} as catalogued: {ratio}."]


def left_out(answer: Comparison) -> list[str]:
    """Return the overlaps that cannot run, grouped by reason."""
    names: dict[str, list[str]] = {}
    for name, reason in answer.refused.items():
        names.setdefault(reason, []).append(name)
    return [f"left out: {', '.join(alike)}: {reason}" for reason, alike in names.items()]


def late_tables(answer: Comparison) -> list[Table]:
    """Return what stragglers cost under each overlap, beside the same with equal GPUs; nothing without stragglers."""
    if answer.stragglers is None:
        return []
    first, many = next(iter(answer.drawn.values())), len(answer.slowest) > 1
    late = "mean of draws" if many else "with stragglers"
    columns = [
        text("overlap"), microseconds("equal", "equal GPUs"), microseconds("late", late),
        number("lost", "longer", "", "+.1%"), number("low", "lowest", "", "+.1%"),
        number("high", "highest", "", "+.1%"), times_faster("speedup"),
    ]  # fmt: skip
    rows = [
        (name, one.equal_s * 1e6, one.mean_s * 1e6, one.lost, *one.range, first.mean_s / one.mean_s)
        for name, one in answer.drawn.items()
    ]
    title = f"What stragglers cost: {answer.stragglers.title}"
    if not many:
        return [Table(columns, rows, title).without(["low", "high"])]
    by_draw = _by_draw(answer, answer.stragglers.title)
    return [by_draw] if answer.is_by_share else [Table(columns, rows, title), by_draw]


def _by_draw(answer: Comparison, stragglers: str) -> Table:
    """Return how much longer each overlap takes under each draw of stragglers, and which GPU is the slowest in it."""
    columns = [
        number("draw"), text("slowest", "slowest GPU"), number("clock", "its clock", "", "+.1%"),
        *(number(name, name, "", "+.1%") for name in answer.drawn),
    ]  # fmt: skip
    rows = [
        (draw + 1, "" if late is None else f"GPU {late[0]}", None if late is None else -late[1],
         *(one.seconds[draw] / one.equal_s - 1 for one in answer.drawn.values()))
        for draw, late in enumerate(answer.slowest)
    ]  # fmt: skip
    unknown = [] if any(answer.slowest) else ["slowest", "clock"]
    table = Table(columns, rows, f"How much longer each overlap takes: {stragglers}")
    return table.without(["draw"] if answer.is_by_share else unknown)


def _late(answer: Comparison) -> list[str]:
    """Return what stragglers cost, in a sentence: the mean and the range of their draws, or each share."""
    if answer.stragglers is None:
        return []
    title = answer.stragglers.title
    if answer.is_by_share:
        each = " / ".join
        cost = ", ".join(
            f"{name} {each(f'{100 * (took / one.equal_s - 1):+.1f}' for took in one.seconds)} %"
            for name, one in answer.drawn.items()
        )
        return [f"With {title}, against equal GPUs: {cost}; times by operator are those of the first."]
    many, late = len(answer.slowest) > 1, answer.slowest[0]
    cost = ", ".join(
        f"{name} {one.lost:+.1%}" + " ({:+.1%} to {:+.1%})".format(*one.range) * many
        for name, one in answer.drawn.items()
    )
    who = f" (GPU {late[0]})" if late and not many else ""
    first = "; times by operator are those of the first draw" * many
    return [f"With {title}{who}, against equal GPUs: {cost}{first}."]


def with_hypothetical(title: str, runs: Iterable[Timeline]) -> str:
    """Return a title that ends with the overlaps that need hardware which no GPU on the market has."""
    names = dict.fromkeys(run.overlap for run in runs if run.hypothetical)
    return f"{title}; hypothetical hardware under {', '.join(names)}" if names else title


def wait_table(runs: Sequence[Timeline]) -> Table:
    """Return the shares of the time that a kernel's workgroups spent on a compute unit, the mean of all GPUs."""
    rows = []
    for run in runs:
        for name in dict.fromkeys(span.kernel for span in run.spans):
            found = [span for span in run.spans if span.kernel == name]
            spent = [sum(span.waits.get(what, 0) for span in found) for what in _WAITS]
            duration = max(span.end_fs - span.start_fs for span in found) * 1e-9
            rows.append((run.overlap, name, duration, *(100 * time / max(sum(spent), 1) for time in spent)))
    columns = [number(f"{key}_percent", head, format_=".1f") for key, head in _WAITS.items()]
    title = "What workgroups spent their time on, or waited for [%]"
    return Table([text("overlap"), text("kernel"), number("time_us", "µs", format_=",.1f"), *columns], rows, title)


def traffic_table(runs: Sequence[Timeline]) -> Table:
    """DRAM traffic by cause, a column per run."""
    causes = sorted(dict.fromkeys(cause for run in runs for cause in run.traffic), key=lambda c: c[0][:4] != "gemm")
    rows: list[Sequence[Any]] = [
        (words_of(cause), *(run.traffic.get(cause, 0) / 1e6 or None for run in runs)) for cause in causes
    ]
    rows.append(("all", *(run.total_bytes / 1e6 or None for run in runs)))
    columns = [text("cause"), *(number(run.overlap, format_=",.2f") for run in runs)]
    return Table(columns, rows, "DRAM traffic of a GPU by cause [MB = 10^6 bytes]")


def counter_table(runs: Sequence[Timeline]) -> Table:
    """Counters of the machine's blocks in every simulated run."""
    rows: list[Sequence[Any]] = [
        (_COUNTERS.get(name, name.replace("_", " ")), *(_count(name, run.counters.get(name)) for run in runs))
        for name in dict.fromkeys(name for run in runs for name in run.counters)
        if not name.startswith(_RARE) or any(run.counters.get(name) for run in runs)
    ]
    rows.append(("simulated events", *(_count("events", run.events) for run in runs)))
    rows.append(("memory requests", *(_count("requests", run.requests) for run in runs)))
    rows.append(("time to simulate [s]", *(Shown(run.cpu_s, f"{run.cpu_s:.2f}") for run in runs)))
    columns = [text("counter"), *(Column(run.overlap, is_number=True) for run in runs)]
    return Table(columns, rows, "Hardware counters")


def _count(name: str, value: float | None) -> Shown:
    if value is None:
        return Shown(None, NONE)
    if name.endswith(("utilization", "intensity")):
        return Shown(value, f"{value:.1%}")
    if name.endswith("_s"):
        return Shown(value * 1e6, us(value))
    return Shown(value, f"{value:,}" if isinstance(value, int) else f"{value:,.2f}")


def _outcome(answer: Comparison) -> str:
    first = answer.baseline
    if len(answer) == 1:
        if not first.graph.gemms:
            return f"Alone it takes {us(first.seconds)} µs."
        alone = f"Under {first.overlap} it takes {us(first.seconds)} µs"
        return f"{alone}, {percent(first.duration('gemm') / first.seconds)} of them the GEMM's: {_hidden_words(first)}."
    best = min(answer, key=lambda run: (bool(run.parts), run.seconds))  # simulated runs before ideals
    if best is first:
        return f"Nothing is faster than {first.overlap}, which takes {us(first.seconds)} µs: {_hidden_words(first)}."
    moved = best.total_bytes / first.total_bytes - 1
    late = answer.slowest[0] if answer.slowest else None
    slowed = f"With GPU {late[0]} {late[1]:.1%} slower, " if late else ""
    return (
        f"{slowed}{best.overlap} is {answer.speedup(best.overlap):.2f} times as fast as {first.overlap}, "
        f"{us(best.seconds)} instead of {us(first.seconds)} µs: {_hidden_words(best)}, and DRAM moves {abs(moved):.0%} "
        f"{'less' if moved < 0 else 'more'}.{_without_new_hardware(answer, best)}{_among_equals(answer, best)}"
    )


def _slow_baseline(answer: Comparison) -> list[str]:
    """Return a warning if the baseline runs collectives by an algorithm that the library would not choose."""
    first = answer.baseline
    kernels = (node.choice.kernel for node in first.graph if isinstance(node.op, Collective))
    asked = Counter(each.algorithm if isinstance(each, LibraryCollective) else None for each in kernels)
    kernel = asked.most_common(1)[0][0] if asked else None
    if len(answer) == 1 or kernel not in KERNELS:
        return []
    moved = [node.op for node in first.graph if isinstance(node.op, Collective)]
    own, forced = (
        [estimate(op, first.system, first.options, BenchmarkProtocol(algorithm=name)) for op in moved]
        for name in ("auto", kernel)
    )
    seconds, longer = (sum(float(one.seconds) for one in some) for some in (own, forced))
    if longer <= seconds * _NOTABLE:
        return []
    names = " and ".join(dict.fromkeys(str(one.by) for one in own))
    slow = f"The baseline runs its collectives by {kernel}, and the library would choose {names}: by closed forms "
    return [f"{slow}{us(seconds)} instead of {us(longer)} µs. Leave --algorithm out, or give auto."]


def _among_equals(answer: Comparison, best: Timeline) -> str:
    """Return how much faster the best run is where no GPU is late, as a sentence."""
    if best.overlap not in answer.drawn:
        return ""
    equal = answer.drawn[answer.baseline.overlap].equal_s / answer.drawn[best.overlap].equal_s
    return f" Among equal GPUs it is {equal:.2f} times as fast."


def _without_new_hardware(answer: Comparison, best: Timeline) -> str:
    """Return how much a run on hypothetical hardware gains over the fastest run without it, as a sentence."""
    others = [run for run in answer if run is not answer.baseline and not run.hypothetical and not run.parts]
    if not best.hypothetical or not others:
        return ""
    real = min(others, key=lambda run: run.seconds)
    gain = f"{real.seconds / best.seconds:.2f} times as fast"
    return f" Against {real.overlap}, {us(real.seconds)} µs without new hardware, it is {gain}."


def above_ideal(answer: Comparison) -> list[str]:
    """Return why a simulated run takes less time than an ideal of the same comparison."""
    return [
        f"{run.overlap} is faster than {ideal.overlap}, which hides sequential's operators as they are: {run.overlap} "
        f"also moves {1 - run.total_bytes / ideal.total_bytes:.0%} less through DRAM."
        for ideal in answer
        for run in answer
        if ideal.parts and not run.parts and run.seconds < ideal.seconds and run.total_bytes < ideal.total_bytes
    ]


def hypothetical(runs: Iterable[Timeline]) -> str:
    """Hardware of the runs that no GPU on sale has, in a sentence; empty if there is none."""
    found: dict[str, list[str]] = {}
    for run in runs:
        if run.hypothetical:
            found.setdefault(" and ".join(run.hypothetical), []).append(run.overlap)
    return " ".join(
        f"Hypothetical hardware, on no GPU that can be bought: {needs} (under {', '.join(dict.fromkeys(names))})."
        for needs, names in found.items()
    )


def _hidden_words(run: Timeline) -> str:
    """Return how much of a reduce-scatter, an all-gather or the exchanges around experts GEMMs hide, in words."""
    found = phases(run)
    if routing_of(run.graph) is not None and (beside := sum(run.durations.values()) - run.seconds) > run.seconds * 1e-6:
        share = beside / (run.duration("dispatch") + run.duration("combine"))
        return f"{min(share, 1):.0%} of MoE dispatch and combine is hidden behind the experts' GEMMs"
    if any(isinstance(node.choice.kernel, RemoteLoads) for node in run.graph):
        return "whose tiles load the rows of other GPUs as they need them"
    gemms = [found[node.name] for node in run.graph.gemms if node.name in found]
    nodes = [node for node in run.graph.collectives if node.name in found]
    kinds = {node.name: node.op.name for node in nodes if isinstance(node.op, Collective)}
    if not gemms or not kinds:
        return "its operators follow one another"
    moved = next(kind for kind in ("reduce_scatter", "all_gather", *kinds.values()) if kind in kinds.values())
    moves = [found[name] for name, kind in kinds.items() if kind == moved]
    (begin, end), (start, over) = ((min(map(min, each)), max(map(max, each))) for each in (gemms, moves))
    hidden = max(0.0, min(end, over) - max(begin, start)) / max(over - start, 1e-12)
    if hidden > 0:
        return f"{hidden:.0%} of the {moved.replace('_', '-')} is hidden behind the GEMM"
    return "communication waits for the GEMM" if start >= end else "the GEMM waits for communication"


def sub_layer_times(answer: Comparison) -> Figure:
    """Return when each overlap computes and communicates, on one time axis."""
    rows = []
    for run in answer:
        gain = "" if run is answer.baseline else f", {answer.speedup(run.overlap):.2f}×"
        found = phases(run)
        last = max(found, key=lambda name: found[name][1])
        for name, (begin, end) in found.items():
            said = f"{run.seconds * 1e6:,.0f} µs{gain}" if name == last else ""
            rows.append((run.overlap, words(name), begin, end, end - begin, said))
    times = (microseconds(key, head) for key, head in (("start", "start"), ("end", "end"), ("takes", "takes")))
    table = Table([text("overlap"), text("phase", "what"), *times, text("said", " ")], rows)
    colors = {words(name): color for name, (_, color) in looks.PHASES.items()}
    return timeline_bars(
        "How much communication hides behind the GEMM?", table, lane=Lane("overlap", "phase"), start="start_us",
        end=Axis("end_us", title="time [µs]", domain=True),
        color=Color("phase", {**looks.spread(table.distinct("phase")), **colors}), over=[Label("said")],
    ).with_caption(
        "What lies under a GEMM bar is hidden. A fused reduce-scatter runs from its first byte's arrival to its last "
        "chunk's completion."
    )  # fmt: skip


def waits(runs: Timeline | Sequence[Timeline], gpu: int = 0) -> Figure:
    """Activity and waits of every kernel's workgroups, as shares of their time."""
    rows = [
        (f"{run.overlap}: {_kernel_name(span)}", what, spent / whole)
        for run in ([runs] if isinstance(runs, Timeline) else runs)
        for span in run.spans
        if span.gpu == gpu and (whole := sum(span.waits.values()))
        for why, (what, _) in looks.WAITS.items()
        if (spent := span.waits.get(why, 0))
    ]
    table = Table([text("kernel"), text("what"), number("share", "share of the workgroups' time", format_=".1%")], rows)
    return stacked_bars(
        "What do workgroups wait for?", table, lane="kernel", value="share",
        color=Color("what", dict(looks.WAITS.values())), share=True,
    ).with_caption(
        "Each kernel's workgroups, all their time added up. Two workgroups share a compute unit's matrix unit, so a "
        "busy GEMM shows half its time as waiting for it; time spent on loads and stores is what memory costs."
    )  # fmt: skip


def _kernel_name(span: Span) -> str:
    """Return a short name of a kernel, such as "RS", with its iteration's number from the second one on."""
    name = _PHASES.get(span.operator, span.operator.replace("_", "-"))
    return f"{name} {span.iteration}" if span.iteration else name


def traffic_by_cause(
    answers: Comparison | Mapping[object, Comparison] | Iterable[Comparison], overlaps: Sequence[str] | None = None
) -> Figure:
    """Total DRAM traffic, stacked by cause: one sub-layer in MB, several as a share of their sequential run.

    `overlaps` are set side by side; by default sequential and t3-mca, or all simulated ones of one comparison.
    """
    cases: list[Comparison] = list(answers.values() if isinstance(answers, Mapping) else [answers] if
                                   isinstance(answers, Comparison) else answers)  # fmt: skip
    one = isinstance(answers, Comparison)
    simulated = [run.overlap for run in cases[0] if not run.parts]
    names = overlaps or (simulated if one else ("sequential", "t3-mca"))
    rows = []
    for case in cases:
        base = case.baseline.total_bytes
        for run in (case[name] for name in names):
            change = "" if run is case.baseline else f"{run.total_bytes / base - 1:+.0%}"
            said = f"{run.total_bytes / 1e6:,.0f} MB{change and f' ({change})'}" if one else change
            label = case_label(case.baseline.graph)
            moved = run.traffic.items()
            rows += [(label, run.overlap, words_of(of), n / 1e6, n / base, said) for of, n in moved if n]
    columns = [
        text("layer", "sub-layer"), text("overlap"), text("cause"),
        number("mb", "DRAM traffic of one GPU", "MB", ",.1f"),
        number("share", "DRAM traffic, share of sequential", format_=".1%"), text("said", " "),
    ]  # fmt: skip
    table, causes = Table(columns, rows), [cause for case in cases for name in names for cause in case[name].traffic]
    color = Color("cause", looks.cause_looks(causes))
    if one:
        title, lane = "Which traffic does each overlap cause?", "overlap"
        drawn = stacked_bars(title, table, lane=lane, value="mb", color=color, over=[Label("said")])
        return drawn.with_caption("All bytes between the memory controllers and DRAM of one GPU, by what caused them.")
    return stacked_bars(
        "Where is DRAM traffic saved?", table, lane=Lane("layer", "overlap"), value=Axis("share", percent=True),
        color=color, over=[Label("said")],
    )  # fmt: skip


def speedups(
    answers: Mapping[object, Comparison] | Iterable[Comparison],
    published: Mapping[str, float] | None = None,
    title: str = "How much faster than sequential is each overlap?",
) -> Figure:
    """Bars of speedup over sequential for every sub-layer, with each overlap's geometric mean below them.

    `published` gives geometric means to mark as lines, by overlap. The overlaps are those of the first comparison.
    """
    cases = list(answers.values() if isinstance(answers, Mapping) else answers)
    names = [name for name in cases[0].timelines if name != SEQUENTIAL]
    rows = [(case_label(case.baseline.graph), name, case.speedup(name), "") for case in cases for name in names]
    means = {name: geometric_mean([case.speedup(name) for case in cases]) for name in names}
    rows += [("geometric mean", name, mean, f"{mean:.2f}") for name, mean in means.items()]
    speedup = number("speedup", "speedup over sequential", "×", ".3f")
    marks = [(name, value) for name, value in (published or {}).items() if name in names]
    lines = Table([text("overlap"), number("speedup", "published geometric mean", "×", ".2f")], marks)
    return bars(
        title, Table([text("layer", "sub-layer"), text("overlap"), speedup, text("said", " ")], rows),
        lane=Lane("layer", "overlap"), end="speedup", color=Color("overlap", looks.overlap_looks(names)), start=1.0,
        over=[Label("said"), Lines(lines, "speedup", "overlap") if marks else None],
    )  # fmt: skip
