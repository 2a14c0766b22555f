"""Graphs of operators and their dependencies: the form of work that passes, estimates and runs take."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar, get_args

import numpy as np

from weft.core.errors import InputError, UnknownNameError, check_name, check_type, check_whole, show_value
from weft.core.fields import check_fields, declare
from weft.graph.choice import Kernel, KernelChoice, kernel_with_tiling
from weft.graph.collective import Collective
from weft.graph.gemm import Gemm
from weft.graph.named import Named, check_names
from weft.graph.op import Op, Role, Tensor
from weft.graph.tiling import GemmTiling

MOST_ITERATIONS = 1000
"""Most iterations of a loop in a graph."""
Storage = TypeVar("Storage", bound=Hashable)
Task = TypeVar("Task", bound=Hashable)
Granularity = Literal["kernel", "tile"]
"""What an operator waits for: the end of its predecessor, or single tiles of its output."""
PHASES = ("", "forward", "recompute", "input", "weight", "backward", "optimizer", "load")
"""The part of a training step that a node belongs to; "load" runs once, before the graph."""
_NONE: tuple[()] = ()
"""No names: what most nodes have, which needs no check."""


class Edge(NamedTuple):
    """A dependency on the node `node`: on its end (by kernel), or `by` tile on the tiles that it has finished."""

    node: str
    by: Granularity = "kernel"


_LIBRARYS = KernelChoice()
"""All as the machine's library would choose."""


@dataclass(frozen=True)
class Node:
    """An operator in a graph: iteration `iteration` of `name`, on a `stream`, with its dependencies.

    Nodes of one name share their tensors: every iteration reads and writes the same memory. A node runs on every rank
    of the graph, or on `rank` alone. `after` takes names of nodes or edges; nodes of one stream also follow each other
    in the graph's order. `phase` is the part of a training step ("forward", "recompute", "input" or "weight" for
    gradients; "load": once, before the graph runs), `module` the part of the model. `inputs` and `outputs` name the
    tensors of the graph that the operator reads and writes, in its order (empty: not stated); behind its inputs follow
    small ones that its traffic leaves out, such as a bias, a scale or a mask. `frees` names the tensors whose memory is
    free once it has run.
    """

    op: Op
    name: str
    iteration: int = 0
    after: tuple[Edge | str, ...] = ()
    stream: str = "main"
    rank: int | None = None
    choice: KernelChoice = _LIBRARYS
    phase: str = declare("", "", noun="phase of a node", names=PHASES)
    module: str = ""
    role: Role = Role.NONE
    operator: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.op, Op):
            raise InputError(f"a node's operator is {show_value(self.op)}; give the operator first, then its name")
        check_type("the name of a node", self.name, str, "give a text, like 'gemm'")
        for what in ("stream", "phase", "module", "operator"):
            value = getattr(self, what)
            if type(value) is not str:
                check_type(f"the {what} of node '{self.name}'", value, str, "give a text, like 'main'")
        for what, names in (
            ("comes after", self.after),
            ("reads", self.inputs),
            ("writes", self.outputs),
            ("frees", self.frees),
        ):
            if names is _NONE:
                continue
            check_type(f"what node '{self.name}' {what}", names, tuple, "give a tuple of names, like ('gemm',)")
            for name in names:
                if type(name) is str:
                    continue
                check_type(f"what node '{self.name}' {what}", name, (str, Edge), "give a tuple of names")
                if isinstance(name, Edge):
                    check_type(f"the node of an edge of '{self.name}'", name.node, str, "name a node of the graph")
                    check_name("granularity of an edge", name.by, get_args(Granularity))
        check_type(f"the choice of node '{self.name}'", self.choice, KernelChoice, "give a weft.graph.KernelChoice")
        check_fields(self)
        if self.choice.kernel is not None:
            collective = self.op.name if isinstance(self.op, Collective) else ""
            self.choice.kernel.check_carries_out(self.name, collective)

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Its dependencies."""
        return tuple(Edge(after) if isinstance(after, str) else after for after in self.after)

    @property
    def id(self) -> str:
        """Its name, with the iteration's number appended from the second one on: "gemm", "gemm.1"."""
        return self.name if self.iteration == 0 else f"{self.name}.{self.iteration}"


def check_choice(node: Node, kernels: tuple[type[Kernel], ...], placement: Collection[str], where: str) -> None:
    """Raise InputError for a stated kernel of no class of `kernels`, or a stated placement that is not in `placement`.

    `where` says what does not use it.
    """
    if node.choice is _LIBRARYS:
        return
    kernel, asks = node.choice.kernel, f"the choice of node '{node.id}'"
    if kernel is not None and not isinstance(kernel, kernels):
        raise InputError(f"{asks} is a {type(kernel).__name__}, which {where} does not use; leave it out")
    for name, value in node.choice.placement.items():
        if name not in placement:
            raise InputError(f"{asks} states {name} = {show_value(value)}, which {where} does not use; leave it out")


def check_alike(first: Node, node: Node, kernels: bool = True) -> None:
    """Raise InputError for an iteration of a node with another operator, or another stated kernel, than the first."""
    alike = node.op is first.op or (
        type(node.op) is type(first.op)
        and all(np.array_equal(value, getattr(first.op, name)) for name, value in vars(node.op).items())
    )
    if not alike or (kernels and node.choice.kernel != first.choice.kernel):
        what = "kernel" if alike else "operator"
        raise two_kinds(first, node, what)


def two_kinds(first: Node, node: Node, what: str) -> InputError:
    """Return the error for iterations of one node that have two operators, or two kernels."""
    return InputError(
        f"'{first.id}' and '{node.id}' are iterations of one node, but have two {what}s; give the nodes two names, or "
        f"one {what}"
    )


@dataclass(frozen=True)
class Graph:
    """Operators in a valid order of execution, the same on each of `ranks` GPUs unless nodes name a rank.

    `title` describes it for people; `labels` hold its origin, such as {"model": "t-nlg", "sublayer": "fc2"}. Where
    nodes name what they read and write, `tensors` describes what no node writes, views and constants, and `results`
    names what is read outside. Raises InputError for two nodes of one name, for a node that waits for itself or a later
    one and for a tensor that nothing writes, UnknownNameError for a dependency on an unknown node.

    >>> graph = Graph((Node(Gemm(64, 64, 64), "up"), Node(Gemm(64, 64, 64), "down", after=("up",))), ranks=1)
    >>> graph["down"].edges
    (Edge(node='up', by='kernel'),)
    """

    nodes: tuple[Node, ...]
    ranks: int = 1
    title: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, Named] = field(default_factory=dict)
    results: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_type("the nodes of a graph", self.nodes, tuple, "give a tuple of weft.Node")
        check_whole("ranks of a graph", self.ranks, 1, 8)
        check_fields(self, sizes=False)
        check_type("the labels of a graph", self.labels, Mapping, "give a mapping from names to texts")
        check_type("the tensors of a graph", self.tensors, Mapping, "give a mapping from names to weft.graph.Tensor")
        if not self.nodes:
            raise InputError("the graph has no operator; give it at least one node")
        for node in self.nodes:
            check_type("a node of a graph", node, Node, "give a weft.Node, of an operator and its name")
        known: set[str] = set()
        names = {node.id for node in self.nodes}
        for node in self.nodes:
            if node.id in known:
                raise InputError(f"two nodes of the graph are called '{node.id}'; give each a name of its own")
            for edge in node.edges:
                if edge.node not in names:
                    raise UnknownNameError("node of the graph", edge.node, names)
                if edge.node not in known:
                    raise InputError(f"node '{node.id}' waits for '{edge.node}', which does not come before it")
            if node.rank is not None and not 0 <= node.rank < self.ranks:
                raise InputError(f"node '{node.id}' runs on rank {node.rank}; the ranks are 0 to {self.ranks - 1}")
            known.add(node.id)
        check_names(self)
        self._check_frees()

    def _check_frees(self) -> None:
        """Raise InputError for a node that frees a tensor which nothing in the graph reads, writes or gives."""
        freed = [(node, name) for node in self.nodes for name in node.frees]
        if not freed:
            return
        known = set(self.tensors) | {name for node in self.nodes for name in (*node.inputs, *node.outputs)}
        for node, name in freed:
            if name not in known:
                raise InputError(f"node '{node.id}' frees '{name}', which no node of the graph reads or writes")

    def __hash__(self) -> int:
        return hash((self.nodes, self.ranks))

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, node: str) -> Node:
        check_type("the name of a node", node, str, "give one of the graph")
        for candidate in self.nodes:
            if candidate.id == node:
                return candidate
        raise UnknownNameError("node of the graph", node, (n.id for n in self.nodes))

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams, in the order in which their first nodes are launched."""
        return tuple(dict.fromkeys(node.stream for node in self.nodes))

    @property
    def operators(self) -> Mapping[str, Op]:
        """Every operator by name, in launch order; the iterations of a loop are one operator."""
        return {node.name: node.op for node in self.nodes}

    @property
    def gemms(self) -> tuple[Node, ...]:
        """The first iteration of every GEMM."""
        return tuple(node for node in self.nodes if isinstance(node.op, Gemm) and node.iteration == 0)

    @property
    def collectives(self) -> tuple[Node, ...]:
        """The first iteration of every collective."""
        return tuple(node for node in self.nodes if isinstance(node.op, Collective) and node.iteration == 0)

    @property
    def flops(self) -> int:
        """Floating-point operations of one rank."""
        return sum(node.op.flops for node in self.nodes)

    @property
    def least_bytes(self) -> int:
        """Least memory traffic of one rank [bytes]."""
        return sum(node.op.least_bytes for node in self.nodes)

    def iterations(self, name: str) -> int:
        """Return how many times the operator `name` runs."""
        return sum(node.name == name for node in self.nodes)

    def map(self, change: Callable[[Node], Node]) -> Self:
        """Return the graph with every node changed by a function."""
        return replace(self, nodes=tuple(change(node) for node in self.nodes))

    def with_tiling(self, tiling: GemmTiling) -> Self:
        """Return the graph with every GEMM cut by a tiling."""
        return self.map(
            lambda node: replace(node, choice=node.choice.with_tiling(tiling)) if isinstance(node.op, Gemm) else node
        )

    def only(self, *streams: str, iterations: int | None = None) -> Self:
        """The subgraph of some streams, at most `iterations` of each operator; edges to other streams are dropped.

        Raises UnknownNameError for an unknown stream.
        """
        for stream in streams:
            check_name("stream of the graph", stream, self.streams)
        kept = [
            node
            for node in self.nodes
            if node.stream in streams and (iterations is None or node.iteration < iterations)
        ]
        ids = {node.id for node in kept}
        cut = (replace(node, after=tuple(edge for edge in node.edges if edge.node in ids)) for node in kept)
        return replace(self, nodes=tuple(cut))

    def critical_path(self, seconds: Mapping[str, Any], launch: float = 0.0) -> dict[str, tuple[Any, Any]]:
        """Begin and end of every node [s] if only edges and streams constrain it; `seconds` by operator name.

        Seconds may be arrays of one shape. A node begins `launch` [s] later for each launch before its own.
        """
        places = {node.id: at for at, node in enumerate(self.nodes)}
        last: dict[str, int] = {}
        needs = []
        for at, node in enumerate(self.nodes):
            before = [places[edge.node] for edge in node.edges]
            late = node.choice.launches_before * launch
            needs.append([(one, late) for one in (*before, *([last[node.stream]] if node.stream in last else []))])
            last[node.stream] = at
        took = [seconds[node.name] for node in self.nodes]
        first = [node.choice.launches_before * launch for node in self.nodes]
        start, end = earliest(range(len(took)), needs, took, first, np.maximum)
        return {node.id: (begin, stop) for node, begin, stop in zip(self.nodes, start, end, strict=True)}

    def __str__(self) -> str:
        return self.title or f"{len(self.nodes)} operators on {self.ranks} GPUs"


def loop(op: Op, name: str, count: int, stream: str, choice: KernelChoice | None = None) -> tuple[Node, ...]:
    """Return the same operator `count` times in a row; InputError for fewer than one or more than MOST_ITERATIONS."""
    check_whole(f"iterations of the loop '{name}'", count, 1, 4)
    if count > MOST_ITERATIONS:
        raise InputError(f"the loop '{name}' has {count} iterations; it has between 1 and {MOST_ITERATIONS}")
    return tuple(Node(op, name, i, stream=stream, choice=choice or KernelChoice()) for i in range(count))


def concurrent(
    gemm: Gemm, collective: Collective, gemms: int = 1, collectives: int = 1, choice: KernelChoice | None = None
) -> Graph:
    """Return a loop of GEMMs in the stream "compute" and a loop of collectives in the stream "communication".

    Neither waits for the other. `choice` says what is known of the collective's kernel. Raises InputError for a loop
    without, or with too many, iterations.

    >>> concurrent(Gemm(8192, 8192, 8192), Collective("all_gather", 1 << 28, 8), gemms=4).streams
    ('communication', 'compute')
    """
    check_type("the GEMM", gemm, Gemm, "give one, like weft.gemm(8192, 8192, 8192)")
    check_type("the collective", collective, Collective, "give one, like weft.all_gather('896 MiB')")
    return Graph(
        (
            *loop(collective, collective.name, collectives, "communication", choice),
            *loop(gemm, "gemm", gemms, "compute"),
        ),
        ranks=collective.ranks,
        title=f"GEMM {gemm} beside {collective}",
    )


def gemm_queue(gemms: Sequence[Gemm], queues: int | None = None, tilings: Iterable[GemmTiling | None] = ()) -> Graph:
    """Independent GEMMs dealt round robin to `queues` streams (None: one each), with operands of their own.

    `tilings` cut them (none: as the library would). Raises InputError without GEMMs, or for an unusable number of
    queues.
    """
    check_type("the GEMMs of a queue", gemms, (list, tuple), "give a list of them")
    check_type("the tilings of a queue", tilings, Iterable, "give a list of them")
    for gemm in gemms:
        check_type("a GEMM of a queue", gemm, Gemm, "give one, like weft.gemm(512, 1024, 1024)")
    if queues is not None:
        check_whole("queues", queues, 1, 4)
    count = len(gemms)
    lanes = count if queues is None else queues
    if not 1 <= lanes <= count:
        raise InputError(f"{count} GEMMs are dealt to {lanes} queues; choose between 1 and {count} queues")
    chosen = list(tilings) or [None] * count
    if len(chosen) != count:
        raise InputError(f"{count} GEMMs have {len(chosen)} tilings; give one for each, or none")
    nodes = (
        Node(
            gemm,
            f"gemm{number}",
            stream=f"queue{number % lanes}",
            choice=KernelChoice(kernel_with_tiling(tiling), launches_before=number if number < lanes else 0),
        )
        for number, (gemm, tiling) in enumerate(zip(gemms, chosen, strict=True))
    )
    return Graph(tuple(nodes), title=f"{count} GEMMs in {lanes} queues")


def live_bytes(graph: Graph) -> tuple[int, ...]:
    """Return the bytes that are allocated on one rank while each node runs, in the graph's order.

    Tensors that no node writes are there from the start; what a node `frees` is gone when the next one runs.

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
        sizes |= {name: _write_node(node, place) for place, name in enumerate(node.outputs) if name not in sizes}
    return sizes


def _write_node(node: Node, place: int) -> int:
    return node.op.writes[place].bytes if place < len(node.op.writes) else 0


class Storages(Generic[Storage, Task]):
    """Dependencies by memory: which task wrote each storage last, and which have read it since."""

    def __init__(self) -> None:
        self.writers: dict[Storage, Task] = {}
        self.readers: dict[Storage, list[Task]] = {}

    def touch(self, task: Task, reads: Iterable[Storage], writes: Iterable[Storage]) -> set[Task]:
        """Note that a task reads and writes some storages; returns the tasks that it waits for.

        What it writes but does not read is new memory: an allocator may give it the number of what is freed.
        """
        read, written = set(reads), set(writes)
        waits = {self.writers[storage] for storage in read if storage in self.writers}
        for storage in written & read:
            waits.update(self.readers.get(storage, ()))
        for storage in written:
            self.writers[storage], self.readers[storage] = task, []
        for storage in read - written:
            self.readers.setdefault(storage, []).append(task)
        return waits - {task}

    def forget(self, storage: Storage) -> None:
        """Note that a storage is freed: the next one of this name is another."""
        self.writers.pop(storage, None)
        self.readers.pop(storage, None)


def earliest(
    order: Iterable[int],
    needs: Sequence[Iterable[tuple[int, Any]]],
    took: Sequence[Any],
    least: Sequence[Any],
    later: Callable[[Any, Any], Any] = max,
) -> tuple[list[Any], list[Any]]:
    """Earliest start and end of every task [s], by its number.

    `order` lists every task after its prerequisites `needs`, each with its delay to the task [s]. A task takes
    `took` and begins no sooner than `least`; one that is not listed keeps `least`. Times may be arrays of one shape if
    `later` answers the later of two.

    >>> earliest([0, 1, 2], [[], [(0, 0.5)], [(0, 0.0), (1, 0.0)]], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    ([0.0, 1.5, 3.5], [1.0, 3.5, 6.5])
    """
    start, end = list(least), list(least)
    for task in order:
        begin = least[task]
        for source, delay in needs[task]:
            begin = later(begin, end[source] + delay)
        start[task], end[task] = begin, begin + took[task]
    return start, end
