"""A layer of BERT as its operators were measured one by one, from launch to end (NeuSight's public traces)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from weft.core.options import RunOptions
from weft.estimate import estimate
from weft.graph import Attention, Node, Op, Streaming
from weft.graph.op import Role
from weft.hardware import Gpu, System
from weft.kernels.library.software import Residual
from weft.models import Transformer
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.rank import RankPart
from weft.papers.bert.breakdown import NORM, group_of
from weft.step.clock import train
from weft.step.rank_parts import rank_parts

_NOTHING = Streaming("elementwise", 8 * 1024, 1, "fp32")
"""The operator whose call alone was measured: tanh of 8 x 1024 elements."""


@dataclass(frozen=True)
class LayerSeconds:
    """The seconds of each group of operators of a layer, forward and backward, on a GPU."""

    gpu: Gpu
    groups: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """Time of the layer [s]."""
        return sum(self.groups.values())

    def share(self, group: str) -> float:
        """Return the share of the layer that a group takes."""
        return self.groups[group] / self.seconds


def timed_layer(
    model: Transformer, gpu: Gpu, plan: TrainingPlan, framework: Framework, call: float, options: RunOptions
) -> LayerSeconds:
    """A layer whose operators run one by one, at the clock of short runs: each waits `call` seconds for its launch.

    The tracer (sitar-lab/NeuSight neusight/Tracing/analysis.py) records events around each operator of PyTorch and each
    of its gradients; these are computed so that they can be differentiated again, and gradients of neither views nor
    sums of activations are timed.
    """
    options = replace(options, clock="short")
    layer = rank_parts(model, plan, framework)[model.layer_kinds[0]]
    extra = call - float(estimate(_NOTHING, gpu, options=options).seconds)
    groups: defaultdict[str, float] = defaultdict(float)
    for node, op in _timed_kernels(layer):
        groups[group_of(node, op)] += float(estimate(op, gpu, options=options).seconds) + extra * _is_call(node)
    groups[NORM] += _gradients_of_scales(layer) * call
    return LayerSeconds(gpu, dict(groups))


def _timed_kernels(layer: RankPart) -> Iterator[tuple[Node, Op]]:
    """Yield the kernels that the tracer times, with their nodes."""
    for node in (*layer.forward, *layer.backward):
        if not _is_sum_or_view(node):
            for op in node.op.kernels if isinstance(node.op, Attention) else (node.op,):
                again = isinstance(op, Streaming) and op.name == "dropout_backward"
                yield node, replace(op, name="dropout_backward_again") if again else op


def _is_sum_or_view(node: Node) -> bool:
    """Return whether a node of a backward pass adds up activation gradients, or is the gradient of a view of heads."""
    copies = node.role in (Role.SPLIT_HEADS, Role.JOIN_HEADS)
    adds = isinstance(node.op, Streaming) and node.op.name == "residual_add"
    return node.phase == "input" and (copies or adds)


def _is_call(node: Node) -> bool:
    """Return whether an operator is a call of its own: copies of heads, gradients of biases and of a norm's scale are
    not.
    """
    op, norms = node.op, (Role.ATTENTION_NORM, Role.MLP_NORM)
    if node.phase == "weight" and isinstance(op, Streaming):
        return op.outputs != 0 and node.role not in norms
    return node.role is not Role.SPLIT_HEADS


def _gradients_of_scales(layer: RankPart) -> int:
    """Calls that add up the gradients of scale and shift of the layer's norms."""
    return 2 * sum(isinstance(node.op, Streaming) and "norm" in node.op.name for node in layer.forward)


def forward_and_backward(
    model: Transformer, system: System, plan: TrainingPlan, framework: Framework, options: RunOptions
) -> float:
    """Return time of one micro-batch through the model and back [s], the loss's forward pass excluded as in the source.

    Kernels run back to back, without the calibration residual.
    """
    (chunk,) = train(model, system, plan, framework, options, calibration=Residual()).chunks
    last = chunk.parts[-1].forward
    loss = sum(last.times[node.id][1] - last.times[node.id][0] for node in last.graph or () if node.role is Role.LOSS)
    return chunk.all.seconds - loss
