"""The reduce-scatter of a GEMM's output alone, its additions made near memory: a part of an ideal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from weft.core.options import RunOptions
from weft.engine.program import Buffer, PlacedKernel, Plan
from weft.graph import Gemm, Graph, NearMemoryRing
from weft.graph.choice import Kernel as ChosenKernel
from weft.hardware import Gpu, System
from weft.kernels import near_memory_reduce_kernel
from weft.kernels.ring import RING, forward_rules
from weft.overlaps.base import OverlapMethod, Part
from weft.overlaps.graphs import Pattern, find_produced, scatter
from weft.overlaps.joined import find_joined
from weft.overlaps.lower import Lowered
from weft.overlaps.lower.fit import check_whole, tiling_for
from weft.overlaps.lower.gpus import count_simulated
from weft.overlaps.ring import RingPair


@dataclass(frozen=True)
class NearMemoryScatter(OverlapMethod):
    """The reduce-scatter alone, its additions done by the memory."""

    name: str = "rs-nmc"
    title: str = "RS + NMC"
    summary: str = "ring reduce-scatter alone, its stores being near-memory updates"
    hardware_needs: tuple[str, ...] = ("near-memory update",)

    joins: ClassVar[str] = "nothing: a reduce-scatter alone"
    patterns: ClassVar[tuple[Pattern, ...]] = ("gemm_rs", "gemm_ar")
    kernels: ClassVar[tuple[type[ChosenKernel], ...]] = (NearMemoryRing,)
    compared: ClassVar[bool] = False
    leaves_out: ClassVar[tuple[Part, ...]] = ("gemm", "collective")

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return one kernel that sends each chunk on, as updates, once it has been fully updated."""
        gemm, _ = find_produced(graph)
        assert isinstance(gemm.op, Gemm)
        reduce = scatter(graph, NearMemoryRing(gemm.op, gemm.choice.tiling)).nodes[1]
        return replace(graph, nodes=(replace(reduce, after=()),))

    def lower_joined(self, graph: Graph, system: System, options: RunOptions) -> Lowered:
        """Return the plan of the reduce-scatter alone."""
        kernel = find_joined(graph).kernel
        assert isinstance(kernel, NearMemoryRing)
        tiling = kernel.tiling or tiling_for(kernel.gemm, system.gpu, options, graph.ranks)
        ring = NearMemoryRingScatter(kernel.gemm, graph.ranks, system.gpu, tiling, options)
        gpus = count_simulated(graph, system, options, uneven=ring.uneven)
        return Lowered(graph.with_tiling(tiling), ring.plan(gpus), system, gpus)


@dataclass(frozen=True)
class NearMemoryRingScatter(RingPair):
    """The ring reduce-scatter of a GEMM's output, whose stores the memory adds up."""

    def plan(self, gpus: int = 1) -> Plan:
        """Return the reduce-scatter alone: one kernel sends each chunk on, as updates, once its data have arrived."""
        check_whole(self.tiling)
        updates = forward_rules("output", "reduce_scatter", self.ranks, update=True)
        output = Buffer("output", tuple(map(self._sizes, self._work(gpus))), updates)
        kernel = near_memory_reduce_kernel(self.ranks, self.gpu, RING)
        return Plan((PlacedKernel(kernel, operator="reduce_scatter"),), (output,), ())
