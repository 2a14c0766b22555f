"""What one slow part of a machine costs a served load: the same load, with the replicas that wait for it slower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.core.answer import Record, to_plain
from weft.core.errors import InputError
from weft.hardware import slower
from weft.step.straggler import Straggler

if TYPE_CHECKING:
    from weft.hardware import System
    from weft.serving.result import Serving
    from weft.serving.serve import Ready


@dataclass(frozen=True)
class ServingDelay(Record):
    """What a straggler costs a load: TPOT and TTFT (the means [s], None above capacity) and output tokens per second,
    before and after.

    `replicas` wait for it, of all; a token waits `own` times as long for an iteration of one of them. `axes` are those
    whose ranks wait in every layer.
    """

    straggler: Straggler
    replicas: int
    own: float
    tpot_s: tuple[float, float] | None
    ttft_s: tuple[float, float] | None
    output_tokens_per_s: tuple[float, float]
    axes: tuple[str, ...] = ()

    @property
    def reaching(self) -> float | None:
        """Share of a slow iteration's delay that reaches the mean TPOT; None without a TPOT or a delay."""
        if self.tpot_s is None or self.own <= 1:
            return None
        return (self.tpot_s[1] / self.tpot_s[0] - 1) / (self.own - 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the delay and who waits as plain data."""
        return to_plain(
            straggler=self.straggler, replicas=self.replicas, own=self.own, tpot_s=self.tpot_s, ttft_s=self.ttft_s,
            output_tokens_per_s=self.output_tokens_per_s, axes=self.axes, reaching=self.reaching,
        )  # fmt: skip


def delay(ready: Ready, answer: Serving, straggler: Straggler) -> ServingDelay:
    """Return what a straggler costs a load that was served: in the engine where it costs most.

    Raises InputError for a network that no replica uses.
    """
    slow = _slow_system(answer.system, straggler)
    each = [_delay(ready, answer, straggler, slow, late) for late in _engines(ready, answer, straggler)]
    return max(each, key=lambda one: (one.tpot_s[1] if one.tpot_s else 0.0, -one.output_tokens_per_s[1]))


def _slow_system(system: System, straggler: Straggler) -> System:
    """Return the machine as the ranks see it that wait for its slow part."""
    if straggler.what == "gpu":
        return system.with_gpu(slower(system.gpu, straggler.share))
    if system.node is None or system.gpus <= system.gpus_per_node:
        raise InputError(
            f"a straggler {straggler.what} slows the network between nodes, and {system.gpus} GPUs are one node; name "
            "a slow GPU, like 'gpu:5%', or a larger system"
        )
    rate = system.node.network.bandwidth * straggler.share
    return system.replace({"network.bandwidth": f"{rate!r} B/s"})


def _engines(ready: Ready, answer: Serving, straggler: Straggler) -> Sequence[Sequence[int]]:
    """Return the replicas that may wait for the slow part: of prefill workers, and of those that decode."""
    plan, readers = answer.plan, ready.server.prefills
    before = plan.of_prefill if readers else plan
    pools = [(0, readers, before, 0)] if readers else []  # first and last replica, plan, and first GPU of each pool
    pools.append((readers, answer.replicas, plan, readers * before.tp))
    if straggler.what == "gpu":
        return [range(start, start + one.together) for start, _, one, _ in pools]
    each = answer.system.gpus_per_node  # GPUs of the slow node, whose engines may reach into others
    found = []
    for *_, start in pools:
        first = start // each * each  # the first GPU of the node
        held: list[int] = []
        for begin, end, one, gpu in pools:
            engine = one.tp * one.together
            low, high = max(first - gpu, 0) // engine, -(-max(first + each - gpu, 0) // engine)
            held += range(begin + low * one.together, min(begin + high * one.together, end))
        found.append(held)
    return found


def _delay(
    ready: Ready, answer: Serving, straggler: Straggler, system: System, late: Sequence[int]
) -> ServingDelay:  # fmt: skip
    slowed = ready.slowed(system, late)
    after = slowed.serving(*slowed.run())
    own = slowed.server.slowness(answer.window.iterations(answer.iterations))
    plan = answer.plan
    axes = tuple(name for name, degree in (("tp", plan.tp), ("ep", plan.ep), ("pp", plan.pp)) if degree > 1)

    def means(name: str) -> tuple[float, float] | None:
        before, now = getattr(answer, name), getattr(after, name)
        return None if before is None or now is None else (before["mean"], max(now["mean"], before["mean"]))

    rates = answer.output_tokens_per_s, min(after.output_tokens_per_s, answer.output_tokens_per_s)
    return ServingDelay(straggler, len(late), own, means("tpot"), means("ttft"), rates, axes if own > 1 else ())
