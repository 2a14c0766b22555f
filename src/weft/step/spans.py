"""A pass over a part of a model on one rank: when its operators run, and what its compute stream does meanwhile."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from weft.graph import Attention, Edge, Graph, Node, Op, Streaming
from weft.graph.streaming import STREAMING
from weft.step.result.step import Pass, Times, exposed_part

COMPUTE = "compute"
"""The stream of everything that is no communication."""
Slowdown = Callable[[Node, Node], tuple[float, float]]
"""How many times longer a kernel and a collective take while they run at once."""
CONTENTION = "contention"
"""The part of a pass that kernels take longer because communication runs concurrently with them."""


class StreamTask(Protocol):
    """What runs on a stream of one rank after others: a node of a graph, or a whole pass."""

    @property
    def id(self) -> str:
        """Its own name."""

    @property
    def stream(self) -> str:
        """The stream on which it runs in order."""

    @property
    def edges(self) -> tuple[Edge, ...]:
        """What it waits for."""


P = TypeVar("P", bound=StreamTask)
_CLASSES = {
    "casts": ("amax", "quantize"),
    "norm": ("norm",),
    "loss": ("entropy",),
    "embedding": ("embedding",),
    "optimizer": ("adam", "lamb", "sgd"),
}
_STREAMING = {
    name: word for word, parts in _CLASSES.items() for name in STREAMING if any(part in name for part in parts)
}


def class_of(op: Op) -> str:
    """Return the class of an operator in a breakdown: "gemm", "attention", "casts", "norm", "element-wise", ..."""
    return _STREAMING.get(op.name, "element-wise") if isinstance(op, Streaming) else op.kind


def time_nodes(
    graph: Graph,
    seconds: Mapping[str, float],
    slowdown: Slowdown | None = None,
    alone: Mapping[str, float] | None = None,
) -> Pass:
    """The pass of a graph whose operators take `seconds` alone, by name.

    A node begins when its predecessors and the node before it on its stream have ended; while a kernel and a collective
    run at once, both are slower by their `slowdown` (None: by nothing). `alone` are the times without any overlap
    (None: the same), from which contention and hidden communication count.
    """
    by_id = {node.id: seconds[node.name] for node in graph}
    times = graph.critical_path(seconds) if slowdown is None else share_gpu(graph.nodes, by_id, slowdown)
    return account(graph, times, by_id if alone is None else {node.id: alone[node.name] for node in graph})


def share_gpu(
    nodes: Sequence[P], seconds: Mapping[str, float], slowdown: Callable[[P, P], tuple[float, float]]
) -> Times:
    """Begin and end of every node if those that run at once slow each other down: an event per begin or end.

    `seconds` are the times alone by id.
    """
    ids = [node.id for node in nodes]
    place = {name: at for at, name in enumerate(ids)}
    left = [seconds[name] for name in ids]
    after = [[place[edge.node] for edge in node.edges] for node in nodes]
    waiting: dict[str, deque[int]] = {}
    for at, node in enumerate(nodes):
        waiting.setdefault(node.stream, deque()).append(at)
    running: dict[str, int] = {}
    begin, end = [0.0] * len(ids), [0.0] * len(ids)
    ended = [False] * len(ids)
    now = 0.0
    while waiting or running:
        for stream in [stream for stream in waiting if stream not in running]:
            mine = waiting[stream]
            at = mine[0]
            for other in after[at]:
                if not ended[other]:
                    break
            else:
                running[stream] = at
                begin[at] = now
                mine.popleft()
                if not mine:
                    del waiting[stream]
        if len(running) == 1:  # nothing disturbs it
            ((_, at),) = running.items()
            now += left[at]
            end[at], ended[at] = now, True
            running.clear()
            continue
        rate = _rates(running, nodes, slowdown)
        step = min(left[at] * rate[stream] for stream, at in running.items())
        now += step
        for stream, at in list(running.items()):
            left[at] -= step / rate[stream]
            end[at] = now
            if left[at] <= 1e-15:
                del running[stream]
                ended[at] = True
    return dict(zip(ids, zip(begin, end, strict=True), strict=True))


def _rates(
    running: Mapping[str, int], nodes: Sequence[P], slowdown: Callable[[P, P], tuple[float, float]]
) -> dict[str, float]:
    """Return the slowdown factor of each running node by its stream: that of the most disturbing other node."""
    rate = dict.fromkeys(running, 1.0)
    kernel = running.get(COMPUTE)
    for stream, other in running.items():
        if kernel is not None and stream != COMPUTE:
            own, theirs = slowdown(nodes[kernel], nodes[other])
            rate[COMPUTE], rate[stream] = max(rate[COMPUTE], own), theirs
    return rate


def account(graph: Graph, times: Times, alone: Mapping[str, float]) -> Pass:
    """Return what the compute stream does until the last node has ended; a gap belongs to the communication that ends
    it.

    What a kernel takes longer than `alone` [s, by id] is contention.
    """
    parts: defaultdict[str, float] = defaultdict(float)
    hidden: defaultdict[str, float] = defaultdict(float)
    communication = [(*times[node.id], node.stream) for node in graph if node.stream != COMPUTE]
    computing = sorted(((*times[node.id], node) for node in graph if node.stream == COMPUTE), key=lambda one: one[:2])
    end = max(stop for _, stop in times.values())
    now = 0.0
    for start, stop, node in computing:
        _gap(parts, now, start, communication)
        parts["recompute" if node.phase == "recompute" else class_of(node.op)] += min(alone[node.id], stop - start)
        if stop - start > alone[node.id] * (1 + 1e-9):
            parts[CONTENTION] += stop - start - alone[node.id]
        now = stop
    _gap(parts, now, end, communication)
    for node in graph:
        if node.stream != COMPUTE:
            start, stop = times[node.id]
            hidden[node.stream] += max(stop - start, alone[node.id])
    for axis in hidden:
        hidden[axis] -= parts.get(exposed_part(axis), 0.0)
    return Pass(end, dict(parts), dict(hidden), sum(kernels(node) for node in graph), graph, times)


def kernels(node: Node) -> int:
    """Return how many kernels the host launches on the compute stream for a node; collectives are enqueued beside them.

    Measured steps that are bound by their host take as long with collectives of tensor parallelism as without
    (VIA-Research/vTrain, degrees 1 and 2).
    """
    op = node.op
    if node.stream != COMPUTE:
        return 0
    return len(op.kernels) if isinstance(op, Attention) and not op.fused else 1


def _gap(
    parts: defaultdict[str, float], start: float, stop: float, communication: Sequence[tuple[float, float, str]]
) -> None:
    """Assign a gap of the compute stream to the communication that runs in it, from its end backwards."""
    while stop - start > 1e-12:
        running = [one for one in communication if one[0] < stop and one[1] >= stop - 1e-12]
        if not running:
            parts["wait"] += stop - start
            return
        first, _, axis = min(running)
        parts[exposed_part(axis)] += stop - max(first, start)
        stop = max(first, start)
