"""In-network reduction: a GEMM, then an all-reduce whose sums and copies switches make (NVLS, SHARP)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.estimate import estimate
from weft.graph import Collective, Graph, KernelChoice, LibraryCollective
from weft.hardware import Gpu, System
from weft.kernels.library.interconnect import interconnect
from weft.overlaps.base import OverlapMethod
from weft.overlaps.graphs import Pattern, find_pattern, find_produced
from weft.overlaps.lower.machine import ring_link
from weft.overlaps.pairs import PairTimes


@dataclass(frozen=True)
class InNetwork(OverlapMethod):
    """The GEMM, then one all-reduce whose sums and copies the switch makes (NVLS), as the vendor's library runs it."""

    name: str = "in-network"
    title: str = "In-network"
    summary: str = "switches add, so that the bytes of an all-reduce cross each link once; nothing runs beside it"
    hardware_needs: tuple[str, ...] = ("switches that add",)

    joins: ClassVar[str] = "nothing: a shorter all-reduce behind its GEMM"
    patterns: ClassVar[tuple[Pattern, ...]] = ("gemm_ar", "tp")
    closed_forms: ClassVar[tuple[Pattern, ...]] = patterns

    def check(self, graph: Graph) -> None:
        """Raise InputError for a graph that is no GEMM followed by an all-reduce."""
        if find_pattern(graph) == "gemm_rs":
            raise InputError(
                f"'{self.name}' shortens all-reduces, but behind this GEMM is a reduce_scatter, which moves no byte "
                "less through a switch that adds; choose another overlap, or a sub-layer that ends with an all_reduce"
            )
        super().check(graph)

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return the GEMM, then the all-reduce."""
        self.check(graph)
        gemm, collective = find_produced(graph)
        return replace(graph, nodes=(gemm, replace(collective, choice=KernelChoice(LibraryCollective("nvls")))))

    def complete(self, pair: PairTimes, moved: Collective, system: System, options: RunOptions) -> PairTimes:
        """Return the times with that of the all-reduce by switches that add."""
        return replace(pair, switched=_switched_seconds(moved, system, options))

    def estimate(self, pair: PairTimes, costs: Mapping[str, float]) -> Any:
        """Return the sum with the shorter one of both all-reduces, and the gap between two streams of a framework."""
        return pair.gemm + np.fmin(pair.switched, pair.collective) + pair.framework * costs["sequential.gap"]

    def missing_hardware(self, system: System) -> str:
        """Return a sentence on switches that add, if the system has none."""
        if interconnect(system).multicast and system.nodes == 1:
            return ""
        return f"{self.name} needs hardware that {system.name} lacks: {', '.join(self.hardware_needs)}."


def _switched_seconds(moved: Collective, system: System, options: RunOptions) -> float:
    """Return the time of an all-reduce by switches that add [s]: that between two GPUs, whose bytes cross a link once.

    A ring among n takes 2 (n - 1) / n times as long on the links, and 2 (n - 1) steps instead of two.
    """
    gpu = system.gpu if system.nodes == 1 else system.gpu.model_copy(update={"link": ring_link(system)})
    two = System(gpu=gpu, gpus=2, library=system.library)
    return float(estimate(replace(moved, ranks=2), two, options=options).seconds)
