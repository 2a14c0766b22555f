"""The loop of the clock: each device runs its tasks in order, each as soon as its input has arrived."""

from __future__ import annotations

from math import inf

import numpy as np

from weft.errors import InputError
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


def earliest(
    schedule: Schedule, taken: Floats, latency: Floats, receiving: Floats, sending: Floats
) -> tuple[Floats, Floats, Ints]:
    """Earliest start [s], wait before it [s] and cause of every task, by (kind, stage, micro-batch).

    A device runs on until a tensor is missing; the device that produces it wakes it up. A pair runs as its first task;
    `mate` holds its second one, and of every other task the task itself.

    Raises InputError if devices wait for each other.
    """
    first, second = schedule.pairs.T
    alone, mates = np.ones(taken.size, bool), np.arange(taken.size)
    alone[second], mates[first] = False, second
    need, wakes, mate = (each.tolist() for each in (needed(schedule), _wakes(schedule), mates))
    times = [each.ravel().tolist() for each in (taken, latency, receiving, sending)]
    rows = [order[alone[order]].tolist()[::-1] for order in schedule.orders]  # the next task is the last one
    start, wait, cause, done = _loop(rows, need, mate, wakes, *times)
    if any(rows):
        raise InputError(_deadlock(schedule, rows, mate, done))
    starts, waits, causes = (np.array(each).reshape(schedule.shape) for each in (start, wait, cause))
    return starts, waits, causes


def _loop(
    rows: list[list[int]], need: list[int], mate: list[int], wakes: list[int],
    took: list[float], delay: list[float], before: list[float], after: list[float],
) -> tuple[list[float], list[float], list[int], list[float]]:  # fmt: skip
    """Start, wait, cause and end of every task; `rows` keep what waits for ever."""
    size = len(need)
    start, wait, cause = [0.0] * size, [0.0] * size, [NONE] * size
    done = [inf] * size + [0.0]  # the last entry is that of NONE
    clock, latest = [0.0] * len(rows), [NONE] * len(rows)
    awake = list(range(len(rows)))
    while awake:
        device = awake.pop()
        row, free, why = rows[device], clock[device], latest[device]
        while row:
            code = row[-1]
            joined, source = mate[code], need[code]
            paired = joined != code
            begin = idle_from = free + before[code] + (before[joined] if paired else 0.0)
            arrival = done[source] + delay[code]
            if paired and done[need[joined]] + delay[joined] > arrival:
                source = need[joined]
                arrival = done[source] + delay[joined]
            if arrival == inf:
                break
            if arrival > begin:
                begin, why = arrival, source
            start[code] = start[joined] = begin
            cause[code] = cause[joined] = why
            wait[code] = begin - idle_from
            done[code] = done[joined] = end = begin + took[code]
            free, why = end + after[code] + (after[joined] if paired else 0.0), joined
            row.pop()
            if wakes[code] != NONE:
                awake.append(wakes[code])
            if paired and wakes[joined] != NONE:
                awake.append(wakes[joined])
        clock[device], latest[device] = free, why
    return start, wait, cause, done


def _deadlock(schedule: Schedule, rows: list[list[int]], mate: list[int], done: list[float]) -> str:
    """The tasks that wait for each other: on each device the next one, and what it needs."""
    needs, device = needed(schedule), np.broadcast_to(schedule.device, schedule.shape).ravel()

    def missing(at: int) -> int:
        """What the next task of a device waits for."""
        return next(int(needs[each]) for each in (rows[at][-1], mate[rows[at][-1]]) if done[needs[each]] == inf)

    chain = [next(at for at, row in enumerate(rows) if row)]
    while chain[-1] not in chain[:-1]:
        chain.append(int(device[missing(chain[-1])]))
    waiting = [
        f"{schedule.task(rows[at][-1])}, next on device {at}, waits for {schedule.task(missing(at))}"
        for at in chain[chain.index(chain[-1]) + 1 :]
    ]
    return f"the schedule '{schedule.name}' deadlocks: {'; '.join(waiting)}; move one of them"
