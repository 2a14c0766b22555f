"""GEMM and collective as one kernel each, or in pieces on several streams.

`GatherGemm` is an all-gather before a GEMM, `GemmScatter` a reduce-scatter after one, as in Flux (arXiv:2406.06858):
DMA engines copy the all-gather's chunks, nearest peer first, and a tile begins when its chunk has arrived; a finished
tile is stored into its owner's memory, and the owner adds up the tiles of all GPUs at the end.

`ChunkedGather` and `ChunkedScatter` follow TransformerEngine's userbuffers: the all-gather goes around a ring of
copies, and every chunk has a GEMM of its own; or the GEMM is split, and each part's reduce-scatter runs beside the next
part, with priority.

`LoadingGemm` copies nothing: tiles load the rows of other GPUs from their memory, through the switch, as in CAIS
(arXiv:2605.05628).
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
from weft.program.plan import CACHED_STORE, PLAIN_STORE, Work, scripts

PIECE = 16 * 1024
"""Bytes per iteration of the kernels that reduce and scatter [assumed]."""
PASSING_ENGINES = 2
"""DMA engines that pass lines on in turn [assumed; 1 to 16]: one is set up while the other one's line is on the link.

With more, lines share the link and come out of the order of the tiles.
"""


def fitting(gemm: Gemm, tiling: GemmTiling, ranks: int) -> GemmTiling:
    """The tiling, transposed or halved in rows until whole tiles make up a GPU's share of the rows.

    Where no half does, the tile has the most rows that are a power of two and make up the share, if these are 16.
    """
    rows, columns, share = tiling.rows, tiling.columns, gemm.m // ranks
    if share % rows and share % columns == 0:
        rows, columns = columns, rows
    while share % rows and rows > 16:
        rows //= 2
    if share % rows and share % 16 == 0:
        rows = min(share & -share, 1 << max(tiling.rows.bit_length() - 1, 4))
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

    def _plan(self, gpu: Gpu, kernels: Iterable[PlacedKernel], buffers: Iterable[Buffer], *work: Work) -> Plan:
        return Plan(tuple(kernels), tuple(buffers), work, self.tiling.wavefronts(gpu))

    def _check_chunks(self) -> None:
        """Raise InputError where the rows do not make `ranks` equal chunks of whole tiles, or K is cut."""
        check_whole(self.tiling)
        gemm, ranks, rows = self.gemm, self.ranks, self.tiling.rows
        if gemm.m % ranks or gemm.m // ranks % rows:
            raise InputError(
                f"{gemm.m} rows over {ranks} GPUs are not chunks of whole tiles of {rows} rows; "
                "choose a smaller tile or other dimensions"
            )

    def _chunked_tiles(self, pieces: int = 1) -> Work:
        """The output tiles, chunk of rows by chunk of rows, each in `pieces`; a tile's lane is its piece.

        Raises InputError where the rows do not make `ranks` equal chunks of whole tiles, or K is cut.
        """
        self._check_chunks()
        gemm, ranks = self.gemm, self.ranks
        work, piece = _repeated(replace(gemm, m=gemm.m // ranks // pieces), self.tiling, ranks * pieces)
        work[:, y.WORK_LANE] = piece
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


def copy_kernel(buffer: str, number: int, positions: Iterable[int]) -> Kernel:
    """Chunks sent one behind the other by a DMA engine, as an entry of a stream with a number."""
    return _copying(number, [Command(tuple((buffer, position) for position in positions))])


def _copying(number: int, commands: Iterable[Command]) -> Kernel:
    """Commands of DMA engines, as an entry of a stream with a number."""
    return Kernel(f"copy {number}", 0, 0, 0, 0, (), copies=tuple(commands))


class _Gathered(_Joined):
    """C = gather(A) x B: every GPU starts with 1/`ranks` of A's rows and receives the others, its own rows first in A.

    A comes in pieces of equal size, `_pieces` of every GPU: whole chunks, if not cut further.
    """

    @property
    def _pieces(self) -> int:
        return 1

    def _tiles(self) -> Work:
        return _stored_in_order(self._chunked_tiles(self._pieces))

    def _product(self, gpu: Gpu, wait: Wait | None = None) -> Kernel:
        """The GEMM, whose operand A is all chunks of a buffer, and whose workgroups start after `wait`."""
        kernel = super()._product(gpu)
        main, *rest = kernel.phases
        load_a, load_b = main.loads
        main = replace(main, loads=(replace(load_a, position=None), load_b), wait=wait)
        return replace(kernel, phases=(main, *rest))

    def _data(self, rules: tuple[ChunkRule, ...] = ()) -> tuple[Buffer, ...]:
        size_a, size_b = operand_sizes(self.gemm, self.tiling)
        pieces = self.ranks * self._pieces
        return (
            Buffer("a", ((size_a // pieces,) * pieces,), rules),
            Buffer("b", ((size_b,),)),
            Buffer("output", ((self.gemm.output_bytes,),), (CACHED_STORE,)),
        )


def _stored_in_order(work: Work) -> Work:
    """Tiles that are stored one behind the other in the order of their rows."""
    work[:, y.WORK_TILE] = np.arange(len(work))
    work[:, y.WORK_OFFSET] = np.cumsum(work[:, y.WORK_BYTES]) - work[:, y.WORK_BYTES]
    return work


@dataclass(frozen=True)
class GatherFirst(_Gathered):
    """C = gather(A) x B in sequence: a ring's kernel on compute units gathers A, then the GEMM runs."""

    def plan(self, gpu: Gpu) -> Plan:
        """The all-gather, then the GEMM, whose tiles run in the order of a GEMM alone."""
        self._check_chunks()
        kernels = (
            PlacedKernel(gather_kernel(self.ranks, gpu, RING, own=("a", 0), buffer="a"), operator="all_gather"),
            PlacedKernel(self._product(gpu), after=(0,), operator="gemm"),
        )
        data = self._data(forwarded("a", "all_gather", self.ranks))
        return self._plan(gpu, kernels, data, tile_table(self.gemm, self.tiling, 1))


@dataclass(frozen=True)
class GatherGemm(_Gathered):
    """C = gather(A) x B in one GEMM, whose tiles wait for their rows of A.

    With `at_once` each peer's copy has a stream of its own, for GPUs with a link to each peer (as
    ByteDance-Seed/Triton-distributed @57d36b2 does on AMD's). Rows are awaited by chunk or, with `lines`, as soon as
    that many tile lines of a chunk have arrived: the tiles run in the order in which these do. With `passed_on` they go
    around the ring: each is sent to the neighbour, which sends it on when it has arrived.
    """

    at_once: bool = False
    lines: int = 0
    passed_on: bool = False

    @property
    def _pieces(self) -> int:
        """Pieces of a chunk; InputError for lines that do not divide a chunk's."""
        of_chunk = self.gemm.m // self.ranks // self.tiling.rows
        if self.lines and of_chunk % self.lines:
            raise InputError(
                f"a chunk of {self.gemm.m // self.ranks} rows has {of_chunk} tile lines of {self.tiling.rows}, which "
                f"{self.lines} at a time do not divide; choose a divisor of {of_chunk}, such as 1"
            )
        return max(of_chunk // self.lines, 1) if self.lines else 1

    def _tiles(self) -> Work:
        work = super()._tiles()
        if self.at_once:  # a piece of every peer at a time, after the GPU's own
            peer, piece = np.divmod(work[:, y.WORK_LANE], self._pieces)
            work = work[np.lexsort((peer, piece, peer > 0))]
        return _stored_in_order(work)

    def plan(self, gpu: Gpu) -> Plan:
        """The waiting GEMM in one stream, the copies in another, or in one for each peer or each piece passed on."""
        work, pieces = self._tiles(), self._pieces
        work[work[:, y.WORK_LANE] < pieces, y.WORK_LANE] = y.NONE  # the GPU's own rows need no copy
        copies, buffers = self._passing(gpu) if self.passed_on else self._pushing()
        # The GEMM comes first, so that the counters of the pieces that it waits for are in their order.
        product = PlacedKernel(self._product(gpu, Wait("a", None)), stream=1, operator="gemm")
        return self._plan(gpu, (product, *copies), buffers, work)

    def _pushing(self) -> tuple[list[PlacedKernel], tuple[Buffer, ...]]:
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

    def _passing(self, gpu: Gpu) -> tuple[list[PlacedKernel], tuple[Buffer, ...]]:
        """The copy of the GPU's own pieces to its neighbour, one for each piece that it passes on, and all buffers.

        The arrival of a piece triggers its copy, without the host.
        """
        pieces, engines = self._pieces, min(PASSING_ENGINES, gpu.dma.engines)
        last = len(self._peers) * pieces
        sends = [Command((("a", p),), engine=p % engines) for p in range(last)]
        own, *others = sends[:pieces], *([send] for send in sends[pieces:])
        copies = [PlacedKernel(_copying(0, own), operator="all_gather")]
        for p, each in enumerate(others, pieces):
            passed = replace(_copying(p, each), completion_fs=0)
            copies.append(PlacedKernel(passed, after_chunks=(Wait("a", p),), operator="all_gather"))
        passing = tuple(ChunkRule(dma=DmaMap("a", p + pieces, False, "all_gather")) for p in range(last))
        return copies, self._data((*passing, *[PLAIN_STORE] * pieces))


@dataclass(frozen=True)
class LoadingGemm(_Gathered):
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
        """The tiles of GPU `g`, a line of every GPU's rows after the other."""
        lines = self.gemm.m // self.ranks // self.tiling.rows
        work = self._chunked_tiles(lines)
        peer, line = np.divmod(work[:, y.WORK_LANE], lines)
        work[:, y.WORK_SCRIPT] = peer
        return _stored_in_order(work[np.lexsort(((peer + g) % self.ranks if self.merges else peer, line))])


@dataclass(frozen=True)
class ChunkedGather(_Gathered):
    """C = gather(A) x B: each chunk of A's rows is forwarded by copy when it arrives, and has its own GEMM."""

    def plan(self, gpu: Gpu) -> Plan:
        """A stream of copies around the ring and `COPY_STREAMS` streams of chunk GEMMs."""
        work = self._tiles()
        copies = [
            PlacedKernel(copy_kernel("a", p, (p,)), after=(p - 1,) if p else (), operator="all_gather", iteration=p)
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
