"""The address map, T3's interface to software: per chunk, what a store into it means and what its completion triggers.

`RemoteMap` and `DmaMap` are T3's `remote_map` and `dma_map` (ASPLOS 2024, arXiv:2401.16677).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from weft.engine import layout as y
from weft.program.script import Cause


class Mode(IntEnum):
    """What a store does: replace or add (near-memory update), here or at the neighbour."""

    LOCAL_STORE = y.LOCAL_STORE
    LOCAL_UPDATE = y.LOCAL_UPDATE
    REMOTE_STORE = y.REMOTE_STORE
    REMOTE_UPDATE = y.REMOTE_UPDATE


@dataclass(frozen=True)
class RemoteMap:
    """Stores into the chunk go to a chunk of the neighbour instead, or of the GPU `hops` neighbours away.

    They take the whole egress, or with `direct` the link to that GPU alone where GPUs are fully connected.
    """

    buffer: str
    position: int
    update: bool
    cause: Cause
    hops: int = 1
    direct: bool = False


@dataclass(frozen=True)
class DmaMap:
    """When every element of a block has had its updates, or a copy's command is ready, an engine sends the block to the
    neighbour, or to the GPU `hops` neighbours away; `direct` as in `RemoteMap`.

    `also` names a second receiver, (position, hops), of the same bytes. With `source`, the chunk is read in the memory
    of the GPU that many neighbours away, and the rest is meant as seen from there.
    """

    buffer: str
    position: int
    update: bool
    read_cause: Cause
    remote_cause: Cause
    hops: int = 1
    direct: bool = False
    also: tuple[int, int] | None = None
    source: int = 0


@dataclass(frozen=True)
class ChunkRule:
    """One chunk's entry of the address map; the default is an ordinary cached local store."""

    update: bool = False
    cached: bool = False
    updates_per_element: int = 0
    remote: RemoteMap | None = None
    dma: DmaMap | None = None

    @property
    def hops(self) -> int:
        """How many neighbours away the GPU is that stores or commands go to."""
        return 1 if self.way is None else self.way.hops

    @property
    def way(self) -> RemoteMap | DmaMap | None:
        """What says where stores or commands go; None where they stay."""
        return self.remote if self.remote is not None else self.dma

    @property
    def mode(self) -> Mode:
        """The engine's code for what a store into the chunk does."""
        if self.remote is not None:
            return Mode.REMOTE_UPDATE if self.remote.update else Mode.REMOTE_STORE
        return Mode.LOCAL_UPDATE if self.update else Mode.LOCAL_STORE


CACHED_STORE = ChunkRule(cached=True)
PLAIN_STORE = ChunkRule()
