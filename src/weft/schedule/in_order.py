"""Programs as they are: every operator after those that it depends on, in the order of its stream."""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import InputError
from weft.graph import Graph
from weft.hardware import Gpu
from weft.schedule.base import Pass


@dataclass(frozen=True)
class InOrder(Pass):
    """A graph of operators on one GPU, such as a captured program, unchanged."""

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The graph itself; InputError for one with collectives, or that waits for single tiles."""
        self._check(graph)
        return graph

    def _check(self, graph: Graph) -> None:
        for node in graph.collectives:
            raise InputError(
                f"'{self.name}' runs the operators of one GPU, but '{node.id}' is a collective; choose an overlap of a "
                "sub-layer, such as 'sequential', or ask weft.step for a whole model"
            )
        for node in graph:
            if any(edge.by == "tile" for edge in node.edges):
                raise InputError(
                    f"'{self.name}' runs whole operators, but '{node.id}' waits for single tiles; choose an overlap of "
                    "a sub-layer, such as 't3'"
                )


IN_ORDER = InOrder("in-order", "In order", "operators of one GPU as the graph orders them: captured programs")
