"""The forward pass of one layer on each GPU of a tensor-parallel group, as inference engines run it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from weft.core.errors import InputError, check_name, check_whole
from weft.core.units import LARGEST_COUNT
from weft.graph import Attention, Graph, Node, Op, Streaming
from weft.graph.op import Role
from weft.models import Transformer, block, load_model
from weft.models.block import FusionStyle, LayerOp, Tokens
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.rank import part

Phase = Literal["prefill", "decode"]
How = Literal["batched", "fused"]


def layer(
    model: Transformer | str | Path,
    *,
    tp: int = 1,
    batch: int = 1,
    sequence: int = 2048,
    phase: Phase = "prefill",
    attention: How = "fused",
    dtype: str = "bf16",
) -> Graph:
    """Return the forward pass of a model's last layer on each of `tp` GPUs; labels note what does not divide evenly.

    `prefill` computes all `sequence` tokens of `batch` sequences; `decode` computes one token of each, which attends to
    `sequence` of them. Biases, residual additions and copies count as fused into their neighbours. Raises
    UnknownNameError for an unknown model, phase, attention or dtype, InputError for sizes that do not fit.

    >>> len(layer("gpt-3", tp=8))
    10
    """
    found = load_model(model)
    _check(found, tp, batch, sequence, phase, attention)
    source = found.sequence_length if found.encoder_layers else 0
    new = (sequence, 0) if phase == "prefill" else (1, sequence - 1)
    tokens = Tokens(batch, new[0], source=source, cached=new[1])
    style = FusionStyle(flash=attention == "fused")
    pieces = _fuse_ops(block.layer(found, found.layer_kinds[-1], tokens, style, dtype))
    whole = part(phase, tuple(pieces), TrainingPlan(tp=tp, sequence=sequence, dtype=dtype), Framework()).forward
    work = [one for node in whole for one in _name_ops(node)]
    names = [name for name, *_ in work]
    nodes = tuple(
        Node(op, name, after=tuple(names[at - 1 : at]), role=role) for at, (name, op, role) in enumerate(work)
    )
    what = "tokens" if phase == "prefill" else "tokens of context"
    one = f"its last layer ({found.layer_kinds[-1]})" if found.pattern else "one layer"
    title = f"{found.name}, {one}, {phase}, TP {tp}, batch {batch} x {sequence} {what}, {dtype}"
    return Graph(nodes, tp, title, {"model": found.name, "layer": phase, **_uneven(found, tp)})


def _fuse_ops(pieces: Iterable[LayerOp]) -> Iterator[LayerOp]:
    """Yield the operators that are kernels of their own: GEMMs add biases, norms add up residuals, none copies."""
    for piece in pieces:
        op = piece.op
        if isinstance(op, Streaming) and op.name == "bias_gelu":
            yield replace(piece, op=replace(op, name="gelu"))
        elif piece.role is not Role.JOIN_HEADS and not (isinstance(op, Streaming) and op.name == "residual_add"):
            yield piece


def _check(model: Transformer, tp: int, batch: int, sequence: int, phase: Phase, attention: How) -> None:
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


def _uneven(model: Transformer, tp: int) -> dict[str, str]:
    """Notes on dimensions that the degree of tensor parallelism does not divide: one GPU then does more than others."""
    heads, wide = model.attention_heads, model.wide
    notes = {}
    if heads % tp:
        counted = f"the times are those of a GPU with {-(-heads // tp)}, others have fewer"
        notes["heads"] = f"{heads} heads do not divide by TP {tp}: {counted}"
    if wide % tp:
        notes["columns"] = f"{wide} feed-forward columns do not divide by TP {tp}: a GPU with {-(-wide // tp)} counts"
    return notes


_NAMES = {
    "qkv": "Q_K_V",
    "attention": "Attention",
    "projection": "Wo_proj",
    "projection.reduce": "AllReduce_MHA",
    "fc1": "W1_proj",
    "fc2": "W2_proj",
    "fc2.reduce": "AllReduce_FFN",
}
"""Operators of a layer as tables of measurements name them; others keep their own names."""
_NORMS = {Role.ATTENTION_NORM: "MHA", Role.MLP_NORM: "FFN"}
_FUNCTIONS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm", "gelu": "GeLU", "swiglu": "SwiGLU"}


def _name_ops(node: Node) -> Iterator[tuple[str, Op, Role]]:
    """Yield a node's operators with their names and roles: three of attention that is not fused."""
    op = node.op
    if isinstance(op, Attention) and not op.fused:
        prefix = "" if node.role is Role.ATTENTION_CORE else f"{node.name}_"
        for name, kernel in zip(("Q_mul_K", "Softmax", "A_mul_V"), replace(op, eager=False).kernels, strict=True):
            yield f"{prefix}{name}", kernel, node.role
        return
    name = _NAMES.get(node.name, node.name)
    if isinstance(op, Streaming) and node.role in _NORMS:
        name = f"{_FUNCTIONS[op.name]}_{_NORMS[node.role]}"
    elif isinstance(op, Streaming) and node.role is Role.ACTIVATION:
        name = _FUNCTIONS.get(op.name, op.name)
    yield name, op, node.role
