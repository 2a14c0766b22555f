"""A queue of independent GEMMs as it ran: who held which compute unit when, all at once and as chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.result import Result
from weft.simulation.gemms import watched_gemms
from weft.tuning.batches import Batch
from weft.tuning.degree import Plans


@dataclass(frozen=True)
class Watched:
    """A queue of the GEMMs `names`, run all at once, and as chosen: batch by batch, in the order of the queue.

    `sizes` counts the GEMMs of every chosen batch.
    """

    title: str
    names: tuple[str, ...]
    default: tuple[Result, ...]
    chosen: tuple[Result, ...]
    sizes: tuple[int, ...]


def watched(title: str, plans: Plans) -> Watched:
    """Run a queue's batches again and keep what happened in them."""
    names = tuple(str(one.gemm) for batch in plans.default for one in batch.gemms)
    sizes = tuple(len(batch.gemms) for batch in plans.goldyloc)
    return Watched(title, names, _runs(plans.default), _runs(plans.goldyloc), sizes)


def _runs(batches: Sequence[Batch]) -> tuple[Result, ...]:
    return tuple(
        watched_gemms(batch.gemms, batch.gpu, clock=batch.clock, request_bytes=batch.request_bytes)
        for batch in batches
    )
