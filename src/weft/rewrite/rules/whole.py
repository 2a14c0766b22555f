"""Rules on whole graphs: constants computed once, repeated and unused operators, launches in one graph."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from weft.graph import Collective, Graph, Node, Op, Streaming
from weft.rewrite.flow import LOAD, Draft, Flow, GraphChange, MatchedPlace
from weft.rewrite.rules.base import is_streaming, refuse_place, size

LAUNCHED, CAPTURED = "launched", "graph"
"""The label of a graph whose kernels the host launches at once, and its value."""
_DYNAMIC = ("top_k", "permute", "unpermute")
"""Operators whose results decide sizes of others, which the host must know."""


def fold_constants(flow: Flow) -> Iterator[MatchedPlace]:
    """Yield an operator on weights and constants alone: it runs once, before the graph."""
    for node in flow.graph:
        if node.phase == LOAD or not node.inputs or not node.outputs or isinstance(node.op, Collective):
            continue
        if all(flow.constant(name) for name in node.inputs):
            yield MatchedPlace((node.id,), GraphChange((node.id,), (replace(node, phase=LOAD),)))


def constants_example(draw: np.random.Generator) -> Graph:
    """Return the sum of two tables of weights, which is added to an input."""
    draft, rows, columns = Draft(), size(draw), size(draw)
    count = rows * columns
    tables = draft.weight("positions", rows, columns), draft.weight("types", rows, columns)
    table = draft.node("table", Streaming("residual_add", count), *tables)
    return draft.graph(draft.node("y", Streaming("residual_add", count), draft.add_input("x", rows, columns), table))


def share_common(flow: Flow) -> Iterator[MatchedPlace]:
    """Yield an operator that computes on the same inputs what an earlier one does: the earlier one's output is read."""
    seen: dict[tuple[Op, tuple[str, ...]], Node] = {}
    for node in flow.graph:
        if not node.inputs or not node.outputs:
            continue
        first = seen.setdefault((node.op, node.inputs), node)
        if first is node:
            continue
        if flow.outputs.intersection(node.outputs):
            yield refuse_place(f"{node.outputs[0]} is a result of the graph", first, node)
            continue
        moved = dict(zip(node.outputs, first.outputs, strict=True))
        yield MatchedPlace((first.id, node.id), GraphChange((node.id,), moved=moved))


def common_example(draw: np.random.Generator) -> Graph:
    """Two equal functions of one tensor, and their sum."""
    draft, rows, columns = Draft(), size(draw), size(draw)
    count, x = rows * columns, draft.add_input("x", rows, columns)
    twice = [draft.node(name, Streaming("gelu", count), x) for name in ("first", "second")]
    return draft.graph(draft.node("y", Streaming("residual_add", count), *twice))


def drop_unused(flow: Flow) -> Iterator[MatchedPlace]:
    """Yield an operator whose outputs nothing reads, neither in the graph nor outside."""
    if not flow.graph.results or len(flow.graph) == 1:
        return
    for node in flow.graph:
        if node.outputs and not any(name in flow.outputs or flow.readers(name) for name in node.outputs):
            yield MatchedPlace((node.id,), GraphChange((node.id,)))


def unused_example(draw: np.random.Generator) -> Graph:
    """Return an operator that is a result, and one beside it that is not."""
    draft, count = Draft(), size(draw)
    x = draft.add_input("x", count)
    draft.node("unused", Streaming("gelu", count), x)
    return draft.graph(draft.node("y", Streaming("gelu", count), x))


def cuda_graph(flow: Flow) -> Iterator[MatchedPlace]:
    """Yield all kernels recorded once and launched as one: the host sets the pace no more."""
    graph = flow.graph
    if graph.labels.get(LAUNCHED) == CAPTURED:
        return
    dynamic = [node for node in graph if is_streaming(node, *_DYNAMIC)]
    if dynamic:
        yield refuse_place(
            f"{dynamic[0].id} decides the sizes of what follows, which a recorded graph fixes", dynamic[0]
        )
        return
    yield MatchedPlace((), GraphChange((), labels={LAUNCHED: CAPTURED}))


def captured_example(draw: np.random.Generator) -> Graph:
    """Return a few small kernels."""
    draft, shape = Draft(), (size(draw), size(draw))
    value = draft.add_input("x", *shape)
    for number in range(3):
        value = draft.node(f"y{number}", Streaming("gelu", math.prod(shape)), value)
    return draft.graph(value)
