"""Lower bounds of schedules: what no order of a schedule's tasks, or no split order in a limit of memory, can beat."""

from __future__ import annotations

import numpy as np

from weft.schedule.pipeline.clock import Durations, Send, latencies, task_times
from weft.schedule.pipeline.filling import SLACK
from weft.schedule.pipeline.orders import BACKWARD, FORWARD, WEIGHT, Floats, Schedule
from weft.schedule.pipeline.problem import OrderProblem


def least_makespan(schedule: Schedule, durations: Durations, send: float | Send | tuple[Send, Send] = 0.0) -> float:
    """A makespan that no order of a schedule's tasks can beat [s].

    The longer of the work of the busiest device and the way of one micro-batch, forward through all stages and back.
    """
    ran = schedule.position >= 0
    times = np.where(ran, task_times(schedule, durations), 0.0)
    chain = (times[:2] + np.where(ran, latencies(schedule, send), 0.0)[:2]).sum(axis=(0, 1)).max()
    times.flat[schedule.pairs[:, 1]] = 0.0
    device = np.broadcast_to(schedule.device, times.shape).ravel()
    work = np.bincount(device, times.ravel(), schedule.devices).max()
    return float(max(chain, work))


def least_spans(problem: OrderProblem) -> Floats:
    """The shortest span that any order can give each stage [s].

    A stage computes all its tasks, and is idle at both ends: before its first backward, for which it can only run the
    forwards that fit its memory, and after its last forward, when it can only run what it still holds. It also has to
    wait for each later stage j: its first forward travels there, stage j runs all forwards, all backwards and those
    weight gradients without which its memory would be full, the last gradient travels back, and its W follows. And the
    memory that all micro-batches take, each for as long as it cannot be released, must fit the limit.
    """
    took = problem.costs.took
    spans = problem.work + _sends(problem) - problem.costs.before[:, FORWARD] + _idle(problem)
    spans = np.maximum(spans, _held(problem) / problem.costs.limit)
    passes = _passes(problem)
    away, back = _ways(problem)
    for stage in range(problem.devices):
        later = away[stage:] - away[stage] + passes[stage:] + back[stage:] - back[stage]
        spans[stage] = max(spans[stage], later.max() + took[stage, WEIGHT])
    least: Floats = spans
    return least


def least_end(problem: OrderProblem) -> float:
    """The shortest makespan that any order can have [s].

    A stage starts after one forward on each earlier one; a backward on each of those and a weight gradient follow its
    last backward.
    """
    away, back = _ways(problem)
    first = problem.costs.took[0, WEIGHT]
    return float(max((away + least_spans(problem)).max(), (away + _passes(problem) + back).max() + first))


def _held(problem: OrderProblem) -> Floats:
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
    """The least time from each stage's first forward to the end of its last backward [s]."""
    count, costs = problem.micro_batches, problem.costs
    both = costs.took[:, FORWARD] + costs.took[:, BACKWARD]
    must = np.ceil(count - 1 + (1 - costs.limit - SLACK) / np.maximum(costs.kept, SLACK) - SLACK)
    weights = np.clip(must, 0, count - 1) * costs.took[:, WEIGHT]
    sends = _sends(problem) - costs.before[:, FORWARD] - costs.after[:, BACKWARD]
    passes: Floats = count * both + weights + sends + _idle(problem)
    return passes


def _idle(problem: OrderProblem) -> Floats:
    """The least idle time of each stage before its first backward and after its last forward [s].

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
    """The most work that each stage can hold beside the micro-batch of its last forward [s]."""
    costs, others = problem.costs, problem.micro_batches - 1
    weight, room = costs.took[:, WEIGHT], costs.limit - 1 + SLACK
    whole = costs.took[:, BACKWARD] + weight + costs.before[:, BACKWARD] + costs.after[:, BACKWARD]
    rate = np.maximum(whole, weight / np.maximum(costs.kept, SLACK))
    left: Floats = np.minimum(np.where(costs.kept > SLACK, room * rate, room * whole + others * weight), others * whole)
    return left


def round_trips(problem: OrderProblem) -> Floats:
    """Time from the end of a forward on each stage to the arrival of its gradient there, at the least [s]."""
    took, delay = problem.costs.took, problem.costs.delay
    trips = np.zeros(problem.devices)
    for stage in range(problem.devices - 2, -1, -1):
        later = took[stage + 1, FORWARD] + took[stage + 1, BACKWARD]
        trips[stage] = trips[stage + 1] + later + delay[stage + 1, FORWARD] + delay[stage, BACKWARD]
    return trips
