"""The memory of a graph over time: tensors from the node that makes them to the one after which they are freed."""

from __future__ import annotations

from itertools import accumulate

from weft.graph.graph import Graph, Node
from weft.graph.op import Tensor


def live_bytes(graph: Graph) -> tuple[int, ...]:
    """Bytes that are allocated on one rank while each node runs, in the graph's order.

    Tensors that no node writes are there from the start; what a node `frees` is gone when the next one runs.

    >>> from weft.graph import Gemm
    >>> made = Node(Gemm(64, 64, 64), "up", outputs=("h",))
    >>> used = Node(Gemm(64, 64, 64), "down", inputs=("h",), outputs=("y",), frees=("h",))
    >>> live_bytes(Graph((made, used)))
    (8192, 16384)
    """
    sizes = tensor_bytes(graph)
    written = {name for node in graph for name in node.outputs}
    given = sum(size for name, size in sizes.items() if name not in written)
    changes = [given]
    for node in graph:
        changes[-1] += sum(sizes[name] for name in node.outputs)
        changes.append(-sum(sizes.get(name, 0) for name in node.frees))
    return tuple(accumulate(changes[:-1]))


def tensor_bytes(graph: Graph) -> dict[str, int]:
    """Bytes of every tensor that has memory of its own, by name: those given to the graph, and outputs of nodes."""
    sizes = {name: stated.bytes for name, stated in graph.tensors.items() if isinstance(stated, Tensor)}
    for node in graph:
        sizes |= {name: _written(node, place) for place, name in enumerate(node.outputs) if name not in sizes}
    return sizes


def _written(node: Node, place: int) -> int:
    return node.op.writes[place].bytes if place < len(node.op.writes) else 0
