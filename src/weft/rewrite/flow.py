"""Who writes and reads each tensor of a graph, graphs with some nodes replaced, and graphs written node by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from weft.graph import Constant, Edge, Graph, Joined, Node, Op, Tensor, View
from weft.graph.named import Named, Shape, shapes, sources
from weft.graph.op import TensorRole

LOAD = "load"
"""Phase of nodes that run once, before the graph does."""


@dataclass(frozen=True)
class GraphChange:
    """Nodes that leave a graph and those that come instead; `moved` names tensors that are read in place of others."""

    remove: tuple[str, ...]
    add: tuple[Node, ...] = ()
    tensors: Mapping[str, Named] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MatchedPlace:
    """A place of a graph that a rule looked at: its nodes, and the change, or `why` the rule is refused there."""

    nodes: tuple[str, ...]
    change: GraphChange | None = None
    why: str = ""


class Flow:
    """The tensors of a graph: their shapes, and the nodes that write and read them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.writer = {name: node for node in graph for name in node.outputs}

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The shape of every tensor."""
        return shapes(self.graph)

    @cached_property
    def _readers(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = {}
        for node in self.graph:
            for name in dict.fromkeys(self._reach_views(node.inputs)):
                found.setdefault(name, []).append(node)
        return found

    def _reach_views(self, names: Iterable[str]) -> Iterable[str]:
        """Yield the names, and those of the tensors that they are views of or joined from."""
        for name in names:
            yield name
            match self.graph.tensors.get(name):
                case View(of=whole):
                    yield from self._reach_views((whole,))
                case Joined(parts=parts):
                    yield from self._reach_views(parts)

    def readers(self, name: str) -> list[Node]:
        """Return the nodes that read a tensor, also through views."""
        return self._readers.get(name, [])

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Tensors that are read outside: the results, and what they are views of."""
        return frozenset(self._reach_views(self.graph.results))

    def next_of(self, node: Node) -> tuple[Node | None, str]:
        """Return the one node that reads a node's only output as it is; else None, and the reason."""
        if len(node.outputs) != 1:
            return None, f"{node.id} has {len(node.outputs)} outputs"
        (name,) = node.outputs
        if name in self.outputs:
            return None, f"{name} is a result of the graph"
        read = self.readers(name)
        if len(read) != 1:
            return None, f"{name} is read by {', '.join(one.id for one in read) or 'no node'}"
        if read[0].inputs.count(name) != 1:
            return None, f"{read[0].id} does not read {name} as it is, and once"
        return read[0], ""

    def constant(self, name: str) -> bool:
        """Return whether a tensor is the same in every run: a weight, a constant, or made of these before the first."""
        for source in sources(name, self.graph.tensors):
            writer, named = self.writer.get(source), self.graph.tensors.get(source)
            if writer is not None:
                if writer.phase != LOAD:
                    return False
            elif isinstance(named, Tensor) and named.role != "weight":
                return False
        return True


def apply_change(graph: Graph, change: GraphChange) -> Graph:
    """Return the graph after a change, its nodes in an order in which tensors are written before they are read."""
    gone = set(change.remove)
    tensors = {**graph.tensors, **change.tensors}
    for name in change.moved:
        if name in graph.tensors and name not in change.tensors:
            tensors.pop(name)
    tensors = {name: _moved_named(one, change.moved) for name, one in tensors.items()}
    place = max((at for at, node in enumerate(graph.nodes) if node.id in gone), default=len(graph.nodes))
    kept = [(at, _move_node(node, change.moved)) for at, node in enumerate(graph.nodes) if node.id not in gone]
    ordered = _sort_nodes([*kept, *((place, node) for node in change.add)], tensors)
    last = change.add[-1].id if change.add else ""
    nodes = connect_nodes(ordered, tensors, dict.fromkeys(gone, last))
    used = _used_names(nodes, tensors, graph.results)
    return replace(
        graph,
        nodes=nodes,
        tensors={name: one for name, one in tensors.items() if name in used},
        labels={**graph.labels, **change.labels},
    )


def _move_node(node: Node, moved: Mapping[str, str]) -> Node:
    return replace(node, inputs=tuple(moved.get(name, name) for name in node.inputs)) if moved else node


def _moved_named(named: Named, moved: Mapping[str, str]) -> Named:
    match named:
        case View(of=whole):
            return replace(named, of=moved.get(whole, whole))
        case Joined(parts=parts):
            return replace(named, parts=tuple(moved.get(part, part) for part in parts))
    return named


def _sort_nodes(placed: list[tuple[int, Node]], tensors: Mapping[str, Named]) -> list[Node]:
    """Nodes by their places, but each after those that write what it reads."""
    writer = {name: at for at, (_, node) in enumerate(placed) for name in node.outputs}
    waits = [
        {writer[source] for name in node.inputs for source in sources(name, tensors) if source in writer}
        for _, node in placed
    ]
    ready = [(place, at) for at, (place, _) in enumerate(placed) if not waits[at]]
    heapify(ready)
    done: list[int] = []
    while ready:
        _, at = heappop(ready)
        done.append(at)
        for other, needed in enumerate(waits):
            if at in needed:
                needed.discard(at)
                if not needed:
                    heappush(ready, (placed[other][0], other))
    return [placed[at][1] for at in done]


def connect_nodes(
    nodes: Iterable[Node], tensors: Mapping[str, Named], instead: Mapping[str, str] = MappingProxyType({})
) -> tuple[Node, ...]:
    """Nodes that wait for those whose outputs they read, and for what else they waited for, or what came `instead`."""
    nodes = list(nodes)
    writer = {name: node.id for node in nodes for name in node.outputs}
    before: set[str] = set()
    made = []
    for node in nodes:
        stated = [edge._replace(node=instead.get(edge.node, edge.node)) for edge in node.edges]
        read = (writer.get(source) for name in node.inputs for source in sources(name, tensors))
        edges = {edge.node: edge for edge in (*stated, *(Edge(one) for one in read if one))}
        made.append(replace(node, after=tuple(edge for name, edge in edges.items() if name in before)))
        before.add(node.id)
    return tuple(made)


def _used_names(nodes: Iterable[Node], tensors: Mapping[str, Named], results: Iterable[str]) -> set[str]:
    """Return the names of tensors that a node reads or writes, that are results, or that one of these is a view of."""
    waiting = [*results, *(name for node in nodes for name in (*node.inputs, *node.outputs))]
    used: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            match tensors.get(name):
                case View(of=whole):
                    waiting.append(whole)
                case Joined(parts=parts):
                    waiting.extend(parts)
    return used


class Draft:
    """Collects tensors and nodes; every method that adds one returns its name.

    >>> from weft.graph import Gemm
    >>> draft = Draft("bf16")
    >>> product = draft.node("y", Gemm(8, 8, 4, "bf16"), draft.add_input("x", 8, 4), draft.weight("w", 4, 8))
    >>> draft.graph(product)["y"].inputs
    ('x', 'w')
    """

    def __init__(self, dtype: str = "fp16", ranks: int = 1) -> None:
        self.dtype, self.ranks = dtype, ranks
        self.tensors: dict[str, Named] = {}
        self.nodes: list[Node] = []

    def add_input(self, name: str, *shape: int, role: TensorRole = "activation", dtype: str = "") -> str:
        """Return a tensor that is given to the graph."""
        return self._add_named(name, Tensor(shape, dtype or self.dtype, role))

    def weight(self, name: str, *shape: int) -> str:
        """Return a weight."""
        return self.add_input(name, *shape, role="weight")

    def bits(self, name: str, *shape: int) -> str:
        """Return the elements that dropout keeps."""
        return self.add_input(name, *shape, role="buffer", dtype="int8")

    def constant(self, name: str, constant: Constant) -> str:
        """Return a constant."""
        return self._add_named(name, constant)

    def view(self, name: str, view: View | Joined) -> str:
        """Return a view of a tensor, or tensors joined."""
        return self._add_named(name, view)

    def _add_named(self, name: str, named: Named) -> str:
        self.tensors[name] = named
        return name

    def node(self, name: str, op: Op, *inputs: str, stream: str = "compute") -> str:
        """Return a node with one output."""
        self.nodes.append(Node(op, name, stream=stream, inputs=inputs, outputs=(name,)))
        return name

    def graph(self, *results: str, title: str = "") -> Graph:
        """Return the graph with its results, whose nodes wait for those that write what they read."""
        return Graph(connect_nodes(self.nodes, self.tensors), self.ranks, title, {}, self.tensors, results)
