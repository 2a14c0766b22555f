"""A queue of independent GEMMs as it ran: who held which compute unit when, all at once and as chosen."""

from __future__ import annotations

from dataclasses import dataclass

from weft.result import Timeline
from weft.run import simulate
from weft.search.degree import Batches, Plans


@dataclass(frozen=True)
class Watched:
    """A queue of the GEMMs `names`, run all at once, and as chosen: batch by batch, in the order of the queue.

    `sizes` counts the GEMMs of every chosen batch.
    """

    title: str
    names: tuple[str, ...]
    default: tuple[Timeline, ...]
    chosen: tuple[Timeline, ...]
    sizes: tuple[int, ...]


def watched(title: str, plans: Plans) -> Watched:
    """Run a queue's batches again and keep what happened in them."""
    names = tuple(str(node.op) for batch in plans.default for node in batch.graph)
    sizes = tuple(len(batch.graph) for batch in plans.goldyloc)
    return Watched(title, names, _runs(plans.default), _runs(plans.goldyloc), sizes)


def _runs(batches: Batches) -> tuple[Timeline, ...]:
    return tuple(simulate(one.graph, one.system, one.overlap, one.options) for one in batches)
