"""What the stages of ZeRO leave on each replica, and what replicas send for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.errors import check_whole
from weft.graph import DTYPE_BYTES
from weft.library.collectives import volume
from weft.parallel.framework import Framework
from weft.parallel.memory import states
from weft.parallel.plan import Parallelism

COLLECTIVES: tuple[tuple[str, ...], ...] = (
    ("all_reduce",),
    ("reduce_scatter", "all_gather"),
    ("reduce_scatter", "all_gather"),
    ("all_gather", "all_gather", "reduce_scatter"),
)
"""Collectives over the replicas in a step, by the stage of ZeRO (arXiv:1910.02054, section 7): sums of gradients, then
gathers of updated weights; with sharded weights, which are gathered for both passes, of a single micro-batch."""


@dataclass(frozen=True)
class Stage:
    """A stage of ZeRO: bytes of each rank by what holds them, and the bytes that it sends in a step."""

    stage: int
    held: dict[str, int]
    sent: float

    @property
    def bytes(self) -> int:
        """All that a rank holds of weights, gradients and optimizer states."""
        return sum(self.held.values())

    def to_dict(self) -> dict[str, Any]:
        """The stage as plain data."""
        return {"stage": self.stage, "bytes": self.bytes, **self.held, "sent_bytes": self.sent}


def zero_stages(parameters: int, replicas: int, framework: Framework | None = None) -> tuple[Stage, ...]:
    """Bytes that each of the replicas holds and sends under ZeRO's stages 0 to 3, by the memory rules of `weft.memory`.

    Weights travel in the plan's 16 bits, gradients in the format in which the framework reduces them (None: 16 bits, as
    in arXiv:1910.02054, figure 1). Raises InputError for numbers below 1.

    >>> [f"{one.bytes / 1e9:.3g} GB" for one in zero_stages(7_500_000_000, 64)]
    ['120 GB', '31.4 GB', '16.6 GB', '1.88 GB']
    """
    check_whole("parameters", parameters, 1, 7_500_000_000)
    check_whole("replicas", replicas, 1, 64)
    used = framework or Framework(gradients="bf16")
    plans = (Parallelism(dp=replicas, batch=replicas, zero=stage) for stage in range(4))
    return tuple(Stage(plan.zero, states(parameters, plan, used), _sent(parameters, plan, used)) for plan in plans)


def _sent(parameters: int, plan: Parallelism, framework: Framework) -> float:
    formats = {"all_gather": plan.dtype}
    gradients = framework.gradients if plan.shards_weights else framework.reduced
    return sum(
        volume(name, plan.dp) * parameters * DTYPE_BYTES[formats.get(name, gradients)]
        for name in COLLECTIVES[plan.zero]
    )
