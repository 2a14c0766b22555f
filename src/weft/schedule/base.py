"""What a pass is: a change of a graph that decides order and sharing, under a name that users type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from weft.errors import InputError
from weft.graph import Collective, Edge, Graph, KernelChoice, Node
from weft.graph.graph import Granularity
from weft.hardware import Gpu
from weft.schedule.arbiters import ROUND_ROBIN, ArbiterPolicy

PLAIN = KernelChoice(kernel="plain-ring")
"""A step of the paper's ring: every compute unit, no slices, no staging."""


@dataclass(frozen=True)
class Pass(ABC):
    """A way to overlap: `apply` is called once for a run and returns another graph; it changes nothing.

    `name` is what users type. `needs` lists hardware that no GPU on sale has, or not all have. `arbiter` decides who
    enters a memory channel's queue, unless the options of a run say so.
    """

    name: str
    title: str
    summary: str
    needs: tuple[str, ...] = ()
    arbiter: ArbiterPolicy = ROUND_ROBIN

    @abstractmethod
    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The graph as it runs on GPUs like `gpu`; InputError for a graph that this way has no meaning for."""

    def takes(self, graph: Graph) -> bool:
        """Whether the pass has a meaning for a graph."""
        try:
            self._check(graph)
        except InputError:
            return False
        return True

    @abstractmethod
    def _check(self, graph: Graph) -> None:
        """Raise InputError for a graph that the pass has no meaning for."""


@dataclass(frozen=True)
class Ideal(Pass):
    """Parts that share nothing but time: every operator takes as long as in the run of another pass.

    `taken` names that pass for operators, `usually` for all others. The graph's edges alone decide when each begins.
    """

    usually: str = "sequential"
    taken: tuple[tuple[str, str], ...] = ()

    def source(self, operator: str) -> str:
        """The pass whose run an operator's time is from."""
        return dict(self.taken).get(operator, self.usually)

    @property
    def runs(self) -> tuple[str, ...]:
        """The passes whose runs it is put together from."""
        return tuple(dict.fromkeys((self.usually, *(name for _, name in self.taken))))


def produced(graph: Graph) -> tuple[Node, Node]:
    """The GEMM of a sub-layer and the all-reduce, or reduce-scatter, of its output; InputError for any other graph."""
    pair = _pair(graph, ("gemm", "collective"))
    if pair is None or getattr(pair[1].op, "name", "") not in ("all_reduce", "reduce_scatter"):
        raise InputError(
            f"{graph} is no GEMM followed by the all-reduce or reduce-scatter of its output; "
            "give a sub-layer, or choose a way to share a GPU, such as 'streams'"
        )
    return pair


def consumed(graph: Graph) -> tuple[Node, Node]:
    """The all-gather of an operand and the GEMM that waits for it; InputError for any other graph."""
    pair = _pair(graph, ("collective", "gemm"))
    if pair is None or getattr(pair[0].op, "name", "") != "all_gather":
        raise InputError(f"{graph} is no all-gather followed by the GEMM of what it gathers")
    return pair


def _pair(graph: Graph, kinds: tuple[str, str]) -> tuple[Node, Node] | None:
    """The two nodes of a graph, the second of which waits for the first, if they are of these kinds."""
    if len(graph) != 2 or tuple(node.op.kind for node in graph) != kinds:
        return None
    first, second = graph.nodes
    return (first, second) if [edge.node for edge in second.edges] == [first.id] else None


def scattered(graph: Graph, choice: KernelChoice, by: Granularity = "kernel") -> Graph:
    """A sub-layer with its all-reduce as a reduce-scatter, joined `by` kernel or tile, and an all-gather."""
    gemm, collective = produced(graph)
    op = collective.op
    assert isinstance(op, Collective)
    reduce = Node(
        replace(op, name="reduce_scatter"),
        "reduce_scatter",
        after=(Edge(gemm.id, by),),
        choice=choice,
    )
    if op.name == "reduce_scatter":
        return replace(graph, nodes=(gemm, reduce))
    gather = Node(replace(op, name="all_gather"), "all_gather", after=("reduce_scatter",), choice=PLAIN)
    return replace(graph, nodes=(gemm, reduce, gather))
