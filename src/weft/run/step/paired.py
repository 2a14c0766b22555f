"""Exchanges of one micro-batch's tokens beside the computing of another (1F1B of forward and backward passes).

As in Megatron Core (--overlap-moe-expert-parallel-comm) and DualPipe (arXiv:2412.19437, section 3.2.1): a forward pass
runs beside the backward pass of another micro-batch, so that either computes while the other exchanges.
"""

from __future__ import annotations

from dataclasses import replace

from weft.parallel.plan import Parallelism
from weft.result.step import Pass, added, exposed
from weft.run.step.spans import CONTENTION

EXPERTS = exposed("ep")


def paired_share(plan: Parallelism) -> float:
    """The share of a device's forward passes beside which a backward pass of another micro-batch runs.

    Not those of the warm-up of 1F1B, on average over the stages, nor the first after it, which has no partner.
    """
    stages, chunks = plan.pp, plan.chunks
    warm = (stages - 1) / 2 if chunks == 1 else stages - 1 + (chunks - 1) * stages
    return max(1 - (warm + 1) / (plan.micro_batches * chunks), 0.0)


def paired(forward: Pass, backward: Pass, share: float, units: float, held: bool = False) -> tuple[Pass, Pass]:
    """Both passes on average, when in a `share` of them either exchanges tokens while the other computes.

    The exchange takes a share `units` of the compute units from what runs beside it. With exchanges of X and computing
    of C seconds, both take X + C - (1 - units) X, but at least X; where it `held` them also while nothing moves,
    C / (1 - units).
    """
    waits = [one.parts.get(EXPERTS, 0.0) for one in (forward, backward)]
    moved = sum(waits)
    if not moved or not share:
        return forward, backward
    computing = forward.seconds + backward.seconds - moved
    fits = moved * (1 - units) <= computing
    slower = units * (computing / (1 - units) if held else moved) if fits else 0.0
    late = 0.0 if fits else moved - computing
    return tuple(  # type: ignore[return-value]
        _beside(one, share, wait, late * wait / moved, slower * wait / moved)
        for one, wait in zip((forward, backward), waits, strict=True)
    )


def _beside(alone: Pass, share: float, wait: float, late: float, slower: float) -> Pass:
    """A pass of which a share waits only `late` for its tokens, and computes longer by `slower` [s]."""
    less = share * (wait - late)
    parts = added(alone.parts, {EXPERTS: -less, CONTENTION: share * slower})
    hidden = added(alone.hidden, {"ep": less})
    return replace(alone, seconds=alone.seconds - less + share * slower, parts=parts, hidden=hidden)
