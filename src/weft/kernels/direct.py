"""Collectives in one or two steps on a full mesh: workgroups push to every peer over its own link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from weft.engine.program import Buffer, ChunkLoad, ChunkRule, ChunkStore, Kernel, Phase, RemoteMap, Wait
from weft.engine.program.plan import scripts
from weft.graph.choice import LibraryAlgorithm
from weft.hardware import Gpu
from weft.kernels.channels import ALIGNMENT, BYTE_ADDS_PER_CLOCK, ChannelMove, ChannelTiling

_Job = tuple[str, int, int]
"""A workgroup's job ("send", "receive" or "copy"), the distance of the peer in ranks, and the index of the part."""


@dataclass(frozen=True)
class DirectExchange:
    """A one-step all_gather or all_to_all of `bytes_` (the whole buffer of a GPU) among `ranks` GPUs.

    Each peer's data is cut into `parts` parts. `tiling.channels` workgroups share the jobs; a workgroup with several
    jobs sends before it waits.
    """

    collective: str
    bytes_: int
    ranks: int
    tiling: ChannelTiling
    parts: int
    algorithm: ClassVar[LibraryAlgorithm] = "direct"

    @staticmethod
    def workgroups(collective: str, ranks: int, parts: int) -> int:
        """Workgroups of the library: one per part that is sent, received or, in an all-to-all, copied."""
        return parts * (2 * (ranks - 1) + (collective == "all_to_all"))

    @property
    def part(self) -> int:
        """Bytes that one workgroup sends to one peer."""
        least = -(-self.bytes_ // (self.ranks * self.parts))
        return -(-least // ALIGNMENT) * ALIGNMENT

    @property
    def share(self) -> int:
        """Bytes sent to each peer."""
        return self.parts * self.part

    @property
    def _staged_bytes(self) -> int:
        """Size of a part in the receive buffer at the peer [bytes]; the library's buffer holds the whole part."""
        return self.tiling.on_wire(self.part)

    @property
    def _peers(self) -> list[tuple[int, int]]:
        """Distance of the peer and number of the part, for every part that is sent or received."""
        return [(distance, index) for distance in range(1, self.ranks) for index in range(self.parts)]

    def buffers(self) -> tuple[Buffer, ...]:
        """Return the data, the result, and a receive buffer for every part of every peer, on a GPU."""
        rules = tuple(
            ChunkRule(remote=RemoteMap("staged", self._place(*peer), False, self.collective, peer[0], direct=True))
            for peer in self._peers
        )
        own = self.share * (1 if self.collective == "all_gather" else self.ranks)
        return (
            Buffer("data", ((own,),)),
            Buffer("collected", ((self.share * self.ranks,),)),
            Buffer("staged", ((self._staged_bytes,) * len(rules),), rules),
        )

    def _place(self, distance: int, index: int) -> int:
        return (distance - 1) * self.parts + index

    def kernel(self, gpu: Gpu, name: str | None = None, earlier: int = 0) -> Kernel:
        """Return the kernel; `earlier` counts kernels that used the same buffers before it."""
        tiling, jobs = self.tiling, list(self._jobs())
        each = (tuple(self._script(jobs[i :: tiling.channels], earlier)) for i in range(tiling.channels))
        return tiling.kernel(name or self.collective, scripts(*each), tuple(range(tiling.channels)))

    def _jobs(self) -> Iterator[_Job]:
        """Yield all jobs, those that wait for no peer first."""
        yield from (("send", *peer) for peer in self._peers)
        if self.collective == "all_to_all":
            yield from (("copy", 0, index) for index in range(self.parts))
        yield from (("receive", *peer) for peer in self._peers)

    def _script(self, jobs: list[_Job], earlier: int) -> Iterator[Phase]:
        delay = self.tiling.start
        for kind, distance, index in jobs:
            if kind == "receive":
                yield from self._receive(distance, index, earlier)
            else:
                yield self._push(kind, distance, index, delay)
            delay = 0.0

    def _push(self, kind: str, distance: int, index: int, delay: float) -> Phase:
        """Load a part of the data, and store it at the peer or, if it is the GPU's own, into the result."""
        move, name = self.tiling.move(self.part), self.collective
        row = 0 if name == "all_gather" else distance
        load = move.access(ChunkLoad, "data", 0, name, offset=row * self.share + index * self.part)
        store = move.access(ChunkStore, "collected", 0, name, offset=index * self.part)
        if kind == "send":
            store = move.access(ChunkStore, "staged", self._place(distance, index), name, wired=True)
        return move.phase([load], [store], None, delay)

    def _receive(self, distance: int, index: int, earlier: int) -> Iterator[Phase]:
        """Copy the data of the peer `distance` ranks behind into the result, slice after slice."""
        place, name, wire = self._place(distance, index), self.collective, self.tiling.on_wire
        kept = distance * self.share + index * self.part
        for begin, chunk in self.tiling.chunks(self.part):
            for offset, data in self.tiling.cut(chunk):
                at, move = begin + offset, self.tiling.move(data)
                load = move.access(ChunkLoad, "staged", place, name, offset=wire(at), wired=True)
                store = move.access(ChunkStore, "collected", 0, name, offset=kept + at)
                wait = Wait("staged", place, bytes=earlier * self._staged_bytes + wire(at + data))
                yield move.phase([load], [store], wait, self.tiling.sync)


_GRAIN = 64
"""Pieces are multiples of this [bytes]."""
_SCATTER, _GATHER = "reduce_scatter", "all_gather"


@dataclass(frozen=True)
class DirectReduce:
    """An all-reduce of `bytes_` (the whole buffer) among `ranks` GPUs that all have links to each other.

    A share has `parts` parts; `tiling.channels` is `parts` times `ranks`, a workgroup each.
    """

    bytes_: int
    ranks: int
    tiling: ChannelTiling
    parts: int
    element_bytes: int = 2
    collective: ClassVar[str] = "all_reduce"
    algorithm: ClassVar[LibraryAlgorithm] = "direct"

    @property
    def piece(self) -> int:
        """Bytes that one workgroup adds up."""
        least = -(-self.bytes_ // (self.ranks * self.parts * self.ranks))
        return -(-least // _GRAIN) * _GRAIN

    @property
    def part(self) -> int:
        """Bytes that one workgroup sends to one peer."""
        return self.piece * self.ranks

    @property
    def share(self) -> int:
        """Bytes that one GPU adds up."""
        return self.part * self.parts

    def _place(self, distance: int, index: int) -> int:
        return (distance - 1) * self.parts + index

    def buffers(self) -> tuple[Buffer, ...]:
        """A GPU's data, what peers have pushed and what is kept of it, the pieces of peers' shares, and the result."""
        peers = [(distance, index) for distance in range(1, self.ranks) for index in range(self.parts)]
        sizes = ((self.tiling.on_wire(self.part),) * len(peers),)
        return (
            Buffer("data", ((self.share * self.ranks,),)),
            Buffer("staged", sizes, tuple(self._to("staged", _SCATTER, *peer) for peer in peers)),
            Buffer("kept", ((self.part,) * len(peers),)),
            Buffer("forwarded", sizes, tuple(self._to("forwarded", _GATHER, *peer) for peer in peers)),
            Buffer("collected", ((self.share * self.ranks,),)),
        )

    def _to(self, buffer: str, operator: str, distance: int, index: int) -> ChunkRule:
        return ChunkRule(remote=RemoteMap(buffer, self._place(distance, index), False, operator, distance, direct=True))

    def kernel(self, gpu: Gpu, name: str | None = None, earlier: int = 0) -> Kernel:
        """Return the kernel; `earlier` counts kernels that used the same buffers before it."""
        every = [(index, own) for index in range(self.parts) for own in range(self.ranks)]
        each = (tuple(self._script(gpu, *one, earlier)) for one in every)
        return self.tiling.kernel(name or self.collective, scripts(*each), tuple(range(len(every))))

    def _script(self, gpu: Gpu, index: int, own: int, earlier: int) -> Iterator[Phase]:
        """The script of the workgroup for a part and for the peer `own` ranks away (0: for the GPU's own share)."""
        if own:
            yield self._push(index, own)
            yield from self._receive("staged", index, own, earlier)
        yield from self._add(gpu, index, own, earlier)
        yield self._forward(index, own)
        if own:
            yield from self._receive("forwarded", index, own, earlier)

    def _push(self, index: int, peer: int) -> Phase:
        """Push a part of the data to the peer that adds it up."""
        move = self.tiling.move(self.part)
        load = move.access(ChunkLoad, "data", 0, _SCATTER, offset=peer * self.share + index * self.part)
        store = move.access(ChunkStore, "staged", self._place(peer, index), _SCATTER, wired=True)
        return move.phase([load], [store], None, self.tiling.start)

    def _receive(self, buffer: str, index: int, peer: int, earlier: int) -> Iterator[Phase]:
        """Copy what the peer `peer` ranks behind has pushed, slice after slice: to be added up, or into the result."""
        place, wire = self._place(peer, index), self.tiling.on_wire
        operator, target = (_SCATTER, "kept") if buffer == "staged" else (_GATHER, "collected")
        position, start = (place, 0) if buffer == "staged" else (0, peer * self.share + index * self.part)
        for begin, chunk in self.tiling.chunks(self.part):
            for offset, data in self.tiling.cut(chunk):
                at, move = begin + offset, self.tiling.move(data)
                load = move.access(ChunkLoad, buffer, place, operator, offset=wire(at), wired=True)
                store = move.access(ChunkStore, target, position, operator, offset=start + at)
                wait = Wait(buffer, place, bytes=earlier * wire(self.part) + wire(at + data))
                yield move.phase([load], [store], wait, self.tiling.sync)

    def _add(self, gpu: Gpu, index: int, own: int, earlier: int) -> Iterator[Phase]:
        """Wait until all peers have pushed the part, and add up this workgroup's piece of it."""
        came = (earlier + 1) * self.tiling.on_wire(self.part)
        *others, last = (Wait("staged", self._place(peer, index), bytes=came) for peer in range(1, self.ranks))
        yield from (Phase(0, 1, 0, wait=wait) for wait in others)
        move, at = self._move(2 * self.ranks), own * self.piece
        places = (self._place(peer, index) for peer in range(1, self.ranks))
        own_data = move.access(ChunkLoad, "data", 0, _SCATTER, offset=index * self.part + at)
        loads = [own_data, *(move.access(ChunkLoad, "kept", place, _SCATTER, offset=at) for place in places)]
        store = move.access(ChunkStore, "collected", 0, _SCATTER, offset=index * self.part + at)
        rate = gpu.compute.vector_flops_per_clock if self.element_bytes > 1 else BYTE_ADDS_PER_CLOCK
        adds = (self.ranks - 1) * move.piece // self.element_bytes
        yield move.phase(loads, [store], last, self.tiling.sync, adds / rate)

    def _move(self, share: int) -> ChannelMove:
        """Return the loop over a piece, with a `share`-th of the workgroup's bytes in flight.

        Each GPU's data is one of `ranks` to be loaded or stored at once; unlike copies, additions are not unrolled
        twice.
        """
        return self.tiling.move(self.piece, max(self.tiling.in_flight // (self.tiling.slots * share), _GRAIN))

    def _forward(self, index: int, own: int) -> Phase:
        """Push the piece that this workgroup has added up to all peers."""
        move, offset = self._move(self.ranks), self.tiling.on_wire(own * self.piece)
        load = move.access(ChunkLoad, "collected", 0, _GATHER, offset=index * self.part + own * self.piece)
        places = (self._place(peer, index) for peer in range(1, self.ranks))
        stores = [move.access(ChunkStore, "forwarded", place, _GATHER, offset=offset, wired=True) for place in places]
        return move.phase([load], stores, None, 0.0)
