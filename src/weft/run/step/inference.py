"""A step of inference: the prompt of a batch of sequences, or the next token of each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from weft.errors import InputError, check_name, check_whole
from weft.graph import DTYPE_BYTES, Attention, Gemm, GroupedGemm, Node, Streaming
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.models.block import LAYERS, Piece, Style, Tokens, embedding, head, layer
from weft.models.counts import parameters
from weft.options import SUSTAINED, RunOptions
from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism
from weft.parallel.rank import part
from weft.result.inference import Inference, Phase
from weft.result.step import Pass
from weft.run.step.prices import Prices
from weft.run.step.spans import timed

_ACTIVATIONS = "bf16"
"""Number format of everything but the GEMMs of layers, the cache of keys and values included."""
_SERVER = Framework(name="serving", style=Style())


def prefill(
    model: Transformer | str | Path,
    on: Described,
    *,
    tp: int = 1,
    batch: int = 1,
    sequence: int = 2048,
    dtype: str = "bf16",
    options: RunOptions = SUSTAINED,
) -> Inference:
    """How long a batch of prompts of `sequence` tokens takes on `tp` GPUs of a system, up to their first tokens.

    Raises UnknownNameError for unknown names, InputError for GPUs that replicas of `tp` do not fill.

    >>> prefill("llama-3-8b", "4xl40s", tp=4).replicas
    1
    """
    return _infer("prefill", model, on, Tokens(batch, sequence), sequence, tp, dtype, options)


def decode(
    model: Transformer | str | Path,
    on: Described,
    *,
    tp: int = 1,
    batch: int = 1,
    context: int = 2048,
    dtype: str = "bf16",
    options: RunOptions = SUSTAINED,
) -> Inference:
    """How long the next token of each of `batch` sequences takes, which attends to `context` tokens before it.

    Raises what `prefill` raises.
    """
    return _infer("decode", model, on, Tokens(batch, 1, cached=context - 1), context, tp, dtype, options)


def _infer(
    phase: Phase,
    model: Transformer | str | Path,
    on: Described,
    tokens: Tokens,
    length: int,
    tp: int,
    dtype: str,
    options: RunOptions,
) -> Inference:
    found = model if isinstance(model, Transformer) else load_model(model)
    where = on if isinstance(on, System) else system(on)
    for name, value in (("tp", tp), ("batch", tokens.batch), ("the number of tokens", length)):
        check_whole(name, value, 1, 8)
    check_name("number format", dtype, DTYPE_BYTES)
    if where.gpus % tp:
        raise InputError(
            f"tp {tp} does not fill the {where.gpus} GPUs of the system with whole replicas; give a divisor, such as "
            f"{max(one for one in range(1, tp + 1) if where.gpus % one == 0)}"
        )
    if found.encoder_layers or found.masked:
        raise InputError(f"{found.name} does not generate text token by token; give a decoder, such as llama-3-8b")
    plan = Parallelism(tp=tp, dp=where.gpus // tp, batch=where.gpus // tp, sequence=length, dtype=dtype)
    prices = Prices(where, plan, options)
    last = Tokens(tokens.batch, 1)
    kinds = Counter(found.layer_kinds)
    style = _SERVER.style
    parts = [
        _timed("embedding", embedding(found, tokens, style, _ACTIVATIONS), plan, prices),
        *(_timed(kind, _layer(found, kind, tokens, length, phase, tp), plan, prices) * kinds[kind] for kind in kinds),
        _timed("head", _logits(found, last), plan, prices),
    ]
    whole = sum(parts, Pass())
    notes = (_LATENT,) if found.kv_rank and phase == "decode" else ()
    sizes = _weights(found, plan), _cache(found, plan, tokens.batch, length)
    return Inference(phase, found, where, plan, tokens.batch, length, whole.parts, *sizes, notes)


_LATENT = (
    "Latent attention is timed on the compressed cache, its keys and values read apart: an upper bound of its traffic."
)


def _layer(model: Transformer, kind: str, tokens: Tokens, length: int, phase: Phase, tp: int) -> Iterator[Piece]:
    """The operators of a layer as servers run them.

    Decoding with latent attention works on the compressed cache (arXiv:2405.04434). Every rank holds a slice of each
    expert, as vLLM does by default, and one sum over the ranks follows the experts.
    """
    for piece in layer(model, kind, tokens, _SERVER.style, _ACTIVATIONS):
        op = piece.op
        if isinstance(op, Streaming) and op.name == "residual_add":
            continue
        if isinstance(op, Attention) and model.kv_rank and phase == "decode":
            wide = model.kv_rank + model.rotary_head
            yield replace(piece, op=replace(op, head=wide, value=model.kv_rank, kv_heads=1, keys=length))
        elif isinstance(op, GroupedGemm):
            yield replace(piece, op=_slice(model, op, tokens.count, tp), cut="whole")
        elif piece.cut == "routed":
            yield replace(piece, cut="width")
        elif piece.cut == "combine" and not model.shared_experts and isinstance(op, Streaming):
            flat = replace(op, rows=tokens.count, columns=model.hidden)
            yield replace(piece, op=flat, cut="vocabulary")  # which sums over the ranks
        else:
            yield piece


def _slice(model: Transformer, op: GroupedGemm, tokens: int, tp: int) -> GroupedGemm:
    """One rank's slice of the experts that so many tokens are expected to visit, if they choose evenly.

    The first GEMM is cut by columns, the second by rows of its weights: both along the width of an expert.
    """
    missed = (1 - model.experts_per_token / model.experts) ** tokens
    visited = max(round(model.experts * (1 - missed)), 1)
    if op.n == model.hidden:
        return replace(op, groups=visited, k=-(-op.k // tp))
    return replace(op, groups=visited, n=-(-op.n // tp))


def _logits(model: Transformer, last: Tokens) -> Iterator[Piece]:
    """The norm and the logits of the last token of each sequence, without a loss and further predictions."""
    kept = model.model_copy(update={"predict_layers": 0})
    return (piece for piece in head(kept, last, _SERVER.style, _ACTIVATIONS) if piece.name != "loss")


def _timed(name: str, pieces: Iterable[Piece], plan: Parallelism, prices: Prices) -> Pass:
    """One rank's forward pass over a part of the model."""
    graph = part(name, tuple(pieces), plan, _SERVER).forward
    if name in LAYERS:
        graph = replace(graph, nodes=tuple(_in_format(node, plan.dtype) for node in graph))
    return timed(graph, prices.graph(graph))


def _in_format(node: Node, dtype: str) -> Node:
    """A GEMM of a layer in the plan's number format; routers keep 16 bits, as do embedding and head.

    What quantises its input counts as fused into the operator before it.
    """
    if node.name == "router" or not isinstance(node.op, Gemm | GroupedGemm):
        return node
    return replace(node, op=replace(node.op, dtype=dtype))


def _weights(model: Transformer, plan: Parallelism) -> int:
    """Weights of one GPU [bytes]; embedding and head keep 16 bits where layers have fewer."""
    found = parameters(model)
    size = found.layers * DTYPE_BYTES[plan.dtype] + (found.embedding + found.head) * DTYPE_BYTES[_ACTIVATIONS]
    return math.ceil(size / plan.tp)


def _cache(model: Transformer, plan: Parallelism, batch: int, length: int) -> int:
    """Cache of keys and values of one GPU [bytes]; latent attention keeps its compressed form on every GPU."""
    size = 0
    for kind, layers in Counter(model.layer_kinds).items():
        kept = min(length, model.window) if LAYERS[kind].window else length
        if model.kv_rank:
            each = model.kv_rank + model.rotary_head
        else:
            each = -(-model.key_heads // plan.tp) * (model.head_size + model.value_size)
        size += layers * kept * each
    return batch * size * DTYPE_BYTES[_ACTIVATIONS]
