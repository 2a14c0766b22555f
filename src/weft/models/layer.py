"""A Transformer layer as a graph: what one GPU of a tensor-parallel group does, operator after operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, get_args

from weft.errors import InputError, check_name, check_whole
from weft.graph import DTYPE_BYTES, Attention, Collective, Gemm, Op, Streaming
from weft.units import LARGEST_COUNT

if TYPE_CHECKING:
    from weft.models.transformer import Transformer

Phase = Literal["prefill", "decode"]
How = Literal["batched", "fused"]


def check_layer(model: Transformer, tp: int, batch: int, sequence: int, phase: Phase, attention: How) -> None:
    """Raise UnknownNameError for an unknown phase or attention, InputError for sizes that do not fit the model."""
    check_name("phase", phase, get_args(Phase))
    check_name("attention", attention, get_args(How))
    for name, value in (("TP", tp), ("batch", batch), ("sequence", sequence)):
        check_whole(name, value, 1, 8)
    if batch * sequence > LARGEST_COUNT:
        raise InputError(f"batch {batch} x sequence {sequence} are too many tokens; give at most {LARGEST_COUNT}")
    most = min(model.attention_heads, model.hidden)
    if tp > most:
        raise InputError(f"TP {tp} cannot split {model.name}: it has {most} attention heads; choose at most {most}")


def uneven(model: Transformer, tp: int) -> dict[str, str]:
    """Notes on what does not divide by the degree of tensor parallelism, so that one GPU has more of it than others."""
    heads, wide = model.attention_heads, model.ffn_multiple * model.hidden
    notes = {}
    if heads % tp:
        counted = f"the times are those of a GPU with {-(-heads // tp)}, others have fewer"
        notes["heads"] = f"{heads} heads do not divide by TP {tp}: {counted}"
    if wide % tp:
        notes["columns"] = f"{wide} feed-forward columns do not divide by TP {tp}: a GPU with {-(-wide // tp)} counts"
    return notes


def operators(
    model: Transformer, tp: int, batch: int, sequence: int, phase: Phase, attention: How, dtype: str
) -> Iterator[tuple[str, Op]]:
    """The operators of the GPU that has most heads and columns, in the order in which they run."""
    queries = sequence if phase == "prefill" else 1
    tokens, hidden, wide = batch * queries, model.hidden, -(-model.ffn_multiple * model.hidden // tp)
    heads, head = -(-model.attention_heads // tp), model.hidden // model.attention_heads
    norm = Streaming("layernorm", tokens, hidden, dtype)
    fused = attention == "fused"
    masked = int(fused and queries > 1)
    attend = Attention(batch, heads, queries, sequence, head, causal=masked, dtype=dtype, fused=fused)
    yield "LayerNorm_MHA", norm
    yield "Q_K_V", Gemm(tokens, 3 * heads * head, hidden, dtype)
    if fused:
        yield "Attention", attend
    else:
        yield from zip(("Q_mul_K", "Softmax", "A_mul_V"), attend.kernels, strict=True)
    yield "Wo_proj", Gemm(tokens, hidden, heads * head, dtype)
    if tp > 1:
        reduced = Collective("all_reduce", tokens * hidden * DTYPE_BYTES[dtype], tp, dtype)
        yield "AllReduce_MHA", reduced
    yield "LayerNorm_FFN", norm
    yield "W1_proj", Gemm(tokens, wide, hidden, dtype)
    yield "GeLU", Streaming("gelu", tokens, wide, dtype)
    yield "W2_proj", Gemm(tokens, hidden, wide, dtype)
    if tp > 1:
        yield "AllReduce_FFN", reduced
