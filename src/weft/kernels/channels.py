"""The ring kernels of a collective library: channels, each one workgroup and one ring of its own.

A channel walks its part of the data in chunks; a chunk visits all GPUs in steps, a step is cut into slices, and a
slice is passed on through a first-in-first-out buffer in the next GPU's memory. Whoever waits for a slice
waits for its own channel only. The scheme and its constants are those of NCCL and RCCL (public sources; `collectives`
chooses among the protocols).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.hardware import Gpu
from weft.program import Buffer, ChunkRule, Kernel, Load, Phase, RemoteMap, Store, Wait
from weft.program.plan import PLAIN_STORE
from weft.units import to_fs

ALIGNMENT = 512
"""A channel's part of the data is a multiple of this [bytes]; NCCL's grain for plain stores."""
BYTE_ADDS_PER_CLOCK = 85
"""Additions of bytes a clock and compute unit: 64 integer lanes, four bytes a word, three instructions for a word."""
LEAST_SLICE = 32 * 1024
"""A slice has at least this much data [bytes] (NCCL, prims_simple.h)."""


@dataclass(frozen=True)
class ChannelTiling:
    """How a ring kernel of a collective library is cut.

    `channels` workgroups of `threads` threads have `in_flight` bytes each on their way. A step moves at most `chunk`
    bytes of a channel's data in `slices` slices; the buffer at the receiver holds `depth` slices. `wire` bytes are
    stored and sent per byte of data (flags between the data take the rest), at the share `link` of the link's payload
    rate. `sync` [s] passes from the arrival of a slice until its receiver goes on, `start` [s] from a kernel's launch
    to its first load. What is in flight are `slots` pieces; where a workgroup only copies from one place to one other,
    `copying` bytes are (None: as many).
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

    def slice_data(self, chunk: int) -> int:
        """The most data in one slice of a chunk of `chunk` bytes."""
        if self.slices == 1:
            return chunk
        part = -(-chunk // self.slices)
        return min(max(-(-part // ALIGNMENT) * ALIGNMENT, LEAST_SLICE), chunk)

    def on_wire(self, data: int) -> int:
        """Bytes that `data` bytes take in the buffer and on the link."""
        return round(data * self.wire)

    def pieces(self, data: int, piece: int, *, wired: bool = False) -> tuple[int, int]:
        """Bytes of each of the pieces of `piece` bytes that `data` bytes are moved in, and of the last one.

        Those that they take in the buffer and on the link where they are `wired`.
        """
        unit, whole = (self.on_wire(piece), self.on_wire(data)) if wired else (piece, data)
        return unit, whole - (-(-data // piece) - 1) * unit

    def kernel(self, name: str, phases: tuple[Phase, ...], script_of: tuple[int, ...] = ()) -> Kernel:
        """The kernel of the channels, a workgroup each."""
        registers = self.threads * self.registers_per_thread * 4
        return Kernel(name, self.channels, self.threads, registers, self.lds, phases, script_of=script_of)


@dataclass(frozen=True)
class _Slice:
    """One slice of one step: which chunk of the data, where in the channel's part of it, and how much [bytes]."""

    position: int
    offset: int
    data: int
    first_of_kernel: bool


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

    @property
    def steps(self) -> int:
        """Steps that a chunk makes, the one in which it only arrives included."""
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
        """A channel's buffer at the receiver [bytes]."""
        return self.tiling.depth * self._slot

    @property
    def _slot(self) -> int:
        chunk = min(self.tiling.chunk, self.lane)
        wire = self.tiling.on_wire(self.tiling.slice_data(chunk))
        return -(-wire // 4096) * 4096

    def link_bytes(self) -> int:
        """What each GPU sends [bytes]."""
        slices = (part for part in self._slices() if part.position < self.steps - 1)
        return self.tiling.channels * sum(self.tiling.on_wire(part.data) for part in slices)

    # -- buffers

    def buffers(self, gpus: int) -> tuple[Buffer, ...]:
        """The data, the result and the receive buffer of each of `gpus` simulated GPUs."""
        inputs = 1 if self.collective == "all_gather" else self.ranks
        outputs = 1 if self.collective == "reduce_scatter" else self.ranks
        lanes, fifo = self.tiling.channels, self.fifo * self.tiling.channels
        gather = Buffer("forwarded", ((fifo,),) * gpus, (_to("forwarded", "all_gather"),), lanes, ("staged", 0))
        return (
            Buffer("data", ((self.share * inputs,),) * gpus),
            Buffer("collected", ((self.share * outputs,),) * gpus, (PLAIN_STORE,)),
            Buffer("staged", ((fifo,),) * gpus, (_to("staged", "reduce_scatter"),), lanes),
            *((gather,) if self.collective != "reduce_scatter" else ()),
        )

    # -- the script

    def kernel(self, gpu: Gpu, name: str | None = None, earlier: int = 0) -> Kernel:
        """The kernel, as the one after `earlier` others through the same buffers."""
        return self.tiling.kernel(name or self.collective, tuple(self._phases(gpu, earlier)))

    def _slices(self) -> Iterator[_Slice]:
        """Every slice that a channel deals with, in order: chunk after chunk, step after step."""
        first = True
        for begin in range(0, self.lane, self.tiling.chunk):
            chunk = min(self.tiling.chunk, self.lane - begin)
            size = self.tiling.slice_data(chunk)
            for position in range(self.steps):
                for offset in range(0, chunk, size):
                    yield _Slice(position, begin + offset, min(size, chunk - offset), first)
                    first = False

    def _phases(self, gpu: Gpu, earlier: int) -> Iterator[Phase]:
        sent = {buffer: earlier * total for buffer, total in self._totals().items()}
        came = dict(sent)
        slot_out = slot_in = 0
        for part in self._slices():
            wire = self.tiling.on_wire(part.data)
            source = target = None
            wait = None
            if part.position > 0:
                buffer = self._stage(part.position - 1)
                came[buffer] += wire
                wait = Wait(buffer, 0, bytes=came[buffer])
                source = (buffer, slot_in % self.tiling.depth * self._slot)
                slot_in += 1
            if part.position < self.steps - 1:
                target = (self._stage(part.position), slot_out % self.tiling.depth * self._slot)
                slot_out += 1
            yield self._phase(gpu, part, wait, source, target)

    def _totals(self) -> dict[str, int]:
        """What a channel receives in all, by the buffer that counts it [bytes]."""
        totals = {"staged": 0, "forwarded": 0}
        for part in self._slices():
            if part.position < self.steps - 1:
                totals[self._stage(part.position)] += self.tiling.on_wire(part.data)
        return totals

    def _stage(self, position: int) -> str:
        """The buffer that takes what is sent in a step: data still to be reduced, or complete data."""
        if self.collective == "reduce_scatter":
            return "staged"
        return "staged" if self.collective == "all_reduce" and position < self.ranks - 1 else "forwarded"

    def _adds(self, position: int) -> bool:
        return self.collective != "all_gather" and position < self.ranks

    def _keeps(self, position: int) -> bool:
        """Whether what a step makes is a part of the result."""
        return self.collective == "all_gather" or position >= self.ranks - 1

    def _phase(
        self,
        gpu: Gpu,
        part: _Slice,
        wait: Wait | None,
        source: tuple[str, int] | None,
        target: tuple[str, int] | None,
    ) -> Phase:
        """One slice: load what has arrived and what is one's own, add, store to the next GPU and into the result."""
        own = part.position == 0 or self._adds(part.position)
        copies = own != (source is not None) and self._keeps(part.position) != (target is not None)
        in_flight = (copies and self.tiling.copying) or self.tiling.in_flight
        piece = min(in_flight // self.tiling.slots, part.data)
        operator = "reduce_scatter" if self._adds(part.position) else "all_gather"
        unit, last = self.tiling.pieces(part.data, piece)
        wired, wired_last = self.tiling.pieces(part.data, piece, wired=True)
        offset = part.position % self.ranks * self.share + part.offset
        loads, stores = [], []
        if own:
            loads.append(Load("data", 0, unit, last, operator, row_stride=self.lane, step_stride=unit, offset=offset))
        if source is not None:
            buffer, slot = source
            arrived = Load(buffer, 0, wired, wired_last, operator, row_stride=self.fifo, step_stride=wired, offset=slot)
            loads.append(arrived)
        if target is not None:
            buffer, slot = target
            sender = "reduce_scatter" if buffer == "staged" else "all_gather"
            stores.append(Store(buffer, sender, 0, wired, wired, wired_last, self.fifo, slot))
        if self._keeps(part.position):
            scatters = self.collective == "reduce_scatter"
            keeper, kept = ("reduce_scatter", part.offset) if scatters else ("all_gather", offset)
            stores.append(Store("collected", keeper, 0, unit, unit, last, self.lane, kept))
        adds = (len(loads) - 1) * piece // self.element_bytes
        rate = gpu.compute.vector_flops_per_clock if self.element_bytes > 1 else BYTE_ADDS_PER_CLOCK
        return Phase(
            iterations=-(-part.data // piece),
            slots=self.tiling.slots,
            cycles=adds / rate,
            loads=tuple(loads),
            store=stores[0],
            also=stores[1] if len(stores) > 1 else None,
            wait=wait,
            delay_fs=to_fs(self.tiling.start if part.first_of_kernel else 0.0 if wait is None else self.tiling.sync),
        )


def _to(buffer: str, operator: str) -> ChunkRule:
    return ChunkRule(remote=RemoteMap(buffer, 0, update=False, operator=operator))
