"""All-gathers and all-to-alls in one step on a full mesh: workgroups push to every peer over its own link.

A pair's data is cut in parts. For each there is a workgroup that loads the part and stores it into a buffer in the
peer's memory, and one that waits for what the peer sends and copies it into the result. An all-gather is in place, an
all-to-all also copies its own part. The scheme is that of RCCL's MSCCL kernels for eight MI300X (ROCm/rccl
tools/msccl-algorithms; PRs #1110 and #1120).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from weft.hardware import Gpu
from weft.kernels.channels import ALIGNMENT, ChannelTiling
from weft.program import Buffer, ChunkRule, Kernel, Load, Phase, RemoteMap, Store, Wait
from weft.program.plan import PLAIN_STORE, scripts
from weft.units import to_fs

_Job = tuple[str, int, int]
"""What a workgroup does ("send", "receive" or "copy"), how many places ahead or behind the peer is, which part."""


class _Place(NamedTuple):
    """Where data lies: a chunk and the offset in it [bytes], and whether with flags between, as it is sent."""

    buffer: str
    position: int
    offset: int
    wired: bool = False


@dataclass(frozen=True)
class DirectExchange:
    """A one-step all_gather or all_to_all of `bytes_` (the whole buffer of a GPU) among `ranks` GPUs.

    Every peer is served in `parts` parts. `tiling.channels` workgroups share the work; with fewer than there are
    parts to send and to receive, each has several in turn and sends before it waits.
    """

    collective: str
    bytes_: int
    ranks: int
    tiling: ChannelTiling
    parts: int

    @staticmethod
    def workgroups(collective: str, ranks: int, parts: int) -> int:
        """One for each part that is sent, received or, in an all-to-all, copied."""
        return parts * (2 * (ranks - 1) + (collective == "all_to_all"))

    @property
    def part(self) -> int:
        """What one workgroup sends to one peer [bytes]."""
        least = -(-self.bytes_ // (self.ranks * self.parts))
        return -(-least // ALIGNMENT) * ALIGNMENT

    @property
    def share(self) -> int:
        """What goes to each peer [bytes]."""
        return self.parts * self.part

    @property
    def _staged(self) -> int:
        """A part in the buffer at the peer [bytes]; all of it fits the library's."""
        return self.tiling.on_wire(self.part)

    def link_bytes(self) -> int:
        """What each GPU sends [bytes]."""
        return (self.ranks - 1) * self.parts * self._staged

    # -- buffers

    def buffers(self, gpus: int) -> tuple[Buffer, ...]:
        """The data, the result, and a receive buffer for every part of every peer, each of `gpus` simulated GPUs."""
        places = [(distance, index) for distance in range(1, self.ranks) for index in range(self.parts)]
        rules = tuple(
            ChunkRule(remote=RemoteMap("staged", self._place(*place), False, self.collective, place[0], True))
            for place in places
        )
        own = self.share * (1 if self.collective == "all_gather" else self.ranks)
        return (
            Buffer("data", ((own,),) * gpus),
            Buffer("collected", ((self.share * self.ranks,),) * gpus, (PLAIN_STORE,)),
            Buffer("staged", ((self._staged,) * len(places),) * gpus, rules),
        )

    def _place(self, distance: int, index: int) -> int:
        return (distance - 1) * self.parts + index

    # -- the scripts

    def kernel(self, gpu: Gpu, name: str | None = None, earlier: int = 0) -> Kernel:
        """The kernel, as the one after `earlier` others through the same buffers."""
        tiling, jobs = self.tiling, list(self._jobs())
        each = (tuple(self._script(jobs[i :: tiling.channels], earlier)) for i in range(tiling.channels))
        return tiling.kernel(name or self.collective, scripts(*each), tuple(range(tiling.channels)))

    def _jobs(self) -> Iterator[_Job]:
        """All that is to do, what waits for nobody first."""
        peers = [(distance, index) for distance in range(1, self.ranks) for index in range(self.parts)]
        yield from (("send", *peer) for peer in peers)
        if self.collective == "all_to_all":
            yield from (("copy", 0, index) for index in range(self.parts))
        yield from (("receive", *peer) for peer in peers)

    def _script(self, jobs: list[_Job], earlier: int) -> Iterator[Phase]:
        delay = self.tiling.start
        for kind, distance, index in jobs:
            if kind == "receive":
                yield from self._receive(distance, index, earlier)
            else:
                yield self._push(kind, distance, index, delay)
            delay = 0.0

    def _push(self, kind: str, distance: int, index: int, delay: float) -> Phase:
        """Load a part of the data, and store it at the peer or, one's own, into the result."""
        row = 0 if self.collective == "all_gather" else distance
        source = _Place("data", 0, row * self.share + index * self.part)
        target = _Place("staged", self._place(distance, index), 0, wired=True)
        if kind == "copy":
            target = _Place("collected", 0, index * self.part)
        return self._phase(self.part, source, target, None, delay)

    def _receive(self, distance: int, index: int, earlier: int) -> Iterator[Phase]:
        """Copy into the result what comes from the peer as far behind, slice after slice."""
        place = self._place(distance, index)
        for offset, data in self._slices():
            came = earlier * self._staged + self.tiling.on_wire(offset + data)
            source = _Place("staged", place, self.tiling.on_wire(offset), wired=True)
            target = _Place("collected", 0, distance * self.share + index * self.part + offset)
            yield self._phase(data, source, target, Wait("staged", place, bytes=came), self.tiling.sync)

    def _slices(self) -> Iterator[tuple[int, int]]:
        """Where each slice of a part begins, and its length [bytes]."""
        for begin in range(0, self.part, self.tiling.chunk):
            chunk = min(self.tiling.chunk, self.part - begin)
            size = self.tiling.slice_data(chunk)
            yield from ((begin + offset, min(size, chunk - offset)) for offset in range(0, chunk, size))

    def _phase(self, data: int, source: _Place, target: _Place, wait: Wait | None, delay: float) -> Phase:
        """Copy `data` bytes from one place to another."""
        tiling, name = self.tiling, self.collective
        piece = min(tiling.in_flight // tiling.slots, data)
        unit, last = tiling.pieces(data, piece, wired=source.wired)
        load = Load(source.buffer, source.position, unit, last, name, step_stride=unit, offset=source.offset)
        unit, last = tiling.pieces(data, piece, wired=target.wired)
        store = Store(target.buffer, name, target.position, unit, unit, last, offset=target.offset)
        return Phase(-(-data // piece), tiling.slots, 0, (load,), store, wait, delay_fs=to_fs(delay))
