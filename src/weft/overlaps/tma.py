"""A GEMM whose tiles are added at their owners by TMA (bulk copies), as kernels of 2026 for Blackwell do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from weft.core.options import RunOptions
from weft.graph import Collective
from weft.hardware import System
from weft.overlaps.base import ClosedFormMethod
from weft.overlaps.graphs import Pattern
from weft.overlaps.pairs import PairTimes

_MEASURED = ("blackwell",)
"""Architectures whose kernels are measured; Hopper has TMA, too, but no public row of such a kernel."""


@dataclass(frozen=True)
class TmaScatter(ClosedFormMethod):
    """A GEMM and the reduce-scatter of its output as one kernel, whose tiles TMA adds up at their owners.

    ThunderKittens, mKernel and CuTe's GEMM-RS are such kernels. A few threads issue a tile's bulk copy, so that stores
    reach the links' rate, where the loops of `flux` do not; the owner's memory adds, so that no kernel follows.
    """

    name: str = "tma"
    title: str = "TMA"
    summary: str = "one kernel: TMA adds tiles up at their owners at the links' rate (ThunderKittens, mKernel, CuTe)"
    hardware_needs: tuple[str, ...] = ("bulk copies by TMA to peers over NVLink, as kernels of Blackwell make them",)

    joins: ClassVar[str] = "tiles of a GEMM and its reduce-scatter"
    patterns: ClassVar[tuple[Pattern, ...]] = ("gemm_rs",)
    closed_forms: ClassVar[tuple[Pattern, ...]] = patterns

    def complete(self, pair: PairTimes, moved: Collective, system: System, options: RunOptions) -> PairTimes:
        """Return the times with that of all stores to peers at the links' rate; NaN where GPUs cannot store so."""
        if self.missing_hardware(system):
            return pair
        return replace(pair, pushed=pair.stored / (system.gpu.link.bandwidth * system.gpu.link.kernel_efficiency))

    def estimate(self, pair: PairTimes, costs: Mapping[str, float]) -> Any:
        """Return the start, the longer of GEMM and stores, and a wave's share of the other.

        Where the time of stores is not known, it is that of the library's collective.
        """
        stores = np.where(np.isfinite(pair.pushed), pair.pushed, pair.collective)
        both = np.maximum(pair.gemm + stores / pair.waves, pair.gemm / pair.waves + stores)
        return costs["tma.start"] + both

    def missing_hardware(self, system: System) -> str:
        """Return a sentence on TMA over NVLink, unless the GPUs have it and reach all peers in one node."""
        gpu = system.gpu
        if gpu.vendor != "nvidia" or gpu.architecture not in _MEASURED or not gpu.link.links:
            return f"{self.name} needs hardware that {system.name} lacks: {', '.join(self.hardware_needs)}."
        if system.nodes > 1:
            return f"{self.name} needs all GPUs in one node, and {system.name} has {system.nodes}; use those of one."
        return ""
