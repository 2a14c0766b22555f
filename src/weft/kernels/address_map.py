"""The ring: every GPU sends to one neighbour; a chunk visits all GPUs on its way.

Chunks are named by *position*: the order in which a GPU deals with them. GPU g produces chunk g + 1 first
and its own chunk g last, so that position p of one GPU is position p + 1 of the neighbour it sends to.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.program import ChunkRule, DmaMap, RemoteMap
from weft.program.rules import CACHED_STORE, PLAIN_STORE


@dataclass(frozen=True)
class Ring:
    """A ring of `gpus` GPUs, and the address maps with which it moves chunks."""

    gpus: int

    def reduced_chunk(self, gpu: int, position: int) -> int:
        """The chunk that `gpu` produces, or reduces, at a position of the reduce-scatter."""
        return (gpu + 1 + position) % self.gpus

    # -- address maps
    # ----------------------------------------------------------------------------------------------

    def stored_output(self) -> tuple[ChunkRule, ...]:
        """The producer's output when a later kernel reduces it: ordinary stores that allocate in the cache."""
        return (CACHED_STORE,) * self.gpus

    def received(self) -> tuple[ChunkRule, ...]:
        """Receive buffers of the reduce-scatter kernel: a store at position p goes to p + 1 of the neighbour."""
        return self._forwarded("received", "reduce_scatter")

    def gathered(self) -> tuple[ChunkRule, ...]:
        """Receive buffers of the all-gather kernel: a store at position p goes to p + 1 of the neighbour."""
        return self._forwarded("gathered", "all_gather")

    def _forwarded(self, buffer: str, operator: str) -> tuple[ChunkRule, ...]:
        steps = range(1, self.gpus)
        return (
            *(ChunkRule(remote=RemoteMap(buffer, p, update=False, operator=operator)) for p in steps),
            PLAIN_STORE,
        )

    def fused_reduce_scatter(self) -> tuple[ChunkRule, ...]:
        """T3's map of the producer's output (ASPLOS 2024, arXiv:2401.16677).

        The first chunk has a ``remote_map``: the producer's own stores are updates of the neighbour's memory. Later
        ones are updated here, by the producer and by the neighbour, and have a ``dma_map``: complete blocks
        are sent on as updates. The last one stays.
        """
        return (
            ChunkRule(remote=RemoteMap("output", 1, update=True, operator="reduce_scatter")),
            *(self._forwarding(p) for p in range(1, self.gpus - 1)),
            ChunkRule(update=True, updates_per_element=2),
        )

    def updated_output(self) -> tuple[ChunkRule, ...]:
        """The output when a reduce-scatter kernel sends it on as near-memory updates of the neighbour's."""
        steps = range(1, self.gpus)
        return (
            *(ChunkRule(remote=RemoteMap("output", p, update=True, operator="reduce_scatter")) for p in steps),
            PLAIN_STORE,
        )

    @staticmethod
    def _forwarding(position: int) -> ChunkRule:
        dma = DmaMap("output", position + 1, True, "reduce_scatter")
        return ChunkRule(update=True, updates_per_element=2, dma=dma)
