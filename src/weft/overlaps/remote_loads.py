"""Remote loads (CAIS, arXiv:2605.05628): a GEMM behind an all-gather whose tiles load rows from other GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import PlacedKernel, Plan
from weft.engine.program.plan import Work, scripts
from weft.graph import Graph, RemoteLoads
from weft.graph.choice import Kernel as ChosenKernel
from weft.hardware import Gpu, System
from weft.kernels import operand_sizes
from weft.overlaps.base import OverlapMethod
from weft.overlaps.graphs import Pattern, join_gather
from weft.overlaps.joined import GatheredPair, find_joined, fit_rows, store_in_order
from weft.overlaps.lower import Lowered
from weft.overlaps.lower.fit import tiling_for
from weft.overlaps.lower.gpus import check_adjacent, count_simulated
from weft.overlaps.lower.machine import fabric_of


@dataclass(frozen=True)
class RemoteLoading(OverlapMethod):
    """A GEMM whose tiles load their rows from the GPUs that have them.

    The cache keeps lines of other GPUs' memory, and a switch may merge requests of several GPUs.
    """

    name: str = "remote-loads"
    title: str = "Remote loads"
    summary: str = (
        "a GEMM behind an all-gather: its tiles load their rows from the GPUs that have them, which a switch may merge"
    )
    hardware_needs: tuple[str, ...] = ("cache of other GPUs' memory",)

    joins: ClassVar[str] = "tiles of a GEMM and loads of its rows from peers"
    patterns: ClassVar[tuple[Pattern, ...]] = ("ag_gemm",)
    kernels: ClassVar[tuple[type[ChosenKernel], ...]] = (RemoteLoads,)

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return both nodes, the all-gather carried out by the GEMM's loads."""
        self.check(graph)
        return join_gather(graph, RemoteLoads())

    def lower_joined(self, graph: Graph, system: System, options: RunOptions) -> Lowered:
        """Return the plan of a GEMM that loads rows from all GPUs."""
        nodes, ranks, fabric = find_joined(graph), graph.ranks, fabric_of(system)
        uneven = "the switch merges what their loads ask for at the same time" if fabric.merges else ""
        gpus, product = count_simulated(graph, system, options, uneven=uneven), nodes.product
        tiling = fit_rows(product, nodes.tiling or tiling_for(product, system.gpu, options), ranks)
        check_adjacent(system, ranks, "tiles load rows from the GPUs that have them")
        plan = LoadingGemm(product, tiling, ranks, options, fabric.merges).plan(system.gpu, gpus)
        return Lowered(graph.with_tiling(tiling), plan, system, gpus)


@dataclass(frozen=True)
class LoadingGemm(GatheredPair):
    """C = gather(A) x B in one GEMM, whose tiles load rows of A from the memory of the GPU that has them.

    The last-level cache keeps the lines [assumed], so that the tiles of a tile line load its rows once. Tile lines of
    all GPUs take turns, so that every GPU's link is in use: from the GPU's own on or, where the switch `merges`
    requests, in one order on all GPUs, so that they ask for the same rows at a time.
    """

    merges: bool = False

    def plan(self, gpu: Gpu, gpus: int = 1) -> Plan:
        """The GEMM, with a script for the tiles of each GPU's rows; one GPU of `gpus` represents all, or each runs."""
        own, store = self._product(gpu).phases
        load_a, load_b = own.loads
        chunk = operand_sizes(self.gemm, self.tiling)[0] // self.ranks
        loads = [replace(load_a, position=0)]
        for peer in range(1, self.ranks):
            far = replace(load_a, position=0, operator="all_gather", offset=-peer * chunk, window=peer)
            readers = self.ranks - 1 if self.merges else 1
            loads.append(replace(far, distance=self.ranks - peer, direct=True, readers=readers))
        phases = scripts(*((replace(own, loads=(load, load_b)), store) for load in loads))
        kernel = replace(self._product(gpu), phases=phases, script_of=tuple(range(self.ranks)))
        work = tuple(self._turns(g) for g in range(gpus if self.merges else 1))
        return self._plan(gpu, [PlacedKernel(kernel, operator="gemm")], self._data(), *work)

    def _turns(self, g: int) -> Work:
        """Return the tiles of GPU `g`, a line of every GPU's rows after the other."""
        lines = self.gemm.m // self.ranks // self.tiling.rows
        work = self._chunked_tiles(lines)
        peer, line = np.divmod(work[:, y.WORK_LANE], lines)
        work[:, y.WORK_SCRIPT] = peer
        return store_in_order(work[np.lexsort(((peer + g) % self.ranks if self.merges else peer, line))])
