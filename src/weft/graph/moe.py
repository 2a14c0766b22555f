"""A layer of a mixture of experts (MoE) as a graph: dispatch, two grouped GEMMs, combine."""

from __future__ import annotations

from typing import NamedTuple

from weft.core.errors import check_type, check_whole
from weft.graph.choice import Exchange, KernelChoice, MoEExchange
from weft.graph.collective import Collective
from weft.graph.gemm import GroupedGemm
from weft.graph.graph import Graph, Node
from weft.graph.op import DTYPE_BYTES, check_dtype
from weft.graph.routing import Routing


def experts(
    routing: Routing, hidden: int, ffn: int, dtype: str = "bf16", *, gated: bool = True, title: str = ""
) -> Graph:
    """Return a layer of experts: send tokens to their experts, two grouped GEMMs, bring results back and add them up.

    Tokens have `hidden` elements, experts an inner width of `ffn`; a `gated` first GEMM has twice as many columns,
    whose halves its epilogue multiplies. Sizes of the GEMMs are those of the GPU with the most rows. Raises InputError
    for sizes below one, UnknownNameError for an unknown dtype.

    >>> [node.id for node in experts(Routing(4096, 8, 256, 8), hidden=7168, ffn=2048)]
    ['dispatch', 'up', 'down', 'combine']
    """
    check_type("the routing", routing, Routing, "give weft.Routing(tokens, top_k, experts, ranks)")
    check_whole("hidden", hidden, 1, 4096)
    check_whole("ffn", ffn, 1, 4096)
    check_dtype(dtype)
    most = routing.fullest
    rows, busiest = int(most.sum()), 0 if len(set(most.tolist())) == 1 else int(most.max())
    exchange = Collective("all_to_all", routing.rows * hidden * DTYPE_BYTES[dtype], routing.ranks, dtype)
    groups, wide, choice = routing.experts_per_rank, ffn * (1 + gated), KernelChoice(MoEExchange(routing))
    nodes = (
        Node(exchange, "dispatch", choice=choice),
        Node(GroupedGemm(groups, rows, wide, hidden, dtype, busiest), "up", after=("dispatch",)),
        Node(GroupedGemm(groups, rows, hidden, ffn, dtype, busiest), "down", after=("up",)),
        Node(exchange, "combine", after=("down",), choice=choice),
    )
    named = f"{routing.tokens} x {hidden} x {ffn}, top {routing.top_k} of {routing.experts} experts"
    return Graph(nodes, routing.ranks, title or f"experts {named} on {routing.ranks} GPUs")


class MoELayer(NamedTuple):
    """The four nodes of an MoE layer, and the routing of its tokens."""

    dispatch: Node
    up: Node
    down: Node
    combine: Node
    routing: Routing


def moe_layer(graph: Graph) -> MoELayer | None:
    """Return the nodes of an MoE layer, as `experts` makes it; None for any other graph."""
    kernels = [node.choice.kernel for node in graph]
    if len(kernels) != 4 or not all(isinstance(node.op, GroupedGemm) for node in graph.nodes[1:3]):
        return None
    first, last = kernels[0], kernels[-1]
    if not isinstance(first, Exchange) or not isinstance(last, Exchange):
        return None
    dispatch, up, down, combine = graph.nodes
    return MoELayer(dispatch, up, down, combine, first.routing)


def routing_of(graph: Graph) -> Routing | None:
    """Return the routing of an MoE layer; None for any other graph."""
    layer = moe_layer(graph)
    return None if layer is None else layer.routing
