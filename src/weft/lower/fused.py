"""GEMM and collective as one kernel each, or in pieces on several streams.

`GatherGemm` is an all-gather before a GEMM, `GemmScatter` a reduce-scatter behind one, as Flux (arXiv:2406.06858) does
them: the all-gather's chunks are copied by DMA engines, nearest peer first, and a tile begins when its chunk is there;
a finished tile is stored into its owner's memory, who adds up what came from all GPUs at the end.

`ChunkedGather` and `ChunkedScatter` are what TransformerEngine's userbuffers do: the all-gather goes around a ring of
copies, and every chunk has a GEMM of its own; or the GEMM is split, and each part's reduce-scatter runs beside the next
part, with priority.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from weft.engine import layout as y
from weft.errors import InputError
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels import (
    GemmTiling,
    RingTiling,
    gather_kernel,
    gemm_kernel,
    operand_sizes,
    operands,
    sum_kernel,
    tile_table,
)
from weft.kernels.ring import forwarded
from weft.lower.fit import check_whole
from weft.options import SUSTAINED, RunOptions
from weft.program import (
    Buffer,
    ChunkRule,
    Command,
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
from weft.program.plan import CACHED_STORE, PLAIN_STORE, Work


def chunked_tiles(gemm: Gemm, tiling: GemmTiling, ranks: int) -> Work:
    """The output tiles, chunk of rows by chunk of rows; a tile's lane is its chunk.

    Raises InputError where the rows do not make `ranks` equal chunks of whole tiles, or K is cut.
    """
    check_whole(tiling)
    if gemm.m % ranks or gemm.m // ranks % tiling.rows:
        raise InputError(
            f"{gemm.m} rows over {ranks} GPUs are not chunks of whole tiles of {tiling.rows} rows; "
            "choose a smaller tile or other dimensions"
        )
    part = tile_table(replace(gemm, m=gemm.m // ranks), tiling, 1)
    work = np.concatenate([part] * ranks)
    chunk = np.repeat(np.arange(ranks), len(part))
    work[:, y.WORK_ROW] += chunk * (gemm.m // ranks // tiling.rows)
    work[:, y.WORK_TILE] = np.arange(len(work))
    work[:, y.WORK_LANE] = chunk
    return work


def fitting(gemm: Gemm, tiling: GemmTiling, ranks: int) -> GemmTiling:
    """The tiling, turned on its side or halved in rows until its tiles cut a GPU's share of the rows evenly."""
    rows, columns = tiling.rows, tiling.columns
    if gemm.m // ranks % rows and gemm.m // ranks % columns == 0:
        rows, columns = columns, rows
    while gemm.m // ranks % rows and rows > 16:
        rows //= 2
    return replace(tiling, rows=rows, columns=columns)


@dataclass(frozen=True)
class GatherGemm:
    """C = gather(A) x B: every GPU holds 1/`ranks` of A's rows; copies bring the others' while the GEMM runs.

    `gemm` is what one GPU computes. `at_once` copies to every peer in a
    stream of its own, as where a link leads to each (ByteDance-Seed/Triton-distributed @57d36b2 on AMD's GPUs).
    """

    gemm: Gemm
    tiling: GemmTiling
    ranks: int
    options: RunOptions = SUSTAINED
    at_once: bool = False

    def plan(self, gpu: Gpu, gpus: int = 1) -> Plan:
        """The copies in one stream or in one for each peer, the waiting GEMM in another."""
        work = chunked_tiles(self.gemm, self.tiling, self.ranks)
        work[work[:, y.WORK_LANE] == 0, y.WORK_LANE] = y.NONE  # one's own rows are there from the beginning
        work[:, y.WORK_OFFSET] = np.cumsum(work[:, y.WORK_BYTES]) - work[:, y.WORK_BYTES]
        copies = [
            PlacedKernel(
                copy_kernel("sends", distance - 1),
                after=() if self.at_once or distance == 1 else (distance - 2,),
                operator="all_gather",
            )
            for distance in range(1, self.ranks)
        ]
        return Plan(
            kernels=(*copies, PlacedKernel(self._waiting(gpu), stream=1, operator="gemm")),
            buffers=self._buffers(gpus),
            work=(work,) * gpus,
            wavefronts=self.tiling.wavefronts(gpu),
        )

    def _waiting(self, gpu: Gpu) -> Kernel:
        kernel = gemm_kernel(self.gemm, gpu, self.tiling, self.options)
        main, *rest = kernel.phases
        load_a, load_b = main.loads
        loads = (replace(load_a, position=None), load_b)
        return replace(kernel, phases=(replace(main, loads=loads, wait=Wait("a", None)), *rest))

    def _buffers(self, gpus: int) -> tuple[Buffer, ...]:
        size_a, size_b = operand_sizes(self.gemm, self.tiling)
        chunk = size_a // self.ranks
        pushes = tuple(
            ChunkRule(dma=DmaMap("a", distance, False, "all_gather", distance)) for distance in range(1, self.ranks)
        )
        return (
            Buffer("a", ((chunk,) * self.ranks,) * gpus),
            Buffer("b", ((size_b,),) * gpus),
            Buffer("output", ((self.gemm.output_bytes,),) * gpus, (CACHED_STORE,)),
            Buffer("sends", ((chunk,) * (self.ranks - 1),) * gpus, pushes, within=("a", 0)),
        )


@dataclass(frozen=True)
class GemmScatter:
    """C = scatter(sum of A x B over GPUs): tiles are stored at the GPU that owns their rows, which then adds them up.

    `gemm` is what one GPU computes; its rows are dealt to `ranks` owners, its own last. With `gathers`
    a ring all-gather follows, so that every GPU has all of C.
    """

    gemm: Gemm
    tiling: GemmTiling
    ranks: int
    options: RunOptions = SUSTAINED
    gathers: bool = False
    ring: RingTiling = field(default_factory=RingTiling)

    def plan(self, gpu: Gpu, gpus: int = 1) -> Plan:
        """The GEMM whose stores leave, then the kernel that adds."""
        work = chunked_tiles(self.gemm, self.tiling, self.ranks)
        work[:, y.WORK_REGION] = work[:, y.WORK_LANE]
        part = len(work) // self.ranks
        offsets = np.cumsum(work[:part, y.WORK_BYTES]) - work[:part, y.WORK_BYTES]
        work[:, y.WORK_OFFSET] = np.tile(offsets, self.ranks)
        peers = range(self.ranks - 1)
        arrivals = tuple(Wait("partials", position) for position in peers)
        sources = (("output", self.ranks - 1), *(("partials", p) for p in peers))
        add = sum_kernel("reduce_scatter", sources, gpu, self.ring, self.gemm.output_element_bytes)
        gather: list[PlacedKernel] = []
        if self.gathers:
            kernel = gather_kernel(self.ranks, gpu, self.ring, own=("result", 0))
            gather.append(PlacedKernel(kernel, after=(1,), operator="all_gather"))
        return Plan(
            kernels=(
                PlacedKernel(gemm_kernel(self.gemm, gpu, self.tiling, self.options), operator="gemm"),
                PlacedKernel(add, after=(0,), after_chunks=arrivals, operator="reduce_scatter"),
                *gather,
            ),
            buffers=self._buffers(gpus),
            work=(work,) * gpus,
            wavefronts=self.tiling.wavefronts(gpu),
        )

    @property
    def _chunk(self) -> int:
        return self.gemm.output_bytes // self.ranks

    def _buffers(self, gpus: int) -> tuple[Buffer, ...]:
        peers = range(self.ranks - 1)
        stores = (
            *(ChunkRule(remote=RemoteMap("partials", p, False, "reduce_scatter", p + 1)) for p in peers),
            PLAIN_STORE,
        )
        chunks = ((self._chunk,) * self.ranks,) * gpus
        gathered = Buffer("gathered", chunks, forwarded("gathered", "all_gather", self.ranks))
        return (
            *operands(self.gemm, self.tiling, gpus),
            Buffer("output", chunks, stores),
            Buffer("partials", ((self._chunk,) * (self.ranks - 1),) * gpus),
            Buffer("result", ((self._chunk,),) * gpus),
            *([gathered] * self.gathers),
        )


def copy_kernel(buffer: str, position: int) -> Kernel:
    """One chunk sent by a DMA engine, as an entry of a stream."""
    return Kernel(f"copy {position}", 0, 0, 0, 0, (), copies=(Command(((buffer, position),)),))


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
            part = (p * tiles, (p + 1) * tiles)
            chunk = replace(kernel, name=f"gemm {p}", workgroups=tiles, part=part, phases=(whole, *rest))
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
            load = self._load("output", split, peer * self._share)
            store = Store("outgoing", "reduce_scatter", split * (self.ranks - 1) + peer, self.piece, self.piece)
            phases.append(Phase(-(-self._share // self.piece), 4, 0, (load,), store, shared=True))
        return self._communication(f"send {split}", phases)

    def _adding(self, gpu: Gpu, split: int) -> Kernel:
        peers = self.ranks - 1
        own = self._load("output", split, peers * self._share)
        others = (self._load("partials", split * peers + p) for p in range(peers))
        cycles = peers * self.piece / self.gemm.output_element_bytes / gpu.compute.vector_flops_per_clock
        store = Store("result", "reduce_scatter", split, self.piece, self.piece)
        phase = Phase(-(-self._share // self.piece), 4, cycles, (own, *others), store, shared=True)
        return self._communication(f"add {split}", [phase])

    @property
    def _share(self) -> int:
        """An owner's share of a part [bytes]."""
        return self.gemm.output_bytes // SPLITS // self.ranks

    def _load(self, buffer: str, position: int, offset: int = 0) -> Load:
        piece = self.piece
        return Load(buffer, position, piece, piece, "reduce_scatter", step_stride=piece, offset=offset)

    @staticmethod
    def _communication(name: str, phases: list[Phase]) -> Kernel:
        return Kernel(name, COMMUNICATION_WORKGROUPS, 512, 512 * 64 * 4, 0, tuple(phases))
