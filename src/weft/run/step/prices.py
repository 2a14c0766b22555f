"""Durations of a step's operators from closed forms, each distinct one computed once."""

from __future__ import annotations

import math

from weft.estimate import Harness, estimate
from weft.graph import Collective, Graph, Op
from weft.hardware import System
from weft.options import Fidelity, RunOptions
from weft.parallel.plan import Parallelism
from weft.run.step.windows import Windows
from weft.schedule import SHARING


def group(system: System, plan: Parallelism, axis: str, size: int | None = None) -> System:
    """The GPUs of one group of an axis, as a system: as many to a node as the plan's placement puts there.

    `size` overrides the degree of the axis, as for pairs of neighbours; the replicas of the same weights ("dp") may
    include the context-parallel ranks. Without a node, all are alike.
    """
    count = plan.degree(axis) if size is None else size
    each = system.node.gpus_per_node if system.node else system.gpus
    outer = "cp" if axis == "dp" and count > plan.dp else axis
    together = max(each // plan.stride(outer), 1)
    while count % together:
        together -= 1
    return system.with_gpus(count, count // together)


_BETWEEN_OTHERS = Harness(rotation=math.inf, after_others=True)
"""Operators of a step: others have used the caches since weights and saved tensors were written."""


_ROOM = "1000 TB"
"""Memory of the GPU on which operators are timed: whether a step fits is answered apart, for all tensors together."""


class Prices:
    """Seconds of operators on a rank of a plan; equal operators are estimated once.

    `windows` say what kernels and collectives cost each other while they run at once.
    """

    def __init__(self, system: System, plan: Parallelism, options: RunOptions, fidelity: Fidelity = "estimate") -> None:
        self._system, self._plan, self.options = system, plan, options
        self._roomy = system.replace({"memory.capacity": _ROOM})
        self._known: dict[tuple[Op, str], float] = {}
        self._groups: dict[tuple[str, int], System] = {}
        self.windows = Windows(self.among, plan.overlap, plan.dtype, options, engine=fidelity == "windows")

    def of(self, op: Op, axis: str = "compute") -> float:
        """Seconds of an operator, a collective among the ranks of an axis."""
        key = (op, axis)
        if key not in self._known:
            on = self.among(axis, op.ranks) if isinstance(op, Collective) else self._roomy
            harness = self._caller(op, axis) if isinstance(op, Collective) else _BETWEEN_OTHERS
            self._known[key] = float(estimate(op, on, options=self.options, harness=harness).seconds)
        return self._known[key]

    def _caller(self, op: Collective, axis: str) -> Harness:
        """Who carries out a collective: the library, or DMA engines where the plan says so and they can."""
        sharing = SHARING.get(self._plan.overlap.get(axis, ""))
        return Harness(host="", driver="cu" if sharing is None or op.reduces else sharing.driver)

    def among(self, axis: str, ranks: int) -> System:
        """The system of the ranks of an axis."""
        key = (axis, ranks)
        if key not in self._groups:
            self._groups[key] = group(self._system, self._plan, axis, ranks)
        return self._groups[key]

    def graph(self, graph: Graph) -> dict[str, float]:
        """Seconds of every node of a graph by name."""
        return {node.name: self.of(node.op, node.stream) for node in graph}
