"""Which parts of a model a rank runs, its layers by kind, the embedding and the head, and what they keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.models import Transformer
from weft.models.block import LAYERS, LayerOp, Tokens, embedding, head, layer
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.rank import RankPart, part
from weft.models.parallel.recompute import check_known
from weft.step.offload import without_offloaded
from weft.step.pipeline import Schedule
from weft.step.stages import StageLayout

if TYPE_CHECKING:
    from weft.step.batch import PipelineBatch
    from weft.step.durations import OperatorTimes
    from weft.step.keys import EpilogueKey, PassKey, RankKey
    from weft.step.layers import RankPasses

FloatArray = NDArray[np.float64]
Written = dict[tuple[Tokens, str], dict[str, tuple[LayerOp, ...]]]
"""The operators of the parts of a model before they are split, by their tokens and their number format."""
_ENDS = "embedding", "head"
"""The first and the last part of a model."""


def rank_parts(
    model: Transformer,
    plan: TrainingPlan,
    framework: Framework,
    like: Mapping[str, RankPart] | None = None,
    dense: Mapping[str, RankPart] | None = None,
    written: Written | None = None,
) -> dict[str, RankPart]:
    """Return one rank's share of every distinct part of a model: "embedding", each kind of layer, "head".

    If they are known, `like` are those of a plan that only recomputes otherwise, and `dense` those of one that only
    spreads its experts otherwise; `written` keeps the operators of the parts before they are split, for more plans.
    """
    like = dict(like or {})
    same = {name: one for name, one in (dense or {}).items() if not one.experts}
    source = model.sequence_length if model.encoder_layers else 0
    tokens = Tokens(plan.micro_batch, plan.sequence, plan.cp, source)
    key, pieces = (tokens, plan.dtype), {} if written is None else written
    if key not in pieces:
        pieces[key] = _pieces(model, tokens, framework, plan.dtype)
    if isinstance(plan.recompute, tuple):
        check_known([piece.name for kind in model.layer_kinds for piece in pieces[key][kind]], plan.recompute)
    ends = plan.alter(recompute="none")
    known = like | same
    return {
        name: known.get(name) or part(name, mine, ends, framework)
        if name in _ENDS
        else same.get(name) or part(name, mine, plan, framework, like.get(name))
        for name, mine in pieces[key].items()
    }


def _pieces(model: Transformer, tokens: Tokens, framework: Framework, dtype: str) -> dict[str, tuple[LayerOp, ...]]:
    """The operators of every distinct part of a model before they are split."""
    style, (first, last) = framework.style, _ENDS
    kinds = {kind: tuple(layer(model, kind, tokens, style, dtype)) for kind in dict.fromkeys(model.layer_kinds)}
    ends = (tuple(each(model, tokens, style, dtype)) for each in (embedding, head))
    return {first: next(ends), **kinds, last: next(ends)}


class RankParts:
    """One rank's share of the parts of a model, as arrays over the parts in the order of `names`."""

    def __init__(self, of: Mapping[str, RankPart]) -> None:
        self.of, self.names = of, tuple(of)
        self.parameters = np.array([one.parameters for one in of.values()])
        self.experts = np.array([one.experts for one in of.values()])
        self.narrow = np.array([one.narrow for one in of.values()])
        self._sizes: dict[bool, FloatArray] = {}

    def saved_bytes(self, counts: NDArray[np.int64], offloads: bool) -> tuple[FloatArray, FloatArray]:
        """Return what a micro-batch keeps in each stage, and needs beside that in its forward and in its backward
        [bytes].

        The second array has the shape (2, stages). With `offloads` the activations of layers go to the host.
        """
        held, working = kept_by([self], counts, offloads)
        return held[0], working[0]

    def kept_sizes(self, offloads: bool) -> FloatArray:
        """Return the bytes that a micro-batch keeps in each part, and needs in its forward and backward: three rows."""
        if offloads not in self._sizes:
            each = [without_offloaded(name, one.kept) if offloads else one.kept for name, one in self.of.items()]
            sizes = [(one.bytes, one.forward, one.backward) for one in each]
            self._sizes[offloads] = np.array(sizes, np.float64).T
        return self._sizes[offloads]

    def by_operator(self, counts: Sequence[int]) -> dict[str, int]:
        """Return what a micro-batch leaves in `counts` of each part, by part and operator [bytes]."""
        return {
            f"{part.name}: {name}": count * size
            for count, part in zip(counts, self.of.values(), strict=True)
            if count
            for name, size in part.kept.saved.items()
        }

    def offloaded_bytes(self, counts: NDArray[np.int64]) -> FloatArray:
        """Return what a micro-batch of each stage sends to the host if the activations of layers are kept there
        [bytes].
        """
        sizes = [float(one.kept.bytes) if name in LAYERS else 0.0 for name, one in self.of.items()]
        found: FloatArray = counts @ np.array(sizes)
        return found


def kept_by(some: Sequence[RankParts], counts: NDArray[np.int64], offloads: bool) -> tuple[FloatArray, FloatArray]:
    """Return `RankParts.kept` of several plans, with an axis for them before the others."""
    sizes = np.array([one.kept_sizes(offloads) for one in some])
    working = np.where(counts > 0, sizes[:, 1:, None, :], 0).max(axis=3)
    held: FloatArray = sizes[:, 0] @ counts.T
    return held, working


class PlanJob:
    """A plan whose step is timed: its parts on a rank, its stages, the order of its tasks, then what is found of them.

    The order is None where tasks lie in slots, and are timed without them. `rank` is what decides the parts, `passes`
    what decides the passes over them, `layers`; `pipe` is the pipeline, and `epilogue` what decides all around these.
    """

    __slots__ = ("epilogue", "layers", "order", "parts", "passes", "pipe", "plan", "prices", "rank", "structure")
    layers: RankPasses
    pipe: PipelineBatch
    epilogue: EpilogueKey
    rank: RankKey
    passes: PassKey
    prices: OperatorTimes

    def __init__(self, plan: TrainingPlan, parts: RankParts, structure: StageLayout, order: Schedule | None) -> None:
        self.plan, self.parts, self.structure, self.order = plan, parts, structure, order

    @property
    def splits(self) -> bool:
        """Whether gradients of weights are a pass of their own."""
        return self.order is not None and self.order.splits_backward
