"""A layer of a model as a framework without fused kernels writes it, every tensor named, and a small twin of it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from weft.core.errors import InputError
from weft.graph import Attention, Collective, Constant, Gemm, Graph, Joined, Streaming, View
from weft.graph.op import Role
from weft.models import Transformer
from weft.models.block import FusionStyle, LayerOp, Tokens, layer
from weft.models.parallel.cut import cut
from weft.models.parallel.plan import TrainingPlan
from weft.rewrite.flow import Draft

_KIND = "dense"
_NORMS = ("layernorm", "eager_layernorm", "rmsnorm")
_TWIN_HEAD, _TWIN_ROWS = 8, 4


def layer_graph(model: Transformer, plan: TrainingPlan, dropout: bool = False) -> Graph:
    """Return the forward pass of a dense layer on one rank of a plan, every operator a kernel of its own.

    Queries, keys and values, and gate and up of the MLP, are GEMMs apart; attention runs in separate kernels, with
    `dropout` of its scores and after each sub-layer; each bias after the MLP's first GEMM and after reductions is added
    by its own kernel. Raises InputError for layers with experts, latent attention, a sliding window, parallel blocks,
    or norms after their sub-layers.
    """
    _check(model)
    style = FusionStyle(flash=False, dropout=dropout, fused=False, eager=True, apart=True)
    tokens = Tokens(plan.micro_batch, plan.sequence)
    writer = _LayerWriter(model, plan)
    writer.write(layer(model, _KIND, tokens, style, plan.dtype))
    return writer.draft.graph(writer.x, title=f"a layer of {model.title}, TP {plan.tp}")


def twin(model: Transformer, plan: TrainingPlan, dropout: bool = False) -> Graph:
    """Return the same layer with few and small heads, which NumPy executes in a moment: nodes have the same names."""
    group = model.attention_heads // model.key_heads
    heads = plan.tp * group
    small = {
        "heads": heads, "kv_heads": plan.tp if group > 1 else None, "hidden": heads * _TWIN_HEAD, "head": None,
        "ffn": 4 * plan.tp * _TWIN_HEAD,
    }  # fmt: skip
    tiny = TrainingPlan(tp=plan.tp, sp=plan.sp, sequence=_TWIN_ROWS * plan.tp, dtype=plan.dtype)
    return layer_graph(model.model_copy(update=small), tiny, dropout)


def _check(model: Transformer) -> None:
    for found, what in (
        (_KIND not in model.layer_kinds, "has no dense layer without a sliding window"),
        (model.kv_rank, "has latent attention"),
        (model.parallel, "computes attention and MLP in parallel"),
        (model.norms != "before", "has norms after its sub-layers"),
        (model.qk_norm, "normalises queries and keys"),
        (model.attention_gate, "gates what attention returns"),
    ):
        if found:
            raise InputError(
                f"{model.title} {what}, which no rule rewrites yet; name a model like llama-3-8b, or write its graph "
                "to a file"
            )


class _LayerWriter:
    """Writes the pieces of a layer in their order; `x` is what the next one reads, `skip` what a sum adds to it."""

    def __init__(self, model: Transformer, plan: TrainingPlan) -> None:
        self.model, self.plan = model, plan
        self.draft = Draft(plan.dtype, plan.tp)
        self.rows = plan.micro_batch * plan.sequence
        self.own_rows = self.rows // (plan.tp if plan.sp else 1)
        self.x = self.skip = self.draft.add_input("input", self.own_rows, model.hidden)
        self.entry = ""
        self.parts: dict[str, str] = {}

    def write(self, pieces: Iterable[LayerOp]) -> None:
        """Append every piece."""
        for piece in pieces:
            op = cut(piece, self.plan)
            match op:
                case Attention():
                    self._attention(op)
                case Gemm():
                    self._gemm(piece, op)
                case Streaming():
                    self._streaming(piece, op)

    def _gemm(self, piece: LayerOp, op: Gemm) -> None:
        if piece.cut == "columns":
            self.entry = self.entry or self._write_gather(piece.name)
            if piece.role is Role.MLP_UP and self.model.is_gated:
                half = Gemm(op.m, op.n // 2, op.k, op.dtype)
                self.parts = {name: self._product(name, half, self.entry) for name in ("gate", "up")}
            else:
                biased = piece.role is not Role.MLP_UP and self.model.biases in ("all", "qkv")
                self.x = self.parts[piece.name] = self._product(piece.name, op, self.entry, biased)
        else:
            self.entry = ""
            self.x = self._write_reduction(piece.name, self._product(piece.name, op, self.x))

    def _product(self, name: str, op: Gemm, x: str, biased: bool = False) -> str:
        bias = (self.draft.weight(f"{name}.b", op.n),) if biased else ()
        return self.draft.node(name, op, x, self.draft.weight(f"{name}.w", op.k, op.n), *bias)

    def _write_gather(self, name: str) -> str:
        return self._write_collective(f"{name}.gather", "all_gather") if self.plan.sp and self.plan.tp > 1 else self.x

    def _write_reduction(self, name: str, made: str) -> str:
        self.x = made
        if self.plan.tp == 1:
            return made
        return self._write_collective(f"{name}.reduce", "reduce_scatter" if self.plan.sp else "all_reduce")

    def _write_collective(self, name: str, kind: str) -> str:
        size = self.rows * self.model.hidden * 2 if self.plan.dtype != "fp32" else self.rows * self.model.hidden * 4
        return self.draft.node(name, Collective(kind, size, self.plan.tp, self.plan.dtype), self.x, stream="tp")

    def _streaming(self, piece: LayerOp, op: Streaming) -> None:
        draft, width, name = self.draft, self.model.hidden, piece.name
        if op.name in _NORMS:
            self.skip = self.x
            more = [draft.weight(f"{name}.scale", width)]
            more += [] if op.name == "rmsnorm" else [draft.weight(f"{name}.shift", width)]
            self.x = draft.node(name, op, self.x, *more)
        elif op.name == "rotary":
            self._rotary(op)
        elif op.name == "transpose":
            self.x = draft.node(name, op, self.x)
            self.x = draft.view(f"{name}_rows", View(self.x, (self.rows, op.elements // self.rows)))
        elif op.name == "bias_add":
            columns = op.elements // (self.rows if piece.role is Role.ACTIVATION_BIAS else self.own_rows)
            self.x = draft.node(name, op, self.x, draft.weight(f"{name}.b", columns))
        elif op.name == "dropout":
            self.x = draft.node(name, op, self.x, draft.bits(f"{name}.keep", self.own_rows, width))
        elif op.name == "residual_add":
            self.x = draft.node(name, op, self.x, self.skip)
        elif op.name == "swiglu":
            self.x = draft.node(name, op, self.parts["gate"], self.parts["up"])
        else:
            activation = "relu square" if self.model.activation == "relu2" else "relu"
            function = activation if op.name == "elementwise" else ""
            self.x = draft.node(name, Streaming(op.name, op.rows, op.columns, op.dtype, function=function), self.x)

    def _rotary(self, op: Streaming) -> None:
        """Queries and keys turned by one kernel, which sees them side by side."""
        draft, both = self.draft, Joined((self.parts["query"], self.parts["key"]), 1)
        turned = draft.node("rotary", op, draft.view("query_key", both))
        columns = op.elements // self.rows
        keys = columns * self.model.key_heads // (self.model.key_heads + self.model.attention_heads)
        self.parts["query"] = draft.view("query_turned", View(turned, axis=-1, stop=columns - keys))
        self.parts["key"] = draft.view("key_turned", View(turned, axis=-1, start=columns - keys, stop=columns))

    def _attention(self, op: Attention) -> None:
        """The kernels of attention: heads are read in strides, shared ones repeatedly."""
        draft, batch, tokens = self.draft, op.batch, op.query
        shared = op.heads // max(self.model.key_heads // self.plan.tp, 1)
        sizes = {"query": (op.heads, op.head), "key": (op.heads // shared, op.head),
                 "value": (op.heads // shared, op.value_head)}  # fmt: skip
        seen = {}
        for name, (heads, width) in sizes.items():
            view = View(self.parts[name], (batch, tokens, heads, width), order=(0, 2, 1, 3))
            seen[name] = draft.view(f"{name}_heads", view)
            if name != "query" and shared > 1:
                seen[name] = draft.view(f"{name}_each", View(seen[name], axis=1, repeat=shared))
        x, keys = seen["query"], draft.view("key_columns", View(seen["key"], order=(0, 1, 3, 2)))
        pattern = "causal" if self.model.causal else "fill"
        for kernel in op.kernels:
            if isinstance(kernel, Gemm):
                first = x == seen["query"]
                x = draft.node(*(("scores", kernel, x, keys) if first else ("attention", kernel, x, seen["value"])))
            elif kernel.name == "scale":
                root = Constant((1,), 1 / math.sqrt(op.head))
                x = draft.node("scale", kernel, x, draft.constant("root", root))
            elif kernel.name == "mask":
                mask = Constant((tokens, op.keys), pattern=pattern)  # type: ignore[arg-type]
                x = draft.node("mask", kernel, x, draft.constant("unseen", mask))
            elif kernel.name == "dropout":
                keep = draft.bits("scores_keep", batch * op.heads, tokens, op.keys)
                x = draft.node("scores_dropout", kernel, x, keep)
            else:
                x = draft.node("softmax", kernel, x)
        self.x = draft.view("attention_tokens", View(x, (batch, op.heads, tokens, op.value_head), order=(0, 2, 1, 3)))
