"""Exchanges of one micro-batch's tokens beside the computing of another (1F1B of forward and backward passes).

As in Megatron Core (--overlap-moe-expert-parallel-comm) and DualPipe (arXiv:2412.19437, section 3.2.1): a forward pass
runs concurrently with the backward pass of another micro-batch, so that either computes while the other exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.graph import TokenExchange
from weft.models.parallel.deployment import Deployment
from weft.step.result.step import Pass, add_parts, exposed_part
from weft.step.spans import CONTENTION

EXPERTS = exposed_part("ep")


def overlap_exchange(exchange: float, computing: float, units: float, held: bool = False) -> tuple[float, float]:
    """Return how much longer computing takes beside a dispatch or combine, and how long it then waits for it [s].

    The exchange of X seconds takes a share `units` of the compute units from the C seconds of computing. Both take
    C + units X, but at least X; where it `held` the units also while nothing moves, C / (1 - units), but at least X.
    Training steps (overlap_moe_expert_parallel_comm) and servers (two-batch overlap) take this one formula.
    """
    most = computing / (1 - units)
    slower = units * (most if held else min(exchange, most))
    return slower, max(exchange - computing - slower, 0.0)


def paired_share(plan: Deployment) -> float:
    """Return the share of a device's forward passes that overlap a backward pass of another micro-batch.

    Not those of the warm-up of 1F1B, on average over the stages, nor the first after it, which has no partner.
    """
    stages, chunks = plan.pp, plan.chunks
    warm = (stages - 1) / 2 if chunks == 1 else stages - 1 + (chunks - 1) * stages
    return max(1 - (warm + 1) / (plan.micro_batches * chunks), 0.0)


def pair_passes(
    forward: Pass, backward: Pass, share: float, units: float, held: bool = False, delayed: bool = True
) -> tuple[Pass, Pass]:
    """Return both passes on average, when in a `share` of them either exchanges tokens while the other computes.

    `units` and `held` are those of `overlap_exchange`. With gradients of weights `delayed` they fill what is left of
    any exchange, so that its formula holds for both passes as a whole; else it holds for each exchange and what runs
    concurrently with it.
    """
    waits = [one.parts.get(EXPERTS, 0.0) for one in (forward, backward)]
    moved = sum(waits)
    if not moved or not share:
        return forward, backward
    computing = forward.seconds + backward.seconds - moved
    slots = [(moved, computing)] if delayed else _slots(forward, backward, waits)
    costs = [overlap_exchange(moves, computes, units, held) for moves, computes in slots]
    slower, late = (sum(each) for each in zip(*costs, strict=True))
    return tuple(  # type: ignore[return-value]
        _beside(one, share, wait, late * wait / moved, slower * wait / moved)
        for one, wait in zip((forward, backward), waits, strict=True)
    )


def _slots(forward: Pass, backward: Pass, waits: Sequence[float]) -> list[tuple[float, float]]:
    """Return each kind of exchange with the computing of the other pass beside it [s, s].

    Megatron Core (TransformerLayerSchedulePlan.run): the first exchange of a backward pass runs concurrently with what
    a forward pass computes around its experts, that pass's dispatch beside the gradients of experts, the second
    exchange of the backward pass beside the experts, and the combine beside the other gradients.
    """
    (dispatch, combine, dense, experts), (first, second, dense_gradients, gradients) = (
        _split(one, wait) for one, wait in zip((forward, backward), waits, strict=True)
    )
    return [(first, dense), (dispatch, gradients), (second, experts), (combine, dense_gradients)]


def _split(one: Pass, wait: float) -> tuple[float, float, float, float]:
    """Return a pass's first and second exchanges of each layer of experts, and what it computes around and between
    them [s].
    """
    assert one.graph is not None
    exchanges = sorted(one.times[node.id] for node in one.graph if isinstance(node.op, TokenExchange))
    took = [sum(end - begin for begin, end in exchanges[place::2]) for place in (0, 1)]
    between = sum(max(then - end, 0.0) for (_, end), (then, _) in zip(exchanges[::2], exchanges[1::2], strict=False))
    share = wait / sum(took) if sum(took) else 0.0
    return took[0] * share, took[1] * share, max(one.seconds - wait - between, 0.0), between


def _beside(alone: Pass, share: float, wait: float, late: float, slower: float) -> Pass:
    """Return a pass in which a share waits only `late` for its tokens, and computes longer by `slower` [s]."""
    less = share * (wait - late)
    parts = add_parts(alone.parts, {EXPERTS: -less, CONTENTION: share * slower})
    hidden = add_parts(alone.hidden, {"ep": less})
    return replace(alone, seconds=alone.seconds - less + share * slower, parts=parts, hidden=hidden)
