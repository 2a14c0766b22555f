"""Lower bounds of passes from the times of their operators alone: which plans need no graphs.

All operators on the compute stream run serially, each at least as long as alone. What lies between two of
them on the critical path counts, too: reductions and gathers of tensor parallelism that no method hides, and exchanges
of tokens with nothing beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.graph import DTYPE_BYTES, EXCHANGES, Attention, Gemm, GroupedGemm, Op, Streaming
from weft.graph.op import Role, width
from weft.kernels.library.dispatchers import dispatcher
from weft.models.block import LayerOp
from weft.models.parallel.cut import (
    copies,
    exchange,
    hops,
    input_of,
    of_context,
    output_of,
    routed_tokens,
    routing_of,
    token_ranks,
)
from weft.models.parallel.deployment import Deployment
from weft.models.parallel.framework import Framework
from weft.models.parallel.rank import RankPart
from weft.step.durations import Case, OperatorTimes
from weft.step.rank_parts import RankParts


class _Kernels(NamedTuple):
    """The kernels of an operator on the compute stream: in its forward pass, and for its gradients."""

    forward: tuple[Op, ...]
    inputs: tuple[Op, ...]
    weights: tuple[Op, ...]


class LeastPasses:
    """Lower bounds of the passes over a part for plans of a framework; what follows from an operator is found once."""

    def __init__(self, framework: Framework) -> None:
        self.framework = framework
        self._kernels: dict[tuple[object, ...], tuple[Op, _Kernels]] = {}
        self._seconds: dict[int, tuple[Op, float]] = {}
        self._exchanges: dict[tuple[object, ...], tuple[LayerOp, Case]] = {}
        self._parts: dict[tuple[object, ...], tuple[RankPart, float]] = {}

    def of(self, parts: RankParts, prices: OperatorTimes, placed: object) -> NDArray[np.float64]:
        """Return lower bounds of forward, backward and what runs again together, for each part [s]."""
        found = []
        own, plan = _Pieces(self, prices), prices.plan
        for part in parts.of.values():
            key = id(part), placed, *((plan.ep, plan.dispatcher) if part.experts else ())
            if key not in self._parts:
                forward, again = (
                    own.launch_seconds(
                        part, [(one[0], own.forward(*one), own.ran(*one).forward) for one in each], own.syncs
                    )
                    for each in (part.pieces, part.list_again())
                )
                backward = own.launch_seconds(
                    part,
                    [
                        (one[0], own.backward(*one), (*own.ran(*one).inputs, *own.ran(*one).weights))
                        for one in part.pieces
                    ],
                )
                self._parts[key] = part, forward + again + backward
            found.append(self._parts[key][1])
        return np.array(found)

    def cases(self, parts: RankParts, prices: OperatorTimes) -> Iterator[Case]:
        """Return the operators whose times are asked for, those of tensor parallelism left out."""
        for part in parts.of.values():
            for piece, op in part.pieces:
                kernels = self.kernels(piece, op, prices.plan)
                for each in (kernels.forward, kernels.inputs, kernels.weights):
                    for inner in each:
                        if id(inner) not in self._seconds:
                            yield inner, None, None
                for operation in ("dispatch", "combine") if piece.cut in ("dispatch", "combine") else ():
                    if self.exchanges(prices.plan):
                        yield self.exchange(piece, operation, prices)

    def kernels(self, piece: LayerOp, op: Op, plan: Deployment) -> _Kernels:
        """Return the kernels of a piece that surely run on the compute stream."""
        ring = plan.cp > 1 and isinstance(op, Attention)
        inside = piece.cut in ("dispatch", "combine")
        adds = not self.framework.accumulates and plan.micro_batches > 1 and not plan.gathers_each_pass
        spread = (piece.routing, plan.ep, plan.dispatcher) if inside else ()
        key = id(op), piece.forks, adds, spread, (plan.cp, plan.context) if ring else ()
        if key not in self._kernels:
            self._kernels[key] = op, self._list_kernels(piece, op, plan)
        return self._kernels[key][1]

    def _order_kernels(self, piece: LayerOp, ops: Sequence[Op], plan: Deployment) -> tuple[Op, ...]:
        """Return the kernels that order tokens by expert, by the sender or, of even loads, by the receiver."""
        routing = routing_of(piece)
        if EXCHANGES[plan.dispatcher or self.framework.dispatcher] != "rank":
            if plan.ep == 1 or routing.experts <= plan.ep:
                return tuple(ops)
            rows = math.ceil(routed_tokens(piece, plan) * routing.each)
            return *ops, Streaming("permute", rows, routing.hidden, routing.dtype)
        each = round(copies(routing, plan.ep, "rank"))
        streams = (op for op in ops if isinstance(op, Streaming))
        return tuple(replace(op, inputs=each) if op.name == "permute" else replace(op, outputs=each) for op in streams)

    def _list_kernels(self, piece: LayerOp, op: Op, plan: Deployment) -> _Kernels:
        if piece.cut in ("dispatch", "combine"):
            return _Kernels(
                self._order_kernels(piece, (op,), plan), self._order_kernels(piece, op.backward.inputs, plan), ()
            )
        if isinstance(op, Attention) and plan.cp > 1:
            each = tuple(hops(op, plan.cp)) if plan.context == "ring" else (of_context(op, plan),)
            return _Kernels(each, tuple(one.backward.inputs[0] for one in each), ())
        inputs, weights = op.backward
        if isinstance(op, Gemm | GroupedGemm):
            if not self.framework.accumulates and plan.micro_batches > 1 and not plan.gathers_each_pass:
                count = math.prod(weights[0].writes[0].shape)
                weights = (*weights, Streaming("elementwise", count, 1, self.framework.gradients, inputs=2))
            if self.framework.accumulates:
                sums = self.framework.gradients == "fp32"
                weights = tuple(
                    replace(one, accumulates=sums) if isinstance(one, Gemm | GroupedGemm) else one for one in weights
                )
        else:
            weights = tuple(one for one in weights if getattr(one, "name", "") != "bias_backward")
        if piece.forks:
            rows, columns, dtype = input_of(op)
            inputs = (*inputs, Streaming("residual_add", rows * columns, 1, dtype))
        return _Kernels((op,), tuple(inputs), tuple(weights))

    def seconds(self, op: Op, prices: OperatorTimes) -> float:
        """Return the seconds of a kernel with its calibration residual."""
        found = self._seconds.get(id(op))
        if found is None:
            found = self._seconds[id(op)] = op, prices.of(op) + max(prices.residual(op), 0.0)
        return found[1]

    def copy_seconds(self, count: int, dtype: str, prices: OperatorTimes) -> float:
        """Return the seconds of a copy of elements."""
        key = "copy", count, dtype
        if key not in self._kernels:
            op = Streaming("elementwise", count, 1, dtype)
            self._kernels[key] = op, _Kernels((op,), (), ())
        return self.seconds(self._kernels[key][0], prices)

    def exchanges(self, plan: Deployment) -> bool:
        """Return whether nothing overlaps dispatches and combines."""
        hides = self.framework.paired or self.framework.style.beside or plan.overlap
        return plan.ep > 1 and not hides and not plan.expert_load

    def exchange(self, piece: LayerOp, operation: Any, prices: OperatorTimes) -> Case:
        """Return the dispatch or combine of a piece's tokens."""
        plan, own = prices.plan, self.framework.dispatcher
        library = plan.dispatcher or own
        key = id(piece), operation, token_ranks(plan), plan.ep, library, prices.place("ep", plan.ep)
        if key not in self._exchanges:
            units = self.framework.dispatcher_units if library == own else 0
            op = exchange(routing_of(piece), routed_tokens(piece, plan), plan.ep, operation, library, units)
            self._exchanges[key] = piece, prices.case(op, "ep")
        return self._exchanges[key][1]


class _Pieces:
    """Lower bounds of single pieces under a plan."""

    def __init__(self, least: LeastPasses, prices: OperatorTimes) -> None:
        self._least, self._prices, self._plan, framework = least, prices, prices.plan, least.framework
        plan = prices.plan
        shown = not framework.tp and not plan.overlap and not plan.recipe.operands
        self._reduces, self._async = plan.tp > 1 and shown, framework.async_tp
        self._exchanges = least.exchanges(plan)
        self._fuses = bool(plan.recipe.operands)
        library = plan.dispatcher or framework.dispatcher
        self.syncs = plan.ep > 1 and not framework.paired
        self.syncs &= dispatcher(library).host_sync or framework.style.each_expert
        self._sorts = framework.style.each_expert and EXCHANGES[library] == "rank"
        self._orders = framework.orders_tokens and plan.sp and plan.micro_batch > 1

    def _sum(self, ops: Sequence[Op]) -> float:
        return sum(self._least.seconds(op, self._prices) for op in ops)

    def ran(self, piece: LayerOp, op: Op) -> _Kernels:
        """Return the kernels of a piece."""
        return self._least.kernels(piece, op, self._plan)

    def launch_seconds(
        self, part: RankPart, pieces: Iterable[tuple[LayerOp, float, Sequence[Op]]], syncs: bool = False
    ) -> float:
        """Return the least time of a pass [s] from that of each piece, and its kernels: the host launches those of
        experts one by one. Where it `syncs`, it launches what follows a wait after the kernels before it have ended.
        """
        took = issued = 0.0
        framework = self._least.framework
        ahead = not part.experts or not framework.launch_experts
        if ahead or framework.graphs or framework.paired or self._fuses:
            return sum(seconds for _, seconds, _ in pieces)
        waited = 0.0  # from the begin of the pass until the host can be ahead of what it issued
        for piece, seconds, ops in pieces:
            if syncs and (piece.cut == "dispatch" or (self._sorts and piece.role is Role.EXPERT_UP)):
                waited = max(waited, took - issued - framework.launch_experts * len(ops))
            took += seconds
            for op in ops:
                if isinstance(op, GroupedGemm) and not op.fused:
                    issued += framework.launch_each * op.groups
                issued += framework.launch_experts
        return max(took, waited + issued)

    def forward(self, piece: LayerOp, op: Op) -> float:
        """Return the least time of a forward pass [s]."""
        if self._fuses and isinstance(op, Streaming):  # a kernel of experts may compute it
            return 0.0
        took = self._sum(self.ran(piece, op).forward) + self._exchange_seconds(piece)
        if self._reduces and not piece.beside:
            if piece.cut == "rows":
                took += self._reduction_seconds(*output_of(piece.op))
            elif piece.cut == "columns" and self._plan.sp and isinstance(piece.op, Gemm):
                took += self._collective_seconds("all_gather", piece.op.m, piece.op.k, piece.op.output_dtype)
        return took

    def backward(self, piece: LayerOp, op: Op) -> float:
        """Return the least time of a backward pass [s]."""
        if self._fuses and isinstance(op, Streaming):
            return 0.0
        kernels = self.ran(piece, op)
        weights = self._sum(kernels.weights)
        took = self._sum(kernels.inputs) + weights + self._exchange_seconds(piece)
        whole = piece.op
        if self._reduces and not piece.beside and isinstance(whole, Gemm):
            if piece.cut == "rows" and self._plan.sp:
                took += self._collective_seconds("all_gather", whole.m, whole.n, whole.output_dtype)
            elif piece.cut == "columns":
                reduced = self._reduction_seconds(whole.m, whole.k, whole.output_dtype)
                took += max(reduced - weights, 0.0) if self._async else reduced
        return took

    def _exchange_seconds(self, piece: LayerOp) -> float:
        if not self._exchanges or piece.cut not in ("dispatch", "combine"):
            return 0.0
        return self._prices.known.seconds(self._least.exchange(piece, piece.cut, self._prices))

    def _reduction_seconds(self, rows: int, columns: int, dtype: str) -> float:
        return self._collective_seconds("reduce_scatter" if self._plan.sp else "all_reduce", rows, columns, dtype)

    def _collective_seconds(self, kind: str, rows: int, columns: int, dtype: str) -> float:
        size = math.ceil(rows * columns * width(dtype))
        copied = self._least.copy_seconds(rows * columns, dtype, self._prices) if self._orders else 0.0
        return copied + self._prices.collective_seconds(
            kind, size, self._plan.tp, dtype if dtype in DTYPE_BYTES else "fp8", "tp"
        )
