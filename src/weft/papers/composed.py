"""A model's step composed of sub-layers from the engine and closed forms for everything else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from weft.core.options import RunOptions
from weft.graph import Collective, Gemm, Graph, Node
from weft.hardware import Gpu, system
from weft.models import Transformer
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.overlaps import SEQUENTIAL
from weft.simulate.result import Comparison
from weft.step.clock import train
from weft.step.overlaps import pairs
from weft.step.result.step import PartTimes, Pass
from weft.step.spans import COMPUTE, class_of

Phase = Literal["training", "prompt"]
PHASES: tuple[Phase, ...] = ("training", "prompt")
"""A training step of one micro-batch, and the forward pass over a batch of prompts."""
COMMUNICATION = "communication"
"""The class of collectives that belong to no sub-layer, and of all-gathers under sequence parallelism."""
ROOM = {"memory.capacity": "4 TiB"}
"""Memory in which all layers of a model have room: a step does not cut them into pipeline stages."""


@dataclass(frozen=True)
class StepWork:
    """What a step does: how often each sub-layer's GEMM occurs, and seconds of everything else by class.

    `gathers` counts all-gathers of a sub-layer's size that sequence parallelism (`sp`) has apart from the sub-layers.
    """

    sublayers: Mapping[Gemm, int]
    rest: Mapping[str, float]
    gathers: int = 0
    sp: bool = False


def work(
    model: Transformer, gpu: Gpu, plan: TrainingPlan, phase: Phase, options: RunOptions, called: str = "megatron-2022"
) -> StepWork:
    """Tally one step of a model on the ranks of a tensor-parallel ring: closed forms, collectives in sequence.

    Heads that the ranks do not divide are rounded up to as many as they do, which together stay as wide. A prompt is
    the forward pass of embedding and layers without dropout. Raises what `weft.step.train` raises.
    """
    used = framework(called)
    if phase == "prompt":
        used = replace(used, style=replace(used.style, dropout=False))
    heads = -(-model.attention_heads // plan.tp) * plan.tp
    model = model.model_copy(update={"heads": heads})
    step = train(model, system(gpu.replace(ROOM), gpus=plan.tp), plan, used, options, "estimate")
    tally = _Tally(plan.sp)
    for part in step.chunks[0].parts:
        if phase == "training" or part.name != "head":
            tally.add(part, phase)
    if phase == "training":
        for name, seconds in step.tails[0].items():
            tally.rest[name] += seconds
    return StepWork(dict(tally.sublayers), dict(tally.rest), tally.gathers, plan.sp)


class _Tally:
    """Seconds of operators by class, and the sub-layers among them."""

    def __init__(self, sp: bool) -> None:
        self.sp, self.gathers = sp, 0
        self.rest: defaultdict[str, float] = defaultdict(float)
        self.sublayers: Counter[Gemm] = Counter()

    def add(self, part: PartTimes, phase: Phase) -> None:
        """Add a part's passes: only layers have sub-layers."""
        for one in (part.forward, *((part.backward,) if phase == "training" else ())):
            if one.graph is not None:
                self._pass(one, one.graph, part.name not in ("embedding", "head"))

    def _pass(self, one: Pass, graph: Graph, layer: bool) -> None:
        found = dict(_sublayers(graph)) if layer else {}
        taken = {*found, *found.values()}
        self.sublayers.update(_shape(graph[name].op) for name in found)
        for node in graph:
            if self.sp and layer and isinstance(node.op, Collective) and node.op.name == "all_gather":
                self.gathers += 1
            elif node.id not in taken:
                begin, end = one.times[node.id]
                self.rest[_class(node)] += end - begin


def _sublayers(graph: Graph) -> Iterator[tuple[str, str]]:
    """Yield the GEMMs whose output is reduced, with that collective, by their ids."""
    for gemm, moved in pairs(graph):
        if isinstance(moved.op, Collective) and moved.op.reduces:
            yield gemm.id, moved.id


def _shape(op: object) -> Gemm:
    """Return a GEMM by its dimensions and number format, as sub-layers are known."""
    assert isinstance(op, Gemm)
    return Gemm(op.m, op.n, op.k, op.dtype)


def _class(node: Node) -> str:
    return class_of(node.op) if node.stream == COMPUTE else COMMUNICATION


@dataclass(frozen=True)
class Composed:
    """A step of a model: its work, and its sub-layers under every overlap from the engine, by GEMM."""

    model: str
    tp: int
    phase: Phase
    work: StepWork
    runs: Mapping[Gemm, Comparison]

    @property
    def title(self) -> str:
        """Model and degree."""
        return f"{self.model}, TP {self.tp}"

    def seconds(self, overlap: str = SEQUENTIAL) -> float:
        """Time of the step under an overlap [s]; one operator follows the other, as each waits for the one before."""
        found = sum(self.work.rest.values()) + self.work.gathers * self._gather()
        return found + sum(count * self._sublayer(gemm, overlap) for gemm, count in self.work.sublayers.items())

    def _gather(self) -> float:
        """Return the time of an all-gather of a sub-layer's output [s]."""
        return next(iter(self.runs.values())).baseline.duration("all_gather")

    def _sublayer(self, gemm: Gemm, overlap: str) -> float:
        """Time of a sub-layer [s]: with sequence parallelism without the all-gather, which then counts by itself."""
        run = self.runs[gemm]
        return run[overlap].seconds - (run.baseline.duration("all_gather") if self.work.sp else 0.0)

    def speedup(self, overlap: str) -> float:
        """Return how many times faster than with the collectives in sequence."""
        return self.seconds() / self.seconds(overlap)

    @property
    def parts(self) -> dict[str, float]:
        """Where the sequential step goes [s]: GEMMs of sub-layers and others together."""
        parts = defaultdict(float, self.work.rest)
        for gemm, count in self.work.sublayers.items():
            parts["gemm"] += count * self.runs[gemm].baseline.duration("gemm")
        parts[COMMUNICATION] += self.seconds() - sum(parts.values())
        return dict(parts)

    def share(self, gemms: float = 1.0, computing: float = 1.0) -> float:
        """Return communication's share of the sequential step with GEMMs or all computing faster by these factors."""
        moved = self.parts[COMMUNICATION]
        kept = self.seconds() - moved - self.parts["gemm"]
        return moved / (moved + (self.parts["gemm"] / gemms + kept) / computing)

    def record(self) -> dict[str, object]:
        """Return the step as plain data."""
        overlaps = [name for name in next(iter(self.runs.values())).timelines if name != SEQUENTIAL]
        return {
            "model": self.model,
            "tp": self.tp,
            "phase": self.phase,
            "sp": self.work.sp,
            "sequential_s": self.seconds(),
            "parts_s": self.parts,
            "communication_share": self.share(),
            "communication_share_gemms_twice": self.share(gemms=2),
            "speedup": {name: self.speedup(name) for name in overlaps},
        }
