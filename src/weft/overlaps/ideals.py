"""Ideal overlaps: a GEMM and its reduce-scatter without contention, from the times that each takes in other runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from weft.graph import Graph, PaperRing
from weft.hardware import Gpu
from weft.overlaps.base import SEQUENTIAL, OverlapMethod
from weft.overlaps.graphs import Pattern, scatter


@dataclass(frozen=True)
class Ideal(OverlapMethod):
    """max(GEMM, reduce-scatter) + all-gather: every operator takes as long as in the run of another method.

    `taken` names that method by operator, `usually` the method of all others. Only the graph's edges decide when each
    begins.
    """

    name: str = "ideal-overlap"
    title: str = "Ideal-GEMM-RS-Overlap"
    summary: str = "max(GEMM, RS) + AG of the sequential run's isolated times: perfect overlap, no contention"
    usually: str = SEQUENTIAL
    taken: tuple[tuple[str, str], ...] = ()

    joins: ClassVar[str] = "a GEMM and its reduce-scatter, without contention"
    patterns: ClassVar[tuple[Pattern, ...]] = ("gemm_rs", "gemm_ar")

    def source(self, operator: str) -> str:
        """Return the method from whose run an operator's time is taken."""
        return dict(self.taken).get(operator, self.usually)

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the methods from whose runs this ideal is assembled."""
        return tuple(dict.fromkeys((self.usually, *(name for _, name in self.taken))))

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return the GEMM and the reduce-scatter in streams of their own, then the all-gather."""
        gemm, reduce, *gather = scatter(graph, PaperRing()).nodes
        moved = replace(reduce, after=(), stream="communication")
        after = (replace(node, after=(gemm.id, reduce.id)) for node in gather)
        return replace(graph, nodes=(gemm, moved, *after))


IDEALS = (
    Ideal(),
    Ideal(
        "ideal-rs-nmc",
        "Ideal-RS+NMC",
        "as ideal-overlap, with the reduce-scatter's additions made near memory",
        ("near-memory update",),
        taken=(("reduce_scatter", "rs-nmc"),),
    ),
)
"""Perfect overlap, and with a reduce-scatter that the memory adds up."""
