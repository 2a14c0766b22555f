"""Data parallelism: how fast and how stale workers are under BSP, SSP and ASP, and what ZeRO's stages hold and send.

BSP waits for all workers after every step; SSP (stale synchronous) lets a worker be at most some steps ahead of the
slowest; ASP never waits. Whether stale gradients converge is outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from weft.core.errors import InputError, check_whole, show_value
from weft.core.units import Dimension, parse
from weft.estimate.answer import FloatArray
from weft.graph import DTYPE_BYTES
from weft.kernels.library.collectives import volume
from weft.models.parallel.framework import Framework
from weft.models.parallel.memory import states
from weft.models.parallel.plan import TrainingPlan


class WorkerTime(Protocol):
    """A distribution of the seconds of a worker's step: every frozen distribution of scipy.stats is one."""

    def mean(self) -> Any:
        """Its mean [s]."""

    def cdf(self, x: Any) -> Any:
        """Return the share of the steps that take at most `x` seconds."""

    def support(self) -> tuple[Any, Any]:
        """Return the shortest and the longest step [s]."""

    def rvs(self, size: Any, random_state: Any) -> Any:
        """Random steps [s] of a shape."""


@dataclass(frozen=True)
class Fixed:
    """A worker whose steps all take `seconds`."""

    seconds: float

    def mean(self) -> float:
        """Return the seconds."""
        return self.seconds

    def cdf(self, x: Any) -> FloatArray:
        """0 before the seconds, 1 from then on."""
        return np.where(np.asarray(x) >= self.seconds, 1.0, 0.0)

    def support(self) -> tuple[float, float]:
        """Return the seconds, twice."""
        return self.seconds, self.seconds

    def rvs(self, size: Any, random_state: Any) -> FloatArray:
        """Return an array of them."""
        return np.full(size, self.seconds)


@dataclass(frozen=True)
class Pace:
    """How workers progress under one rule.

    `step` is the mean time in which as many updates are made as there are workers [s], `exact` if it has a closed form,
    else simulated. `lag` is the share of steps by how many steps they begin ahead of the slowest worker,
    `delay` the mean number of updates of others between a worker's read of the weights and its own update.
    """

    rule: str
    slack: float
    step: float
    exact: bool
    lag: Mapping[int, float]
    delay: float

    @property
    def mean_lag(self) -> float:
        """Mean number of steps by which a worker that begins one is ahead of the slowest."""
        return sum(steps * share for steps, share in self.lag.items())


@dataclass(frozen=True)
class Consistency:
    """Return how `workers` workers progress under several rules; speedups are over the first rule."""

    workers: int
    paces: tuple[Pace, ...]

    def speedup(self, pace: Pace) -> float:
        """Return how many times as many updates a rule makes as the first one."""
        return self.paces[0].step / pace.step

    def __getitem__(self, rule: str) -> Pace:
        for pace in self.paces:
            if pace.rule == rule:
                return pace
        raise InputError(f"there is no rule '{rule}'; these are {', '.join(one.rule for one in self.paces)}")


def update_rules(
    workers: Sequence[WorkerTime | str], slacks: Sequence[float] = (0, 1, 4, math.inf), steps: int = 2000, seed: int = 0
) -> Consistency:
    """Compare rules by the steps that a worker may be ahead of the slowest: 0 is BSP, infinity ASP, others SSP.

    Each worker has a distribution of step times, or a text like "1.5 s" for a fixed one. BSP's step is the mean of the
    slowest, the integral of 1 - F1(t) F2(t) ...; ASP's follows from the sum of the workers' rates. Everything else is
    simulated over `steps` steps of each worker; the first half of the time is left out. Raises InputError without
    workers or rules, and for a slack that is no number of steps.

    >>> from scipy.stats import uniform
    >>> found = update_rules([uniform(1, 1)] * 8, [0, math.inf], steps=100)
    >>> [round(pace.step, 3) for pace in found.paces]
    [1.889, 1.5]
    """
    times = [Fixed(parse(one, Dimension.SECONDS)) if isinstance(one, str) else one for one in workers]
    if not times or not slacks:
        raise InputError("there is nothing to compare; give at least one worker and one slack")
    check_whole("steps", steps, 10, 2000)
    for slack in slacks:
        if not (slack == math.inf or (slack >= 0 and float(slack).is_integer())):
            raise InputError(
                f"a slack is {show_value(slack)}; give a whole number of steps, or math.inf for none to wait"
            )
    drawn = np.random.default_rng(seed)
    took = np.column_stack([np.asarray(one.rvs(steps, drawn), dtype=np.float64) for one in times])
    return Consistency(len(times), tuple(_pace(slack, times, took) for slack in slacks))


def _pace(slack: float, times: Sequence[WorkerTime], took: FloatArray) -> Pace:
    rule = "BSP" if slack == 0 else "ASP" if slack == math.inf else f"SSP {slack:.0f}"
    start, end = progress(took, slack)
    horizon = float(end[-1].min())
    known = _closed_form(slack, times)
    counted = ((end > horizon / 2) & (end <= horizon)).sum()
    step = horizon / 2 * len(times) / counted if known is None else known
    settled = (start >= horizon / 2) & (end <= horizon)
    lag, delay = _staleness(start, end, settled)
    return Pace(rule, slack, float(step), known is not None, lag, delay if slack else 0.0)


def progress(took: FloatArray, slack: float) -> tuple[FloatArray, FloatArray]:
    """Begin and end of each worker's steps [s] that take `took`; all have the shape (steps, workers).

    A worker begins step k when it has ended its own before and all others have ended step k - slack - 1.
    """
    start, end = np.zeros_like(took), np.zeros_like(took)
    for k in range(len(took)):
        if k:
            start[k] = end[k - 1]
        if k > slack:
            start[k] = np.maximum(start[k], end[k - int(slack) - 1].max())
        end[k] = start[k] + took[k]
    return start, end


def _closed_form(slack: float, times: Sequence[WorkerTime]) -> float | None:
    """Return the mean step of BSP and ASP [s]; None for others."""
    if slack == math.inf:
        return len(times) / sum(1 / float(one.mean()) for one in times)
    return mean_of_slowest(times) if slack == 0 else None


def mean_of_slowest(times: Sequence[WorkerTime]) -> float:
    """Mean of the longest of independent steps, one of each worker [s]: shortest + integral of 1 - F1(t) F2(t) ..."""
    from scipy.integrate import quad

    ends = [one.support() for one in times]
    low, high = max(float(least) for least, _ in ends), max(float(most) for _, most in ends)
    if low == high:
        return low

    def still_running(t: float) -> float:
        return 1.0 - math.prod(float(one.cdf(t)) for one in times)

    inner = sorted({end for pair in ends for end in map(float, pair) if low < end < high and math.isfinite(end)})
    borders = [low, *inner, high]
    return low + sum(quad(still_running, a, b)[0] for a, b in pairwise(borders))


def _staleness(start: FloatArray, end: FloatArray, settled: Any) -> tuple[dict[int, float], float]:
    """Distribution of the steps that a beginning step is ahead of the slowest worker, and the mean updates of others
    between its begin and its end.
    """
    begun, ended = start[settled], end[settled]
    own = np.nonzero(settled)
    counts = np.array([np.searchsorted(end[:, worker], begun, side="right") for worker in range(end.shape[1])])
    later = np.array([np.searchsorted(end[:, worker], ended, side="left") for worker in range(end.shape[1])])
    lag, times = np.unique(own[0] - counts.min(axis=0), return_counts=True)
    between = (later - counts).sum(axis=0) - (later - counts)[own[1], np.arange(len(begun))]
    share = times / max(times.sum(), 1)
    return dict(zip(lag.tolist(), share.tolist(), strict=True)), float(between.mean()) if len(begun) else 0.0


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
    plans = (TrainingPlan(dp=replicas, batch=replicas, zero=stage) for stage in range(4))
    return tuple(
        Stage(plan.zero, states(parameters, plan, used), _sent_bytes(parameters, plan, used)) for plan in plans
    )


def _sent_bytes(parameters: int, plan: TrainingPlan, framework: Framework) -> float:
    formats = {"all_gather": plan.dtype}
    gradients = framework.gradients if plan.shards_weights else framework.reduce_dtype
    return sum(
        volume(name, plan.dp) * parameters * DTYPE_BYTES[formats.get(name, gradients)]
        for name in COLLECTIVES[plan.zero]
    )
