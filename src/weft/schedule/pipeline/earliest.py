"""When the tasks of a schedule run: each device in its order, each task as soon as its input has arrived."""

from __future__ import annotations

from functools import lru_cache
from math import inf

import numpy as np

from weft.errors import InputError
from weft.graph.earliest import earliest
from weft.schedule.pipeline.orders import BACKWARD, FORWARD, NONE, Floats, Ints, Schedule


def needed(schedule: Schedule) -> Ints:
    """The task of another stage whose output each task reads, as an integer; NONE for none."""
    code = np.arange(np.prod(schedule.shape)).reshape(schedule.shape)
    source = np.full(schedule.shape, NONE)
    source[FORWARD, 1:] = code[FORWARD, :-1]
    source[BACKWARD, :-1] = code[BACKWARD, 1:]
    return source.ravel()


def _wakes(schedule: Schedule) -> Ints:
    """The device that reads the output of each task; NONE if it stays on its device."""
    reader = np.full(schedule.shape, NONE)
    moves = schedule.device[1:] != schedule.device[:-1]
    reader[FORWARD, :-1] = np.where(moves, schedule.device[1:], NONE)
    reader[BACKWARD, 1:] = np.where(moves, schedule.device[:-1], NONE)
    return reader.ravel()


@lru_cache(maxsize=16)
def run_order(schedule: Schedule) -> tuple[list[int], Ints]:
    """All tasks of a schedule, each after those that it needs, and the second task of the pair of each; else itself.

    A device runs on until a tensor is missing; the device that produces it wakes it up. A pair runs as its first task.
    Raises InputError if devices wait for each other.
    """
    first, second = schedule.pairs.T
    size = int(np.prod(schedule.shape))
    alone, mates = np.ones(size, bool), np.arange(size)
    alone[second], mates[first] = False, second
    need, wakes, mate = (each.tolist() for each in (needed(schedule), _wakes(schedule), mates))
    rows = [order[alone[order]].tolist()[::-1] for order in schedule.orders]  # the next task is the last one
    done = [False] * size + [True]  # the last entry is that of NONE
    order: list[int] = []
    awake = list(range(len(rows)))
    while awake:
        row = rows[awake.pop()]
        while row and done[need[row[-1]]] and done[need[mate[row[-1]]]]:
            code = row.pop()
            order.append(code)
            for task in (code, mate[code]):
                done[task] = True
                if wakes[task] != NONE:
                    awake.append(wakes[task])
    if any(rows):
        raise InputError(_deadlock(schedule, rows, mate, done))
    return order, mates


def starts(
    schedule: Schedule, taken: Floats, latency: Floats, receiving: Floats, sending: Floats
) -> tuple[Floats, Floats, Ints]:
    """Earliest start [s], wait before it [s] and cause of every task, by (kind, stage, micro-batch).

    Raises InputError if devices wait for each other.
    """
    order, mates = run_order(schedule)
    need = needed(schedule)
    took, delay, before, after = (each.ravel().copy() for each in (taken, latency, receiving, sending))
    first, second = schedule.pairs.T
    for values in (before, after):
        values[first] += values[second]
    previous = np.full(len(took), NONE)
    for tasks in schedule.orders:
        alone = tasks[~np.isin(tasks, second)]
        previous[alone[1:]] = alone[:-1]
    gaps = np.where(previous == NONE, 0.0, after[previous]) + before
    inputs = [(need, delay), (need[mates], delay[mates])] if len(first) else [(need, delay)]
    leaders = np.append(np.arange(len(took)), NONE)  # of a pair, its first task; the last entry is that of NONE
    leaders[second] = first
    pairs = (zip(leaders[source].tolist(), late.tolist(), strict=True) for source, late in ((previous, gaps), *inputs))
    needs, nothing = list(zip(*pairs, strict=True)), [-inf]  # the last entry is that of NONE
    start, end = (np.array(each[:-1]) for each in earliest(order, needs, took.tolist(), [*before.tolist(), *nothing]))
    free = np.where(previous == NONE, 0.0, end[previous]) + gaps
    arrivals = np.array([np.where(source == NONE, -inf, end[leaders[source]] + late) for source, late in inputs])
    source = np.choose(arrivals.argmax(axis=0), [source for source, _ in inputs])
    cause = np.where(start > free, source, np.where(previous == NONE, NONE, mates[previous]))
    wait = start - free
    start[second], cause[second], wait[second] = start[first], cause[first], 0.0
    shape = schedule.shape
    return start.reshape(shape), wait.reshape(shape), cause.reshape(shape)


def _deadlock(schedule: Schedule, rows: list[list[int]], mate: list[int], done: list[bool]) -> str:
    """The tasks that wait for each other: on each device the next one, and what it needs."""
    needs, device = needed(schedule), np.broadcast_to(schedule.device, schedule.shape).ravel()

    def missing(at: int) -> int:
        """What the next task of a device waits for."""
        return next(int(needs[each]) for each in (rows[at][-1], mate[rows[at][-1]]) if not done[needs[each]])

    chain = [next(at for at, row in enumerate(rows) if row)]
    while chain[-1] not in chain[:-1]:
        chain.append(int(device[missing(chain[-1])]))
    waiting = [
        f"{schedule.task(rows[at][-1])}, next on device {at}, waits for {schedule.task(missing(at))}"
        for at in chain[chain.index(chain[-1]) + 1 :]
    ]
    return f"the schedule '{schedule.name}' deadlocks: {'; '.join(waiting)}; move one of them"
