"""Parts of a model in a row on one rank, each after its weights were gathered where they are sharded (FSDP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.result.step import Chunk, PartTimes, Pass, added


@dataclass(frozen=True)
class Gathering:
    """How long it takes to gather the weights of each part, and to reduce and scatter its gradients [s].

    The last part keeps its weights from the forward to the backward pass if `keep_last`; with `keep` all do.
    """

    gather: Sequence[float]
    scatter: Sequence[float]
    keep: bool = False
    keep_last: bool = True


def chunk(parts: Sequence[PartTimes], gathering: Gathering | None = None, launch: float = 0.0) -> Chunk:
    """The passes over parts in their order, the backward ones in reverse.

    The host spends `launch` on each kernel [s]; it runs ahead of the GPU as far as the pass allows.
    """
    forward = sum((part.forward for part in parts), Pass())
    backward = sum((part.recompute + part.backward for part in parts), Pass())
    weight = sum((part.weight for part in parts), Pass())
    if gathering is not None:
        forward = _waiting(forward, _forward(parts, gathering))
        backward = _waiting(backward, _backward(parts, gathering))
    return Chunk(tuple(parts), *(_launched(one, launch) for one in (forward, backward, weight)))


def _launched(alone: Pass, launch: float) -> Pass:
    """A pass that takes no less than the host needs to launch its kernels."""
    gap = alone.launches * launch - alone.seconds
    return alone if gap <= 0 else alone + Pass(gap, {"launch gaps": gap})


def _waiting(alone: Pass, times: tuple[float, float]) -> Pass:
    """A pass that waits for weights or gradients of other ranks; `times` are its end and its communication [s]."""
    end, moved = times
    exposed = max(end - alone.seconds, 0.0)
    hidden = added(alone.hidden, {"dp": moved - exposed})
    return replace(
        alone, seconds=alone.seconds + exposed, parts=added(alone.parts, {"exposed dp": exposed}), hidden=hidden
    )


def _forward(parts: Sequence[PartTimes], gathering: Gathering) -> tuple[float, float]:
    """The end of the forward pass and the time that gathering takes [s].

    While a part runs, the next one's weights are gathered: two parts are whole at once (FSDP's rate limiter).
    """
    gathered, ends = 0.0, [0.0, 0.0]
    for part, seconds in zip(parts, gathering.gather, strict=True):
        gathered = max(gathered, ends[-2]) + seconds
        ends.append(max(ends[-1], gathered) + part.forward.seconds)
    return ends[-1], sum(gathering.gather)


def _backward(parts: Sequence[PartTimes], gathering: Gathering) -> tuple[float, float]:
    """The end of the backward pass and the time of its communication [s].

    When the backward pass of a part begins, the weights of the next one are gathered; when it ends, its gradients are
    scattered, before the gather that follows: one communicator runs them in this order.
    """
    count = len(parts)
    gather = [0.0 if gathering.keep else seconds for seconds in gathering.gather]
    if gathering.keep_last:
        gather[-1] = 0.0
    free = gather[-1]
    ready = [0.0] * count
    ready[-1] = free
    end = 0.0
    for at in reversed(range(count)):
        begin = max(end, ready[at])
        if at:
            free = ready[at - 1] = max(free, begin) + gather[at - 1]
        end = begin + parts[at].recompute.seconds + parts[at].backward.seconds + parts[at].weight.seconds
        free = max(free, end) + gathering.scatter[at]
    return max(end, free) - sum(part.weight.seconds for part in parts), sum(gather) + sum(gathering.scatter)
