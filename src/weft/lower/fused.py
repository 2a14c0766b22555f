"""GEMM and collective as one kernel each, or in pieces on several streams.

`GatherGemm` is an all-gather before a GEMM, `GemmScatter` a reduce-scatter after one, as in Flux (arXiv:2406.06858):
DMA engines copy the all-gather's chunks, nearest peer first, and a tile begins when its chunk has arrived; a finished
tile is stored into its owner's memory, and the owner adds up the tiles of all GPUs at the end.

`ChunkedGather` and `ChunkedScatter` follow TransformerEngine's userbuffers: the all-gather goes around a ring of
copies, and every chunk has a GEMM of its own; or the GEMM is split, and each part's reduce-scatter runs beside the next
part, with priority.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from weft.engine import layout as y
from weft.errors import InputError
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels import (
    GemmTiling,
    gather_kernel,
    gemm_kernel,
    operand_sizes,
    operands,
    sum_kernel,
    tile_table,
)
from weft.kernels.ring import RING, forwarded
from weft.library.software import COPY_STREAMS, SPLITS, WORKGROUPS
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

PIECE = 16 * 1024
"""Bytes per iteration of the kernels that reduce and scatter [assumed]."""


def fitting(gemm: Gemm, tiling: GemmTiling, ranks: int) -> GemmTiling:
    """The tiling, transposed or halved in rows until whole tiles make up a GPU's share of the rows."""
    rows, columns = tiling.rows, tiling.columns
    if gemm.m // ranks % rows and gemm.m // ranks % columns == 0:
        rows, columns = columns, rows
    while gemm.m // ranks % rows and rows > 16:
        rows //= 2
    return replace(tiling, rows=rows, columns=columns)


@dataclass(frozen=True)
class _Joined:
    """A GEMM and a collective of its input or output among `ranks` GPUs; `gemm` is the whole work of one GPU."""

    gemm: Gemm
    tiling: GemmTiling
    ranks: int
    options: RunOptions = SUSTAINED

    @property
    def _peers(self) -> range:
        return range(self.ranks - 1)

    def _product(self, gpu: Gpu) -> Kernel:
        return gemm_kernel(self.gemm, gpu, self.tiling, self.options)

    def _plan(self, gpu: Gpu, kernels: Iterable[PlacedKernel], buffers: Iterable[Buffer], work: Work) -> Plan:
        return Plan(tuple(kernels), tuple(buffers), (work,), self.tiling.wavefronts(gpu))

    def _chunked_tiles(self) -> Work:
        """The output tiles, chunk of rows by chunk of rows; a tile's lane is its chunk.

        Raises InputError where the rows do not make `ranks` equal chunks of whole tiles, or K is cut.
        """
        check_whole(self.tiling)
        gemm, ranks, rows = self.gemm, self.ranks, self.tiling.rows
        if gemm.m % ranks or gemm.m // ranks % rows:
            raise InputError(
                f"{gemm.m} rows over {ranks} GPUs are not chunks of whole tiles of {rows} rows; "
                "choose a smaller tile or other dimensions"
            )
        work, chunk = _repeated(replace(gemm, m=gemm.m // ranks), self.tiling, ranks)
        work[:, y.WORK_LANE] = chunk
        return work


def _repeated(part: Gemm, tiling: GemmTiling, parts: int) -> tuple[Work, Work]:
    """The tiles of a GEMM in `parts` equal parts of rows, part by part, and the part of each tile."""
    tiles = tile_table(part, tiling, 1)
    work, of_part = np.concatenate([tiles] * parts), np.repeat(np.arange(parts), len(tiles))
    work[:, y.WORK_ROW] += of_part * tiling.grid(part)[0]
    work[:, y.WORK_TILE] = np.arange(len(work))
    return work, of_part


def _in_parts(kernel: Kernel, parts: int, tiles: int, row: int, stream: int) -> list[PlacedKernel]:
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


def copy_kernel(buffer: str, position: int) -> Kernel:
    """One chunk sent by a DMA engine, as an entry of a stream."""
    return Kernel(f"copy {position}", 0, 0, 0, 0, (), copies=(Command(((buffer, position),)),))


class _Gathered(_Joined):
    """C = gather(A) x B: every GPU starts with 1/`ranks` of A's rows and receives the others by copies."""

    def _tiles(self) -> Work:
        work = self._chunked_tiles()
        work[:, y.WORK_OFFSET] = np.cumsum(work[:, y.WORK_BYTES]) - work[:, y.WORK_BYTES]
        return work

    def _product(self, gpu: Gpu, wait: Wait | None = None) -> Kernel:
        """The GEMM, whose operand A is all chunks of a buffer, and whose workgroups start after `wait`."""
        kernel = super()._product(gpu)
        main, *rest = kernel.phases
        load_a, load_b = main.loads
        main = replace(main, loads=(replace(load_a, position=None), load_b), wait=wait)
        return replace(kernel, phases=(main, *rest))

    def _data(self, rules: tuple[ChunkRule, ...] = ()) -> tuple[Buffer, ...]:
        size_a, size_b = operand_sizes(self.gemm, self.tiling)
        return (
            Buffer("a", ((size_a // self.ranks,) * self.ranks,), rules),
            Buffer("b", ((size_b,),)),
            Buffer("output", ((self.gemm.output_bytes,),), (CACHED_STORE,)),
        )


@dataclass(frozen=True)
class GatherGemm(_Gathered):
    """C = gather(A) x B in one GEMM, whose tiles wait for their rows of A.

    With `at_once` each peer's copy has a stream of its own, for GPUs with a link to each peer (as
    ByteDance-Seed/Triton-distributed @57d36b2 does on AMD's).
    """

    at_once: bool = False

    def plan(self, gpu: Gpu) -> Plan:
        """The copies in one stream or in one for each peer, the waiting GEMM in another."""
        work = self._tiles()
        work[work[:, y.WORK_LANE] == 0, y.WORK_LANE] = y.NONE  # the GPU's own rows need no copy
        copies = [
            PlacedKernel(
                copy_kernel("sends", peer),
                after=() if self.at_once or peer == 0 else (peer - 1,),
                operator="all_gather",
            )
            for peer in self._peers
        ]
        product = PlacedKernel(self._product(gpu, Wait("a", None)), stream=1, operator="gemm")
        data = self._data()
        pushes = tuple(ChunkRule(dma=DmaMap("a", peer + 1, False, "all_gather", peer + 1)) for peer in self._peers)
        sends = Buffer("sends", (data[0].sizes[0][1:],), pushes, within=("a", 0))
        return self._plan(gpu, (*copies, product), (*data, sends), work)


@dataclass(frozen=True)
class ChunkedGather(_Gathered):
    """C = gather(A) x B: each chunk of A's rows is forwarded by copy when it arrives, and has its own GEMM."""

    def plan(self, gpu: Gpu) -> Plan:
        """A stream of copies around the ring and `COPY_STREAMS` streams of chunk GEMMs."""
        work = self._tiles()
        copies = [
            PlacedKernel(copy_kernel("a", p), after=(p - 1,) if p else (), operator="all_gather", iteration=p)
            for p in self._peers
        ]
        products = _in_parts(self._product(gpu), self.ranks, len(work) // self.ranks, len(copies), 1)
        kernels = (
            replace(placed, after_chunks=(Wait("a", placed.iteration),)) if placed.iteration else placed
            for placed in (*copies, *products)
        )
        passing = tuple(ChunkRule(dma=DmaMap("a", p + 1, False, "all_gather")) for p in self._peers)
        return self._plan(gpu, kernels, self._data((*passing, PLAIN_STORE)), work)


@dataclass(frozen=True)
class GemmScatter(_Joined):
    """C = scatter(sum of A x B over GPUs): tiles are stored at the GPU that owns their rows, which adds them up.

    The rows are dealt to `ranks` owners, the GPU itself last. With `gathers` a ring all-gather follows, so that every
    GPU has all of C.
    """

    gathers: bool = False

    def plan(self, gpu: Gpu) -> Plan:
        """The GEMM with remote stores, then the kernel that adds."""
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
            buffers.append(Buffer("gathered", chunks, forwarded("gathered", "all_gather", self.ranks)))
        return buffers


@dataclass(frozen=True)
class ChunkedScatter(_Joined):
    """C = scatter(sum of A x B over GPUs): a part's reduce-scatter runs beside the next part's GEMM."""

    def plan(self, gpu: Gpu) -> Plan:
        """`SPLITS` GEMMs, each followed by a kernel that sends and one that adds."""
        check_whole(self.tiling)
        part = replace(self.gemm, m=-(-self.gemm.m // SPLITS))
        work, of_part = _repeated(part, self.tiling, SPLITS)
        work[:, y.WORK_REGION] = of_part
        kernels = _in_parts(self._product(gpu), SPLITS, len(work) // SPLITS, 0, 0)
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
        """The position of a peer's share of one part."""
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
        """A kernel that reads the GPU's own output of a part, peer by peer, and stores it at its owner."""
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

    def _load(self, buffer: str, position: int, offset: int = 0) -> Load:
        return Load(buffer, position, "reduce_scatter", PIECE, offset=offset)

    def _phase(self, loads: list[Load], buffer: str, position: int, cycles: float = 0) -> Phase:
        store = Store(buffer, position, "reduce_scatter", PIECE)
        return Phase(-(-self._share // PIECE), 4, cycles, tuple(loads), (store,), shared=True)

    @staticmethod
    def _communication(name: str, *phases: Phase) -> Kernel:
        return Kernel(name, WORKGROUPS, 512, 512 * 64 * 4, 0, phases)
