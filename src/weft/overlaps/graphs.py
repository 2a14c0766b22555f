"""The patterns that graphs form, and the graphs that methods make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from weft.core.errors import InputError
from weft.graph import Collective, Edge, Gemm, Graph, KernelChoice, Node, PaperRing
from weft.graph.choice import InSubLayer, OfRows
from weft.graph.collective import Form
from weft.graph.graph import Granularity
from weft.graph.moe import MoELayer, moe_layer

Pattern = Literal[
    "ag_gemm", "gemm_rs", "gemm_ar", "gemm_ag", "gemm_a2a", "corun", "moe_layer", "program", "tp", "cp", "ep", "dp"
]
"""What a method applies to: a pattern of a graph, or the collectives of one axis of a step."""
PATTERNS: Mapping[Pattern, str] = {
    "ag_gemm": "an all-gather and the GEMM behind it",
    "gemm_rs": "a GEMM and the reduce-scatter behind it",
    "gemm_ar": "a GEMM and the all-reduce behind it",
    "gemm_ag": "a GEMM and the all-gather behind it",
    "gemm_a2a": "a GEMM and the all-to-all behind it",
    "corun": "independent GEMMs and collectives",
    "moe_layer": "an MoE layer",
    "program": "a program of one GPU",
}
"""The patterns of graphs, in words."""
PAPER_RING = KernelChoice(PaperRing())
FORM_OF: dict[str, Form] = {"all_gather": "ag_gemm", "reduce_scatter": "gemm_rs", "all_reduce": "gemm_ar"}
"""How a GEMM and a collective depend on each other, by the collective."""


def find_pattern(graph: Graph) -> Pattern | None:
    """Return the pattern that a graph forms; None for one that overlaps do not know."""
    if moe_layer(graph) is not None:
        return "moe_layer"
    if find_consumed(graph) is not None:
        return "ag_gemm"
    pair = _pair(graph, ("gemm",), ("all_reduce", "reduce_scatter"))
    if pair is not None:
        return FORM_OF[pair[1].op.name] if isinstance(pair[1].op, Collective) else None
    if all(isinstance(node.op, Gemm | Collective) and not node.edges for node in graph):
        return "corun"
    return None if graph.collectives else "program"


def find_produced(graph: Graph) -> tuple[Node, Node]:
    """Return a GEMM and the all-reduce or reduce-scatter of its output; InputError for any other graph."""
    pair = _pair(graph, ("gemm",), ("all_reduce", "reduce_scatter"))
    if pair is None:
        raise InputError(
            f"{graph} is no GEMM followed by the all-reduce or reduce-scatter of its output; "
            "give a sub-layer, or choose a way to share a GPU, such as 'streams'"
        )
    return pair


def find_consumed(graph: Graph) -> tuple[Node, Node] | None:
    """Return the all-gather of an operand and the GEMM that waits for it; None for any other graph."""
    return _pair(graph, ("all_gather",), ("gemm",))


def _pair(graph: Graph, *wanted: tuple[str, ...]) -> tuple[Node, Node] | None:
    """Return the two nodes of a graph if the second waits for the first and their kinds are as asked; else None."""
    kinds = [node.op.name if isinstance(node.op, Collective) else node.op.kind for node in graph]
    if len(kinds) != 2 or not all(name in names for name, names in zip(kinds, wanted, strict=True)):
        return None
    first, second = graph.nodes
    return (first, second) if [edge.node for edge in second.edges] == [first.id] else None


def find_moe_layer(graph: Graph) -> MoELayer:
    """Return the nodes of an MoE layer; InputError for any other graph."""
    layer = moe_layer(graph)
    if layer is None:
        raise InputError(
            f"{graph} is no layer of experts; give one, like weft.experts(weft.Routing(4096, 8, 256, 8), hidden=7168, "
            "ffn=2048), or choose an overlap of a GEMM and its collective, such as 't3'"
        )
    return layer


def scatter(graph: Graph, kernel: InSubLayer, by: Granularity = "kernel") -> Graph:
    """Return a sub-layer whose all-reduce is a reduce-scatter, joined `by` kernel or tile, and an all-gather."""
    gemm, collective = find_produced(graph)
    op = collective.op
    assert isinstance(op, Collective)
    reduce = Node(
        replace(op, name="reduce_scatter"), "reduce_scatter", after=(Edge(gemm.id, by),), choice=KernelChoice(kernel)
    )
    if op.name == "reduce_scatter":
        return replace(graph, nodes=(gemm, reduce))
    gather = Node(replace(op, name="all_gather"), "all_gather", after=("reduce_scatter",), choice=PAPER_RING)
    return replace(graph, nodes=(gemm, reduce, gather))


def with_exchanges(graph: Graph, choice: KernelChoice) -> Graph:
    """Return the graph whose collectives all have a choice of kernel."""
    return graph.map(lambda node: replace(node, choice=choice) if isinstance(node.op, Collective) else node)


def join_gather(graph: Graph, kernel: OfRows) -> Graph:
    """Return an all-gather, carried out by a kernel, and the GEMM behind it, whose tiles wait for their rows."""
    pair = find_consumed(graph)
    assert pair is not None
    gather, gemm = pair
    first = replace(gather, choice=KernelChoice(kernel), stream="communication")
    return replace(graph, nodes=(first, replace(gemm, after=(Edge(gather.id, "tile"),))))
