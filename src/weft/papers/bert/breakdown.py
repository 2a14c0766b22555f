"""A step of BERT by groups of operators, as its characterisation draws them (arXiv:2104.08335)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft.core.options import RunOptions
from weft.estimate import estimate
from weft.graph import Attention, Gemm, Node, Op
from weft.graph.op import Role
from weft.hardware import System
from weft.kernels.library.software import Residual
from weft.models import Transformer
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.step.clock import train
from weft.step.result.step import Pass, Step

FC, LINEAR, PRODUCTS = "FC1 and FC2", "Q, K, V, projection", "attention's products"
SOFTMAX, GELU, NORM = "softmax and dropout", "GeLU", "LayerNorm and sums"
ENDS, LAMB, EXPOSED, AGAIN = "embedding and head", "LAMB", "exposed all-reduce", "computed again"
GROUPS = (FC, LINEAR, PRODUCTS, SOFTMAX, GELU, NORM, ENDS, LAMB, AGAIN, EXPOSED)
"""The groups of operators, GEMMs first: the softmax's includes scale, mask and dropout of the scores, LayerNorm's
dropout and residual sums, the head the loss."""
GEMMS = (FC, LINEAR, PRODUCTS)
"""The groups whose time is that of GEMMs, with the sums that add up their gradients."""
_PIECES = {
    **dict.fromkeys((Role.MLP_UP, Role.MLP_DOWN), FC),
    **dict.fromkeys((Role.QKV, Role.QUERY, Role.KEY, Role.VALUE, Role.OUT_PROJECTION), LINEAR),
    **dict.fromkeys((Role.SPLIT_HEADS, Role.JOIN_HEADS), PRODUCTS),
    Role.ACTIVATION: GELU,
}
PRECISIONS = {"fp32": "fp32", "fp16": "mixed"}
"""Number formats as tables call them."""


@dataclass(frozen=True)
class Broken:
    """A training step, the seconds of each group of its operators, which add up to it, and how the step was run."""

    step: Step
    groups: Mapping[str, float]
    way: str = ""

    @property
    def seconds(self) -> float:
        """Time of the step [s]."""
        return self.step.seconds

    def share(self, *groups: str) -> float:
        """Return the share of the step that groups take."""
        return sum(self.groups.get(name, 0.0) for name in groups) / self.seconds

    @property
    def gemms(self) -> float:
        """Share of the step that GEMMs take."""
        return self.share(*GEMMS)

    @property
    def precision(self) -> str:
        """The number format of the step, as tables call it."""
        return PRECISIONS[self.step.plan.dtype]

    @property
    def tokens(self) -> int:
        """Tokens of an update on each GPU."""
        plan = self.step.plan
        return plan.sequence * plan.micro_batch * plan.micro_batches

    def near_memory(self, rate: float) -> float:
        """Speedup if the optimizer runs concurrently with the memory banks, at `rate` times the host's bandwidth."""
        return 1 / (1 - self.share(LAMB) * (1 - 1 / rate))

    def reduced_traffic(self, ranks: int) -> float:
        """Memory traffic that updates near memory save a ring's reduce-scatter of the gradients [bytes on each GPU].

        A step of the ring reads what arrived and the own part, and writes the sum: three accesses, where an update near
        memory is one (T3, arXiv:2401.16677, section 4).
        """
        size = sum(chunk.parameters for chunk in self.step.chunks) * 4
        return 2 * size * (ranks - 1) / ranks

    def record(self) -> dict[str, object]:
        """Return the step as plain data."""
        return {"step_s": self.seconds, "groups_s": dict(self.groups), "lamb_rank": self.rank}

    @property
    def rank(self) -> int:
        """Rank of LAMB among the groups, GEMMs as one of them and the first: 2 if no other takes longer."""
        others = [seconds for name, seconds in self.groups.items() if name not in (*GEMMS, LAMB)]
        return 2 + sum(seconds > self.groups[LAMB] for seconds in others)


def broken_down(
    model: Transformer, system: System, plan: TrainingPlan, framework: Framework, options: RunOptions, way: str = ""
) -> Broken:
    """Time a step on one pipeline stage, and assign each second to a group. Raises what `train` raises.

    As in the source, a step is the sum of its kernels and of the communication that it waits for: without the
    calibration residual, which belongs to no group.
    """
    step = train(model, system, plan, framework, options, calibration=Residual())
    groups: defaultdict[str, float] = defaultdict(float)
    for part in step.chunks[0].parts:
        groups[AGAIN] += part.recompute.seconds * plan.micro_batches
        for one in (part.forward, part.backward):
            for name, seconds in _seconds(one, part.name, system, options):
                groups[name] += seconds * plan.micro_batches
    groups[LAMB] = step.parts.get("optimizer", 0.0)
    groups[EXPOSED] = step.seconds - sum(groups.values())
    return Broken(step, {name: groups[name] for name in GROUPS if groups[name] > 1e-9 * step.seconds}, way)


def _seconds(one: Pass, part: str, system: System, options: RunOptions) -> Iterator[tuple[str, float]]:
    """Yield the seconds of every operator of a pass on its compute stream, with its group."""
    for node in one.graph or ():
        start, end = one.times[node.id]
        for op, share in _kernels(node.op, system, options):
            yield group_of(node, op, part), share * (end - start)


def _kernels(op: Op, system: System, options: RunOptions) -> Iterator[tuple[Op, float]]:
    """Yield the kernels of an operator, each with its share of the operator's time."""
    if not isinstance(op, Attention) or op.fused:
        yield op, 1.0
        return
    seconds = [float(estimate(kernel, system, options=options).seconds) for kernel in op.kernels]
    yield from ((kernel, each / sum(seconds)) for kernel, each in zip(op.kernels, seconds, strict=True))


def group_of(node: Node, kernel: Op, part: str = "") -> str:
    """Return the group of a kernel of a node, in a part of the model ("embedding", a kind of layer, "head")."""
    if part in ("embedding", "head"):
        return ENDS
    if isinstance(node.op, Attention):
        return PRODUCTS if isinstance(kernel, Gemm | Attention) else SOFTMAX
    return _PIECES.get(node.role, NORM)
