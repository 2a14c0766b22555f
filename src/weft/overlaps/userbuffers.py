"""TransformerEngine's userbuffers: chunks of a GEMM beside chunks of its collective, on several streams.

An all-gather goes around a ring of copies, and every chunk has a GEMM of its own. Before a reduce-scatter the GEMM is
split, and each part's reduce-scatter runs concurrently with the next part, with priority.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import (
    Buffer,
    ChunkLoad,
    ChunkRule,
    ChunkStore,
    DmaMap,
    Kernel,
    Phase,
    PlacedKernel,
    Plan,
    RemoteMap,
    Wait,
)
from weft.engine.program.plan import PLAIN_STORE
from weft.graph import FusedChunks, Graph
from weft.graph.choice import Kernel as ChosenKernel
from weft.hardware import Gpu, System
from weft.kernels import operands
from weft.kernels.library.software import COPY_STREAMS, SPLITS, WORKGROUPS
from weft.overlaps.base import OverlapMethod
from weft.overlaps.graphs import Pattern, find_consumed, join_gather, scatter
from weft.overlaps.joined import GatheredPair, JoinedPair, copy_kernel, find_joined, fit_rows, repeat_tiles
from weft.overlaps.lower import Lowered
from weft.overlaps.lower.fit import check_whole, tiling_for
from weft.overlaps.lower.gpus import count_simulated
from weft.overlaps.pairs import PairTimes

PIECE = 16 * 1024
"""Bytes per iteration of the kernels that reduce and scatter [assumed]."""
_COPY_CALLS = 4
"""What the host issues for a rank's share: the GEMM, a send, a receive, and an event."""
_SPLIT_CALLS = 3
"""What the host issues for a part of a GEMM: the GEMM, an event, and the reduce-scatter."""


@dataclass(frozen=True)
class Userbuffers(OverlapMethod):
    """A GEMM per rank's share before an all-gather, or parts of a GEMM before reduce-scatters, on several streams."""

    name: str = "userbuffers"
    title: str = "Userbuffers"
    summary: str = "chunks of the GEMM and of the collective on several streams (TransformerEngine's userbuffers)"

    joins: ClassVar[str] = "chunks of a GEMM and its collective"
    patterns: ClassVar[tuple[Pattern, ...]] = ("ag_gemm", "gemm_rs", "tp")
    kernels: ClassVar[tuple[type[ChosenKernel], ...]] = (FusedChunks,)
    closed_forms: ClassVar[tuple[Pattern, ...]] = patterns

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return both nodes, joined by tiles."""
        self.check(graph)
        pair = find_consumed(graph)
        return scatter(graph, FusedChunks(), by="tile") if pair is None else join_gather(graph, FusedChunks())

    def estimate(self, pair: PairTimes, costs: Mapping[str, float]) -> Any:
        """Return the time of copies around a ring beside GEMMs on three streams, or of parts and reduce-scatters.

        A reduce-scatter takes compute units off the GEMM while it runs and is exposed after the last part.
        """
        scatters, copy = np.asarray(pair.scatters, dtype=np.bool_), pair.copy / costs["userbuffers.copy_share"]
        computed = pair.ranks * np.maximum(pair.piece / COPY_STREAMS, pair.gemm / pair.ranks) + copy
        gathered = np.maximum(computed, (pair.ranks - 1) * copy + pair.piece)
        moved = pair.collective + pair.added
        part = np.maximum(pair.gemm / SPLITS, pair.piece)  # a rank's share of the rows takes no longer than a part
        slowed = SPLITS * part + pair.taken * moved
        scattered = np.maximum(slowed + moved / SPLITS, part + moved)
        device = np.where(scatters, scattered, gathered)
        device = np.where(np.isfinite(pair.simulated), pair.simulated, device)
        calls = np.where(scatters, _SPLIT_CALLS * SPLITS, _COPY_CALLS * pair.ranks)
        issued = calls * costs["userbuffers.issue"]
        return np.where(pair.framework, np.maximum(device, issued) + costs["userbuffers.start"], device)

    def lower_joined(self, graph: Graph, system: System, options: RunOptions) -> Lowered:
        """Return the plan of chunks on several streams."""
        nodes, gpu, ranks = find_joined(graph), system.gpu, graph.ranks
        gpus, product = count_simulated(graph, system, options), nodes.product
        if nodes.reduce is None:
            cut = replace(product, m=product.m // ranks)
            tiling = fit_rows(product, nodes.tiling or tiling_for(cut, gpu, options), ranks)
            plan = ChunkedGather(product, tiling, ranks, options).plan(gpu)
        else:
            tiling = nodes.tiling or tiling_for(replace(product, m=-(-product.m // SPLITS)), gpu, options)
            plan = ChunkedScatter(product, tiling, ranks, options).plan(gpu)
        return Lowered(graph.with_tiling(tiling), plan, system, gpus)


@dataclass(frozen=True)
class ChunkedGather(GatheredPair):
    """C = gather(A) x B: each chunk of A's rows is forwarded by copy when it arrives, and has its own GEMM."""

    def plan(self, gpu: Gpu) -> Plan:
        """Return a stream of copies around the ring and `COPY_STREAMS` streams of chunk GEMMs."""
        work = self._tiles()
        copies = [
            PlacedKernel(copy_kernel("a", p, (p,)), after=(p - 1,) if p else (), operator="all_gather", iteration=p)
            for p in self._peers
        ]
        products = _deal_parts(self._product(gpu), self.ranks, len(work) // self.ranks, len(copies), 1)
        kernels = (
            replace(placed, after_chunks=(Wait("a", placed.iteration),)) if placed.iteration else placed
            for placed in (*copies, *products)
        )
        passing = tuple(ChunkRule(dma=DmaMap("a", p + 1, False, "all_gather")) for p in self._peers)
        return self._plan(gpu, kernels, self._data((*passing, PLAIN_STORE)), work)


@dataclass(frozen=True)
class ChunkedScatter(JoinedPair):
    """C = scatter(sum of A x B over GPUs): a part's reduce-scatter runs concurrently with the next part's GEMM."""

    def plan(self, gpu: Gpu) -> Plan:
        """`SPLITS` GEMMs, each followed by a kernel that sends and one that adds."""
        check_whole(self.tiling)
        part = replace(self.gemm, m=-(-self.gemm.m // SPLITS))
        work, of_part = repeat_tiles(part, self.tiling, SPLITS)
        work[:, y.WORK_REGION] = of_part
        kernels = _deal_parts(self._product(gpu), SPLITS, len(work) // SPLITS, 0, 0)
        for p in range(SPLITS):
            arrivals = tuple(Wait("partials", self._chunk(p, peer)) for peer in self._peers)
            for kernel, after, chunks in (
                (self._sending(p), p, ()),
                (self._adding(gpu, p), len(kernels), arrivals),
            ):
                kernels.append(
                    PlacedKernel(
                        kernel, (after,), chunks, 1, stream=COPY_STREAMS, operator="reduce_scatter", iteration=p
                    )
                )
        return self._plan(gpu, kernels, self._buffers(part.output_bytes), work)

    def _chunk(self, split: int, peer: int) -> int:
        """Return the position of a peer's share of one part."""
        return split * (self.ranks - 1) + peer

    def _buffers(self, part: int) -> tuple[Buffer, ...]:
        shares = ((part // self.ranks,) * SPLITS * (self.ranks - 1),)
        rules = tuple(
            ChunkRule(remote=RemoteMap("partials", self._chunk(split, peer), False, "reduce_scatter", peer + 1))
            for split in range(SPLITS)
            for peer in self._peers
        )
        return (
            *operands(self.gemm, self.tiling),
            Buffer("output", ((part,) * SPLITS,)),
            Buffer("outgoing", shares, rules),
            Buffer("partials", shares),
            Buffer("result", ((part // self.ranks,) * SPLITS,)),
        )

    def _sending(self, split: int) -> Kernel:
        """Return a kernel that reads the GPU's own output of a part, peer by peer, and stores it at its owner."""
        phases = (
            self._phase([self._load("output", split, peer * self._share)], "outgoing", self._chunk(split, peer))
            for peer in self._peers
        )
        return self._communication(f"send {split}", *phases)

    def _adding(self, gpu: Gpu, split: int) -> Kernel:
        own = self._load("output", split, (self.ranks - 1) * self._share)
        others = [self._load("partials", self._chunk(split, peer)) for peer in self._peers]
        cycles = len(others) * PIECE / self.gemm.output_element_bytes / gpu.compute.vector_flops_per_clock
        return self._communication(f"add {split}", self._phase([own, *others], "result", split, cycles))

    @property
    def _share(self) -> int:
        """Size of an owner's share of a part [bytes]."""
        return self.gemm.output_bytes // SPLITS // self.ranks

    def _load(self, buffer: str, position: int, offset: int = 0) -> ChunkLoad:
        return ChunkLoad(buffer, position, "reduce_scatter", PIECE, offset=offset)

    def _phase(self, loads: list[ChunkLoad], buffer: str, position: int, cycles: float = 0) -> Phase:
        store = ChunkStore(buffer, position, "reduce_scatter", PIECE)
        return Phase(-(-self._share // PIECE), 4, cycles, tuple(loads), (store,), shared=True)

    @staticmethod
    def _communication(name: str, *phases: Phase) -> Kernel:
        return Kernel(name, WORKGROUPS, 512, 512 * 64 * 4, 0, phases)


def _deal_parts(kernel: Kernel, parts: int, tiles: int, row: int, stream: int) -> list[PlacedKernel]:
    """A GEMM as `parts` kernels of `tiles` tiles each, dealt to streams; the first is in row `row` and `stream`."""
    return [
        PlacedKernel(
            replace(kernel, name=f"gemm {p}", workgroups=tiles, part=(p * tiles, (p + 1) * tiles)),
            after=(row + p - COPY_STREAMS,) if p >= COPY_STREAMS else (),
            stream=stream + p % COPY_STREAMS,
            operator="gemm",
            iteration=p,
        )
        for p in range(parts)
    ]
