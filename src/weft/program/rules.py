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
    """Stores into the chunk go to a chunk of the neighbour instead, or of the GPU `hops` neighbours away."""

    buffer: str
    position: int
    update: bool
    cause: Cause
    hops: int = 1


@dataclass(frozen=True)
class DmaMap:
    """When every element of a block has had its updates, an engine sends the block to the neighbour, or to the GPU
    `hops` neighbours away.
    """

    buffer: str
    position: int
    update: bool
    read_cause: Cause
    remote_cause: Cause
    hops: int = 1


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
        return self.remote.hops if self.remote is not None else self.dma.hops if self.dma is not None else 1

    @property
    def mode(self) -> Mode:
        """The engine's code for what a store into the chunk does."""
        if self.remote is not None:
            return Mode.REMOTE_UPDATE if self.remote.update else Mode.REMOTE_STORE
        return Mode.LOCAL_UPDATE if self.update else Mode.LOCAL_STORE


CACHED_STORE = ChunkRule(cached=True)
PLAIN_STORE = ChunkRule()
