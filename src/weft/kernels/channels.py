"""The ring kernels of a collective library: channels, each one workgroup and one ring of its own.

A channel moves its part of the data in chunks. A chunk visits all GPUs in steps, a step is cut into slices, and each
slice passes through a first-in-first-out buffer in the next GPU's memory. A workgroup waits only for slices of its own
channel. The scheme and its constants are those of NCCL and RCCL (public sources; `lower.collectives` chooses among the
protocols).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

from weft.core.units import to_fs
from weft.engine.program import Buffer, ChunkAccess, ChunkLoad, ChunkRule, ChunkStore, Kernel, Phase, RemoteMap, Wait
from weft.graph.choice import LibraryAlgorithm
from weft.hardware import Gpu

ALIGNMENT = 512
"""A channel's part of the data is a multiple of this [bytes]; NCCL's grain for plain stores."""
BYTE_ADDS_PER_CLOCK = 85
"""Byte additions per clock and compute unit: 64 integer lanes, four bytes per word, three instructions per word."""
_LEAST_SLICE = 32 * 1024
"""Smallest slice [bytes of data] (NCCL, prims_simple.h)."""
PAGE = 4096
"""Parts of receive buffers start on multiples of this [bytes] (NCCL device.h, ncclP2pPartBounds)."""

Kind = TypeVar("Kind", bound=ChunkAccess)


@dataclass(frozen=True)
class ChannelTiling:
    """How a kernel of a collective library is cut.

    `channels` workgroups of `threads` threads have `in_flight` bytes in flight each, in `slots` pieces; a workgroup of
    a ring that copies from one source to one destination has `copying` bytes (None: the same), each for `acknowledge`
    [s] after the link has sent it, or for `acknowledge_busy` while a GEMM runs on the GPU (None: the same). A step
    moves at most
    `chunk` bytes of a channel's data in `slices` slices; the buffer at the receiver holds `depth` slices. `wire` bytes
    are stored and sent per byte of data (flags take the rest), at the share `link` of the link's payload rate. `sync`
    [s] passes from the arrival of a slice until its receiver continues, `start` [s] from the launch to the first load.
    """

    channels: int
    threads: int = 544
    registers_per_thread: int = 96
    lds: int = 40 * 1024
    chunk: int = 2 << 20
    slices: int = 2
    depth: int = 4
    in_flight: int = 64 * 1024
    wire: float = 1.0
    link: float = 1.0
    sync: float = 1e-6
    start: float = 5e-6
    slots: int = 4
    copying: int | None = None
    acknowledge: float = 0.0
    acknowledge_busy: float | None = None

    def chunks(self, data: int) -> Iterator[tuple[int, int]]:
        """Offset and size of every chunk of `data` bytes."""
        return ((begin, min(self.chunk, data - begin)) for begin in range(0, data, self.chunk))

    def cut(self, chunk: int) -> Iterator[tuple[int, int]]:
        """Offset and size of every slice of a chunk of `chunk` bytes."""
        size = self.slice_data(chunk)
        return ((offset, min(size, chunk - offset)) for offset in range(0, chunk, size))

    def slice_data(self, chunk: int) -> int:
        """Return the largest slice of a chunk of `chunk` bytes [bytes of data]."""
        if self.slices == 1:
            return chunk
        part = -(-chunk // self.slices)
        return min(max(-(-part // ALIGNMENT) * ALIGNMENT, _LEAST_SLICE), chunk)

    def on_wire(self, data: int) -> int:
        """Return the bytes that `data` bytes occupy in the buffer and on the link."""
        return round(data * self.wire)

    def place(self, data: int) -> int:
        """Return the bytes reserved in a receive buffer for a slice of `data` bytes."""
        return -(-self.on_wire(data) // PAGE) * PAGE

    def move(self, data: int, piece: int | None = None) -> ChannelMove:
        """The loop that moves `data` bytes in pieces of at most `piece` bytes (None: as `in_flight` requires)."""
        return ChannelMove(self, data, min(piece or self.in_flight // self.slots, data))

    def kernel(self, name: str, phases: tuple[Phase, ...], script_of: tuple[int, ...] = ()) -> Kernel:
        """Return the kernel, one workgroup per channel."""
        registers = self.threads * self.registers_per_thread * 4
        return Kernel(
            name, self.channels, self.threads, registers, self.lds, phases,
            script_of=script_of, exchanges=True, acknowledge_fs=to_fs(self.acknowledge),
            acknowledge_busy_fs=None if self.acknowledge_busy is None else to_fs(self.acknowledge_busy),
        )  # fmt: skip


class ChannelMove(NamedTuple):
    """A loop whose iterations move `data` bytes in pieces of `piece` bytes."""

    tiling: ChannelTiling
    data: int
    piece: int

    def access(
        self, kind: type[Kind], buffer: str, position: int, operator: str, row_stride: int = 0, offset: int = 0,
        *, wired: bool = False,
    ) -> Kind:  # fmt: skip
        """Return a load or a store (`kind`) of the data; `wired` adds the flags, as in buffers and on links."""
        unit, whole = self.piece, self.data
        if wired:
            unit, whole = self.tiling.on_wire(unit), self.tiling.on_wire(whole)
        last = whole - (-(-self.data // self.piece) - 1) * unit
        return kind(buffer, position, operator, unit, last, row_stride, offset=offset)

    def phase(
        self, loads: list[ChunkLoad], stores: list[ChunkStore], wait: Wait | None, delay: float, cycles: float = 0
    ) -> Phase:
        """Return the phase of a script that waits, lets `delay` [s] pass, and moves the data."""
        count, slots = -(-self.data // self.piece), self.tiling.slots
        return Phase(count, slots, cycles, tuple(loads), tuple(stores), wait, delay_fs=to_fs(delay))


class _Slice(NamedTuple):
    """One slice of one step: its step, its offset in the channel's part, its data [bytes], and whether it is first."""

    step: int
    offset: int
    data: int
    first: bool


@dataclass(frozen=True)
class ChannelRing:
    """A ring collective of `bytes_` (the whole buffer: a reduce-scatter's input, an all-gather's output) over `ranks`.

    `collective` is "reduce_scatter", "all_gather" or "all_reduce".
    """

    collective: str
    bytes_: int
    ranks: int
    tiling: ChannelTiling
    element_bytes: int = 2
    algorithm: ClassVar[LibraryAlgorithm] = "ring"

    @property
    def steps(self) -> int:
        """Steps of a chunk, including the last one, which only receives."""
        return 2 * self.ranks - 1 if self.collective == "all_reduce" else self.ranks

    @property
    def lane(self) -> int:
        """A channel's part of one GPU's share of the data [bytes]."""
        share = -(-self.bytes_ // (self.ranks * self.tiling.channels))
        return -(-share // ALIGNMENT) * ALIGNMENT

    @property
    def share(self) -> int:
        """One GPU's share of the data [bytes], rounded up to whole parts."""
        return self.lane * self.tiling.channels

    @property
    def fifo(self) -> int:
        """Size of a channel's buffer at the receiver [bytes]."""
        return self.tiling.depth * self._slot

    @property
    def _slot(self) -> int:
        return self.tiling.place(self.tiling.slice_data(min(self.tiling.chunk, self.lane)))

    def buffers(self) -> tuple[Buffer, ...]:
        """Return the data, the result and the receive buffer of a GPU."""
        inputs = 1 if self.collective == "all_gather" else self.ranks
        outputs = 1 if self.collective == "reduce_scatter" else self.ranks
        lanes, fifo = self.tiling.channels, ((self.fifo * self.tiling.channels,),)
        gather = Buffer("forwarded", fifo, (_to("forwarded", "all_gather"),), lanes, ("staged", 0))
        return (
            Buffer("data", ((self.share * inputs,),)),
            Buffer("collected", ((self.share * outputs,),)),
            Buffer("staged", fifo, (_to("staged", "reduce_scatter"),), lanes),
            *((gather,) if self.collective != "reduce_scatter" else ()),
        )

    def kernel(self, gpu: Gpu, name: str | None = None, earlier: int = 0) -> Kernel:
        """Return the kernel; `earlier` counts kernels that used the same buffers before it."""
        return self.tiling.kernel(name or self.collective, tuple(self._phases(gpu, earlier)))

    def _slices(self) -> Iterator[_Slice]:
        """Yield every slice that a channel handles, in order: chunk after chunk, step after step."""
        for begin, chunk in self.tiling.chunks(self.lane):
            for step in range(self.steps):
                for offset, data in self.tiling.cut(chunk):
                    yield _Slice(step, begin + offset, data, begin == step == offset == 0)

    def _phases(self, gpu: Gpu, earlier: int) -> Iterator[Phase]:
        received = {buffer: earlier * total for buffer, total in self._totals().items()}
        slot_out = slot_in = 0
        for part in self._slices():
            source = target = wait = None
            if part.step > 0:
                buffer = self._stage(part.step - 1)
                received[buffer] += self.tiling.on_wire(part.data)
                wait = Wait(buffer, 0, bytes=received[buffer])
                source = (buffer, slot_in % self.tiling.depth * self._slot)
                slot_in += 1
            if part.step < self.steps - 1:
                target = (self._stage(part.step), slot_out % self.tiling.depth * self._slot)
                slot_out += 1
            yield self._phase(gpu, part, wait, source, target)

    def _totals(self) -> dict[str, int]:
        """Total bytes that a channel receives, by the buffer that counts them."""
        totals = {"staged": 0, "forwarded": 0}
        for part in self._slices():
            if part.step < self.steps - 1:
                totals[self._stage(part.step)] += self.tiling.on_wire(part.data)
        return totals

    def _stage(self, step: int) -> str:
        """Return the buffer that receives what is sent in a step: data still to be reduced, or complete data."""
        reduces = {"reduce_scatter": self.ranks, "all_reduce": self.ranks - 1, "all_gather": 0}
        return "staged" if step < reduces[self.collective] else "forwarded"

    def _adds(self, step: int) -> bool:
        return self.collective != "all_gather" and step < self.ranks

    def _keeps(self, step: int) -> bool:
        """Return whether the output of a step is part of the result."""
        return self.collective == "all_gather" or step >= self.ranks - 1

    def _phase(
        self,
        gpu: Gpu,
        part: _Slice,
        wait: Wait | None,
        source: tuple[str, int] | None,
        target: tuple[str, int] | None,
    ) -> Phase:
        """One slice: load what has arrived and the GPU's own data, add, store to the next GPU and into the result."""
        own = part.step == 0 or self._adds(part.step)
        copies = own != (source is not None) and self._keeps(part.step) != (target is not None)
        in_flight = (copies and self.tiling.copying) or self.tiling.in_flight
        move = self.tiling.move(part.data, in_flight // self.tiling.slots)
        operator = "reduce_scatter" if self._adds(part.step) else "all_gather"
        offset = part.step % self.ranks * self.share + part.offset
        loads, stores = [], []
        if own:
            loads.append(move.access(ChunkLoad, "data", 0, operator, self.lane, offset))
        if source is not None:
            loads.append(move.access(ChunkLoad, source[0], 0, operator, self.fifo, source[1], wired=True))
        if target is not None:
            sender = "reduce_scatter" if target[0] == "staged" else "all_gather"
            stores.append(move.access(ChunkStore, target[0], 0, sender, self.fifo, target[1], wired=True))
        if self._keeps(part.step):
            scatters = self.collective == "reduce_scatter"
            keeper, kept = ("reduce_scatter", part.offset) if scatters else ("all_gather", offset)
            stores.append(move.access(ChunkStore, "collected", 0, keeper, self.lane, kept))
        adds = (len(loads) - 1) * move.piece // self.element_bytes
        rate = gpu.compute.vector_flops_per_clock if self.element_bytes > 1 else BYTE_ADDS_PER_CLOCK
        delay = self.tiling.start if part.first else 0.0 if wait is None else self.tiling.sync
        return move.phase(loads, stores, wait, delay, adds / rate)


def _to(buffer: str, operator: str) -> ChunkRule:
    return ChunkRule(remote=RemoteMap(buffer, 0, update=False, operator=operator))
