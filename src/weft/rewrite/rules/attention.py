"""Attention in separate kernels into one that keeps the scores on the chip, and copies that it makes needless."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from weft.graph import Attention, Constant, Gemm, Graph, Node, Streaming, View
from weft.graph.named import sources
from weft.rewrite.flow import Draft, Flow, GraphChange, MatchedPlace
from weft.rewrite.rules.base import is_streaming, refuse_place, size, streaming

_STEPS = ("widen", "scale", "mask", "softmax", "eager_softmax", "cast", "dropout")
_ORDER = ("widen", "scale", "mask", "softmax", "cast", "dropout")
"""Kernels between the two products, in the only order that the fused kernel has."""


class _RefusedError(Exception):
    """Why these kernels are no attention that one kernel computes."""


@dataclass(frozen=True)
class _Chain:
    """The products of scores and of values, and the kernels between by their names."""

    scores: Node
    steps: dict[str, Node]
    context: Node

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.scores, *self.steps.values(), self.context


def flash_attention(flow: Flow) -> Iterator[MatchedPlace]:
    """Scores, scale, mask, softmax, dropout and their product with the values in one kernel."""
    for node in flow.graph:
        if isinstance(node.op, Gemm) and any(is_streaming(one, *_STEPS) for one in _after(flow, node)):
            nodes: tuple[Node, ...] = (node,)
            try:
                chain = _chain(flow, node)
                nodes = chain.nodes
                yield _fuse_attention(flow, chain)
            except _RefusedError as reason:
                yield refuse_place(str(reason), *nodes)


def _after(flow: Flow, node: Node) -> list[Node]:
    return flow.readers(node.outputs[0]) if node.outputs else []


def _chain(flow: Flow, scores: Node) -> _Chain:
    steps: dict[str, Node] = {}
    node = scores
    while True:
        after, why = flow.next_of(node)
        if after is None:
            raise _RefusedError(why)
        if isinstance(after.op, Gemm):
            break
        if not is_streaming(after, *_STEPS):
            raise _RefusedError(f"{after.id} ({after.op}) is no part of the fused kernel")
        assert isinstance(after.op, Streaming)
        steps[after.op.name.removeprefix("eager_")] = node = after
    if list(steps) != [name for name in _ORDER if name in steps] or "softmax" not in steps:
        raise _RefusedError(f"its kernels are {', '.join(steps)}, in another order than {', '.join(_ORDER)}")
    if ("widen" in steps) != ("cast" in steps):
        raise _RefusedError("the scores are copied to fp32 or back, but not both")
    if after.inputs[0] != node.outputs[0]:
        raise _RefusedError(f"{after.id} does not multiply the scores by values")
    return _Chain(scores, steps, after)


def _fuse_attention(flow: Flow, chain: _Chain) -> MatchedPlace:
    query = chain.scores.inputs[0]
    if len(flow.shapes[query]) != 4:
        raise _RefusedError(f"{query} is not of batch, heads, tokens and elements")
    batch, heads, tokens, head = flow.shapes[query]
    _check_scale(flow, chain, head)
    keys, shared = _strip_repeat(flow, _not_turned(flow, chain.scores.inputs[1]))
    values, also = _strip_repeat(flow, chain.context.inputs[1])
    (_, key_heads, count, _), (_, value_heads, _, value) = flow.shapes[keys], flow.shapes[values]
    if shared != also or heads != shared * key_heads or value_heads != key_heads:
        raise _RefusedError("keys and values are shared by different numbers of heads")
    op = Attention(
        batch, heads, tokens, count, head, key_heads if shared > 1 else 0, _causal(flow, chain, tokens, count),
        _dtype(chain), dropout="dropout" in chain.steps, value=value if value != head else 0,
    )  # fmt: skip
    keep = chain.steps["dropout"].inputs[1:] if op.dropout else ()
    one = replace(chain.context, op=op, inputs=(query, keys, values, *keep))
    gone = tuple(node.id for node in chain.nodes)
    return MatchedPlace(gone, GraphChange(gone, (one,)))


def _dtype(chain: _Chain) -> str:
    assert isinstance(chain.scores.op, Gemm)
    return chain.scores.op.dtype


def _check_scale(flow: Flow, chain: _Chain, head: int) -> None:
    factor = flow.graph.tensors.get(chain.steps["scale"].inputs[1]) if "scale" in chain.steps else Constant((1,), 1.0)
    if not isinstance(factor, Constant) or not math.isclose(factor.value, head**-0.5, rel_tol=1e-6):
        raise _RefusedError(f"the scores are not scaled by a constant 1/sqrt({head})")


def _causal(flow: Flow, chain: _Chain, queries: int, keys: int) -> int:
    if "mask" not in chain.steps:
        return 0
    mask = flow.graph.tensors.get(chain.steps["mask"].inputs[1])
    if not isinstance(mask, Constant):
        raise _RefusedError("the mask is no constant, and the fused kernel knows only the causal one")
    if mask.pattern == "causal" and queries <= keys:
        return 1
    if mask.pattern == "causal" or mask.value:
        raise _RefusedError("the mask is neither causal nor zero")
    return 0


def _not_turned(flow: Flow, name: str) -> str:
    """Return the keys whose last two axes are transposed under a name."""
    view = flow.graph.tensors.get(name)
    if isinstance(view, View) and view == View(view.of, order=(0, 1, 3, 2)):
        return view.of
    raise _RefusedError(f"{name} is not a transposed view of keys, of batch, heads, tokens and elements")


def _strip_repeat(flow: Flow, name: str) -> tuple[str, int]:
    """Return the heads that a name repeats, and how often."""
    view = flow.graph.tensors.get(name)
    if isinstance(view, View) and view.repeat > 1 and view == View(view.of, axis=1, repeat=view.repeat):
        name, repeat = view.of, view.repeat
    else:
        repeat = 1
    if len(flow.shapes[name]) != 4:
        raise _RefusedError(f"{name} is not of batch, heads, tokens and elements")
    return name, repeat


def attention_example(draw: np.random.Generator) -> Graph:
    """Attention of random sizes: masked or not, heads shared or not, with dropout or not, in fp32 or not."""
    batch, kv, tokens, head, value = (size(draw) for _ in range(5))
    shared, wide = int(draw.integers(1, 4)), draw.random() < 0.3
    heads, keys = kv * shared, tokens + int(draw.integers(0, 3))
    draft, count, dtype = Draft(), batch * heads, "fp32" if wide else "fp16"
    query = draft.add_input("q", batch, heads, tokens, head)
    key, values = draft.add_input("k", batch, kv, keys, head), draft.add_input("v", batch, kv, keys, value)
    if shared > 1:
        key = draft.view("k_each", View(key, axis=1, repeat=shared))
        values = draft.view("v_each", View(values, axis=1, repeat=shared))
    turned = draft.view("k_turned", View(key, order=(0, 1, 3, 2)))
    x = draft.node("scores", Gemm(tokens, keys, head, "fp16", count), query, turned)
    rows = count * tokens, keys
    if wide:
        x = draft.node("wide", Streaming("widen", *rows), x)
    x = draft.node("scaled", Streaming("scale", *rows, dtype), x, draft.constant("root", Constant((1,), head**-0.5)))
    if draw.random() < 0.7:
        pattern = "causal" if draw.random() < 0.7 else "fill"
        mask = draft.constant("mask", Constant((tokens, keys), pattern=pattern))  # type: ignore[arg-type]
        x = draft.node("masked", Streaming("mask", *rows, dtype), x, mask)
    x = draft.node("weights", Streaming("softmax", *rows, dtype), x)
    if wide:
        x = draft.node("narrow", Streaming("cast", *rows), x)
    if draw.random() < 0.5:
        x = draft.node("dropped", Streaming("dropout", *rows), x, draft.bits("keep", count, tokens, keys))
    return draft.graph(draft.node("y", Gemm(tokens, value, keys, "fp16", count), x, values))


def write_in_order(flow: Flow) -> Iterator[MatchedPlace]:
    """A copy into another order of what a fused kernel of attention has written, or of what it reads: none is needed.

    The kernel takes strides.
    """
    for node in streaming(flow, "transpose"):
        (read,), (made,) = node.inputs, node.outputs
        writers = [flow.writer.get(name) for name in sources(read, flow.graph.tensors)]
        after = all(one is not None and isinstance(one.op, Attention) and one.op.fused for one in writers)
        readers = flow.readers(made)
        before = bool(readers) and all(isinstance(one.op, Attention) and one.op.fused for one in readers)
        if made in flow.outputs:
            yield refuse_place(f"{made} is a result of the graph", node)
        elif after or before:
            yield MatchedPlace((node.id,), GraphChange((node.id,), moved={made: read}))


def order_example(draw: np.random.Generator) -> Graph:
    """Fused attention of random sizes whose output is copied so that the heads of a token lie side by side."""
    draft, batch, heads, tokens, head = Draft(), size(draw), size(draw), size(draw), size(draw)
    names = [draft.add_input(name, batch, heads, tokens, head) for name in "qkv"]
    written = draft.node("attention", Attention(batch, heads, tokens, tokens, head), *names)
    turned = draft.view("turned", View(written, order=(0, 2, 1, 3)))
    wide = heads * head
    copied = draft.node("context", Streaming("transpose", batch * tokens * wide), turned)
    rows = draft.view("rows", View(copied, (batch * tokens, wide)))
    return draft.graph(draft.node("y", Gemm(batch * tokens, 3, wide, "fp16"), rows, draft.weight("w", wide, 3)))
