"""The address map, T3's interface to software: per chunk, what a store into it means and what its completion triggers.

`RemoteMap` and `DmaMap` are T3's `remote_map` and `dma_map` (ASPLOS 2024, arXiv:2401.16677).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from weft.engine import layout as y


class Mode(IntEnum):
    """What a store does: replace or add (near-memory update), here or at another GPU."""

    LOCAL_STORE = y.LOCAL_STORE
    LOCAL_UPDATE = y.LOCAL_UPDATE
    REMOTE_STORE = y.REMOTE_STORE
    REMOTE_UPDATE = y.REMOTE_UPDATE


@dataclass(frozen=True)
class RemoteMap:
    """Stores into the chunk go to a chunk of the GPU `distance` ranks away instead, downwards around the group.

    They are striped over all links of the GPU, or with `direct` take those to that GPU alone, where a fabric has some.
    The receiver counts them as traffic of `operator`.
    """

    buffer: str
    position: int
    update: bool
    operator: str
    distance: int = 1
    direct: bool = False


@dataclass(frozen=True)
class DmaMap:
    """When every element of a block has had its updates, or a copy's command is ready, an engine sends the block to the
    GPU `distance` ranks away; `distance` and `direct` as in `RemoteMap`.

    `also` names a second receiver, (position, distance), of the same bytes. With `source`, the chunk is read in the
    memory of the GPU that many ranks away, and the rest is meant as seen from there. Reads and what they make at the
    receiver count as traffic of `operator`.
    """

    buffer: str
    position: int
    update: bool
    operator: str
    distance: int = 1
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
