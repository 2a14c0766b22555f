"""A graph written node by node, each named as its output."""

from __future__ import annotations

from weft.graph import Constant, Graph, Joined, Node, Op, Tensor, View
from weft.graph.named import Named
from weft.graph.op import Role
from weft.rewrite.flow import connected


class Draft:
    """Collects tensors and nodes; every method that adds one returns its name.

    >>> from weft.graph import Gemm
    >>> draft = Draft("bf16")
    >>> product = draft.node("y", Gemm(8, 8, 4, "bf16"), draft.given("x", 8, 4), draft.weight("w", 4, 8))
    >>> draft.graph(product)["y"].inputs
    ('x', 'w')
    """

    def __init__(self, dtype: str = "fp16", ranks: int = 1) -> None:
        self.dtype, self.ranks = dtype, ranks
        self.tensors: dict[str, Named] = {}
        self.nodes: list[Node] = []

    def given(self, name: str, *shape: int, role: Role = "activation", dtype: str = "") -> str:
        """A tensor that is given to the graph."""
        return self._named(name, Tensor(shape, dtype or self.dtype, role))

    def weight(self, name: str, *shape: int) -> str:
        """A weight."""
        return self.given(name, *shape, role="weight")

    def bits(self, name: str, *shape: int) -> str:
        """The elements that dropout keeps."""
        return self.given(name, *shape, role="buffer", dtype="int8")

    def constant(self, name: str, constant: Constant) -> str:
        """A constant."""
        return self._named(name, constant)

    def view(self, name: str, view: View | Joined) -> str:
        """A view of a tensor, or tensors joined."""
        return self._named(name, view)

    def _named(self, name: str, named: Named) -> str:
        self.tensors[name] = named
        return name

    def node(self, name: str, op: Op, *inputs: str, stream: str = "compute") -> str:
        """A node with one output."""
        self.nodes.append(Node(op, name, stream=stream, inputs=inputs, outputs=(name,)))
        return name

    def graph(self, *results: str, title: str = "") -> Graph:
        """The graph with its results, whose nodes wait for those that write what they read."""
        return Graph(connected(self.nodes, self.tensors), self.ranks, title, {}, self.tensors, results)
