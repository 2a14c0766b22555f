"""All-gathers and all-to-alls in one step on a full mesh: workgroups push to every peer over its own link.

A pair's data is cut into parts. Each part has a sending workgroup, which stores it into a buffer in the peer's memory,
and a receiving one, which waits for the peer's part and copies it into the result. An all-gather is in place; an
all-to-all also copies its own part. The scheme is that of RCCL's MSCCL kernels for eight MI300X (ROCm/rccl
tools/msccl-algorithms; PRs #1110 and #1120).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from weft.engine.program import Buffer, ChunkRule, Kernel, Load, Phase, RemoteMap, Store, Wait
from weft.engine.program.plan import scripts
from weft.graph.choice import LibraryAlgorithm
from weft.hardware import Gpu
from weft.kernels.channels import ALIGNMENT, ChannelTiling

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
    def _staged(self) -> int:
        """Size of a part in the receive buffer at the peer [bytes]; the library's buffer holds the whole part."""
        return self.tiling.on_wire(self.part)

    @property
    def _peers(self) -> list[tuple[int, int]]:
        """Distance of the peer and number of the part, for every part that is sent or received."""
        return [(distance, index) for distance in range(1, self.ranks) for index in range(self.parts)]

    def buffers(self) -> tuple[Buffer, ...]:
        """The data, the result, and a receive buffer for every part of every peer, on a GPU."""
        rules = tuple(
            ChunkRule(remote=RemoteMap("staged", self._place(*peer), False, self.collective, peer[0], direct=True))
            for peer in self._peers
        )
        own = self.share * (1 if self.collective == "all_gather" else self.ranks)
        return (
            Buffer("data", ((own,),)),
            Buffer("collected", ((self.share * self.ranks,),)),
            Buffer("staged", ((self._staged,) * len(rules),), rules),
        )

    def _place(self, distance: int, index: int) -> int:
        return (distance - 1) * self.parts + index

    def kernel(self, gpu: Gpu, name: str | None = None, earlier: int = 0) -> Kernel:
        """The kernel; `earlier` counts kernels that used the same buffers before it."""
        tiling, jobs = self.tiling, list(self._jobs())
        each = (tuple(self._script(jobs[i :: tiling.channels], earlier)) for i in range(tiling.channels))
        return tiling.kernel(name or self.collective, scripts(*each), tuple(range(tiling.channels)))

    def _jobs(self) -> Iterator[_Job]:
        """All jobs, those that wait for no peer first."""
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
        load = move.access(Load, "data", 0, name, offset=row * self.share + index * self.part)
        store = move.access(Store, "collected", 0, name, offset=index * self.part)
        if kind == "send":
            store = move.access(Store, "staged", self._place(distance, index), name, wired=True)
        return move.phase([load], [store], None, delay)

    def _receive(self, distance: int, index: int, earlier: int) -> Iterator[Phase]:
        """Copy the data of the peer `distance` ranks behind into the result, slice after slice."""
        place, name, wire = self._place(distance, index), self.collective, self.tiling.on_wire
        kept = distance * self.share + index * self.part
        for begin, chunk in self.tiling.chunks(self.part):
            for offset, data in self.tiling.cut(chunk):
                at, move = begin + offset, self.tiling.move(data)
                load = move.access(Load, "staged", place, name, offset=wire(at), wired=True)
                store = move.access(Store, "collected", 0, name, offset=kept + at)
                wait = Wait("staged", place, bytes=earlier * self._staged + wire(at + data))
                yield move.phase([load], [store], wait, self.tiling.sync)
