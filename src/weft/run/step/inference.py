"""A step of inference: the prompt of a batch of sequences, or the next token of each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from weft.errors import InputError, check_name, check_whole
from weft.estimate.quantization import quantized_format, weight_only
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
    return _infer("prefill", model, on, batch, sequence, tp, dtype, options)


def decode(
    model: Transformer | str | Path,
    on: Described,
    *,
    tp: int = 1,
    batch: int = 1,
    context: int = 2048,
    dtype: str = "bf16",
    weights: str = "",
    options: RunOptions = SUSTAINED,
) -> Inference:
    """How long the next token of each of `batch` sequences takes, which attends to `context` tokens before it.

    `weights` of layers may have a narrower format than the products (`weft.estimate.quantization.FORMATS`): their GEMMs
    save what a roofline says in which vector units convert them. Raises what `prefill` raises.
    """
    return _infer("decode", model, on, batch, context, tp, dtype, options, weights)


def _infer(
    phase: Phase,
    model: Transformer | str | Path,
    on: Described,
    batch: int,
    length: int,
    tp: int,
    dtype: str,
    options: RunOptions,
    weights: str = "",
) -> Inference:
    found = load_model(model)
    where = on if isinstance(on, System) else system(on)
    for name, value in (("tp", tp), ("batch", batch), ("the number of tokens", length)):
        check_whole(name, value, 1, 8)
    tp, batch, length = int(tp), int(batch), int(length)  # numpy's integers overflow
    tokens = Tokens(batch, length) if phase == "prefill" else Tokens(batch, 1, cached=length - 1)
    check_name("number format", dtype, DTYPE_BYTES)
    if where.gpus % tp:
        raise InputError(
            f"tp {tp} does not fill the {where.gpus} GPUs of the system with whole replicas; give a divisor, such as "
            f"{max(one for one in range(1, min(tp, where.gpus) + 1) if where.gpus % one == 0)}"
        )
    if found.encoder_layers or found.masked:
        raise InputError(f"{found.name} does not generate text token by token; give a decoder, such as llama-3-8b")
    plan = Parallelism(tp=tp, dp=where.gpus // tp, batch=where.gpus // tp, sequence=length, dtype=dtype)
    prices = Prices(where, plan, options)
    last = Tokens(tokens.batch, 1)
    kinds = Counter(found.layer_kinds)
    if weights:
        _check_weights(weights, dtype)
    style = _SERVER.style
    parts = [
        _timed("embedding", embedding(found, tokens, style, _ACTIVATIONS), plan, prices),
        *(
            _timed(kind, _layer(found, kind, tokens, length, phase, tp), plan, prices, weights) * kinds[kind]
            for kind in kinds
        ),
        _timed("head", _logits(found, last), plan, prices),
    ]
    whole = sum(parts, Pass())
    notes = (_LATENT,) if found.kv_rank and phase == "decode" else ()
    if weights:
        notes = (*notes, f"Weights of layers are {quantized_format(weights).about}, converted on their way.")
    sizes = _weights(found, plan, weights), _cache(found, plan, tokens.batch, length)
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


def _timed(name: str, pieces: Iterable[Piece], plan: Parallelism, prices: Prices, weights: str = "") -> Pass:
    """One rank's forward pass over a part of the model, in a layer with weights of a format."""
    graph = part(name, tuple(pieces), plan, _SERVER).forward
    if name in LAYERS:
        graph = replace(graph, nodes=tuple(_in_format(node, plan.dtype) for node in graph))
    seconds = prices.graph(graph)
    if weights:
        seconds |= {node.name: _narrowed(seconds[node.name], node, prices, weights) for node in graph}
    return timed(graph, seconds)


def _check_weights(weights: str, dtype: str) -> None:
    quantized_format(weights)
    if DTYPE_BYTES[dtype] != 2:
        raise InputError(
            f"weights of {weights} are converted to 16 bits, and the products are of {dtype}; leave out one of the two"
        )


def _narrowed(seconds: float, node: Node, prices: Prices, weights: str) -> float:
    """Time of a node whose weights are of a format: less what a roofline says that it saves; routers keep 16 bits."""
    op = node.op
    if isinstance(op, GroupedGemm):
        op = Gemm(-(-op.rows // op.groups), op.n, op.k, op.dtype, op.groups)
    if node.name == "router" or not isinstance(op, Gemm):
        return seconds
    found = weight_only(op, prices.gpu, weights, prices.options)
    return max(seconds - max(found.plain - found.seconds, 0.0), found.seconds)


def _in_format(node: Node, dtype: str) -> Node:
    """A GEMM of a layer in the plan's number format; routers keep 16 bits, as do embedding and head.

    What quantises its input counts as fused into the operator before it.
    """
    if node.name == "router" or not isinstance(node.op, Gemm | GroupedGemm):
        return node
    return replace(node, op=replace(node.op, dtype=dtype))


def _weights(model: Transformer, plan: Parallelism, weights: str) -> int:
    """Weights of one GPU [bytes]; embedding and head keep 16 bits where layers have fewer."""
    found = parameters(model)
    each = quantized_format(weights).bytes(1) if weights else DTYPE_BYTES[plan.dtype]
    size = found.layers * each + (found.embedding + found.head) * DTYPE_BYTES[_ACTIVATIONS]
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
