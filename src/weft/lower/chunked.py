"""GEMM and collective in pieces on several streams, as TransformerEngine's userbuffers do them.

`ChunkedGather`: the all-gather goes around a ring of copies, and every chunk has a GEMM of its own.
`ChunkedScatter`: the GEMM is split, and each part's reduce-scatter runs beside the next part, with priority.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from weft.engine import layout as y
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels import GemmTiling, gemm_kernel, operand_sizes, operands, tile_table
from weft.lower.fit import check_whole
from weft.lower.flux import chunked_tiles, copy_kernel
from weft.options import SUSTAINED, RunOptions
from weft.program import (
    Buffer,
    ChunkRule,
    DmaMap,
    Kernel,
    Load,
    Phase,
    PlacedKernel,
    Plan,
    RemoteMap,
    Store,
    Wait,
)
from weft.program.plan import CACHED_STORE, PLAIN_STORE

STREAMS = 3
"""Streams that a library's chunk GEMMs go round (TransformerEngine, comm_gemm_overlap)."""
SPLITS = 4
"""Parts that a GEMM before a reduce-scatter is cut into (the same)."""
COMMUNICATION_WORKGROUPS = 16
"""Workgroups of the kernels that reduce and scatter; they come first where a compute unit gets free (the same)."""


@dataclass(frozen=True)
class ChunkedGather:
    """C = gather(A) x B: a chunk of rows is sent on by copy as soon as it is there, and multiplied by its own GEMM.

    `gemm` is what one GPU computes in all.
    """

    gemm: Gemm
    tiling: GemmTiling
    ranks: int
    options: RunOptions = SUSTAINED

    def plan(self, gpu: Gpu, gpus: int = 1) -> Plan:
        """A stream of copies around the ring and `STREAMS` streams of chunk GEMMs."""
        work = chunked_tiles(self.gemm, self.tiling, self.ranks)
        work[:, y.WORK_OFFSET] = np.cumsum(work[:, y.WORK_BYTES]) - work[:, y.WORK_BYTES]
        size_a, size_b = operand_sizes(self.gemm, self.tiling)
        chunk = size_a // self.ranks
        passing = tuple(ChunkRule(dma=DmaMap("a", p + 1, False, "all_gather")) for p in range(self.ranks - 1))
        return Plan(
            kernels=(*self._copies(), *self._gemms(gpu, len(work) // self.ranks)),
            buffers=(
                Buffer("a", ((chunk,) * self.ranks,) * gpus, (*passing, PLAIN_STORE)),
                Buffer("b", ((size_b,),) * gpus),
                Buffer("output", ((self.gemm.output_bytes,),) * gpus, (CACHED_STORE,)),
            ),
            work=(work,) * gpus,
            wavefronts=self.tiling.wavefronts(gpu),
        )

    def _copies(self) -> list[PlacedKernel]:
        return [
            PlacedKernel(
                copy_kernel("a", p),
                after=(p - 1,) if p else (),
                after_chunks=(Wait("a", p),) if p else (),
                operator="all_gather",
                iteration=p,
            )
            for p in range(self.ranks - 1)
        ]

    def _gemms(self, gpu: Gpu, tiles: int) -> list[PlacedKernel]:
        kernel = gemm_kernel(self.gemm, gpu, self.tiling, self.options)
        main, *rest = kernel.phases
        whole = replace(main, loads=(replace(main.loads[0], position=None), main.loads[1]))
        placed, copies = [], self.ranks - 1
        for p in range(self.ranks):
            chunk = replace(
                kernel,
                name=f"gemm {p}",
                workgroups=tiles,
                part=(p * tiles, (p + 1) * tiles),
                phases=(whole, *rest),
            )
            placed.append(
                PlacedKernel(
                    chunk,
                    after=(copies + p - STREAMS,) if p >= STREAMS else (),
                    after_chunks=(Wait("a", p),) if p else (),
                    stream=1 + p % STREAMS,
                    operator="gemm",
                    iteration=p,
                )
            )
        return placed


@dataclass(frozen=True)
class ChunkedScatter:
    """C = scatter(sum of A x B over GPUs): the reduce-scatter of one part of the rows runs beside the GEMM of the next.

    `gemm` is what one GPU computes in all.
    """

    gemm: Gemm
    tiling: GemmTiling
    ranks: int
    options: RunOptions = SUSTAINED
    piece: int = 16 * 1024

    def plan(self, gpu: Gpu, gpus: int = 1) -> Plan:
        """`SPLITS` GEMMs; behind each a kernel that sends and one that adds."""
        check_whole(self.tiling)
        part = replace(self.gemm, m=-(-self.gemm.m // SPLITS))
        tiles = tile_table(part, self.tiling, 1)
        work = np.concatenate([tiles] * SPLITS)
        work[:, y.WORK_REGION] = np.repeat(np.arange(SPLITS), len(tiles))
        work[:, y.WORK_ROW] += work[:, y.WORK_REGION] * self.tiling.grid(part)[0]
        work[:, y.WORK_TILE] = np.arange(len(work))
        return Plan(
            kernels=tuple(self._kernels(gpu, len(tiles))),
            buffers=self._buffers(gpus, part.output_bytes),
            work=(work,) * gpus,
            wavefronts=self.tiling.wavefronts(gpu),
        )

    def _kernels(self, gpu: Gpu, tiles: int) -> list[PlacedKernel]:
        kernel = gemm_kernel(self.gemm, gpu, self.tiling, self.options)
        placed = []
        for p in range(SPLITS):
            part = replace(kernel, name=f"gemm {p}", workgroups=tiles, part=(p * tiles, (p + 1) * tiles))
            after = (p - STREAMS,) if p >= STREAMS else ()
            placed.append(PlacedKernel(part, after=after, stream=p % STREAMS, operator="gemm", iteration=p))
        for p in range(SPLITS):
            first = len(placed)
            send = PlacedKernel(self._sending(p), (p,), operator="reduce_scatter", iteration=p)
            add = replace(send, kernel=self._adding(gpu, p), after=(first,), after_chunks=self._arrivals(p))
            placed += [replace(kernel, priority=1, stream=STREAMS) for kernel in (send, add)]
        return placed

    def _arrivals(self, split: int) -> tuple[Wait, ...]:
        first = split * (self.ranks - 1)
        return tuple(Wait("partials", first + p) for p in range(self.ranks - 1))

    def _buffers(self, gpus: int, part: int) -> tuple[Buffer, ...]:
        share, peers = part // self.ranks, self.ranks - 1
        rules = tuple(
            ChunkRule(remote=RemoteMap("partials", p, False, "reduce_scatter", p % peers + 1))
            for p in range(SPLITS * peers)
        )
        return (
            *operands(self.gemm, self.tiling, gpus),
            Buffer("output", ((part,) * SPLITS,) * gpus),
            Buffer("outgoing", ((share,) * (SPLITS * peers),) * gpus, rules),
            Buffer("partials", ((share,) * (SPLITS * peers),) * gpus),
            Buffer("result", ((share,) * SPLITS,) * gpus),
        )

    def _sending(self, split: int) -> Kernel:
        """Read one's own output part, peer by peer, and store it at its owner."""
        phases = []
        for peer in range(self.ranks - 1):
            share = self.gemm.output_bytes // SPLITS // self.ranks
            load = Load(
                "output",
                split,
                self.piece,
                self.piece,
                "reduce_scatter",
                step_stride=self.piece,
                offset=peer * share,
            )
            store = Store("outgoing", "reduce_scatter", split * (self.ranks - 1) + peer, self.piece, self.piece)
            phases.append(Phase(-(-share // self.piece), 4, 0, (load,), store, shared=True))
        return self._communication(f"send {split}", phases)

    def _adding(self, gpu: Gpu, split: int) -> Kernel:
        share = self.gemm.output_bytes // SPLITS // self.ranks
        own = Load(
            "output", split, self.piece, self.piece, "reduce_scatter", step_stride=self.piece,
            offset=(self.ranks - 1) * share,
        )  # fmt: skip
        others = (
            Load(
                "partials",
                split * (self.ranks - 1) + p,
                self.piece,
                self.piece,
                "reduce_scatter",
                step_stride=self.piece,
            )
            for p in range(self.ranks - 1)
        )
        adds = (self.ranks - 1) * self.piece / self.gemm.output_element_bytes
        store = Store("result", "reduce_scatter", split, self.piece, self.piece)
        cycles = adds / gpu.compute.vector_flops_per_clock
        phase = Phase(-(-share // self.piece), 4, cycles, (own, *others), store, shared=True)
        return self._communication(f"add {split}", [phase])

    @staticmethod
    def _communication(name: str, phases: list[Phase]) -> Kernel:
        return Kernel(name, COMMUNICATION_WORKGROUPS, 512, 512 * 64 * 4, 0, tuple(phases))
