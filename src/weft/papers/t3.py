"""T3's sub-layer study: the paper's models, degrees and configurations, and its figures against Weft's.

Published: S. Pati, S. Aga, M. Islam, N. Jayasena, M. D. Sinclair, "T3: Transparent Tracking & Triggering for
Fine-grained Overlap of Compute & Collectives", ASPLOS 2024, arXiv:2401.16677. The abstract states the geomean
and the maximum of T3-MCA's speedup and of the traffic that it saves; the section on results, the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from statistics import fmean, geometric_mean
from typing import Any

from weft import hardware
from weft.core.errors import InputError, UnknownNameError
from weft.core.report import Part, Section
from weft.core.report.table import Table, number, text, times_faster
from weft.estimate import estimate
from weft.graph import Collective, Gemm, Graph, Node
from weft.models import SUBLAYERS
from weft.models.parallel import sublayer
from weft.overlaps.ideals import IDEALS
from weft.overlaps.lower.machine import ring_note
from weft.papers.headline import DEGREES, MODELS, Conditions, HeadlineRow, PaperStudy, StudyFigure, read_declaration
from weft.plan.tune.perturb import Sensitivity, ValueMove, perturb
from weft.simulate.result import Comparison, Timeline
from weft.simulate.result.metrics import speedup
from weft.simulate.single import assemble_ideal, simulate
from weft.sweep.simulations import Runs, Simulation, comparisons
from weft.sweep.tasks import Progress
from weft.view.explorer import timeline, waits_table
from weft.view.figure import Figure
from weft.view.interference import bursts, interference_parts
from weft.view.run import speedups, traffic_by_cause
from weft.view.words import PHASES, case_label, phase_times

DECLARED = read_declaration(__file__)
OVERLAPS = ("sequential", "t3", "t3-mca", "t3-critical", "ideal-overlap", "ideal-rs-nmc")
"""The paper's configurations, the baseline first, and T3 under Weft's own critical-first arbitration."""
FREE_OVERLAPS = ("sequential", "t3", "t3-mca", "ideal-overlap")
"""What the mid-size sub-layers are simulated under with free stages as well."""
IN_STEP = "compute.stages_in_step"
"""Whether a stage of the GEMM's workgroups begins only when the stage before has ended."""
MAIN: Mapping[str, Sequence[int]] = DECLARED.cases["mid-size"]
"""The models of the main figures, with their degrees of tensor parallelism."""
LARGE: Mapping[str, Sequence[int]] = DECLARED.cases["large"]
"""The large models."""
_LARGE_TP = 32
"""Tensor-parallel degree of the large models, whose means are published separately."""
HYPOTHETICAL = "no GPU has a tracker, near-memory updates and copies that it starts; their values here are hypothetical"
"""The note on figures for a machine that is on sale."""
CASES: Mapping[str, tuple[Graph, ...]] = {
    name: tuple(sublayer(model, layer, tp) for model, tps in models.items() for tp in tps for layer in SUBLAYERS)
    for name, models in DECLARED.cases.items()
}
"""Groups of sub-layers by the name that claims use."""
MAIN_CASES, LARGE_CASES = CASES["mid-size"], CASES["large"]

Measure = Callable[[Sequence[Comparison]], float]


def _mean_speedup(overlap: str) -> Measure:
    return lambda found: geometric_mean(c.speedup(overlap) for c in found)


def _largest_speedup(overlap: str) -> Measure:
    return lambda found: max(c.speedup(overlap) for c in found)


def _arbitration_gain(found: Sequence[Comparison]) -> float:
    """Geometric mean speedup of T3-MCA minus that of T3."""
    return _mean_speedup("t3-mca")(found) - _mean_speedup("t3")(found)


def _away_from_ideal(found: Sequence[Comparison]) -> float:
    """Return the mean share of T3's time on FC and IP that ideal overlap would save."""
    layers = [case for case in found if not _is_op(case)]
    return fmean(1 - case["ideal-overlap"].seconds / case["t3"].seconds for case in layers)


def _of_ideal(found: Sequence[Comparison]) -> float:
    """Return the mean speed of T3 on OP against ideal overlap; above 1, T3 is faster."""
    return fmean(speed for case, speed in _against_ideal(found) if _is_op(case))


def _against_ideal(found: Iterable[Comparison]) -> Iterator[tuple[Comparison, float]]:
    """Return every sub-layer with the speed of T3 against ideal overlap."""
    return ((case, case["ideal-overlap"].seconds / case["t3"].seconds) for case in found)


def _on_op(cases: Iterable[Comparison], free: Iterable[Comparison], published: bool) -> list[str]:
    """Return how fast T3 is on OP against ideal overlap, with the sub-layer that is furthest below."""
    said = []
    for stages, found in (("as the machine has its stages", cases), ("with free stages", free)):
        speeds = [(speed, case) for case, speed in _against_ideal(found) if _is_op(case)]
        if speeds:
            low, where = min(speeds, key=lambda one: one[0])
            said.append(
                f"{fmean(speed for speed, _ in speeds):.2f} {stages} ({low:.2f} for {case_label(where.baseline.graph)})"
            )
    beside = "; published: near or above it" * published
    return [f"On OP T3's speed against ideal overlap is {', '.join(said)}{beside}"] * bool(said)


def _is_op(case: Comparison) -> bool:
    """Return whether a sub-layer is an output projection."""
    return case.baseline.graph.labels["sublayer"] == "op"


def _critical_at_worst(found: Sequence[Comparison]) -> float:
    """Smallest ratio of critical-first's speedup to the better of T3's and T3-MCA's."""
    return min(min(case["t3"].seconds, case["t3-mca"].seconds) / case["t3-critical"].seconds for case in found)


def _times_fewer(operator: str, *kinds: str) -> Measure:
    """Sequential's traffic of an operator over T3-MCA's: 2.5 means 2.5 times fewer bytes."""
    return lambda found: geometric_mean(
        c.baseline.bytes(operator, *kinds) / c["t3-mca"].bytes(operator, *kinds) for c in found
    )


def _traffic_change(bytes_of: Callable[[Timeline], int]) -> Measure:
    """T3-MCA's traffic over sequential's, minus one: -0.22 is 22 % less."""
    return lambda found: 1 / geometric_mean(bytes_of(c.baseline) / bytes_of(c["t3-mca"]) for c in found) - 1


def _written_bytes(run: Timeline) -> int:
    return sum(run.bytes(operator, "write", "update") for operator in ("gemm", "reduce_scatter"))


def _largest_saving(found: Sequence[Comparison]) -> float:
    return min(c["t3-mca"].total_bytes / c.baseline.total_bytes - 1 for c in found)


def _near_memory_gain(found: Sequence[Comparison]) -> float:
    """Relative speedup of the reduce-scatter by near-memory updates: 0.07 is 7 %."""
    name = "reduce_scatter"
    return fmean(c.baseline.duration(name) / c["ideal-rs-nmc"].duration(name) - 1 for c in found)


MEASURES: Mapping[str, Measure] = {
    "t3.speedup.geomean": _mean_speedup("t3"),
    "t3.speedup.max": _largest_speedup("t3"),
    "t3_mca.speedup.geomean": _mean_speedup("t3-mca"),
    "t3_mca.speedup.max": _largest_speedup("t3-mca"),
    "ideal_overlap.speedup.geomean": _mean_speedup("ideal-overlap"),
    "ideal_overlap.speedup.max": _largest_speedup("ideal-overlap"),
    "t3_mca.minus_t3.geomean": _arbitration_gain,
    "t3.away_from_ideal.fc_ip": _away_from_ideal,
    "t3.of_ideal.op": _of_ideal,
    "critical.speedup.geomean": _mean_speedup("t3-critical"),
    "critical.worst_against_best": _critical_at_worst,
    "ideal_rs_nmc.rs_gain.tp8": _near_memory_gain,
    "ideal_rs_nmc.rs_gain.tp16": _near_memory_gain,
    "large.t3_mca.speedup.geomean": _mean_speedup("t3-mca"),
    "large.t3_mca.speedup.max": _largest_speedup("t3-mca"),
    "traffic.total.geomean": _traffic_change(lambda run: run.total_bytes),
    "traffic.total.max": _largest_saving,
    "traffic.rs_reads.tp8": _times_fewer("reduce_scatter", "read"),
    "traffic.rs_reads.tp16": _times_fewer("reduce_scatter", "read"),
    "traffic.gemm_rs_writes.geomean": _traffic_change(_written_bytes),
    "traffic.gemm_reads.geomean": _times_fewer("gemm", "read"),
    "free.t3.speedup.geomean": _mean_speedup("t3"),
    "free.t3_mca.speedup.geomean": _mean_speedup("t3-mca"),
    "free.t3_mca.minus_t3.geomean": _arbitration_gain,
    "free.ideal_overlap.speedup.geomean": _mean_speedup("ideal-overlap"),
    "free.t3.of_ideal.op": _of_ideal,
}
"""How each claim is measured on the comparisons of its cases; "free." marks those with free stages."""


_FEWER_ROWS = 8192
"""Rows of Mega-GPT-2's GEMMs with half of the assumed batch: 8 sequences of 1,024."""


def _with_fewer_rows(task: Simulation) -> Simulation:
    """Return the task with `_FEWER_ROWS` rows, if it is one of Mega-GPT-2."""
    if task.graph.labels["model"] != "mega-gpt-2":
        return task

    def shorten(node: Node) -> Node:
        op = node.op
        if isinstance(op, Gemm):
            return replace(node, op=replace(op, m=_FEWER_ROWS))
        assert isinstance(op, Collective)
        return replace(node, op=replace(op, bytes=op.bytes * _FEWER_ROWS // rows))

    rows = int(next(node.op.m for node in task.graph.gemms if isinstance(node.op, Gemm)))
    return replace(task, graph=task.graph.map(shorten))


_LOSS = {"link.kernel_efficiency": "0.9", "link.dma_efficiency": "0.9"}
_LIMIT = {"arbiter.starvation_limit": "10 us"}
SEEN_AFTER = (
    ValueMove("Mega-GPT-2: rows of a GEMM", f"{_FEWER_ROWS}", change=_with_fewer_rows),
    ValueMove("share of the link's rate", "0.9", _LOSS),
    ValueMove("arbiter.starvation_limit", "10 us", _LIMIT),
    ValueMove("all three, seen after the figures", "together", _LOSS | _LIMIT, change=_with_fewer_rows),
)
"""Assumed values within their ranges that were found with the published figures in sight; no figure rests on them."""
_MOVED = {f"{name}.{what}": ".3f" for name in ("t3", "t3_mca", "ideal_overlap") for what in ("geomean", "max")}


@dataclass(frozen=True, repr=False)
class T3Study(PaperStudy):
    """Results of the study: a comparison of all configurations per sub-layer.

    If the GEMM's stages are in step on the machine, `free` holds the mid-size sub-layers with free stages.
    """

    DECLARED = DECLARED
    OPTIONS = (MODELS, DEGREES)

    comparisons: Mapping[Graph, Comparison]
    free: Mapping[Graph, Comparison] = field(default_factory=dict)

    @classmethod
    def simulated(
        cls, at: Conditions, models: Iterable[str] | None = None, tps: Iterable[int] | None = None
    ) -> dict[str, Any]:
        """Simulate the study's sub-layers, or those of some models and degrees.

        FC-1 and FC-2 of a model are the same GEMM: equal graphs are simulated once, and both carry the result (its
        wall time, too). Raises what `select` and `weft.compare` raise.
        """
        cases = select(models, tps)
        systems = {ranks: hardware.system(at.gpu, gpus=ranks) for ranks in {graph.ranks for graph in cases}}
        free = [graph for graph in cases if graph in MAIN_CASES and at.gpu.compute.stages_in_step]
        asked = [
            *((graph, systems[graph.ranks], OVERLAPS) for graph in cases),
            *((graph, systems[graph.ranks].replace({IN_STEP: 0}), FREE_OVERLAPS) for graph in free),
        ]
        jobs = at.jobs
        made = comparisons(asked, at.options, jobs.count, jobs.progress, jobs.store, whole=True)
        return {
            "comparisons": dict(zip(cases, made[: len(cases)], strict=True)),
            "free": dict(zip(free, made[len(cases) :], strict=True)),
        }

    @classmethod
    def moved(
        cls, at: Conditions, models: Iterable[str] | None = None, tps: Iterable[int] | None = None
    ) -> Sensitivity:
        """Return geomeans and maxima of the mid-size sub-layers when the values of `SEEN_AFTER` move.

        Arguments as of `simulated`; InputError without a mid-size sub-layer, and what the simulations raise.
        """
        graphs = [graph for graph in select(models, tps) if graph in MAIN_CASES]
        if not graphs:
            raise InputError(f"the values are moved for mid-size models; choose of {', '.join(MAIN)}")
        systems = {ranks: hardware.system(at.gpu, gpus=ranks) for ranks in {graph.ranks for graph in graphs}}
        tasks = [
            [Simulation(graph, systems[graph.ranks], name, at.options, True) for name in FREE_OVERLAPS[:3]]
            for graph in graphs
        ]
        rows = perturb(chain.from_iterable(tasks), SEEN_AFTER, partial(_moved_figures, tasks), at.jobs)
        return Sensitivity("t3", [case_label(graph) for graph in graphs], rows, _MOVED)

    @property
    def cases(self) -> list[Comparison]:
        """The comparisons, in the order of the study."""
        return list(self.comparisons.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how to read the figures; none on the paper's machine."""
        if self.unlike is None:
            return ()
        notes = [self.unlike]
        if self.gpu != DECLARED.gpu:
            notes.append(HYPOTHETICAL)
        longer = library_factor(case.baseline for case in self.cases)
        if longer is not None:
            notes.append(
                "sequential's ring kernel uses every compute unit and no staging buffers; by closed form the "
                f"library's own reduce-scatter and all-gather take {longer:.2f} times as long as that kernel's "
                "(geomean within one node)"
            )
        return tuple(notes)

    @property
    def hypothetical(self) -> str:
        """T3's own hardware, which the paper simulates, too."""
        return HYPOTHETICAL

    @property
    def links(self) -> tuple[str, ...]:
        """The bandwidth of a GPU's link under the ring, by degree, in words."""
        return tuple(dict.fromkeys(ring_note(case.baseline.system) for case in self.cases))

    @property
    def findings(self) -> Sequence[str]:
        """What arbitration is worth, with stages in step and free, and what critical-first arbitration reaches."""
        found = [self.comparisons[graph] for graph in MAIN_CASES if graph in self.comparisons] or self.cases
        in_step = bool(self.machine.compute.stages_in_step)
        low, high = (DECLARED.claims[f"{name}.speedup.geomean"].published for name in ("t3", "t3_mca"))
        whole = self.comparable and len(found) == len(MAIN_CASES)
        beside = f"published: {low:.2f}x and {high:.2f}x" if whole else f"geomeans of {len(found)} sub-layers"
        free = [_arbitration(list(self.free.values()), in_step=False)] if self.free else []
        reached, worst = _mean_speedup("t3-critical")(found), _critical_at_worst(self.cases)
        own = f"Critical-first, Weft's own: {reached:.3f}x; at worst {worst - 1:+z.1%} over the better of T3 and T3-MCA"
        return [
            f"{_arbitration(found, in_step)} ({beside})",
            *free,
            own,
            *_on_op(found, self.free.values(), self.comparable),
        ]

    def figures(self) -> Iterator[StudyFigure]:
        """The claims with at least one case that was run; the text says if cases are missing."""
        for id_, measure in MEASURES.items():
            wanted = CASES[DECLARED.claims[id_].cases]
            runs = self.free if id_.startswith("free.") else self.comparisons
            found = [runs[graph] for graph in wanted if graph in runs]
            if found:
                part = "" if len(found) == len(wanted) else f" ({len(found)} of {len(wanted)})"
                yield StudyFigure(id_, measure(found), part=part)

    def own(self) -> dict[str, Any]:
        """Return one plain record per sub-layer and configuration; under "free", those with free stages."""
        sets = {"runs": self.cases, "free": self.free.values()}
        return {name: [record for case in cases for record in case.rows()] for name, cases in sets.items()}

    def tables(self) -> list[Table]:
        """Return the sub-layers, and those with free stages."""
        what = "times under sequential, speedups over it"
        free = [_table(list(self.free.values()), f"The same with free stages: {what}")] if self.free else []
        return [_table(self.cases, f"Sub-layers on {self.where}: {what}"), *free]

    @property
    def title(self) -> str:
        """The title of the page."""
        return DECLARED.title if self.comparable else f"What T3 would buy on {self.machine.title}"

    @property
    def lead(self) -> str:
        """What was simulated, and on which machine."""
        if self.comparable:
            return f"{len(self.cases)} sub-layers on {self.gpu}."
        return (
            f"{len(self.cases)} sub-layers of the T3 study ({DECLARED.paper}) on {self.where}: what a tracker, "
            "near-memory updates and triggered DMA would bring there. Nothing is published for this machine."
        )

    @property
    def work(self) -> Part:
        """How much was simulated."""
        runs = [result for case in (*self.cases, *self.free.values()) for result in case if not result.parts]
        # Sub-layers of the same shape share their runs, which count once.
        runs = list({(run.overlap, run.events, run.cpu_s): run for run in runs}.values())
        seconds = sum(run.cpu_s for run in runs)
        events = sum(run.events for run in runs)
        columns = [
            number("runs", "simulated runs"), number("events"), number("requests", "memory requests"),
            number("core_s", "time, one core", "s", ".1f"), number("events_per_s", "events/s", format_=",.0f"),
        ]  # fmt: skip
        requests, rate = sum(run.requests for run in runs), events / max(seconds, 1e-9)
        return Table(columns, [(len(runs), events, requests, seconds, rate)])

    def watch(self, progress: Progress | None = None) -> dict[str, Timeline]:
        """The sub-layer that shows contention best without and with MCA, simulated again with its interference."""
        shown = telling_case(self.cases)
        graph = next(graph for graph, case in self.comparisons.items() if case is shown)
        options = replace(shown["t3"].options, interference=True)
        return {name: simulate(graph, shown.baseline.system, name, options) for name in ("t3", "t3-mca")}

    def sections(self, watched: Mapping[str, Timeline] | None = None) -> list[Part]:
        """Speedups, contention, data movement, and one sub-layer over time."""
        shown = telling_case(self.cases)
        every = "Times are those of the sequential run; the last columns are speedups over it."
        moved = (
            "Bytes between the memory controllers and DRAM of one GPU, the sequential run above t3-mca. Reduce-scatter "
            "reads shrink most; GEMM reads shrink where outputs no longer push inputs out."
        )
        return [
            Section("Speedup", _speedup_figures(self.cases, list(self.free.values()), self.headline())),
            Section("Contention in memory", [*_contention(shown), *_bursts(watched or {})]),
            Section("Data movement", [traffic_by_cause(self.cases).with_caption(moved)]),
            Section("What happens when", _phases(shown)),
            Section("Every sub-layer", [every, *self.tables()]),
        ]


STUDY = T3Study
run = T3Study.run


def library_factor(baselines: Iterable[Timeline]) -> float | None:
    """Ratio of the library's own reduce-scatter and all-gather times to those of `sequential`.

    The geometric mean over the runs within one node, the library by its closed form on the run's own system; None
    without such a run, or if no library is known for the GPU.
    """
    factors = []
    for run in baselines:
        if run.system.node and run.system.nodes == 1:
            moved = [node.op for node in run.graph.collectives if isinstance(node.op, Collective)]
            library = sum(float(estimate(op, run.system).seconds) for op in moved)
            factors.append(library / sum(run.duration(op.name) for op in moved))
    return geometric_mean(factors) if factors else None


def select(models: Iterable[str] | None = None, tps: Iterable[int] | None = None) -> list[Graph]:
    """Return the study's sub-layers of the given models and degrees (None: all).

    Raises UnknownNameError for a model that is not in the study, InputError for such a degree or if no sub-layer
    is left.
    """
    studied = {**MAIN, **LARGE}
    degrees = sorted({tp for all_of in studied.values() for tp in all_of})
    wanted, chosen = list(studied) if models is None else list(models), degrees if tps is None else list(tps)
    for model in wanted:
        if model not in studied:
            raise UnknownNameError("model of the T3 study", model, studied)
    for tp in chosen:
        if tp not in degrees:
            raise InputError(f"the T3 study has no TP {tp}; its degrees are {', '.join(map(str, degrees))}")
    every = (*MAIN_CASES, *LARGE_CASES)
    cases = [graph for graph in every if graph.labels["model"] in wanted and graph.ranks in chosen]
    if not cases:
        pairs = "; ".join(f"{model} at TP {', '.join(map(str, studied[model]))}" for model in wanted)
        raise InputError(f"the T3 study has none of these models at TP {', '.join(map(str, chosen))}: {pairs}")
    return cases


def _moved_figures(tasks: Sequence[Sequence[Simulation]], runs: Runs) -> dict[str, float]:
    """Return geomean and maximum of each speedup over the sub-layers."""
    found = []
    for each in tasks:
        base, t3, mca = (runs[task] for task in each)
        ideal = assemble_ideal(IDEALS[0], each[0].graph, {"sequential": base})
        found.append([speedup(run, base) for run in (t3, mca, ideal)])
    both = ((geometric_mean(column), max(column)) for column in zip(*found, strict=True))
    return dict(zip(_MOVED, chain.from_iterable(both), strict=True))


def _table(cases: Sequence[Comparison], title: str) -> Table:
    """Return the times of the sequential run and every overlap's speedup over it, per sub-layer."""
    names = [name for name in cases[0].timelines if name != "sequential"]
    rows = []
    for case in cases:
        first = case.baseline
        model, layer = (first.graph.labels.get(name, "custom") for name in ("model", "sublayer"))
        rows.append((model, first.graph.ranks, layer, *phase_times(first), *map(case.speedup, names)))
    columns = [text("model"), text("tp", "TP"), text("layer"), *PHASES, *(times_faster(name) for name in names)]
    return Table(columns, rows, title)


def _arbitration(cases: Sequence[Comparison], in_step: bool) -> str:
    """Return what T3-MCA gains over T3, in words: points of speedup, as published, and as a ratio."""
    t3, mca = (_mean_speedup(name)(cases) for name in ("t3", "t3-mca"))
    stages = "the GEMM's stages in step" if in_step else "free stages"
    points, ratio = f"{100 * (mca - t3):+.1f} points of speedup", f"T3-MCA is {mca / t3:.3f} times as fast as T3"
    return f"Arbitration is worth {points} with {stages}: T3 {t3:.3f}x, T3-MCA {mca:.3f}x; {ratio}"


def published_means(rows: Sequence[HeadlineRow], prefix: str = "") -> dict[str, float]:
    """Published geometric means of speedups by overlap, from the rows whose ids begin with `prefix`."""
    means = {}
    for row in rows:
        overlap, *what = row.id.removeprefix(prefix).split(".")
        if row.id.startswith(prefix) and what == ["speedup", "geomean"] and isinstance(row.published, float):
            means[overlap.replace("_", "-")] = row.published
    return means


def telling_case(cases: Sequence[Comparison]) -> Comparison:
    """Return the mid-size FC-2 in which arbitration gains most over plain T3, where memory contention shows best."""
    mid_size = [case for case in cases if case.baseline.graph.ranks < _LARGE_TP] or list(cases)
    candidates = [case for case in mid_size if case.baseline.graph.labels.get("sublayer") == "fc2"] or mid_size
    return max(candidates, key=lambda case: case["t3"].seconds / case["t3-mca"].seconds)


def _speedup_figures(cases: list[Comparison], free: list[Comparison], rows: Sequence[HeadlineRow]) -> list[Figure]:
    large = [case for case in cases if case.baseline.graph.ranks >= _LARGE_TP]
    small = [case for case in cases if case.baseline.graph.ranks < _LARGE_TP]
    groups = (
        ("", "Mid-size models", small), ("large.", "Large models", large),
        ("free.", "Mid-size models with free stages", free),
    )  # fmt: skip
    return [_speedup_figure(title, group, published_means(rows, prefix)) for prefix, title, group in groups if group]


def _speedup_figure(title: str, cases: list[Comparison], published: Mapping[str, float]) -> Figure:
    lines = "; dashed lines are the published geometric means, to be compared with the last group of bars"
    drawn = speedups(cases, published, f"{title}: how much faster than sequential?")
    return drawn.with_caption(f"{title}. Bars are simulated sub-layers{lines if published else ''}.")


def _contention(case: Comparison) -> list[Part]:
    runs = {name: case[name] for name in ("t3", "t3-mca")}
    alone = case.baseline.duration("gemm")
    slower = "; ".join(f"{name} {run.duration('gemm') / alone - 1:+.1%}" for name, run in runs.items())
    return [f"{case_label(case.baseline.graph)}. The GEMM's time against alone: {slower}.", timeline(runs)]


def _bursts(runs: Mapping[str, Timeline]) -> list[Part]:
    """A stage's end over time without and with MCA, and the latencies and queues behind it."""
    return [bursts(runs), *interference_parts(list(runs.values()))] if runs else []


def _phases(case: Comparison) -> list[Part]:
    runs = {name: case[name] for name in ("t3-mca", "sequential")}
    tracked = (
        "Under t3-mca every tile of a chunk must be written here and arrive from the neighbour before DMA sends it on. "
        "The chunk that the GEMM makes first is not shown: its stores go straight to the neighbour, as chunk 1 there."
    )
    return [f"{case_label(case.baseline.graph)}. {tracked}", timeline(runs), waits_table(runs)]
