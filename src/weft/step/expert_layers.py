"""Experts in a step whose exchanges T3 joins with their GEMMs: what `weft.simulate` says of the layer, in its nodes.

The layer's time beyond its two GEMMs is the exposed exchange. The near-memory updates of T3 add up what a token's
experts answer, so that no kernel does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.core.store import Store, read_or_make
from weft.graph import (
    Collective,
    Graph,
    GroupedGemm,
    KernelChoice,
    MoEExchange,
    Node,
    Routing,
    Streaming,
    TokenExchange,
)
from weft.graph.routing import gpus_reached
from weft.hardware import System
from weft.overlaps import OVERLAPS, SEQUENTIAL
from weft.simulate.result.stored import plain
from weft.simulate.single import simulate

AXIS = "ep"


class ExpertNodes(NamedTuple):
    """A layer of experts in a pass: its exchanges and GEMMs, and the node that adds up a token's results, if any."""

    dispatch: Node
    up: Node
    down: Node
    combine: Node
    adds: Node | None


def layers(graph: Graph) -> Iterator[ExpertNodes]:
    """Yield the layers of experts of a pass, forward or backward: dispatch, two grouped GEMMs, combine."""
    dispatch, products = None, list[Node]()
    nodes = graph.nodes
    for at, node in enumerate(nodes):
        op = node.op
        if isinstance(op, TokenExchange) and op.operation == "dispatch":
            dispatch, products = node, []
        elif isinstance(op, GroupedGemm) and node.phase != "weight":
            products.append(node)
        elif isinstance(op, TokenExchange) and dispatch is not None and len(products) == 2:
            behind = nodes[at + 1] if at + 1 < len(nodes) else None
            adds = behind is not None and isinstance(behind.op, Streaming) and behind.op.name == "unpermute"
            yield ExpertNodes(dispatch, products[0], products[1], node, behind if adds else None)
            dispatch = None


@dataclass(frozen=True)
class JoinedExperts:
    """A layer of experts on a system under an overlap: how long it takes beyond its GEMMs in sequence [s]."""

    exchange: TokenExchange
    up: GroupedGemm
    down: GroupedGemm
    system: System
    overlap: str
    options: RunOptions

    @property
    def title(self) -> str:
        """What is joined."""
        return f"{self.up} and {self.down} with their exchanges, {self.overlap}"

    @property
    def weight(self) -> float:
        """Rough relative duration of the run: floating-point operations in billions."""
        return (self.up.flops + self.down.flops) / 1e9

    def inputs(self) -> Mapping[str, Any]:
        """Return the inputs that determine the record."""
        named = {name: getattr(self, name) for name in ("exchange", "up", "down", "overlap", "options")}
        return {**plain(named), "system": self.system.inputs()}

    @property
    def graph(self) -> Graph:
        """The layer, as `weft.experts` makes it, of the GEMMs of the pass."""
        one = self.exchange
        near = gpus_reached(one.reach, one.groups, one.ranks, one.top_k)
        routing = Routing(one.tokens, one.top_k, one.experts, one.ranks, reach=near)
        moved = Collective("all_to_all", routing.rows * self.up.k * 2, one.ranks, self.up.dtype)
        choice = KernelChoice(MoEExchange(routing))
        nodes = (
            Node(moved, "dispatch", choice=choice),
            Node(self.up, "up", after=("dispatch",)),
            Node(self.down, "down", after=("up",)),
            Node(moved, "combine", after=("down",), choice=choice),
        )
        return Graph(nodes, one.ranks, f"experts on {one.ranks} GPUs")

    def run(self) -> Mapping[str, float]:
        """Return the time beyond the GEMMs, and whole times under the overlap and in sequence [s]."""
        before = simulate(self.graph, self.system, SEQUENTIAL, self.options)
        joined = simulate(self.graph, self.system, self.overlap, self.options)
        alone = before.duration("up") + before.duration("down")
        return {"beyond": max(joined.seconds - alone, 0.0), "joined": joined.seconds, "sequential": before.seconds}


def join_layers(
    graph: Graph, seconds: dict[str, float], system_of: Any, method: str, options: RunOptions, hides: bool = False
) -> set[str]:
    """Replace times of nodes [s] by what `method` makes of them; returns the names of the exchanges that it joins.

    With `hides`, exchanges are hidden in full.
    """
    found: set[str] = set()
    if not method or not OVERLAPS[method].applies_to("moe_layer"):
        return found
    for layer in layers(graph):
        op, up, down = layer.dispatch.op, layer.up.op, layer.down.op
        assert isinstance(op, TokenExchange)
        assert isinstance(up, GroupedGemm)
        assert isinstance(down, GroupedGemm)
        visited = up.groups * op.ranks  # experts that a few tokens choose
        if up.dtype not in ("bf16", "fp16") or up.rows != op.tokens * op.top_k or visited > op.experts:
            raise InputError(
                f"'{method}' joins whole experts in 16 bits, each on one GPU, with their exchanges, but {layer.up.id} "
                f"is {up}; choose the dtype bf16 and as many EP ranks as share the experts, or leave ep={method} out"
            )
        task = JoinedExperts(
            replace(op, experts=visited), up, down, system_of(AXIS, op.ranks), method, RunOptions(clock=options.clock)
        )
        beyond = 0.0 if hides else read_or_make(task, Store())["beyond"]
        seconds[layer.dispatch.name] = seconds[layer.combine.name] = beyond / 2
        if layer.adds is not None:
            seconds[layer.adds.name] = 0.0
        found |= {layer.dispatch.name, layer.combine.name}
    return found
