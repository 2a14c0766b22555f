"""What a search for a pipeline order is given, times and memory of each stage, and what no order of it can beat.

Each device holds one stage; backwards are split.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.core.errors import InputError, check_whole
from weft.step.pipeline.clock import Durations, Send, seconds
from weft.step.pipeline.filling import SLACK, Costs
from weft.step.pipeline.orders import BACKWARD, FORWARD, WEIGHT, Floats, Schedule, codes, one_way

_MOST_TASKS = 300_000


def check_tasks(devices: int, micro_batches: int) -> None:
    """Raise InputError for numbers of devices and micro-batches below 1, and for more than can be searched."""
    check_whole("the number of pipeline devices", devices, 1, 8)
    check_whole("the number of micro-batches", micro_batches, 1, 32)
    if 3 * devices * micro_batches > _MOST_TASKS:
        raise InputError(
            f"{micro_batches} micro-batches on {devices} devices are too many to search an order for; "
            f"devices x micro-batches must be at most {_MOST_TASKS // 3}"
        )


@dataclass(frozen=True, eq=False)
class OrderProblem:
    """A pipeline of one stage a device, whose order is to be found.

    `durations` are numbers or one per stage [s]. `limit` is how many micro-batches' activations a stage may hold, a
    number or one per stage; of each, the share `kept_for_weight` is held from B until W, the rest from F until B.

    Raises InputError for times that do not fit, and for a limit below one micro-batch.
    """

    devices: int
    micro_batches: int
    durations: Durations
    send: float | Send | tuple[Send, Send] = 0.0
    limit: ArrayLike = np.inf
    kept_for_weight: ArrayLike = 1.0

    def __post_init__(self) -> None:
        check_tasks(self.devices, self.micro_batches)
        if not (self.costs.limit >= 1 - SLACK).all():
            raise InputError(
                f"a stage may hold {self.costs.limit.min():g} micro-batches, but needs at least 1; raise the limit"
            )
        if not ((self.costs.kept >= 0) & (self.costs.kept <= 1)).all():
            raise InputError(
                "the share that is kept for the weight gradients must be between 0 and 1; give one, as 0.4"
            )

    @cached_property
    def costs(self) -> Costs:
        """Times and memory by stage."""
        shape, between = (self.devices,), (self.devices - 1,)
        names = ("forward", "backward", "weight")
        took = [seconds(f"the {name} time", getattr(self.durations, name), shape) for name in names]
        delay, before, after = (np.zeros((self.devices, 2)) for _ in range(3))
        pair = self.send if isinstance(self.send, tuple) else (self.send, self.send)
        for kind, given in enumerate(pair):
            send = given if isinstance(given, Send) else Send(given)
            to, source = (slice(1, None), slice(None, -1))[:: 1 - 2 * kind]
            delay[to, kind] = seconds("the latency of a send", send.latency, between)
            before[to, kind] = seconds("the receiver busy of a send", send.receiver_busy, between)
            after[source, kind] = seconds("the sender busy of a send", send.sender_busy, between)
        limit, kept = (self._by_stage(each) for each in (self.limit, self.kept_for_weight))
        return Costs(np.stack(took, axis=1), delay, before, after, np.minimum(limit, self.micro_batches), kept)

    def _by_stage(self, value: ArrayLike) -> Floats:
        try:
            spread: Floats = np.broadcast_to(np.asarray(value, float), (self.devices,)).copy()
        except ValueError:
            raise InputError(f"a limit of memory does not fit; give a number, or {self.devices} numbers") from None
        return spread

    @property
    def work(self) -> Floats:
        """Time that each stage computes [s]."""
        total: Floats = self.micro_batches * self.costs.took.sum(axis=1)
        return total

    def schedule(self, order: NDArray[np.int64], name: str = "found") -> Schedule:
        """Return the schedule of an order of kinds, of shape (stages, 3 x micro-batches)."""
        orders = []
        for stage, row in enumerate(order):
            number = np.empty(len(row), np.int64)
            for kind in (FORWARD, BACKWARD, WEIGHT):
                number[row == kind] = np.arange(self.micro_batches)
            orders.append(codes(row, stage, number, self.devices, self.micro_batches))
        return one_way(name, np.arange(self.devices), self.micro_batches, orders)


def least_spans(problem: OrderProblem) -> Floats:
    """Return the shortest span that any order can give each stage [s].

    A stage computes all its tasks, and is idle at both ends: before its first backward, for which it can only run the
    forwards that fit its memory, and after its last forward, when the device can only run what it still holds. The
    device also has to wait for each later stage j: its first forward travels there, stage j runs all forwards, all
    backwards and those weight gradients without which its memory would be full, the last gradient travels back, and its
    W follows. And the memory that all micro-batches take, each for as long as it cannot be released, must fit the
    limit.
    """
    took = problem.costs.took
    spans = problem.work + _sends(problem) - problem.costs.before[:, FORWARD] + _idle(problem)
    spans = np.maximum(spans, _held_memory(problem) / problem.costs.limit)
    passes = _passes(problem)
    away, back = _ways(problem)
    for stage in range(problem.devices):
        later = away[stage:] - away[stage] + passes[stage:] + back[stage:] - back[stage]
        spans[stage] = max(spans[stage], later.max() + took[stage, WEIGHT])
    least: Floats = spans
    return least


def least_end(problem: OrderProblem) -> float:
    """Return the shortest makespan that any order can have [s].

    A stage starts after one forward on each earlier one; a backward on each of those and a weight gradient follow its
    last backward.
    """
    away, back = _ways(problem)
    first = problem.costs.took[0, WEIGHT]
    return float(max((away + least_spans(problem)).max(), (away + _passes(problem) + back).max() + first))


def _held_memory(problem: OrderProblem) -> Floats:
    """Memory of a stage over time that all micro-batches take at the least [micro-batches x s]."""
    took, kept = problem.costs.took, problem.costs.kept
    whole = took[:, FORWARD] + round_trips(problem) + took[:, BACKWARD]
    held: Floats = problem.micro_batches * (whole + kept * took[:, WEIGHT])
    return held


def _ways(problem: OrderProblem) -> tuple[Floats, Floats]:
    """Time from the start of the pipeline to each stage's first forward, and from its last backward to stage 0's."""
    took, delay = problem.costs.took, problem.costs.delay
    away, back = np.zeros(problem.devices), np.zeros(problem.devices)
    away[1:] = np.cumsum(took[:-1, FORWARD] + delay[1:, FORWARD])
    back[1:] = np.cumsum(took[:-1, BACKWARD] + delay[:-1, BACKWARD])
    return away, back


def _sends(problem: OrderProblem) -> Floats:
    """Time that sends occupy each stage [s]."""
    both = problem.costs.before + problem.costs.after
    total: Floats = problem.micro_batches * both.sum(axis=1)
    return total


def _passes(problem: OrderProblem) -> Floats:
    """Return the least time from each stage's first forward to the end of its last backward [s]."""
    count, costs = problem.micro_batches, problem.costs
    both = costs.took[:, FORWARD] + costs.took[:, BACKWARD]
    must = np.ceil(count - 1 + (1 - costs.limit - SLACK) / np.maximum(costs.kept, SLACK) - SLACK)
    weights = np.clip(must, 0, count - 1) * costs.took[:, WEIGHT]
    sends = _sends(problem) - costs.before[:, FORWARD] - costs.after[:, BACKWARD]
    passes: Floats = count * both + weights + sends + _idle(problem)
    return passes


def _idle(problem: OrderProblem) -> Floats:
    """Return the least idle time of each stage before its first backward and after its last forward [s].

    Between the end of a forward and the start of its backward a micro-batch passes all later stages.
    """
    costs, count, trips = problem.costs, problem.micro_batches, round_trips(problem)
    took, before, after = costs.took, costs.before, costs.after
    most = np.minimum(np.floor(costs.limit + SLACK), count)
    forwards = (most - 1) * (took[:, FORWARD] + before[:, FORWARD]) + most * after[:, FORWARD] + before[:, BACKWARD]
    first = np.maximum(trips - forwards, 0)
    last = np.maximum(trips - _most_left(problem) - after[:, FORWARD] - before[:, BACKWARD], 0)
    apart = most < count  # then the last forward starts after the first backward
    idle: Floats = np.where(apart, first + last, np.maximum(first, last))
    return idle


def _most_left(problem: OrderProblem) -> Floats:
    """Return the most work that each stage can hold beside the micro-batch of its last forward [s]."""
    costs, others = problem.costs, problem.micro_batches - 1
    weight, room = costs.took[:, WEIGHT], costs.limit - 1 + SLACK
    whole = costs.took[:, BACKWARD] + weight + costs.before[:, BACKWARD] + costs.after[:, BACKWARD]
    rate = np.maximum(whole, weight / np.maximum(costs.kept, SLACK))
    left: Floats = np.minimum(np.where(costs.kept > SLACK, room * rate, room * whole + others * weight), others * whole)
    return left


def round_trips(problem: OrderProblem) -> Floats:
    """Return time from the end of a forward on each stage to the arrival of its gradient there, at the least [s]."""
    took, delay = problem.costs.took, problem.costs.delay
    trips = np.zeros(problem.devices)
    for stage in range(problem.devices - 2, -1, -1):
        later = took[stage + 1, FORWARD] + took[stage + 1, BACKWARD]
        trips[stage] = trips[stage + 1] + later + delay[stage + 1, FORWARD] + delay[stage, BACKWARD]
    return trips
