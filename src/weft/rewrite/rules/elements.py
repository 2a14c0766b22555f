"""Rules that join element-wise operators, norms and residual sums, so that what is between them stays on the chip."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from weft.graph import Graph, Node, Streaming
from weft.graph.streaming import FUNCTIONS
from weft.rewrite.flow import Draft, Flow, GraphChange, MatchedPlace
from weft.rewrite.rules.base import find_follower, is_streaming, refuse_place, size, streaming

_COMMUTES = ("add", "multiply", "maximum")
_NORMS = {"layernorm": "add_layernorm", "eager_layernorm": "add_layernorm", "rmsnorm": "add_rmsnorm"}
"""Norms, and the kernels that also compute the sum before them."""


def bias_gelu(flow: Flow) -> Iterator[MatchedPlace]:
    """Yield a bias and the GeLU after it in one kernel."""
    for node in streaming(flow, "bias_add"):
        after, why = flow.next_of(node)
        if is_streaming(after, "gelu"):
            assert after is not None
            both = replace(after, op=replace(_op(node), name="bias_gelu"), inputs=node.inputs)
            yield MatchedPlace((node.id, after.id), GraphChange((node.id, after.id), (both,)))
        elif after is None and any(is_streaming(one, "gelu") for one in flow.readers(node.outputs[0])):
            yield refuse_place(why, node)


def _op(node: Node) -> Streaming:
    assert isinstance(node.op, Streaming)
    return node.op


def gelu_example(draw: np.random.Generator) -> Graph:
    """Return a bias and GeLU on a matrix of random size."""
    draft, rows, columns = Draft(), size(draw), size(draw)
    x = draft.add_input("x", rows, columns)
    moved = draft.node("moved", Streaming("bias_add", rows * columns), x, draft.weight("b", columns))
    return draft.graph(draft.node("y", Streaming("gelu", rows * columns), moved))


def fuse_elementwise(flow: Flow) -> Iterator[MatchedPlace]:
    """Fuse two consecutive element-wise operators into a kernel; a longer chain takes several steps."""
    for node in streaming(flow, "elementwise"):
        op = _op(node)
        if not op.function or op.outputs != 1:
            continue
        after, why = flow.next_of(node)
        if after is None:
            if any(is_streaming(one, "elementwise") for one in flow.readers(node.outputs[0])):
                yield refuse_place(why, node)
            continue
        if is_streaming(after, "elementwise"):
            yield _fuse_elements(flow, node, after)


def _fuse_elements(flow: Flow, node: Node, after: Node) -> MatchedPlace:
    (between,) = node.outputs
    second = _op(after)
    words = second.function.split()
    if not words or second.outputs != 1 or second.dtype != _op(node).dtype:
        return refuse_place("the second has no stated function of one output in the same dtype", node, after)
    others = [name for name in after.inputs if name != between]
    if after.inputs.index(between) and (after.inputs[1] != between or words[0] not in _COMMUTES):
        return refuse_place(f"{between} is not the first operand of {after.id}, whose operands cannot change places",
                       node, after)  # fmt: skip
    inputs = (*node.inputs, *others)
    if flow.shapes[between] != flow.shapes[after.outputs[0]]:
        return refuse_place("the second repeats elements of the first", node, after)
    elements = math.prod(flow.shapes[between])
    full = sum(math.prod(flow.shapes[name]) == elements for name in inputs)
    op = replace(_op(node), inputs=full, function=f"{_op(node).function} {second.function}")
    both = replace(after, op=op, inputs=inputs)
    return MatchedPlace((node.id, after.id), GraphChange((node.id, after.id), (both,)))


def chain_example(draw: np.random.Generator) -> Graph:
    """Two to four element-wise operators of random functions."""
    draft, rows, columns = Draft(), size(draw), size(draw)
    value = draft.add_input("x", rows, columns)
    for number in range(int(draw.integers(2, 5))):
        word = str(draw.choice([name for name in FUNCTIONS if name != "exp"]))
        names = [value]
        if FUNCTIONS[word] == 2:
            names.append(draft.add_input(f"x{number}", rows, columns))
            if word in _COMMUTES and draw.random() < 0.5:
                names.reverse()
        op = Streaming("elementwise", rows * columns, inputs=len(names), function=word)
        value = draft.node(f"y{number}", op, *names)
    return draft.graph(value)


def dropout_add(flow: Flow) -> Iterator[MatchedPlace]:
    """Yield a dropout and the sum with a second tensor in one kernel, with the bias before them if there is one."""
    for node in streaming(flow, "dropout"):
        after, blocked = find_follower(flow, node, "residual_add")
        yield from blocked
        if after is None:
            continue
        (residual,) = (name for name in after.inputs if name != node.outputs[0])
        if flow.shapes[residual] != flow.shapes[node.outputs[0]]:
            yield refuse_place(f"{residual} has another shape than what is dropped", node, after)
            continue
        before = flow.writer.get(node.inputs[0])
        gone: tuple[str, ...] = (node.id, after.id)
        names: tuple[str, ...] = (node.inputs[0], residual, node.inputs[1])
        if before is not None and is_streaming(before, "bias_add") and flow.next_of(before)[0] is node:
            gone, names = (before.id, *gone), (before.inputs[0], residual, node.inputs[1], before.inputs[1])
        both = replace(after, op=replace(_op(node), name="bias_dropout_add"), inputs=names)
        yield MatchedPlace(gone, GraphChange(gone, (both,)))


def dropout_example(draw: np.random.Generator) -> Graph:
    """Return a bias or none, dropout and a sum, whose operands are in either order."""
    draft, rows, columns = Draft(), size(draw), size(draw)
    count, x = rows * columns, draft.add_input("x", rows, columns)
    if draw.random() < 0.5:
        x = draft.node("moved", Streaming("bias_add", count), x, draft.weight("b", columns))
    x = draft.node("dropped", Streaming("dropout", count), x, draft.bits("keep", rows, columns))
    both = [x, draft.add_input("residual", rows, columns)]
    if draw.random() < 0.5:
        both.reverse()
    return draft.graph(draft.node("y", Streaming("residual_add", count), *both))


def add_norm(flow: Flow) -> Iterator[MatchedPlace]:
    """Yield a sum of two tensors and the norm after it in one kernel, which also keeps the sum for others."""
    for node in streaming(flow, "residual_add", "bias_dropout_add"):
        (total,) = node.outputs
        for after in flow.readers(total):
            if not is_streaming(after, *_NORMS):
                continue
            if after.inputs[0] != total:
                yield refuse_place(f"{after.id} reads a part or another order of {total}", node, after)
            elif flow.shapes[total][-1] != _op(after).columns:
                yield refuse_place(
                    f"{after.id} normalises rows of {_op(after).columns}, not those of {total}", node, after
                )
            else:
                yield _fuse_sum(flow, node, after)


def _fuse_sum(flow: Flow, node: Node, after: Node) -> MatchedPlace:
    name, inputs = _NORMS[_op(after).name], (*node.inputs[:2], *after.inputs[1:])
    if len({flow.shapes[one] for one in node.inputs[:2]}) > 1:
        return refuse_place("the two that are added have different shapes", node, after)
    if is_streaming(node, "bias_dropout_add"):
        if name != "add_layernorm":
            return refuse_place("no kernel drops, adds and computes RMSNorm", node, after)
        name, inputs = "dropout_add_layernorm", (*inputs, *node.inputs[2:])
    both = replace(after, op=replace(_op(after), name=name), inputs=inputs, outputs=(*after.outputs, *node.outputs))
    return MatchedPlace((node.id, after.id), GraphChange((node.id, after.id), (both,)))


def norm_example(draw: np.random.Generator) -> Graph:
    """Return a sum, with a dropout or a bias before it or neither, and a norm of it; the sum is read again."""
    draft, rows, columns = Draft(), size(draw), size(draw)
    count, x, residual = rows * columns, draft.add_input("x", rows, columns), draft.add_input("residual", rows, columns)
    norm = str(draw.choice(list(_NORMS)))
    if norm != "rmsnorm" and draw.random() < 0.6:
        more = (draft.weight("b", columns),) if draw.random() < 0.5 else ()
        keep = draft.bits("keep", rows, columns)
        total = draft.node("total", Streaming("bias_dropout_add", count), x, residual, keep, *more)
    else:
        total = draft.node("total", Streaming("residual_add", count), x, residual)
    names = ("scale",) if norm == "rmsnorm" else ("scale", "shift")
    y = draft.node("y", Streaming(norm, rows, columns), total, *(draft.weight(name, columns) for name in names))
    return draft.graph(y, draft.node("again", Streaming("residual_add", count), total, y))
