"""A Transformer's parts as operators on unsplit data, each with how tensor parallelism may cut it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from weft.graph import Attention, Gemm, Op, Streaming

if TYPE_CHECKING:
    from weft.models.transformer import Transformer

Cut = Literal["columns", "rows", "heads", "width", "tokens", "vocabulary", "whole"]
"""How tensor parallelism cuts an operator: a GEMM by output columns or by rows of its weight, attention by heads, an
element-wise operator between the two by its width, one outside by tokens (with sequence parallelism), an embedding by
rows of its table, or not at all."""


@dataclass(frozen=True)
class Style:
    """How a framework writes a layer's operators.

    `flash` attention is one kernel, otherwise batched GEMMs with a softmax between; with `dropout` after attention and
    each sub-layer. `fused` element-wise operators share kernels with their neighbours: bias with GeLU, bias with
    dropout and residual sum. `loss` names the kernels of the cross entropy.
    """

    flash: bool = True
    dropout: bool = False
    fused: bool = True
    loss: Literal["cross_entropy", "fused_cross_entropy"] = "cross_entropy"


@dataclass(frozen=True)
class Tokens:
    """The tokens that a layer works on: `batch` sequences of `sequence`, of which `context` ranks hold a part each."""

    batch: int
    sequence: int
    context: int = 1

    @property
    def count(self) -> int:
        """Tokens on each rank."""
        return self.batch * self.queries

    @property
    def queries(self) -> int:
        """Tokens of each sequence on each rank."""
        return -(-self.sequence // self.context)


@dataclass(frozen=True)
class Piece:
    """One operator of a model before it is split: its name, its part of the model, its cut, and its parameters.

    `parameters` counts the weights that it owns before the cut, the smaller ones (scales, biases) included.
    """

    name: str
    op: Op
    module: str
    cut: Cut
    parameters: int = 0


def layer(model: Transformer, kind: str, tokens: Tokens, style: Style, dtype: str) -> Iterator[Piece]:
    """The operators of one layer of a kind (see `Transformer.layer_kinds`), in the order of execution.

    Sources: the layer of GPT-2 and Megatron-LM (arXiv:1909.08053, 2205.05198); Llama (arXiv:2307.09288).
    """
    yield from _attention(model, kind, tokens, style, dtype)
    yield from _mlp(model, tokens, style, dtype)


def _attention(model: Transformer, kind: str, tokens: Tokens, style: Style, dtype: str) -> Iterator[Piece]:
    hidden, heads, shared, head = model.hidden, model.attention_heads, model.key_heads, model.head_size
    count, bias = tokens.count, int(model.biases)
    yield Piece("norm1", Streaming(model.norm, count, hidden, dtype), "attention", "tokens", _scales(model))
    wide = (heads + 2 * shared) * head
    yield Piece("qkv", Gemm(count, wide, hidden, dtype), "attention", "columns", wide * (hidden + bias))
    if model.positions == "rotary":
        yield Piece("rotary", Streaming("rotary", count * (heads + shared) * head, 1, dtype), "attention", "width")
    yield Piece("attention", attend(model, tokens, style, dtype), "attention", "heads")
    inner = heads * head
    yield Piece("projection", Gemm(count, hidden, inner, dtype), "attention", "rows", hidden * (inner + bias))
    yield from _residual("residual1", model, tokens, style, dtype, "attention")


def attend(model: Transformer, tokens: Tokens, style: Style, dtype: str) -> Attention:
    """The attention of all heads; under context parallelism each rank's queries see half of the keys on average."""
    keys = tokens.sequence
    causal = int(style.flash and model.causal)
    if tokens.context > 1 and causal:
        keys, causal = (tokens.sequence + tokens.queries) // 2, 0
    shared = model.key_heads if style.flash and model.key_heads != model.attention_heads else 0
    dropped = style.dropout and not style.flash
    sizes = tokens.batch, model.attention_heads, tokens.queries, keys, model.head_size
    return Attention(*sizes, shared, causal, dtype, fused=style.flash, dropout=dropped)


def _mlp(model: Transformer, tokens: Tokens, style: Style, dtype: str) -> Iterator[Piece]:
    hidden, wide, count, bias = model.hidden, model.wide, tokens.count, int(model.biases)
    first = 2 * wide if model.gated else wide
    yield Piece("norm2", Streaming(model.norm, count, hidden, dtype), "mlp", "tokens", _scales(model))
    yield Piece("fc1", Gemm(count, first, hidden, dtype), "mlp", "columns", first * (hidden + bias))
    yield Piece("activation", activation(model, count * wide, style, dtype), "mlp", "width")
    yield Piece("fc2", Gemm(count, hidden, wide, dtype), "mlp", "rows", hidden * (wide + bias))
    yield from _residual("residual2", model, tokens, style, dtype, "mlp")


def activation(model: Transformer, elements: int, style: Style, dtype: str) -> Streaming:
    """The activation function of the MLP on so many elements of its output."""
    if model.gated:
        return Streaming("swiglu", elements, 1, dtype)
    return Streaming("bias_gelu" if style.fused and model.biases else "gelu", elements, 1, dtype)


def _residual(name: str, model: Transformer, tokens: Tokens, style: Style, dtype: str, module: str) -> Iterator[Piece]:
    elements = tokens.count * model.hidden
    if style.dropout and not style.fused:
        yield Piece(f"{name}_dropout", Streaming("dropout", elements, 1, dtype), module, "tokens")
    fused = style.dropout and style.fused
    kind = "bias_dropout_add" if fused else "residual_add"
    yield Piece(name, Streaming(kind, elements, 1, dtype), module, "tokens")


def _scales(model: Transformer) -> int:
    return model.hidden * (2 if model.norm == "layernorm" else 1)


def embedding(model: Transformer, tokens: Tokens, style: Style, dtype: str) -> Iterator[Piece]:
    """What precedes the first layer: rows of the embedding table, positions, dropout."""
    table = Streaming("embedding", tokens.count, model.hidden, dtype)
    yield Piece("embedding", table, "embedding", "vocabulary", model.vocabulary * model.hidden)
    elements = tokens.count * model.hidden
    if model.positions == "learned":
        added = Streaming("residual_add", elements, 1, dtype)
        yield Piece("positions", added, "embedding", "tokens", model.sequence_length * model.hidden)
    if style.dropout:
        yield Piece("embedding_dropout", Streaming("dropout", elements, 1, dtype), "embedding", "tokens")


def head(model: Transformer, tokens: Tokens, style: Style, dtype: str) -> Iterator[Piece]:
    """What follows the last layer: the last norm, the logits and their loss."""
    yield Piece("norm", Streaming(model.norm, tokens.count, model.hidden, dtype), "head", "tokens", _scales(model))
    owned = 0 if model.tied else model.vocabulary * model.hidden
    yield Piece("logits", Gemm(tokens.count, model.vocabulary, model.hidden, dtype), "head", "columns", owned)
    yield Piece("loss", Streaming(style.loss, tokens.count, model.vocabulary, dtype), "head", "width")
