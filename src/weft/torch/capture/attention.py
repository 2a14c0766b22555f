"""Attention as one operator: what `scaled_dot_product_attention` is while a program is captured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

_OWN = Library("weft", "DEF")
_OWN.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout, bool causal, float? scale) "
    "-> (Tensor, Tensor)"
)
_OWN.define(
    "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor output, Tensor sums, "
    "Tensor? mask, float dropout, bool causal, float? scale, bool of_mask) -> Tensor[]"
)


@contextmanager
def kept_whole() -> Iterator[None]:
    """Let `scaled_dot_product_attention` be one operator inside the block, forward and backward, in every module."""
    override = Library("aten", "IMPL")
    for key in ("AutogradCPU", "CPU"):
        override.impl("scaled_dot_product_attention", _whole, key)
    try:
        yield
    finally:
        override._destroy()


def _whole(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    if query.dim() == 2:
        query, key, value = query[None], key[None], value[None]
        return _whole(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]
    return torch.ops.weft.attention(query, key, value, attn_mask, dropout_p, is_causal, scale)[0]


def _empty(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output rows, of each token the heads side by side as fused kernels write them, and a sum of each row."""
    *batch, heads, rows, _ = query.shape
    output = query.new_empty(*batch, rows, heads, value.shape[-1]).transpose(-3, -2)
    return output, query.new_empty(query.shape[:-1], dtype=torch.float32)


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    found = query.float() @ key.float().transpose(-2, -1) * (scale or 1 / math.sqrt(query.shape[-1]))
    if causal:
        seen = torch.ones(found.shape[-2:], dtype=torch.bool).tril()
        return found.masked_fill(~seen, -math.inf)
    if mask is None:
        return found
    return found.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else found + mask


def _forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention by its definition; numbers in the scores are not dropped."""
    output, sums = _empty(query, value)
    scores = _scores(query, _repeat_heads(key, query), mask, causal, scale)
    output.copy_(scores.softmax(-1) @ _repeat_heads(value, query).float())
    sums.copy_(scores.logsumexp(-1))
    return output, sums


def _repeat_heads(each: Tensor, query: Tensor) -> Tensor:
    """Keys or values of every query head."""
    return each.repeat_interleave(query.shape[-3] // each.shape[-3], -3)


def _gradients(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, sums: Tensor, mask: Tensor | None,
    dropout: float, causal: bool, scale: float | None, of_mask: bool,
) -> list[Tensor]:  # fmt: skip
    keys, values = _repeat_heads(key, query).float(), _repeat_heads(value, query).float()
    weights = (_scores(query, keys, mask, causal, scale) - sums[..., None]).exp()
    of_weights = gradient.float() @ values.transpose(-2, -1)
    of_scores = weights * (of_weights - (gradient.float() * output.float()).sum(-1, keepdim=True))
    factor = scale or 1 / math.sqrt(query.shape[-1])
    found = _empty_gradients(query, key, value, mask if of_mask else None)
    found[0].copy_(of_scores @ keys * factor)
    for place, each in (
        (1, of_scores.transpose(-2, -1) @ query.float() * factor),
        (2, weights.transpose(-2, -1) @ gradient.float()),
    ):
        into = found[place]
        found[place].copy_(each.unflatten(-3, (into.shape[-3], -1)).sum(-3))
    if mask is not None and of_mask:
        found[3].copy_(of_scores.sum_to_size(mask.shape))
    return found


def _empty_gradients(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> list[Tensor]:
    return [torch.empty_like(one) for one in (query, key, value, mask) if one is not None]


@torch.library.impl(_OWN, "attention", "Meta")
def _meta(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _empty(query, value)


@torch.library.impl(_OWN, "attention_backward", "Meta")
def _meta_backward(_gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> list[Tensor]:
    mask, of_mask = others[2], others[-1]
    return _empty_gradients(query, key, value, mask if of_mask else None)


_OWN.impl("attention", _forward, "CPU")
_OWN.impl("attention_backward", _gradients, "CPU")


def _keep_context(ctx: Any, inputs: Any, output: Any) -> None:
    query, key, value, mask, *ctx.settings = inputs
    ctx.save_for_backward(query, key, value, *output, mask)
    ctx.of_mask = mask is not None and mask.requires_grad
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    query, key, value, output, sums, mask = ctx.saved_tensors
    found = torch.ops.weft.attention_backward(
        gradient, query, key, value, output, sums, mask, *ctx.settings, ctx.of_mask
    )
    return *found[:3], found[3] if ctx.of_mask else None, None, None, None


torch.library.register_autograd("weft::attention", _backward, setup_context=_keep_context, lib=_OWN)
