"""What plans have in common: the parts of a model on one rank, and the passes over them, each found once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weft.graph import Gemm
from weft.models.block import LAYERS
from weft.parallel.framework import Framework
from weft.parallel.plan import ORDER, Parallelism
from weft.parallel.rank import RankPart
from weft.result.step import PartTimes, Pass
from weft.run.step.clock import timed_parts
from weft.run.step.many.structure import Composition, Shares
from weft.run.step.offload import without_offloaded
from weft.run.step.prices import Case, Prices
from weft.run.step.windows import Times, times

FloatArray = NDArray[np.float64]
Key = tuple[object, ...]
"""Fields of a plan that decide something."""


def part_key(plan: Parallelism, framework: Framework) -> Key:
    """What decides the parts of a model on a rank, out of a plan: first, what is computed again."""
    adds = not framework.accumulates and plan.micro_batches > 1 and not plan.gathers_each_pass
    ordered = framework.orders_tokens and framework.tp
    return (
        plan.recompute, plan.tp, plan.sp, plan.cp, plan.ep, plan.context, plan.micro_batch, plan.sequence, plan.dtype,
        plan.quantize, adds, framework.async_tp, ordered,
    )  # fmt: skip


def layer_key(plan: Parallelism, parts: Key) -> Key:
    """What decides the passes over parts: they themselves, methods of overlap, and the place of the ranks."""
    methods = tuple((axis, plan.overlap[axis]) for axis in sorted(plan.overlap) if axis != "dp") if plan.overlap else ()
    placed = None if plan.order == ORDER else (plan.order, plan.dp, plan.pp)
    return (*parts, methods, placed)


def cases_of(parts: Parts, prices: Prices) -> Iterable[Case]:
    """The operators of the passes over parts."""
    for part in parts.of.values():
        for graph in (part.forward, part.backward, part.recompute):
            yield from (prices.case(node.op, node.stream) for node in graph or ())


class Parts:
    """One rank's share of the parts of a model, as arrays over the parts in the order of `names`."""

    def __init__(self, of: Mapping[str, RankPart]) -> None:
        self.of, self.names = of, tuple(of)
        self.parameters = np.array([one.parameters for one in of.values()])
        self.experts = np.array([one.experts for one in of.values()])

    def kept(self, of: Composition, offloads: bool) -> tuple[FloatArray, FloatArray]:
        """What a micro-batch keeps in each stage, and needs beside that in its forward and in its backward [bytes].

        The second array has the shape (2, stages). With `offloads` the activations of layers go to the host.
        """
        each = [without_offloaded(name, one.kept) if offloads else one.kept for name, one in self.of.items()]
        sizes = np.array([(one.bytes, one.forward, one.backward) for one in each], np.float64).T
        working = np.where(of.counts > 0, sizes[1:, None, :], 0).max(axis=2)
        held: FloatArray = of.counts @ sizes[0]
        return held, working

    def sent(self, of: Composition) -> FloatArray:
        """What a micro-batch of each stage sends to the host if the activations of layers are kept there [bytes]."""
        sizes = [float(one.kept.bytes) if name in LAYERS else 0.0 for name, one in self.of.items()]
        found: FloatArray = of.counts @ np.array(sizes)
        return found


class Layers:
    """The passes over the parts of a model on a rank."""

    def __init__(
        self, parts: Parts, dtype: str, framework: Framework, prices: Prices, like: Layers | None = None
    ) -> None:
        self.of, self.framework, self.dtype = parts, framework, dtype
        known = like.parts if like else None
        self.parts: dict[str, PartTimes] = timed_parts(parts.of, framework, prices, like=known)
        self.like = like or self
        self._beside: dict[tuple[Shares, bool], Times] = {}

    def seconds(self, of: Composition) -> tuple[FloatArray, FloatArray]:
        """Forward and backward of a micro-batch on each stage [s], without what waits for gathered weights."""
        forward, backward = (of.counts @ times for times in self._alone)
        if not self.framework.launch:
            return forward, backward
        gaps = [of.counts @ launches * self.framework.launch for launches in self._launches]
        if self.framework.synchronous:
            return forward + gaps[0], backward + gaps[1]
        return np.maximum(forward, gaps[0]), np.maximum(backward, gaps[1])

    def beside(self, shares: Shares, forward: bool) -> Times:
        """The times of the operators of a device's forward or backward passes, and of the passes."""
        known = self.like._beside
        if (shares, forward) not in known:
            known[shares, forward] = self.like._sum(shares, forward)
        return known[shares, forward]

    def _sum(self, shares: Shares, forward: bool) -> Times:
        spent: Counter[Gemm] = Counter()
        whole = 0.0
        for count, part in zip(shares, self._forward if forward else self._backward, strict=True):
            if count:
                whole += count * part.whole
                for gemm, seconds in part.spent.items():
                    spent[gemm] += count * seconds  # type: ignore[assignment]
        return Times(spent, whole)

    @cached_property
    def _forward(self) -> list[Times]:
        return [times([one.forward], self.dtype) for one in self.parts.values()]

    @cached_property
    def _backward(self) -> list[Times]:
        return [times([one.backward, one.weight], self.dtype) for one in self.parts.values()]

    @cached_property
    def _alone(self) -> tuple[FloatArray, FloatArray]:
        return self._both("seconds")

    @cached_property
    def _launches(self) -> tuple[FloatArray, FloatArray]:
        return self._both("launches")

    def _both(self, name: str) -> tuple[FloatArray, FloatArray]:
        def of(*passes: Pass) -> float:
            return float(sum(getattr(one, name) for one in passes))

        parts: Sequence[PartTimes] = list(self.parts.values())
        forward = [of(one.forward) for one in parts]
        return np.array(forward), np.array([of(one.recompute, one.backward) for one in parts])
