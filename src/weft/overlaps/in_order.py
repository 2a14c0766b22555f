"""The operators of one GPU in the order of their graph, such as a captured program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.core.errors import InputError
from weft.graph import Graph
from weft.hardware import Gpu
from weft.overlaps.base import OverlapMethod
from weft.overlaps.graphs import Pattern


@dataclass(frozen=True)
class InOrder(OverlapMethod):
    """A graph of operators on one GPU, such as a captured program, unchanged."""

    name: str = "in-order"
    title: str = "In order"
    summary: str = "operators of one GPU as the graph orders them: captured programs"

    joins: ClassVar[str] = "nothing: operators of one GPU in order"
    patterns: ClassVar[tuple[Pattern, ...]] = ("program",)

    def check(self, graph: Graph) -> None:
        """Raise InputError for a graph with collectives, or that waits for single tiles."""
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

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return the graph itself."""
        self.check(graph)
        return graph
