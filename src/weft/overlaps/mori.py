"""AMD's MORI: a GEMM whose workgroups start copy engines (SDMA), which push finished chunks of its output to peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from weft.core.options import RunOptions
from weft.estimate import BenchmarkProtocol, estimate
from weft.graph import Collective, Driver
from weft.hardware import System
from weft.overlaps.base import ClosedFormMethod
from weft.overlaps.graphs import Pattern
from weft.overlaps.pairs import PairTimes

CHUNKS = (1, 2, 4, 8)
"""Chunks of the output that MORI's benchmarks try; the fastest is taken, as a tuner does."""


@dataclass(frozen=True)
class Mori(ClosedFormMethod):
    """A GEMM and the pushes of its output by copy engines: `fused`, chunk by chunk, or after the GEMM has ended.

    `chunks` is into how many the output is cut (None: the fastest of `CHUNKS`). One lane of threads per peer issues
    their packets, or one thread all of them (`one_thread`). An all-reduce is an exchange by copy engines, a kernel that
    adds, and a gather by copy engines; only the exchange begins while the GEMM runs.
    """

    name: str = "mori"
    title: str = "MORI"
    summary: str = "the GEMM's workgroups start copy engines, which push finished chunks of its output (AMD's MORI)"
    hardware_needs: tuple[str, ...] = ("copy engines that kernels start (SDMA of AMD's GPUs)",)
    fused: bool = True
    chunks: int | None = None
    one_thread: bool = False

    joins: ClassVar[str] = "chunks of a GEMM and copies of its output"
    patterns: ClassVar[tuple[Pattern, ...]] = ("gemm_ar", "gemm_ag", "gemm_a2a")
    closed_forms: ClassVar[tuple[Pattern, ...]] = patterns

    def complete(self, pair: PairTimes, moved: Collective, system: System, options: RunOptions) -> PairTimes:
        """Return the times with that of one exchange or gather by copy engines that a kernel starts.

        The host's commands fall away; a trigger takes their place. NaN over several nodes.
        """
        if system.nodes > 1:
            return pair
        pushes = replace(moved, name="all_gather" if moved.name == "all_gather" else "all_to_all")
        found = estimate(pushes, system, options, BenchmarkProtocol(driver=Driver.DMA))
        started = float(found.seconds) - float(found.parts["launch"]) + system.gpu.dma.trigger
        return replace(pair, pushed=started)

    def estimate(self, pair: PairTimes, costs: Mapping[str, float]) -> Any:
        """Return the time of chunks that are pushed as they end: the GEMM and the last push, or all pushes.

        Chunks end no earlier than a wave of tiles, so that a GEMM of one wave hides nothing. Each chunk costs the GEMM
        one packet (`ranks` - 1 if one thread issues all); each chunk after the first costs the engines one. Where the
        time of a push is not known, it is the library's.
        """
        begin = pair.framework * costs["sequential.gap"]
        library = pair.collective / np.where(pair.gathers, 2, 1)
        once = np.where(np.isfinite(pair.pushed), pair.pushed, library)
        behind = np.where(pair.gathers, pair.summed + once, 0.0)
        if not self.fused:
            return pair.gemm + begin + once + behind
        found, issued = np.inf, pair.ranks - 1 if self.one_thread else 1
        for chunks in CHUNKS if self.chunks is None else (self.chunks,):
            steps = np.minimum(chunks, pair.waves)
            gemm = pair.gemm + chunks * issued * costs["mori.packet"]
            pushed = once + (chunks - 1) * costs["mori.packet"]
            found = np.minimum(found, np.maximum(gemm + pushed / steps, pair.gemm / steps + pushed))
        return found + behind

    def missing_hardware(self, system: System) -> str:
        """Return a sentence on copy engines that kernels start, unless they are AMD's and reach all peers."""
        if system.gpu.vendor == "amd" and system.nodes == 1:
            return ""
        if system.gpu.vendor == "amd":
            return f"{self.name} needs all GPUs in one node, and {system.name} has {system.nodes}; use those of one."
        return f"{self.name} needs hardware that {system.name} lacks: {', '.join(self.hardware_needs)}."


MORI_METHODS = (
    Mori(),
    Mori(
        name="mori-split",
        title="MORI, split",
        summary="the GEMM, then copy engines that a kernel starts push its output (AMD's MORI)",
        fused=False,
    ),
)
"""MORI's GEMM with its pushes, fused and one after the other."""
