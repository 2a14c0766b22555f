"""T3 end to end: steps of whole models, composed of the sub-layers of T3's study and closed forms for the rest.

Published: S. Pati et al., "T3", ASPLOS 2024, arXiv:2401.16677, end-to-end speedups and communication's share. The
paper does not state batch sizes, sequence lengths or how its steps treat weights; here the optimizer updates them
once per micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any, NamedTuple

from weft import hardware
from weft.core.options import Fidelity, RunOptions
from weft.core.report import Part, Section, drop_empty
from weft.core.report.table import Table, number, text
from weft.graph import Gemm, Graph
from weft.hardware import Gpu
from weft.models import Transformer, load_model
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.overlaps import SEQUENTIAL
from weft.papers.composed import PHASES, ROOM, Composed, Phase, StepWork, work
from weft.papers.headline import DEGREES, MODELS, Conditions, PaperStudy, StudyFigure, read_declaration
from weft.papers.t3 import HYPOTHETICAL, OVERLAPS, select
from weft.step.clock import train
from weft.step.result.step import Step
from weft.sweep.simulations import comparisons
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Label, Lane, Lines, bars, curves, stacked_bars

DECLARED = read_declaration(__file__)
GROUPS: Mapping[str, Mapping[str, Sequence[int]]] = DECLARED.cases
"""Models with their degrees of tensor parallelism, by the group that claims speak of."""
SHOWN = "t-nlg"
"""The model of everything beyond the paper."""
FEW = (SEQUENTIAL, "t3", "t3-mca", "t3-critical", "ideal-overlap")
"""Overlaps of the runs beyond the paper."""
LINKS = (75, 300, 600)
"""Rings beside the paper's 150 GB/s [GB/s]."""
LENGTHS = (1024, 2048, 4096, 8192)
"""Tokens of a sequence, at as many tokens per step."""
_TWICE = 2
"""How many times more compute units, or faster GEMMs."""
ACCUMULATED = 8
"""Micro-batches per update of weights in the experiment on what the optimizer's share costs."""
NODES = ("8xh100", "8xh200", "8xmi300x")
"""Nodes on sale to which T3's hardware is added in thought."""
_REPLICAS = 8
"""Replicas whose gradients travel in the background."""
LOOKS: looks.Looks = {
    "gemm": looks.BLUE,
    "attention": looks.SKY,
    "norm, element-wise, loss": looks.GREEN,
    "optimizer": looks.GREY,
    "communication": looks.ORANGE,
}
"""Colours of the classes of a step's time."""
CLASSES = tuple(LOOKS)
"""Classes of a step's time in pictures."""
TITLES: Mapping[Phase, str] = {"training": "Training", "prompt": "Prompt"}
"""Phases as titles of pictures."""


class Variant(NamedTuple):
    """A step of one model under a change; `of` groups changes, `value` is what the change sets."""

    of: str
    value: str
    step: Composed

    @property
    def number(self) -> float:
        """The value as a number."""
        return float(self.value)

    @property
    def title(self) -> str:
        """The step's phase and degree."""
        return f"{self.step.phase}, TP {self.step.tp}"


@dataclass(frozen=True)
class NodeStep:
    """Steps of one model on a machine by overlap, timed by the step clock alone."""

    where: str
    steps: Mapping[str, Step]

    def speedup(self, overlap: str) -> float:
        """Return how many times faster than with the collectives of tensor parallelism in sequence."""
        return self.steps[SEQUENTIAL].seconds / self.steps[overlap].seconds

    @property
    def share(self) -> float:
        """Exposed communication's share of the sequential step."""
        step = self.steps[SEQUENTIAL]
        return sum(step.exposed.values()) / step.seconds


@dataclass(frozen=True, repr=False)
class T3EndToEnd(PaperStudy):
    """Results of the study: `steps` as published, `variants` of one model, and steps on `nodes`."""

    DECLARED = DECLARED
    OPTIONS = (MODELS, DEGREES)

    steps: tuple[Composed, ...]
    shared: tuple[Composed, ...]
    variants: tuple[Variant, ...]
    nodes: tuple[NodeStep, ...]

    @classmethod
    def simulated(
        cls, at: Conditions, models: Iterable[str] | None = None, tps: Iterable[int] | None = None
    ) -> dict[str, Any]:
        """Simulate the sub-layers of the study's models, or of some models and degrees, and compose their steps.

        On the declared GPU one model also runs on changed ones, and in the whole study on nodes. Raises what
        `weft.papers.t3.select` and `weft.compare` raise.
        """
        as_published = at.gpu.name == DECLARED.gpu and not at.gpu.changes
        whole = as_published and models is None and tps is None
        cases = _cases(select(models, tps))
        machines = _machines(at.gpu) if as_published else {}
        shown = [(gpu, case) for gpu in machines.values() for case in cases if case[0] == SHOWN]
        asked = [
            *(_sublayer_case(graph, at.gpu, OVERLAPS) for graphs in cases.values() for graph in graphs),
            *(_sublayer_case(graph, gpu, FEW) for gpu, case in shown for graph in cases[case]),
        ]
        jobs = at.jobs
        made = comparisons(asked, at.options, jobs.count, jobs.progress, jobs.store, whole=True)
        known = {
            (system.gpu, graph.ranks, _gemm(graph)): run for (graph, system, _), run in zip(asked, made, strict=True)
        }

        def compose(case: tuple[str, int], phase: Phase, gpu: Gpu = at.gpu, **plan: Any) -> Composed:
            model, tp = load_model(case[0]), case[1]
            done = _work(model, gpu, tp, phase, at.options, **plan)
            return Composed(case[0], tp, phase, done, {gemm: known[gpu, tp, gemm] for gemm in done.sublayers})

        return {
            "steps": tuple(compose(case, phase) for phase in PHASES for case in cases),
            "shared": tuple(compose(case, phase, sp=True) for phase in PHASES for case in cases),
            "variants": tuple(_variants(compose, machines, cases)),
            "nodes": tuple(_on_nodes(at)) if whole else (),
        }

    @property
    def hypothetical(self) -> str:
        """T3's own hardware."""
        return HYPOTHETICAL

    @property
    def findings(self) -> Sequence[str]:
        """What T3-MCA is worth end to end, and where that comes from."""
        gains = {phase: [step.speedup("t3-mca") for step in self.steps if step.phase == phase] for phase in PHASES}
        gained = "; ".join(f"{phase} {min(of) - 1:.0%} to {max(of) - 1:.0%}" for phase, of in gains.items())
        most = max(self.steps, key=lambda step: step.speedup("t3-mca"))
        why = f"most for {most.title} ({most.phase}), where communication takes {most.share():.0%}"
        return [f"T3-MCA makes whole steps faster: {gained}; {why}"]

    def figures(self) -> Iterator[StudyFigure]:
        """The claims with at least one case that was run; the text says if cases are missing."""
        for id_, measure in MEASURES.items():
            found = measure.steps(self)
            if found:
                wanted = sum(len(tps) for group in measure.groups for tps in GROUPS[group].values()) * len(
                    measure.phases
                )
                part = "" if len(found) == wanted else f" ({len(found)} of {wanted})"
                yield StudyFigure(id_, measure.value(found), part=part)

    def own(self) -> dict[str, Any]:
        """Return every step as plain data."""
        return {
            "steps": [step.record() for step in (*self.steps, *self.shared)],
            "variants": [{"of": one.of, "value": one.value, **one.step.record()} for one in self.variants],
            "nodes": self._nodes_table().records(),
        }

    @property
    def lead(self) -> str:
        """What was composed, and on which machine."""
        return f"{len(self.steps)} steps on {self.where}: sub-layers from the engine, the rest from closed forms."

    @property
    def pays(self) -> str:
        """Where T3-MCA pays most and least, in words."""
        best, least = (choose(self.steps, key=lambda step: step.speedup("t3-mca")) for choose in (max, min))
        return (
            "T3 hides the reduce-scatter, at most half of communication; the all-gather stays. A layer's GEMMs take "
            "time with H²/TP per token and its collectives with H, so T3 pays at high TP/H and over slow links. Most: "
            f"{best.title} ({best.phase}), {best.speedup('t3-mca'):.3f}×; least: {least.title} ({least.phase}), "
            f"{least.speedup('t3-mca'):.3f}×."
        )

    @property
    def on_nodes(self) -> list[Part]:
        """Steps with replicas and on nodes on sale, and how they are timed."""
        said = (
            "The step clock alone, whose sub-layers are cut to a few waves in the engine, with Megatron Core's "
            "operators (FlashAttention) and all collectives of tensor parallelism in sequence. "
            f"N{HYPOTHETICAL[1:]}."
        )
        return [said, self._nodes_table()] if self.nodes else []

    def tables(self) -> list[Table]:
        """Return the tables of the terminal."""
        return drop_empty(
            _step_table(f"Steps on {self.where}", self.steps),
            _step_table(f"Steps with sequence parallelism on {self.where}", self.shared),
        )

    def sections(self, watched: Any = None) -> list[Part]:
        """Return the sections of the page."""
        return [
            Section("How much faster is a step?", self._gains()),
            Section("Where a step goes without overlap", self._where_it_goes()),
            Section("Where it pays", [self.pays, *self._by_change()]),
            Section("Replicas in the background, and nodes on sale", self.on_nodes),
            Section("Every step", self.tables()),
        ]

    def _gains(self) -> list[Figure]:
        """Speedups of every step, beside the published means, a figure for each phase."""
        known = {row.id: row.published for row in self.headline()}
        columns = [text("step"), text("overlap"), number("speedup", "speedup over sequential", "×", ".3f")]
        marked = [text("overlap"), number("speedup", "published geomean", "×", ".2f")]
        figures = []
        for phase, title in TITLES.items():
            ids = {"t3": f"t3.{phase}.speedup.geomean", "t3-mca": f"t3_mca.{phase}.speedup.geomean"}
            marks = Table(marked, [(name, known[id_]) for name, id_ in ids.items() if known.get(id_) is not None])
            steps = [step for step in self.steps if step.phase == phase]
            rows = [(step.title, name, step.speedup(name)) for step in steps for name in OVERLAPS[1:]]
            drawn = bars(
                f"{title}: how much faster than sequential?", Table(columns, rows), lane=Lane("step", "overlap"),
                end="speedup", color=Color("overlap", looks.overlap_looks(OVERLAPS[1:])), start=1.0,
                over=[Lines(marks, "speedup", "overlap") if marks.rows else None],
            )  # fmt: skip
            figures.append(drawn.with_caption("Dashed lines are published geometric means of the four mid-size steps."))
        return figures

    def _where_it_goes(self) -> list[Figure]:
        """Return the shares of every sequential step, a figure for each phase."""
        columns = [text("step"), text("part"), number("share", "share of the step", format_=".1%"), text("said", " ")]
        figures = []
        for phase, title in TITLES.items():
            steps = [step for step in self.steps if step.phase == phase]
            rows = [
                (step.title, name, part, f"{step.seconds():.2f} s")
                for step in steps
                for name, part in _classes(step).items()
            ]
            drawn = stacked_bars(
                f"{title}: where the sequential step goes", Table(columns, rows), lane="step",
                value=Axis("share", percent=True), color=Color("part", LOOKS), share=True, over=[Label("said")],
            )  # fmt: skip
            figures.append(drawn)
        return figures

    def _by_change(self) -> list[Part]:
        """Return what every change does to the speedup of T3-MCA; of compute units, to that of every overlap."""
        found: list[Part] = []
        for change in dict.fromkeys(one.of for one in self.variants):
            rows = [one for one in self.variants if one.of == change]
            found.append(_unit_table(rows) if change == UNITS else _curve(change, rows))
        return found

    def _nodes_table(self) -> Table:
        columns = [
            text("where", "machine"), number("share", "exposed without T3", format_=".1%"), number("t3", format_=".3f"),
            number("t3_mca", "t3-mca", format_=".3f"),
        ]  # fmt: skip
        rows = [(one.where, one.share, one.speedup("t3"), one.speedup("t3-mca")) for one in self.nodes]
        return Table(columns, rows, "Training steps of t-nlg at TP 8 by the step clock")


STUDY = T3EndToEnd
run = T3EndToEnd.run
UNITS, LINK, LENGTH = "compute units", "bandwidth of the ring [GB/s]", "tokens of a sequence"
"""What variants change."""


def _step_table(title: str, steps: Sequence[Composed]) -> Table:
    """Return the times of sequential steps, communication's share of them, and the speedup under every overlap."""
    columns = [
        text("phase"), text("model"), text("tp", "TP"), number("seconds", "sequential", "s", ".3f"),
        number("share", "communication", format_=".1%"), number("share_twice", "GEMMs twice as fast", format_=".1%"),
        *(number(name, format_=".3f") for name in OVERLAPS[1:]),
    ]  # fmt: skip
    rows = [
        (one.phase, one.model, one.tp, one.seconds(), one.share(), one.share(2), *map(one.speedup, OVERLAPS[1:]))
        for one in steps
    ]
    return Table(columns, rows, title)


def _unit_table(variants: Sequence[Variant]) -> Table:
    """Communication's share and the speedups of the steps on GPUs of fewer and of more compute units."""
    columns = [
        text("phase"), text("tp", "TP"), number("value", "compute units", format_=",.0f"),
        number("share", "communication", format_=".1%"), *(number(name, format_=".3f") for name in FEW[1:]),
    ]  # fmt: skip
    rows = [
        (one.step.phase, one.step.tp, one.number, one.step.share(), *map(one.step.speedup, FEW[1:]))
        for one in sorted(variants, key=lambda one: (one.step.phase, one.step.tp, one.number))
    ]
    return Table(columns, rows, f"{SHOWN} by compute units")


def _curve(change: str, variants: Sequence[Variant]) -> Figure:
    """Return the speedup of T3-MCA over the values of a change."""
    columns = [number("value", change), number("speedup", "speedup of T3-MCA", "×", ".3f"), text("step")]
    ordered = sorted(variants, key=lambda one: one.number)
    table = Table(columns, [(one.number, one.step.speedup("t3-mca"), one.title) for one in ordered])
    return curves(
        f"What T3-MCA is worth by {change.partition(' [')[0]}, {SHOWN}", table,
        x=Axis("value", log=True, ticks=sorted(table.distinct("value"))), y=Axis("speedup", zero=False),
        color=Color("step"),
    )  # fmt: skip


class Measure(NamedTuple):
    """How a claim is measured: `of` each step, then their `mean` or largest, over the steps of groups and phases."""

    of: Callable[[Composed], float]
    over: Callable[[Iterable[float]], float]
    groups: tuple[str, ...]
    phases: tuple[Phase, ...]
    sp: bool = False

    def steps(self, study: T3EndToEnd) -> list[Composed]:
        """Return the study's steps that the claim covers."""
        wanted = {(model, tp) for group in self.groups for model, tps in GROUPS[group].items() for tp in tps}
        every = study.shared if self.sp else study.steps
        return [step for step in every if (step.model, step.tp) in wanted and step.phase in self.phases]

    def value(self, steps: Iterable[Composed]) -> float:
        """Return the figure over these steps."""
        return self.over(map(self.of, steps))


def _faster(overlap: str) -> Callable[[Composed], float]:
    return lambda step: step.speedup(overlap)


def accumulate_gradients(step: Composed) -> Composed:
    """Return the step with the optimizer's time spread over several micro-batches."""
    rest = dict(step.work.rest)
    rest["optimizer"] = rest.get("optimizer", 0.0) / ACCUMULATED
    return replace(step, work=replace(step.work, rest=rest))


def _measures() -> Iterator[tuple[str, Measure]]:
    mid, large, every = ("mid-size",), ("large",), tuple(GROUPS)
    for phase in PHASES:
        for id_, name in (("t3", "t3"), ("t3_mca", "t3-mca")):
            yield f"{id_}.{phase}.speedup.geomean", Measure(_faster(name), geometric_mean, mid, (phase,))
            yield f"{id_}.{phase}.speedup.max", Measure(_faster(name), max, mid, (phase,))
    for phase in PHASES:
        yield f"large.t3_mca.{phase}.speedup.max", Measure(_faster("t3-mca"), max, large, (phase,))
    for phase in PHASES:
        yield f"comm_share.{phase}.max", Measure(Composed.share, max, mid, (phase,))
        yield f"large.comm_share.{phase}.max", Measure(Composed.share, max, large, (phase,))
    yield "comm_share.gemms_twice.max", Measure(lambda step: step.share(gemms=_TWICE), max, every, PHASES)
    yield "comm_share.computing_twice.max", Measure(lambda step: step.share(computing=_TWICE), max, every, PHASES)
    spread = Measure(lambda step: accumulate_gradients(step).speedup("t3-mca"), max, large, ("training",))
    yield "large.t3_mca.training.accumulated.max", spread
    for phase in PHASES:
        for id_, name in (("critical", "t3-critical"), ("ideal_overlap", "ideal-overlap")):
            yield f"{id_}.{phase}.speedup.geomean", Measure(_faster(name), geometric_mean, mid, (phase,))
        yield f"sp.t3_mca.{phase}.speedup.geomean", Measure(_faster("t3-mca"), geometric_mean, mid, (phase,), True)


MEASURES = dict(_measures())
"""How each claim is measured, by its id."""


def _cases(graphs: Iterable[Graph]) -> dict[tuple[str, int], list[Graph]]:
    """Return the sub-layers of each model and degree."""
    cases: dict[tuple[str, int], list[Graph]] = {}
    for graph in graphs:
        cases.setdefault((graph.labels["model"], graph.ranks), []).append(graph)
    return cases


def _sublayer_case(graph: Graph, gpu: Gpu, overlaps: tuple[str, ...]) -> tuple[Graph, hardware.System, tuple[str, ...]]:
    return graph, hardware.system(gpu, gpus=graph.ranks), overlaps


def _gemm(graph: Graph) -> Gemm:
    gemm = graph["gemm"].op
    assert isinstance(gemm, Gemm)
    return gemm


def _work(
    model: Transformer, gpu: Gpu, tp: int, phase: Phase, options: RunOptions, sequence: int = 0, sp: bool = False
) -> StepWork:
    """One step of as many tokens as the sub-layers have, in sequences of the given length (0: the model's)."""
    length = sequence or model.sequence_length
    batch = model.tokens // length
    plan = TrainingPlan(
        tp=tp, sp=sp, batch=batch, micro_batch=batch, sequence=length, dtype=model.dtype, overlap={"tp": SEQUENTIAL}
    )
    return work(model, gpu, plan, phase, RunOptions(clock=options.clock))


def _machines(gpu: Gpu) -> dict[tuple[str, str], Gpu]:
    """Return the GPU with twice the compute units, and with other links, by what is changed and its value."""
    units = _TWICE * gpu.compute.compute_units
    machines = {(UNITS, str(units)): gpu.replace({"compute.compute_units": units})}
    return machines | {(LINK, str(link)): gpu.replace({"link.bandwidth": f"{link} GB/s"}) for link in LINKS}


def _variants(
    composed: Callable[..., Composed], machines: Mapping[tuple[str, str], Gpu], cases: Iterable[tuple[str, int]]
) -> Iterator[Variant]:
    """Steps of the shown model on other machines, and with sequences of other lengths."""
    for case in cases if machines else ():
        if case[0] == SHOWN:
            for phase in PHASES:
                for (of, value), gpu in machines.items():
                    yield Variant(of, value, composed(case, phase, gpu))
                yield Variant(LINK, "150", composed(case, phase))
                for length in LENGTHS:
                    yield Variant(LENGTH, str(length), composed(case, phase, sequence=length))


def _on_nodes(at: Conditions) -> Iterator[NodeStep]:
    """Training steps with replicas in the background, and on nodes on sale, by the step clock."""
    model = load_model(SHOWN).model_copy(update={"heads": 32})
    room = at.gpu.replace(ROOM)
    alone, several = hardware.system(room, gpus=8), hardware.system(room, gpus=8 * _REPLICAS)
    yield _node_step(f"8 x {at.gpu.name}", model, alone, at.options, "estimate")
    yield _node_step(f"{8 * _REPLICAS} x {at.gpu.name}, {_REPLICAS} replicas", model, several, at.options, "windows")
    for name in NODES:
        yield _node_step(f"{name} and T3's hardware", model, hardware.system(name), at.options, "estimate")


def _node_step(
    where: str, model: Transformer, system: hardware.System, options: RunOptions, fidelity: Fidelity
) -> NodeStep:
    replicas = system.gpus // 8
    plan = TrainingPlan(
        tp=8, dp=replicas, zero=int(replicas > 1), batch=8 * replicas, micro_batch=8, sequence=1024, dtype="fp16"
    )
    used = replace(framework("megatron-core"), async_tp=False)
    run = RunOptions(clock=options.clock)
    return NodeStep(
        where,
        {
            name: train(model, system, replace(plan, overlap={"tp": name}), used, run, fidelity)
            for name in (SEQUENTIAL, "t3", "t3-mca")
        },
    )


def _classes(step: Composed) -> dict[str, float]:
    """Return the parts of the sequential step in the classes that the picture shows."""
    parts = dict.fromkeys(CLASSES, 0.0)
    for name, seconds in step.parts.items():
        parts[name if name in CLASSES else "norm, element-wise, loss"] += seconds / step.seconds()
    return parts
