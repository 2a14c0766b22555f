"""Flux (arXiv:2406.06858): a GEMM and its collective as one kernel, tile by tile, as software does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import Buffer, ChunkRule, DmaMap, PlacedKernel, Plan, RemoteMap, Wait
from weft.engine.program.plan import PLAIN_STORE, Work
from weft.graph import FusedTiles, Graph
from weft.graph.choice import Kernel as ChosenKernel
from weft.hardware import Gpu, System
from weft.kernels import gather_kernel, operands, sum_kernel
from weft.kernels.library.software import costs
from weft.kernels.ring import RING, forward_rules
from weft.overlaps.base import FORMS, OverlapMethod
from weft.overlaps.graphs import Pattern, find_consumed, join_gather, scatter
from weft.overlaps.joined import GatheredPair, JoinedPair, copy_kernel, find_joined, fit_rows, store_in_order
from weft.overlaps.lower import Lowered
from weft.overlaps.lower.fit import tiling_for
from weft.overlaps.lower.gpus import change_links, count_simulated, slow_links
from weft.overlaps.lower.machine import fabric_of, ring_link
from weft.overlaps.pairs import PairTimes

_UNLIMITED = 1 << 50
"""A store buffer that never fills [bytes]: the rate of the software's stores stands for all that holds them up."""


@dataclass(frozen=True)
class Flux(OverlapMethod):
    """A GEMM and its collective as one kernel.

    A collective behind the GEMM: tiles are stored at the GPU that owns their rows, which adds up the tiles of all GPUs.
    An all-gather before it: DMA engines copy its chunks, nearest peer first, and a tile begins when its chunk has
    arrived.
    """

    name: str = "flux"
    title: str = "Flux"
    summary: str = (
        "one kernel: tiles are stored at their owners as fast as software does, or wait for their rows (Flux)"
    )

    joins: ClassVar[str] = "tiles of a GEMM and its collective"
    patterns: ClassVar[tuple[Pattern, ...]] = (*FORMS, "gemm_ag", "gemm_a2a", "tp")
    kernels: ClassVar[tuple[type[ChosenKernel], ...]] = (FusedTiles,)
    closed_forms: ClassVar[tuple[Pattern, ...]] = patterns
    fills_waves: ClassVar[bool] = True

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return both nodes, joined by tiles; an all-reduce ends with a ring all-gather."""
        self.check(graph)
        pair = find_consumed(graph)
        return scatter(graph, FusedTiles(), by="tile") if pair is None else join_gather(graph, FusedTiles())

    def estimate(self, pair: PairTimes, costs: Mapping[str, float]) -> Any:
        """Return the longer part, the share of the shorter one that nothing hides, and the start.

        That share is one rank's, and behind a GEMM at least one wave's, whose tiles end together. Tiles stored at their
        owners travel at `flux.store_rate` at most, and a kernel adds them up at the end; a gather takes a round per
        peer.
        """
        shorter = np.minimum(pair.gemm, pair.collective)
        # Sums in the switch are pipelined below the tile: rows of fused NVLS all-reduces of one wave hide most of it.
        by_waves = np.logical_and(pair.scatters, np.logical_not(pair.in_switch))
        steps = np.where(by_waves, np.minimum(pair.ranks, pair.waves), pair.ranks)
        device = np.maximum(pair.gemm, pair.collective) + shorter / steps
        device = np.where(np.isfinite(pair.simulated), pair.simulated, device)
        stored = np.logical_and(pair.scatters, np.logical_not(pair.in_switch))
        stores = pair.stored / costs["flux.store_rate"] + pair.gemm / pair.ranks + pair.summed
        device = np.where(stored, np.maximum(device, stores), device)
        rounds = np.where(pair.scatters, 0.0, pair.ranks - 1.0)
        device = device + rounds * costs["flux.round"]
        # A switch that adds needs neither copies nor partial sums, so nothing has to be prepared.
        return device + np.logical_and(pair.framework, np.logical_not(pair.in_switch)) * costs["flux.start"]

    def lower_joined(self, graph: Graph, system: System, options: RunOptions) -> Lowered:
        """Return the plan of one kernel for a GEMM and its collective."""
        nodes, gpu, ranks = find_joined(graph), system.gpu, graph.ranks
        gpus, product = count_simulated(graph, system, options), nodes.product
        tiling = fit_rows(product, nodes.tiling or tiling_for(product, gpu, options), ranks)
        if nodes.reduce is None:
            plan = GatherGemm(product, tiling, ranks, options, bool(fabric_of(system).striped)).plan(gpu)
        else:
            gathers = nodes.gather is not None
            plan = GemmScatter(product, tiling, ranks, options, gathers).plan(gpu)
            system = system if gathers else _storing_tiles(system)
        return Lowered(graph.with_tiling(tiling), plan, system, gpus)


def _storing_tiles(system: System) -> System:
    """The system as fused kernels of one node see it, which store tiles at their owners and go on with the next tile.

    The loop of stores limits their rate, whatever the links (`flux.store_rate` in `kernels/library/software.toml`). No
    such software exists for a machine without a vendor.
    """
    if system.nodes > 1 or system.gpu.vendor == "none":
        return system
    link = ring_link(system)
    slower = slow_links(system, min(costs()["flux.store_rate"] / (link.bandwidth * link.kernel_efficiency), 1.0))
    return change_links(slower, lambda own: {"store_buffer": _UNLIMITED})


@dataclass(frozen=True)
class GatherGemm(GatheredPair):
    """C = gather(A) x B in one GEMM, whose tiles wait for their rows of A, chunk by chunk.

    With `at_once` each peer's copy has a stream of its own, for GPUs with a link to each peer (as
    ByteDance-Seed/Triton-distributed @57d36b2 does on AMD's).
    """

    at_once: bool = False

    def _tiles(self) -> Work:
        work = super()._tiles()
        if self.at_once:  # a piece of every peer at a time, after the GPU's own
            peer, piece = np.divmod(work[:, y.WORK_LANE], self._pieces)
            work = work[np.lexsort((peer, piece, peer > 0))]
        return store_in_order(work)

    def plan(self, gpu: Gpu) -> Plan:
        """Return the waiting GEMM in one stream, the copies in others."""
        work, pieces = self._tiles(), self._pieces
        work[work[:, y.WORK_LANE] < pieces, y.WORK_LANE] = y.NONE  # the GPU's own rows need no copy
        copies, buffers = self._copies(gpu)
        # The GEMM comes first, so that the counters of the pieces that it waits for are in their order.
        product = PlacedKernel(self._product(gpu, Wait("a", None)), stream=1, operator="gemm")
        return self._plan(gpu, (product, *copies), buffers, work)

    def _copies(self, gpu: Gpu) -> tuple[list[PlacedKernel], tuple[Buffer, ...]]:
        """Copies of the GPU's own pieces to every peer, nearest first, and all buffers."""
        pieces, data = self._pieces, self._data()
        copies = [
            PlacedKernel(
                copy_kernel("sends", peer, range(peer * pieces, (peer + 1) * pieces)),
                after=() if self.at_once or peer == 0 else (peer,),
                operator="all_gather",
            )
            for peer in self._peers
        ]
        size = data[0].sizes[0][0]
        pushes = tuple(
            ChunkRule(dma=DmaMap("a", (peer + 1) * pieces + piece, False, "all_gather", peer + 1))
            for peer in self._peers
            for piece in range(pieces)
        )
        offsets = tuple(piece * size for piece in range(pieces)) * len(self._peers)
        sends = Buffer("sends", ((size,) * len(pushes),), pushes, within=("a", 0), offsets=(offsets,))
        return copies, (*data, sends)


@dataclass(frozen=True)
class GemmScatter(JoinedPair):
    """C = scatter(sum of A x B over GPUs): tiles are stored at the GPU that owns their rows, which adds them up.

    The rows are dealt to `ranks` owners, the GPU itself last. With `gathers` a ring all-gather follows, so that every
    GPU has all of C.
    """

    gathers: bool = False

    def plan(self, gpu: Gpu) -> Plan:
        """Return the GEMM with remote stores, then the kernel that adds."""
        work = self._chunked_tiles()
        work[:, y.WORK_REGION] = work[:, y.WORK_LANE]
        part = len(work) // self.ranks
        offsets = np.cumsum(work[:part, y.WORK_BYTES]) - work[:part, y.WORK_BYTES]
        work[:, y.WORK_OFFSET] = np.tile(offsets, self.ranks)
        sources = (("output", self.ranks - 1), *(("partials", p) for p in self._peers))
        add = sum_kernel("reduce_scatter", sources, gpu, RING, self.gemm.output_element_bytes)
        arrivals = tuple(Wait("partials", p) for p in self._peers)
        kernels = [
            PlacedKernel(self._product(gpu), operator="gemm"),
            PlacedKernel(add, after=(0,), after_chunks=arrivals, operator="reduce_scatter"),
        ]
        if self.gathers:
            gather = gather_kernel(self.ranks, gpu, RING, own=("result", 0))
            kernels.append(PlacedKernel(gather, after=(1,), operator="all_gather"))
        return self._plan(gpu, kernels, self._buffers(), work)

    def _buffers(self) -> list[Buffer]:
        chunk = self.gemm.output_bytes // self.ranks
        chunks = ((chunk,) * self.ranks,)
        remote = (RemoteMap("partials", p, False, "reduce_scatter", p + 1) for p in self._peers)
        buffers = [
            *operands(self.gemm, self.tiling),
            Buffer("output", chunks, (*(ChunkRule(remote=there) for there in remote), PLAIN_STORE)),
            Buffer("partials", (chunks[0][1:],)),
            Buffer("result", ((chunk,),)),
        ]
        if self.gathers:
            buffers.append(Buffer("gathered", chunks, forward_rules("gathered", "all_gather", self.ranks)))
        return buffers
