"""The GEMMs of a layer and of the head of BERT: shape, arithmetic intensity, bound and rate of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.core.options import RunOptions
from weft.estimate import estimate
from weft.graph import Attention, Gemm, Node
from weft.graph.op import Role
from weft.hardware import Gpu
from weft.models import Transformer
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.step.rank_parts import rank_parts

_PASSES = {"forward": "forward", "input": "gradient of input", "weight": "gradient of weight"}


@dataclass(frozen=True)
class BertGemm:
    """A GEMM of BERT: whose it is, in which pass, and what a GPU does with it.

    `intensity` is in FLOP per byte that must move at least, `seconds` and `rate` [FLOP/s] are those of one execution.
    """

    name: str
    phase: str
    op: Gemm
    seconds: float
    bound: str
    peak: float

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte of operands and result."""
        return self.op.flops / self.op.least_bytes

    @property
    def rate(self) -> float:
        """Achieved rate [FLOP/s]."""
        return self.op.flops / self.seconds

    @property
    def efficiency(self) -> float:
        """Achieved rate over the matrix units' peak."""
        return self.rate / self.peak


def products(
    model: Transformer, gpu: Gpu, plan: TrainingPlan, framework: Framework, options: RunOptions
) -> tuple[BertGemm, ...]:
    """The GEMMs of a layer and of the head, once each; queries stand for keys and values, whose shapes are the same."""
    parts = rank_parts(model, plan, framework)
    found: dict[tuple[str, str], BertGemm] = {}
    for part in (parts[model.layer_kinds[0]], parts["head"]):
        for node in (*part.forward, *part.backward):
            for name, op in _gemms(node):
                key = (name, _PASSES[node.phase])
                if node.role not in (Role.KEY, Role.VALUE) and key not in found:
                    cost = estimate(op, gpu, options=options)
                    peak = gpu.matrix_rate(op.dtype)
                    found[key] = BertGemm(*key, op, float(cost.seconds), str(cost.bound), peak)
    return tuple(found.values())


def _gemms(node: Node) -> Iterator[tuple[str, Gemm]]:
    """Yield the GEMMs of a node, with names; attention has two forward, and two gradients of each."""
    if isinstance(node.op, Gemm):
        yield _NAMES.get(node.role, node.operator), node.op
    if isinstance(node.op, Attention) and not node.op.fused:
        kernels = [op for op in node.op.kernels if isinstance(op, Gemm)]
        names = _BACKWARD if node.op.gradient else _FORWARD
        yield from zip(names, kernels, strict=True)


_NAMES = {Role.QUERY: "Q, K, V (each)", Role.MLP_UP: "FC1", Role.MLP_DOWN: "FC2"}
_FORWARD = ("scores", "weighted sum")
_BACKWARD = ("weighted sum, to scores", "weighted sum, to values", "scores, to queries", "scores, to keys")
