"""What a graph costs on a machine: time by its critical path, kernels that the host launches, bytes and FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

from weft.core.answer import Record
from weft.core.options import RunOptions
from weft.estimate import estimate
from weft.graph import Graph, Node, Op, Streaming
from weft.hardware import System
from weft.rewrite.flow import LOAD
from weft.rewrite.rules.whole import CAPTURED, LAUNCHED

LAUNCH, LAUNCH_IN_GRAPH = 1.8e-6, 0.8e-6
"""Time from one launch of an empty kernel to the next, by the host and inside a recorded graph [s]: 1.81 and 0.79 us on
A100, 1.30 and 0.59 on GH200 (openfabric-systems/simllm @9c2672c). A framework's own work on an operator comes on top:
5 us or more [assumed; 3 to 20], stated as the launch."""


@dataclass(frozen=True)
class Cost(Record):
    """Time [s], least traffic [bytes], FLOPs, kernels, and how many times the host launches something."""

    seconds: float
    bytes: int
    flops: int
    kernels: int
    launches: int


class OperatorCosts:
    """Costs of graphs on a system; the times of operators are kept."""

    def __init__(self, system: System, options: RunOptions, launch: float = LAUNCH) -> None:
        self.system, self.options, self.launch = system, options, launch
        self._known: dict[Op, tuple[float, int]] = {}

    def op(self, op: Op) -> tuple[float, int]:
        """Return the time [s] and kernels of an operator."""
        if op not in self._known:
            found = estimate(op, self.system, self.options)
            each = self.system.gpu.compute.launch_latency
            several = isinstance(op, Streaming) and each > 0
            kernels = round(float(found.parts["launch"]) / each) if several else 1
            self._known[op] = float(found.seconds), max(kernels, 1)
        return self._known[op]

    def cost(self, graph: Graph) -> Cost:
        """The cost of one run of a graph; what runs once before it is left out.

        A node begins when those that it waits for have ended, its stream is free, and it has been launched.
        """
        nodes = running(graph)
        captured = graph.labels.get(LAUNCHED) == CAPTURED
        period = min(LAUNCH_IN_GRAPH, self.launch) if captured else self.launch
        issued, kernels = self.launch - period, 0
        ends: dict[str, float] = {}
        free: dict[str, float] = {}
        for node in nodes:
            seconds, count = self.op(node.op)
            issued += count * period
            kernels += count
            waits = (ends.get(edge.node, 0.0) for edge in node.edges)
            ends[node.id] = free[node.stream] = max(issued, free.get(node.stream, 0.0), *waits, 0.0) + seconds
        return Cost(
            max(ends.values(), default=0.0),
            sum(node.op.least_bytes for node in nodes),
            sum(node.op.flops for node in nodes),
            kernels,
            1 if captured else kernels,
        )


def running(graph: Graph) -> list[Node]:
    """Return the nodes that run every time."""
    return [node for node in graph if node.phase != LOAD]
