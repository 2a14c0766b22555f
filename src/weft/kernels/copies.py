"""Collectives by DMA engines: copies from GPU to GPU that take no compute unit; engines cannot add."""

from __future__ import annotations

from dataclasses import dataclass

from weft.hardware import Gpu
from weft.program import Buffer, Cause, ChunkRule, DmaMap, Kernel
from weft.program.script import Wait

ALIGNMENT = 4096


@dataclass(frozen=True)
class DmaGather:
    """An all-gather of `bytes_` (the whole output), or an all-to-all of as much, by DMA over `ranks` GPUs.

    Every GPU pushes its share, or every peer's part of its data, straight to each of its peers in one step.
    """

    collective: str
    bytes_: int
    ranks: int

    @property
    def share(self) -> int:
        """What goes to each peer [bytes]."""
        return -(-self.bytes_ // (self.ranks * ALIGNMENT)) * ALIGNMENT

    def link_bytes(self) -> int:
        """What each GPU sends [bytes]."""
        return (self.ranks - 1) * self.share

    def buffers(self, gpus: int) -> tuple[Buffer, ...]:
        """The own data, under one name per peer, and where the peers' data arrive."""
        peers = range(1, self.ranks)
        rules = tuple(self._push(hops) for hops in peers)
        sizes = ((self.share,) * (self.ranks - 1),) * gpus
        if self.collective == "all_to_all":
            return (Buffer("sends", sizes, rules), Buffer("collected", sizes))
        return (
            Buffer("data", ((self.share,),) * gpus),
            Buffer("sends", sizes, rules, within=("data", 0)),
            Buffer("collected", sizes),
        )

    def _push(self, hops: int) -> ChunkRule:
        dma = DmaMap("collected", hops - 1, False, Cause.AG_READ, Cause.AG_WRITE, hops)
        return ChunkRule(dma=dma)

    def kernel(self, gpu: Gpu, name: str | None = None, earlier: int = 0) -> Kernel:
        """The copies, as one entry of a stream."""
        copies = tuple(("sends", position) for position in range(self.ranks - 1))
        return Kernel(name or self.collective, 0, 0, 0, 0, (), copies=copies)

    def arrivals(self) -> tuple[Wait, ...]:
        """What a reader of the result waits for."""
        return tuple(Wait("collected", position) for position in range(self.ranks - 1))
