"""One rank's share of a model's parts: operators cut, collectives added, forward and backward, as graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from weft.graph import DTYPE_BYTES, Attention, Collective, Gemm, Graph, Node, Op, Streaming
from weft.models.block import Piece
from weft.parallel.framework import Framework
from weft.parallel.memory import Kept, kept
from weft.parallel.plan import Parallelism

Phase = Literal["forward", "recompute", "input", "weight"]
"""What a node computes: the forward pass (again), or gradients of inputs or of weights."""


@dataclass(frozen=True)
class RankPart:
    """One rank's work on a part of a model, such as a layer: passes as graphs, parameters, and what it must remember.

    `recompute` is None if nothing is computed again. Streams are named by what runs on them: "compute", "tp", "cp".
    """

    name: str
    forward: Graph
    backward: Graph
    recompute: Graph | None = None
    parameters: int = 0
    kept: Kept = field(default_factory=Kept)


def cut(piece: Piece, plan: Parallelism) -> Op:
    """One rank's share of an operator; dimensions that do not divide are rounded up, as for the fullest rank."""
    op, tp = piece.op, plan.tp
    match op:
        case Gemm() if piece.cut == "columns":
            return replace(op, n=-(-op.n // tp))
        case Gemm() if piece.cut == "rows":
            return replace(op, k=-(-op.k // tp))
        case Attention() if piece.cut == "heads":
            return replace(op, heads=-(-op.heads // tp), kv_heads=-(-op.kv_heads // tp))
        case Streaming() if piece.cut == "width":
            return _narrowed(op, tp)
        case Streaming() if piece.cut == "tokens" and plan.sp:
            return replace(op, rows=-(-op.rows // tp))
    return op


def _narrowed(op: Streaming, tp: int) -> Streaming:
    """A `tp`-th of the columns, or of a flat operator's elements."""
    return replace(op, rows=-(-op.rows // tp)) if op.columns == 1 else replace(op, columns=-(-op.columns // tp))


def part(name: str, pieces: Sequence[Piece], plan: Parallelism, framework: Framework) -> RankPart:
    """One rank's share of the pieces in their order."""
    mine = [(piece, cut(piece, plan)) for piece in pieces]
    forward = _Chain(plan, framework)
    for piece, op in mine:
        forward.forward(piece, op)
    backward = _Chain(plan, framework)
    for piece, op in reversed(mine):
        backward.backward(piece, op)
    again = None
    if plan.recompute != "none":
        chain = _Chain(plan, framework, "recompute")
        for piece, op in mine:
            if plan.recompute == "full" or (isinstance(op, Attention) and not op.fused):
                chain.forward(piece, op)
        again = chain.graph(f"{name}, again") if chain.nodes else None
    remembered = kept(pieces, [op for _, op in mine], plan)
    owned = sum(_owned(piece, plan) for piece in pieces)
    return RankPart(
        name, forward.graph(f"{name}, forward"), backward.graph(f"{name}, backward"), again, owned, remembered
    )


def _owned(piece: Piece, plan: Parallelism) -> int:
    """Parameters of a piece on one rank; what is not cut by weights is replicated."""
    shared = piece.cut in ("columns", "rows", "vocabulary")
    return -(-piece.parameters // plan.tp) if shared else piece.parameters


class _Chain:
    """Nodes of a pass, one after the other on the stream "compute", with collectives before, after or beside them."""

    def __init__(self, plan: Parallelism, framework: Framework, phase: Phase = "forward") -> None:
        self.plan, self.framework, self.phase = plan, framework, phase
        self.nodes: list[Node] = []
        self.last: tuple[str, ...] = ()

    def graph(self, title: str) -> Graph:
        return Graph(tuple(self.nodes), self.plan.tp, title)

    def add(self, name: str, op: Op, phase: Phase, module: str, after: Iterable[str], stream: str = "compute") -> str:
        self.nodes.append(Node(op, name, after=tuple(after), stream=stream, phase=phase, module=module))
        return name

    def _tp(self, kind: str, tokens: int, width: int, dtype: str) -> Collective:
        return Collective(kind, tokens * width * DTYPE_BYTES[dtype], self.plan.tp, dtype)

    def forward(self, piece: Piece, op: Op) -> None:
        """Append an operator and the collective that its cut needs before or after it."""
        plan, whole = self.plan, piece.op
        if plan.tp > 1 and plan.sp and piece.cut == "columns" and isinstance(whole, Gemm):
            gathered = self._tp("all_gather", whole.m, whole.k, whole.output_dtype)
            self.last = (self.add(f"{piece.name}.gather", gathered, self.phase, piece.module, self.last, "tp"),)
        self.last = (self.add(piece.name, op, self.phase, piece.module, self.last),)
        if plan.tp > 1 and piece.cut in ("rows", "vocabulary"):
            kind = "reduce_scatter" if plan.sp else "all_reduce"
            m, n = (whole.m, whole.n) if isinstance(whole, Gemm) else (whole.rows, whole.columns)  # type: ignore[attr-defined]
            dtype = whole.output_dtype if isinstance(whole, Gemm) else whole.dtype  # type: ignore[attr-defined]
            reduced = self._tp(kind, m, n, dtype)
            self.last = (self.add(f"{piece.name}.reduce", reduced, self.phase, piece.module, self.last, "tp"),)

    def backward(self, piece: Piece, op: Op) -> None:
        """Append the gradients of an operator and the collectives that its cut needs."""
        if isinstance(piece.op, Gemm) and isinstance(op, Gemm):
            self._gemm_backward(piece, piece.op, op)
            return
        for number, inner in enumerate(op.backward.inputs):
            name = f"{piece.name}.gradient" + (f".{number}" if number else "")
            self.last = (self.add(name, inner, "input", piece.module, self.last),)
        if piece.name.startswith("norm"):
            joined = Streaming("residual_add", op.rows * op.columns, 1, op.dtype)
            self.last = (self.add(f"{piece.name}.join", joined, "input", piece.module, self.last),)

    def _gemm_backward(self, piece: Piece, whole: Gemm, op: Gemm) -> None:
        plan, name = self.plan, piece.name
        split = plan.tp > 1
        if split and plan.sp and piece.cut == "rows":
            gathered = self._tp("all_gather", whole.m, whole.n, whole.output_dtype)
            self.last = (self.add(f"{name}.gather", gathered, "input", piece.module, self.last, "tp"),)
        before = self.last
        for_weight = before
        if split and plan.sp and piece.cut == "columns":
            again = self._tp("all_gather", whole.m, whole.k, whole.output_dtype)
            for_weight = (self.add(f"{name}.gather", again, "weight", piece.module, before, "tp"),)
        if not self.framework.async_tp:
            before = for_weight
        (inner,), (weight,) = op.backward.inputs, op.backward.weights
        done = self.add(f"{name}.input", inner, "input", piece.module, before)
        ends = [done]
        if split and piece.cut == "columns":
            kind = "reduce_scatter" if plan.sp else "all_reduce"
            reduced = self._tp(kind, whole.m, whole.k, whole.output_dtype)
            ends = [self.add(f"{name}.reduce", reduced, "input", piece.module, [done], "tp")]
            if not self.framework.async_tp:
                for_weight = (*for_weight, *ends)
        if self.framework.accumulates:
            weight = replace(weight, accumulates=self.framework.gradients == "fp32")
        self.add(f"{name}.weight", weight, "weight", piece.module, dict.fromkeys((*for_weight, done)))
        self.last = tuple(ends)
