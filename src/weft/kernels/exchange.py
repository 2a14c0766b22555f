"""Sends and receives of a collective library on compute units: of all pairs (all-to-all), or of one (send_recv).

They are dealt to channels. In round r a GPU sends to the GPU r ranks ahead and receives from the one r ranks behind. A
pair's data is cut into parts, one per channel, and a channel executes its rounds one after another. Half of a
workgroup's threads load the user's data and store it into a buffer in the peer's memory, the other half load what has
arrived and store it into the result: all bytes are staged. A send_recv has the round of distance 1 alone. The scheme is
that of NCCL and RCCL (public sources: enqueue.cc, device.h, sendrecv.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from weft.engine.program import Buffer, ChunkLoad, ChunkRule, ChunkStore, Kernel, Phase, RemoteMap, Wait
from weft.engine.program.plan import scripts
from weft.graph.choice import LibraryAlgorithm
from weft.hardware import Gpu
from weft.kernels.channels import PAGE, ChannelMove, ChannelTiling, Kind

_BEHIND = 2
"""Slices by which receiving lags behind sending, since the two halves of a workgroup do not wait for each other."""


@dataclass(frozen=True)
class ChannelExchange:
    """An all-to-all in which each of `ranks` GPUs has `bytes_` (the whole buffer, its own part included).

    As a "send_recv", each GPU sends `bytes_` to the next one, and receives as much from the one before.
    `tiling.channels` workgroups share the rounds; `parts` of them, at most, serve one peer at a time. A slice is
    `tiling.chunk` bytes at most; `tiling.in_flight` bytes are in flight in either direction.
    """

    bytes_: int
    ranks: int
    tiling: ChannelTiling
    parts: int
    collective: Literal["all_to_all", "send_recv"] = "all_to_all"
    algorithm: ClassVar[LibraryAlgorithm] = "pairwise"

    @property
    def distances(self) -> range:
        """How many ranks ahead the receiver of each round is; 0 is the GPU itself."""
        return range(1, 2) if self.collective == "send_recv" else range(self.ranks)

    @property
    def stride(self) -> int:
        """Number of concurrent rounds, each with a script of its own."""
        return self.tiling.channels // self.parts

    @property
    def slices(self) -> int:
        """Number of slices in a part."""
        return -(-self._least // self.tiling.chunk)

    @property
    def slice(self) -> int:
        """Data in a slice [bytes]."""
        each = -(-self._least // self.slices)
        grain = PAGE * self.stride
        return -(-each // grain) * grain if each > grain else -(-each // self.stride) * self.stride

    @property
    def part(self) -> int:
        """Bytes that one channel sends to one peer."""
        return self.slices * self.slice

    @property
    def share(self) -> int:
        """Bytes sent to each peer."""
        return self.parts * self.part

    @property
    def fifo(self) -> int:
        """Size of a channel's buffer at a peer [bytes]."""
        return self.tiling.depth * self._slot

    @property
    def _slot(self) -> int:
        return self.tiling.place(self.slice)

    @property
    def _least(self) -> int:
        """Size of a part before it is rounded up to whole slices [bytes]."""
        return -(-self.bytes_ // (len(self.distances) * self.parts))

    def buffers(self) -> tuple[Buffer, ...]:
        """Return the data, the result, and at every peer a receive buffer per channel, on a GPU."""
        whole, peers = ((self.share * len(self.distances),),), [one for one in self.distances if one]
        rules = tuple(
            ChunkRule(remote=RemoteMap("staged", distance - 1, False, self.collective, distance, direct=True))
            for distance in peers
        )
        fifos = ((self.fifo * self.tiling.channels,) * len(peers),)
        return (
            Buffer("data", whole),
            Buffer("collected", whole),
            Buffer("staged", fifos, rules, self.tiling.channels),
        )

    def kernel(self, gpu: Gpu, name: str | None = None, earlier: int = 0) -> Kernel:
        """Return the kernel; `earlier` counts kernels that used the same buffers before it."""
        each = (tuple(self._script(place, earlier)) for place in range(self.stride))
        script_of = tuple(channel % self.stride for channel in range(self.tiling.channels))
        return self.tiling.kernel(name or self.collective, scripts(*each), script_of)

    def _script(self, place: int, earlier: int) -> Iterator[Phase]:
        """Yield the script of the channels with index `place` modulo the stride: their rounds, one after another."""
        delay = self.tiling.start
        for distance in self.distances[place :: self.stride]:
            if distance == 0:
                yield self._copy(place, delay)
            else:
                yield from self._round(distance, place, earlier, delay)
            delay = self.tiling.sync

    def _copy(self, place: int, delay: float) -> Phase:
        """Return all threads copy the GPU's own part from the data to the result."""
        move = self.tiling.move(self.part, 2 * self.tiling.move(self.slice).piece)
        at = self._offset(0, place)
        return move.phase([self._access(ChunkLoad, move, at)], [self._access(ChunkStore, move, at)], None, delay)

    def _round(self, distance: int, place: int, earlier: int, delay: float) -> Iterator[Phase]:
        """Send to the peer `distance` ranks ahead and receive from the one as far behind, slice after slice."""
        move, staged = self.tiling.move(self.slice), ("staged", distance - 1, self.collective, self.fifo)
        behind = min(_BEHIND, self.slices)
        for number in range(self.slices + behind):
            loads: list[ChunkLoad] = []
            stores: list[ChunkStore] = []
            wait = None
            if number < self.slices:
                slot = number % self.tiling.depth * self._slot
                loads.append(self._access(ChunkLoad, move, self._offset(distance, place, number)))
                stores.append(move.access(ChunkStore, *staged, slot, wired=True))
            if (arrived := number - behind) >= 0:
                came = earlier * self.slices + arrived + 1
                wait = Wait("staged", distance - 1, bytes=came * self.tiling.on_wire(self.slice))
                slot = arrived % self.tiling.depth * self._slot
                loads.append(move.access(ChunkLoad, *staged, slot, wired=True))
                stores.append(self._access(ChunkStore, move, self._offset(distance, place, arrived)))
            yield move.phase(loads, stores, wait, delay)
            delay = self.tiling.sync

    def _access(self, kind: type[Kind], move: ChannelMove, offset: int) -> Kind:
        """Return the load of data to send, or the store of data received, in a channel's part of a peer's share."""
        buffer = "data" if kind is ChunkLoad else "collected"
        return move.access(kind, buffer, 0, self.collective, self.part // self.stride, offset)

    def _offset(self, distance: int, place: int, number: int = 0) -> int:
        """Return where a slice of a peer's share begins for channel 0 [bytes].

        Channel c handles part c // stride. The row stride is therefore a part divided by the stride, and `place`
        corrects the offset.
        """
        at = self.distances.index(distance)
        return at * self.share + number * self.slice - place * (self.part // self.stride)
