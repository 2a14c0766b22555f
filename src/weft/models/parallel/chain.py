"""The nodes of a pass over a part of a model on one rank: operators, and the collectives that their cuts need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

from weft.graph import (
    DTYPE_BYTES,
    EXCHANGES,
    Attention,
    Collective,
    Gemm,
    Graph,
    GroupedGemm,
    Node,
    Op,
    Streaming,
    Tensor,
)
from weft.graph.op import Role
from weft.graph.op import width as bytes_of
from weft.models.block import PREDICTION, LayerOp
from weft.models.parallel.cut import (
    copies,
    crowding,
    cut,
    exchange,
    expert_tp,
    hops,
    input_of,
    key_bytes,
    of_context,
    output_of,
    query_bytes,
    routed_tokens,
    routing_of,
    token_ranks,
)
from weft.models.parallel.deployment import Deployment
from weft.models.parallel.framework import Framework
from weft.models.parallel.memory import casting_ranks
from weft.models.parallel.precision import casts, is_narrow

Phase = Literal["forward", "recompute", "input", "weight"]
"""What a node computes: the forward pass (again), or gradients of inputs or of weights."""


_CAST_IN_EXPERTS = ((Role.EXPERT_DOWN, ".quantize"), (Role.EXPERT_UP, ".input"))
"""Casts of what passes from one GEMM of an expert to the other, which one kernel may do."""
_SENT = {Role.EXPERT_UP: "dispatched", Role.EXPERT_DOWN: "returned"}
"""GEMMs of experts whose input, or whose output's gradient, may arrive in 8 bits: the field of `FusionStyle`."""


class RankGraphBuilder:
    """Nodes of a pass, serially on the stream "compute", with collectives before, after or concurrent with them.

    `last` is the node that the next operator waits for. Pieces concurrent with an MoE dispatch or combine form a
    `branch`, which starts at the `fork` before this exchange and is joined after the next exchange. Only then are
    `received` tokens sorted.
    """

    def __init__(self, plan: Deployment, framework: Framework, phase: Phase = "forward") -> None:
        self.plan, self.framework, self.phase = plan, framework, phase
        self.dtype = plan.dtype or "bf16"
        self.dispatcher = plan.dispatcher or framework.dispatcher
        self.once_a_rank = EXCHANGES[self.dispatcher] == "rank"
        self.fused_experts = framework.fused_experts and bool(plan.recipe.operands)
        self.apart = framework.casts_apart and bool(plan.recipe.operands)
        self.pads = self.dispatcher in framework.pads and bool(plan.recipe.operands)
        self.nodes: list[Node] = []
        self.last: tuple[str, ...] = ()
        self.fork: tuple[str, ...] = ()
        self.branch: tuple[str, ...] = ()
        self.received: Callable[[], None] | None = None

    def graph(self, title: str) -> Graph:
        """Return the nodes so far."""
        return Graph(tuple(self.nodes), self.plan.tp, title)

    def add(
        self, suffix: str, op: Op, piece: LayerOp, phase: Phase, after: Iterable[str], stream: str = "compute"
    ) -> str:
        """Append a node of a piece that waits for the nodes `after`, and return its name, which ends in `suffix`."""
        name, module, role = f"{piece.name}{suffix}", piece.module, piece.role
        before = tuple(after)
        node = Node(op, name, after=before, stream=stream, phase=phase, module=module, role=role, operator=piece.name)
        self.nodes.append(node)
        return name

    def then(self, name: str, op: Op, piece: LayerOp, phase: Phase, stream: str = "compute") -> None:
        """Append a node that waits for the last one, and that the next one waits for."""
        self.last = (self.add(name, op, piece, phase, self.last, stream),)

    def _tp(self, kind: str, tokens: int, width: int, dtype: str) -> Collective:
        size = math.ceil(tokens * width * bytes_of(dtype))
        return Collective(kind, size, self.plan.tp, dtype if dtype in DTYPE_BYTES else "fp8")

    def _gather_dtype(self, op: Gemm) -> str:
        """Return the number format in which a GEMM's input is gathered: the recipe's, or 16 bits."""
        return (is_narrow(op) and self.plan.recipe.gathered) or op.output_dtype

    def forward(self, piece: LayerOp, op: Op) -> None:
        """Append an operator and the collectives that its cut needs before, beside or after it."""
        self._in_turn(piece, lambda: self._forward(piece, op))

    def backward(self, piece: LayerOp, op: Op) -> None:
        """Append the gradients of an operator and the collectives that its cut needs."""
        self._in_turn(piece, lambda: self._backward(piece, op))

    def _in_turn(self, piece: LayerOp, append: Callable[[], None]) -> None:
        """Append to the branch or to the main path, there after what a dispatch or combine has left to do."""
        if piece.beside:
            main, self.last = self.last, self.branch or self.fork
            append()
            self.branch, self.last = self.last, main
            return
        received, self.received = self.received, None
        if received is not None:
            received()
        if not (self.fused_experts and piece.role is Role.EXPERT_INNER and piece.module != PREDICTION):
            append()

    def _forward(self, piece: LayerOp, op: Op) -> None:
        phase = self.phase
        if isinstance(op, Attention) and self.plan.cp > 1:
            self._context(piece, op)
        elif piece.cut == "dispatch":
            self._scatter(piece, (op,), phase)
        elif piece.cut == "combine":
            self._collect(piece, (op,), phase)
        elif piece.cut == "classes" and self.plan.tp > 1:
            self._loss(piece, op)
        else:
            if self.framework.casts_each_pass and is_narrow(op):
                self._weights_cast(piece, op.reads[-1], phase)
            if self.apart and phase == "forward" and isinstance(op, Streaming) and op.name == "swiglu":
                self._kept_cast(piece, sum(math.prod(each.shape) for each in op.reads), phase)
            self._in_order(
                lambda: self._quantize_tensor(piece, ".quantize", op.reads[0], phase, piece.cut == "columns"),
                lambda: self._add_all_gather(piece, phase),
            )
            if isinstance(op, Attention):
                self._attention_cast(piece, ".quantize", op.reads, phase)
            self._in_blocks(piece, op, phase, Role.EXPERT_UP)
            self.then("", op, piece, phase)
            self._in_blocks(piece, op, phase, Role.EXPERT_DOWN)
            if phase == "forward":
                self._page_activations(piece, op, phase)
            self._add_reduction(piece, phase)

    def _in_order(self, quantise: Callable[[], None], gather: Callable[[], None]) -> None:
        """Append what casts tokens and what gathers them, in the recipe's order."""
        for append in (quantise, gather) if self.plan.recipe.gathered else (gather, quantise):
            append()

    def _weights_cast(self, piece: LayerOp, weights: Tensor, phase: Phase) -> None:
        """Cast weights in a pass; of those that replicas gather as operands, the rank's own shard."""
        self._cast(piece, ".weights", -(-math.prod(weights.shape) // casting_ranks(self.plan, self.framework)), phase)

    def _cast(self, piece: LayerOp, suffix: str, count: int, phase: Phase) -> None:
        for number, op in enumerate(casts(count, self.plan.recipe, self.dtype)):
            self.then(f"{suffix}.{number}", op, piece, phase)

    def _attention_cast(self, piece: LayerOp, suffix: str, tensors: Iterable[Tensor], phase: Phase) -> None:
        """Cast queries, keys and values, or the gradient of the output, where attention has 8 bits."""
        if self.framework.attention and self.plan.recipe.operands:
            self._cast(piece, suffix, sum(math.prod(each.shape) for each in tensors), phase)

    def _page_activations(self, piece: LayerOp, op: Op, phase: Phase) -> None:
        """Copy what an expert's GEMM leaves for the backward pass to pages, or back: its input, and the activation's.

        The activation's has 16 bits.
        """
        if not (self.framework.pages and self.fused_experts and isinstance(op, GroupedGemm)):
            return
        size = op.rows * op.k * bytes_of(self.plan.recipe.operands)
        if piece.role is Role.EXPERT_UP:
            size += op.writes[0].bytes
        self.then(".page", Streaming("elementwise", math.ceil(size), 1, "int8"), piece, phase)

    def _in_blocks(self, piece: LayerOp, op: Op, phase: Phase, side: Role) -> None:
        """Copy the rows of experts to whole blocks of the recipe or back, at the `side` of the experts that does it."""
        if piece.role is side and self.pads and isinstance(op, GroupedGemm):
            hidden = op.k if side is Role.EXPERT_UP else op.n
            self.then(".blocks", Streaming("elementwise", op.rows * hidden, 1, self.dtype), piece, phase)

    def _quantize_tensor(self, piece: LayerOp, suffix: str, tensor: Tensor, phase: Phase, gathered: bool) -> None:
        """Cast a 16-bit tensor to a recipe's operands; of one that is `gathered` after, the rank's own tokens."""
        fused = self.fused_experts and (piece.role, suffix) in _CAST_IN_EXPERTS
        if is_narrow(piece.op) and not fused:
            own = gathered and self.plan.recipe.gathered
            count = -(-math.prod(tensor.shape) // (token_ranks(self.plan) if own else 1))
            if self.apart:
                self._cast_apart(piece, suffix, count, phase)
            else:
                self._cast(piece, suffix, count, phase)

    def _cast_apart(self, piece: LayerOp, suffix: str, count: int, phase: Phase) -> None:
        """Cast along rows; in the backward pass turn the saved input and the weights, and cast along columns.

        Tokens, and gradients, that arrive in 8 bits are turned; what leaves attention is kept in 12 bits beside.
        """
        arrived = self.plan.ep > 1 and piece.role in _SENT and bool(getattr(self.framework.style, _SENT[piece.role]))
        forward = suffix == ".quantize"
        if not (arrived and forward == (piece.role is Role.EXPERT_UP)):
            self._add_streaming(piece, f"{suffix}.rows", "quantize", count, phase)
            along = "quantize"
        else:
            along = "transpose"
        wide = piece.role is Role.OUT_PROJECTION
        if forward:
            if wide:
                self._kept_cast(piece, count, phase)
            return
        self._add_streaming(piece, ".columns", along, count, phase)
        saved, weights = (math.prod(each.shape) for each in cut(piece, self.plan).reads[:2])
        if wide:
            self._add_streaming(piece, ".back", "quantize", saved, phase)
        self._add_streaming(piece, ".turned", "quantize" if wide else "transpose", saved, phase)
        self._add_streaming(piece, ".weights", "transpose", weights, phase)

    def _kept_cast(self, piece: LayerOp, count: int, phase: Phase) -> None:
        """Cast a tensor whose cast is only kept for the backward pass."""
        self._add_streaming(replace(piece, role=Role.KEPT_CAST), ".kept", "quantize", count, phase)

    def _add_streaming(self, piece: LayerOp, suffix: str, name: str, count: int, phase: Phase) -> None:
        dtype = self.plan.recipe.operands if name == "transpose" else self.dtype
        self.then(suffix, Streaming(name, count, 1, dtype), piece, phase)

    def _add_all_gather(self, piece: LayerOp, phase: Phase) -> None:
        """The all-gather of tokens before a GEMM that is cut by columns, with sequence parallelism."""
        whole = piece.op
        if self.plan.tp > 1 and self.plan.sp and piece.cut == "columns" and isinstance(whole, Gemm):
            self.then(
                ".gather", self._tp("all_gather", whole.m, whole.k, self._gather_dtype(whole)), piece, phase, "tp"
            )
            self._add_reordering(piece, ".gather", whole.m * whole.k, self._gather_dtype(whole), phase)

    def _add_reduction(self, piece: LayerOp, phase: Phase) -> None:
        """The reduction of sums that the ranks have computed in parts."""
        if self.plan.tp > 1 and piece.cut in ("rows", "vocabulary"):
            kind = "reduce_scatter" if self.plan.sp else "all_reduce"
            rows, columns, dtype = output_of(piece.op)
            self._add_reordering(piece, ".reduce", rows * columns, dtype, phase)
            self.then(".reduce", self._tp(kind, rows, columns, dtype), piece, phase, "tp")

    def _add_reordering(self, piece: LayerOp, suffix: str, count: int, dtype: str, phase: Phase) -> None:
        """Copy the tokens of several sequences into the order of the ranks before a reduce-scatter, or back.

        Not where a method joins the collective with its GEMM, which reads and stores the tokens in place.
        """
        if self.framework.orders_tokens and self.plan.sp and self.plan.micro_batch > 1 and not self.framework.tp:
            self.then(f"{suffix}.order", Streaming("elementwise", count, 1, dtype), piece, phase)

    def _loss(self, piece: LayerOp, op: Op) -> None:
        """A loss of classes that the ranks share: all-reduces of each row's maximum, its own class, and its sum."""
        rows = output_of(piece.op)[0]
        each = Collective("all_reduce", rows * 4, self.plan.tp, "fp32")
        self.then(".maximum", each, piece, self.phase, "tp")
        self.then("", op, piece, self.phase)
        for name in (".own", ".sum"):
            self.then(name, each, piece, self.phase, "tp")

    def _context(self, piece: LayerOp, op: Attention) -> None:
        """Attention of one rank's part of each sequence, with the plan's context-parallel communication."""
        method, phase = self.plan.context, self.phase
        if method == "ring":
            self._ring(piece, hops(op, self.plan.cp), "", phase, 1)
            return
        mine = of_context(op, self.plan)
        if method == "all_gather":
            self._cp(piece, "all_gather", ".keys", 2 * key_bytes(op), phase)
            self.then("", mine, piece, phase)
            return
        for name, size in ((".q", query_bytes(op)), (".k", key_bytes(op)), (".v", key_bytes(op))):
            self._cp(piece, "all_to_all", name, size // self.plan.cp, phase)
        self.then("", mine, piece, phase)
        self._cp(piece, "all_to_all", ".out", query_bytes(op) // self.plan.cp, phase)

    def _context_backward(self, piece: LayerOp, op: Attention) -> None:
        method, size = self.plan.context, key_bytes(op)
        if method == "ring":
            inner = [hop.backward.inputs[0] for hop in hops(op, self.plan.cp)]
            self._ring(piece, inner, ".gradient", "input", 2)
            return
        (gradient,) = of_context(op, self.plan).backward.inputs
        if method == "all_gather":
            self._cp(piece, "all_gather", ".keys", 2 * size, "input")
            self.then(".gradient", gradient, piece, "input")
            self._cp(piece, "reduce_scatter", ".scatter", 2 * size, "input")
            return
        self._cp(piece, "all_to_all", ".out", query_bytes(op) // self.plan.cp, "input")
        self.then(".gradient", gradient, piece, "input")
        for name, bytes in ((".q", query_bytes(op)), (".k", size), (".v", size)):
            self._cp(piece, "all_to_all", name, bytes // self.plan.cp, "input")

    def _cp(self, piece: LayerOp, kind: str, name: str, bytes: int, phase: Phase) -> None:
        dtype = piece.op.dtype  # type: ignore[attr-defined]
        self.then(name, Collective(kind, bytes, self.plan.cp, dtype), piece, phase, "cp")

    def _ring(self, piece: LayerOp, each: Sequence[Op], suffix: str, phase: Phase, times: int) -> None:
        """Attention to one rank's keys after the other, while those of the next arrive; `times` their size is sent."""
        whole = piece.op
        assert isinstance(whole, Attention)
        local = cut(piece, self.plan)
        size = 2 * times * key_bytes(local) // self.plan.cp
        sent = self.last
        for number, op in enumerate(each):
            name = suffix + (f".{number}" if number else "")
            after = self.last
            if number:
                moved = Collective("send_recv", size, 2, whole.dtype)
                sent = (self.add(f"{name}.send", moved, piece, phase, sent, "cp"),)
                after = (*after, *sent)
            self.last = (self.add(name, op, piece, phase, after),)
            if number:
                joined = Streaming(
                    "residual_add", query_bytes(local) // self.plan.cp // DTYPE_BYTES[whole.dtype], 1, whole.dtype
                )
                self.last = (self.add(f"{name}.join", joined, piece, phase, self.last),)

    def _scatter(self, piece: LayerOp, ops: Sequence[Op], phase: Phase) -> None:
        """Send each token to its experts' ranks: permuted by expert before, or by the receiver if sent once to each."""
        if not self.once_a_rank:
            self._all(piece, ops, phase)
        routing = routing_of(piece)
        if self.apart and routing.dtype == self.plan.recipe.operands and self.plan.ep > 1:
            self._add_streaming(piece, ".quantize", "quantize", routed_tokens(piece, self.plan) * routing.hidden, phase)
        self.fork, self.branch = self.last, ()
        self._exchange(piece, phase, "dispatch")
        self.received = lambda: self._here(piece, ops, phase)

    def _collect(self, piece: LayerOp, ops: Sequence[Op], phase: Phase) -> None:
        """Send what the experts return back to its tokens, the inverse of `_scatter`."""
        self._here(piece, ops, phase)
        self._exchange(piece, phase, "combine")
        self.last, self.branch = (*self.last, *self.branch), ()
        if not self.once_a_rank:
            self._all(piece, ops, phase)
        if expert_tp(self.plan) > 1:
            self.then(".reduce", self._tp("all_reduce", *output_of(piece.op)), piece, phase, "tp")

    def _here(self, piece: LayerOp, ops: Sequence[Op], phase: Phase) -> None:
        """Add the reordering of a rank's rows by local expert, sized for the expert with the highest load.

        A rank receives, and returns, as many copies of a token as there are ranks that hold experts of it.
        """
        if not self.once_a_rank:
            self._sort(piece, phase)
            return
        more, each = crowding(piece, self.plan), round(copies(routing_of(piece), self.plan.ep, "rank"))
        for number, op in enumerate(ops):
            assert isinstance(op, Streaming)
            sides = (each, op.outputs) if op.name == "permute" else (op.inputs, each)
            here = replace(op, rows=math.ceil(op.rows * more), inputs=sides[0], outputs=sides[1])
            self.then(f".{number}" if number else "", here, piece, phase)

    def _all(self, piece: LayerOp, ops: Sequence[Op], phase: Phase) -> None:
        for number, op in enumerate(ops):
            self.then(f".{number}" if number else "", op, piece, phase)

    def _exchange(self, piece: LayerOp, phase: Phase, operation: Literal["dispatch", "combine"]) -> None:
        if self.plan.ep > 1:
            tokens = routed_tokens(piece, self.plan)
            units = self.framework.dispatcher_units if self.dispatcher == self.framework.dispatcher else 0
            crowded = crowding(piece, self.plan)
            moved = exchange(routing_of(piece), tokens, self.plan.ep, operation, self.dispatcher, units, crowded)
            self.then(".exchange", moved, piece, phase, "ep")

    def _sort(self, piece: LayerOp, phase: Phase) -> None:
        """Order the tokens that other ranks have sent by their expert, if this rank has several."""
        routing = routing_of(piece)
        if self.plan.ep > 1 and routing.experts > self.plan.ep:
            rows = math.ceil(routed_tokens(piece, self.plan) * routing.each * crowding(piece, self.plan))
            self.then(".sort", Streaming("permute", rows, routing.hidden, routing.dtype), piece, phase)

    def _backward(self, piece: LayerOp, op: Op) -> None:
        inputs = op.backward.inputs
        if isinstance(op, GroupedGemm):
            self._page_activations(piece, op, "input")
            self._in_blocks(piece, op, "input", Role.EXPERT_DOWN)
            self._quantize_tensor(piece, ".input", op.writes[0], "input", False)
            self._add_weight_gradient(piece, op, self.last)
            self._in_blocks(piece, op, "input", Role.EXPERT_UP)
        elif isinstance(piece.op, Gemm) and isinstance(op, Gemm):
            self._gemm_backward(piece, piece.op, op)
        elif isinstance(op, Attention) and self.plan.cp > 1:
            self._context_backward(piece, op)
        elif piece.cut == "dispatch":
            self._collect(piece, inputs, "input")
        elif piece.cut == "combine":
            self._scatter(piece, inputs, "input")
        else:
            if self.plan.tp > 1 and self.plan.sp and piece.cut == "vocabulary":
                self.then(".gather", self._tp("all_gather", *output_of(piece.op)), piece, "input", "tp")
            if isinstance(op, Attention):
                self._attention_cast(piece, ".input", op.writes[:1], "input")
            if self.apart and isinstance(op, Streaming) and op.name == "swiglu":
                self._add_streaming(
                    piece, ".back", "quantize", sum(math.prod(each.shape) for each in op.reads), "input"
                )
            for number, inner in enumerate(inputs):
                self.then(".gradient" + (f".{number}" if number else ""), inner, piece, "input")
            for inner in op.backward.weights:
                if getattr(inner, "name", "") != "bias_backward":  # the GEMM whose bias it is has this sum: _weight
                    self.add(".weight", inner, piece, "weight", self.last)
        if piece.forks:
            rows, columns, dtype = input_of(op)
            self.then(".join", Streaming("residual_add", rows * columns, 1, dtype), piece, "input")

    def _gradient_gathered(self, piece: LayerOp, whole: Gemm) -> None:
        """The all-gather of the gradients of tokens before those of a GEMM that is cut by rows."""
        if self.plan.tp > 1 and self.plan.sp and piece.cut == "rows":
            orders = self.plan.recipe.orders if is_narrow(whole) else 1
            gathered = self._tp("all_gather", whole.m, orders * whole.n, self._gather_dtype(whole))
            self.then(".gather", gathered, piece, "input", "tp")
            self._add_reordering(piece, ".gather", whole.m * whole.n, self._gather_dtype(whole), "input")

    def _gemm_backward(self, piece: LayerOp, whole: Gemm, op: Gemm) -> None:
        plan = self.plan
        split = plan.tp > 1
        self._in_order(
            lambda: self._quantize_tensor(piece, ".input", op.writes[0], "input", piece.cut == "rows"),
            lambda: self._gradient_gathered(piece, whole),
        )
        before = self.last
        for_weight = before
        if split and plan.sp and piece.cut == "columns" and self.framework.gathers_again:
            again = self._tp("all_gather", whole.m, whole.k, self._gather_dtype(whole))
            for_weight = (self.add(".gather", again, piece, "weight", before, "tp"),)
        if not self.framework.async_tp:
            before = for_weight
        done = self.add(".input", op.backward.inputs[0], piece, "input", before)
        ends = [done]
        if split and piece.cut == "columns":
            kind = "reduce_scatter" if plan.sp else "all_reduce"
            reduced = self._tp(kind, whole.m, whole.k, whole.output_dtype)
            self.last = (done,)
            self._add_reordering(piece, ".reduce", whole.m * whole.k, whole.output_dtype, "input")
            ends = [self.add(".reduce", reduced, piece, "input", self.last, "tp")]
            if not self.framework.async_tp:
                for_weight = (*for_weight, *ends)
        self._weight(piece, op, (*for_weight, done))
        self.last = tuple(ends)

    def _add_weight_gradient(self, piece: LayerOp, op: GroupedGemm, before: tuple[str, ...]) -> None:
        done = self.add(".input", op.backward.inputs[0], piece, "input", before)
        self._weight(piece, op, (*before, done))
        self.last = (done,)

    def _weight(self, piece: LayerOp, op: Gemm | GroupedGemm, after: Iterable[str]) -> None:
        """The gradient of a GEMM's weight, added to that of earlier micro-batches by the GEMM if the framework does."""
        (weight,) = op.backward.weights
        if self.framework.accumulates and isinstance(weight, Gemm | GroupedGemm):
            weight = replace(weight, accumulates=self.framework.gradients == "fp32")
        last = self.add(".weight", weight, piece, "weight", dict.fromkeys(after))
        if _has_bias(piece):
            (out,) = op.writes
            summed = Streaming("elementwise", math.prod(out.shape), 1, out.dtype, inputs=1, outputs=0)
            last = self.add(".bias", summed, piece, "weight", [last])
        if not self.framework.accumulates and self.plan.micro_batches > 1 and not self.plan.gathers_each_pass:
            count = math.prod(weight.writes[0].shape)
            added = Streaming("elementwise", count, 1, self.framework.gradients, inputs=2)
            self.add(".add", added, piece, "weight", [last])


def _has_bias(piece: LayerOp) -> bool:
    """Return whether a GEMM's weight has a bias, whose gradient is a sum over the rows of the output's gradient."""
    return any(piece.parameters > math.prod(inner.writes[0].shape) for inner in piece.op.backward.weights)
