"""List scheduling and local search of pipeline orders, written for numba: one stage a device, backwards split.

An order is an array (stages, 3 x micro-batches) of kinds: FORWARD, BACKWARD or WEIGHT. Each kind runs micro-batches in
their sequence, which costs nothing, because all micro-batches take equally long. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from weft.estimate.machine_code import machine_code

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
SLACK = 1e-9
"""Micro-batches by which held activations may exceed a limit, for rounding."""
_RARE = 1e-3
"""Weight of the mean span in the cost of a local search, which decides between equally long ones."""


class Costs(NamedTuple):
    """What tasks take and hold, by stage: times of F, B and W, and of sends before and after F and B [s].

    `took` has shape (stages, 3), `delay`, `before` and `after` (stages, 2): the latency until the input of a forward or
    backward arrives, and how long receiving and sending occupy the compute stream. `limit` is in micro-batches, `kept`
    the share of a micro-batch's activations that stay from B until W.
    """

    took: Any
    delay: Any
    before: Any
    after: Any
    limit: Any
    kept: Any


class Settings(NamedTuple):
    """How a list schedule decides.

    A stage runs `warmup` forwards before its first backward, and never more than `most` ahead of its backwards; both
    are by stage. A W runs if nothing else can, from `patience` x its own time before the next task on. `prefer`: 0
    forwards and backwards in turn, 1 the same as before, 2 forwards first, 3 backwards first.
    """

    warmup: Any
    most: Any
    patience: float
    prefer: int


class Scratch(NamedTuple):
    """Arrays to work in, of the size of an order: machine code allocates none."""

    ends: Any  # (2, stages, micro-batches)
    at: Any  # (stages, 5)
    starts: Any  # (stages,)
    counts: Any  # (stages, 5), integers
    best: Any  # (stages, tasks), integers

    @classmethod
    def of(cls, stages: int, micro_batches: int) -> Scratch:
        """Return arrays for orders of `stages` stages and `micro_batches` micro-batches."""
        floats = np.empty((2, stages, micro_batches)), np.empty((stages, 5)), np.empty(stages)
        return cls(*floats, np.empty((stages, 5), np.int64), np.empty((stages, 3 * micro_batches), np.int64))


def fill(costs: Any, order: Any, settings: Any, scratch: Any) -> bool:
    """Fill `order` by list scheduling with `Settings`; whether it could be filled."""
    stages, tasks = order.shape
    ends, starts, ran, free = scratch.ends, scratch.starts, scratch.counts[:, :3], scratch.at[:, 0]
    last, kinds, low, high = scratch.counts[:, 3], scratch.counts[:, 4], 0, int(stages)
    ends[:] = np.inf
    scratch.counts[:] = 0
    free[:] = 0.0
    for _ in range(stages * tasks):
        for i in range(low, high):  # those that the last task concerns
            starts[i], kinds[i] = choose(costs, ends, ran, free[i], last[i], i, settings)
        stage = int(np.argmin(starts))
        if starts[stage] == np.inf:
            return False
        kind = kinds[stage]
        order[stage, ran[stage].sum()] = kind
        free[stage] = starts[stage] + costs.took[stage, kind]
        if kind != WEIGHT:
            ends[kind, stage, ran[stage, kind]] = free[stage]
            free[stage] += costs.after[stage, kind]
            last[stage] = kind
        ran[stage, kind] += 1
        low, high = max(stage - 1, 0), min(stage + 2, stages)
    return True


def choose(costs: Any, ends: Any, ran: Any, free: Any, last: Any, i: Any, settings: Any) -> Any:
    """Return when stage i starts its next task, and its kind; infinity if nothing is known to arrive."""
    stages, count = ends.shape[1:]
    forwards, backwards, weights = ran[i]
    soon, later, prefer = np.inf, np.inf, settings.prefer
    held = forwards - (1 - costs.kept[i]) * backwards - costs.kept[i] * weights
    ahead = settings.warmup[i] if backwards == 0 else settings.most[i]
    if forwards < count and held + 1 <= costs.limit[i] + SLACK and forwards - backwards < ahead:
        soon = 0.0 if i == 0 else ends[FORWARD, i - 1, forwards] + costs.delay[i, FORWARD]
    if backwards < forwards:
        came = ends[FORWARD, i, backwards] if i == stages - 1 else ends[BACKWARD, i + 1, backwards]
        later = came + costs.delay[i, BACKWARD]
    soon, later = (
        max(soon, free + costs.before[i, FORWARD]),
        max(later, free + costs.before[i, BACKWARD]),
    )
    start = min(soon, later)
    kind = FORWARD if soon < later else BACKWARD
    if soon == later:
        forward_first = prefer == 2 or (prefer == 0 and last == BACKWARD) or (prefer == 1 and last == FORWARD)
        kind = FORWARD if forward_first else BACKWARD
    if weights < backwards and start - free >= settings.patience * costs.took[i, WEIGHT]:
        return free, WEIGHT
    return start, kind


def clock(costs: Any, order: Any, scratch: Any) -> tuple[float, float, float]:
    """Longest span, mean span and makespan of an order [s]; infinities if stages wait for each other."""
    stages, tasks = order.shape
    ends, at = scratch.ends, scratch.at
    ends[:] = np.inf
    at[:] = 0.0  # by stage: tasks ran, forwards, backwards, when it is free, its first start
    done, moved = 0, True
    while moved:
        moved = False
        for i in range(stages):
            place, forwards, backwards, free = int(at[i, 0]), int(at[i, 1]), int(at[i, 2]), at[i, 3]
            while place < tasks:
                kind = order[i, place]
                if kind == WEIGHT:
                    free += costs.took[i, WEIGHT]
                else:
                    if kind == FORWARD:
                        came = 0.0 if i == 0 else ends[FORWARD, i - 1, forwards]
                    elif i == stages - 1:
                        came = ends[FORWARD, i, backwards]
                    else:
                        came = ends[BACKWARD, i + 1, backwards]
                    if came == np.inf:
                        break
                    start = max(came + costs.delay[i, kind], free + costs.before[i, kind])
                    if place == 0:
                        at[i, 4] = start
                    free = start + costs.took[i, kind]
                    if kind == FORWARD:
                        ends[FORWARD, i, forwards] = free
                        forwards += 1
                    else:
                        ends[BACKWARD, i, backwards] = free
                        backwards += 1
                    free += costs.after[i, kind]
                place += 1
                done += 1
                moved = True
            at[i, 0], at[i, 1], at[i, 2], at[i, 3] = place, forwards, backwards, free
    if done < stages * tasks:
        return np.inf, np.inf, np.inf
    longest, total, makespan = 0.0, 0.0, 0.0
    for i in range(stages):
        longest, makespan = max(longest, at[i, 3] - at[i, 4]), max(makespan, at[i, 3])
        total += at[i, 3] - at[i, 4]
    return longest, total / stages, makespan


def fits(costs: Any, order: Any, i: Any) -> Any:
    """Return whether stage i runs forwards, backwards and weights in their sequence within its memory."""
    forwards, backwards, weights = 0, 0, 0
    for place in range(order.shape[1]):
        kind = order[i, place]
        if kind == FORWARD:
            forwards += 1
            held = forwards - (1 - costs.kept[i]) * backwards - costs.kept[i] * weights
            if held > costs.limit[i] + SLACK:
                return False
        elif kind == BACKWARD:
            backwards += 1
        else:
            weights += 1
        if backwards > forwards or weights > backwards:
            return False
    return True


def move(row: Any, source: Any, target: Any) -> None:
    """Move one task of a stage to another place."""
    kind, step = row[source], 1 if target > source else -1
    for place in range(source, target, step):
        row[place] = row[place + step]
    row[target] = kind


def copy(source: Any, target: Any) -> None:
    """Copy one order to another; numba would allocate for an assignment of slices, in case they overlap."""
    for stage in range(len(source)):
        for place in range(source.shape[1]):
            target[stage, place] = source[stage, place]


def anneal(costs: Any, order: Any, draws: Any, least: Any, wants_makespan: Any, heat: Any, scratch: Any) -> float:
    """Improve `order` in place by moving single tasks, and return its cost [s].

    Each row of `draws`, four random numbers from 0 to 1, is a move. Moves that lengthen the order are accepted ever
    more rarely, starting from `heat` [s]. Ends at the cost `least`.
    """
    stages, tasks = order.shape
    now = cost_of(clock(costs, order, scratch), wants_makespan)
    best, found = now, scratch.best
    copy(order, found)
    for step in range(len(draws)):
        if best[0] <= least * (1 + 1e-12):
            break
        i, source = int(draws[step, 0] * stages), int(draws[step, 1] * tasks)
        target = source + reach(draws[step, 2])
        if target < 0 or target >= tasks:
            continue
        move(order[i], source, target)
        if not fits(costs, order, i):
            move(order[i], target, source)
            continue
        cost = cost_of(clock(costs, order, scratch), wants_makespan)
        warm = heat * (1 - step / len(draws)) ** 2
        worse = cost[1] - now[1]
        if worse <= 0 or (warm > 0 and draws[step, 3] < np.exp(-worse / warm)):
            now = cost
            if cost[1] < best[1]:
                best = cost
                copy(order, found)
        else:
            move(order[i], target, source)
    copy(found, order)
    return float(best[0])


def reach(draw: Any) -> Any:
    """Return how far a task moves, earlier or later: exponential, three places on average."""
    sign, share = (1, 2 * draw) if draw < 0.5 else (-1, 2 * draw - 1)
    return sign * (1 + int(-2 * np.log(1 - share)))


def cost_of(found: Any, wants_makespan: Any) -> Any:
    """Return the cost of an order [s], and the one that local search compares."""
    longest, mean, makespan = found
    cost = makespan if wants_makespan else longest
    return cost, cost + _RARE * mean


@cache
def compile_filling() -> Mapping[str, Any]:
    """`fill`, `clock` and `anneal` as machine code, kept on disk."""
    return machine_code(globals(), ("fill", "clock", "anneal"))
