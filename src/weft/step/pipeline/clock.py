"""The clock of pipeline schedules: durations of tasks and of sends, and when each task runs.

Each device runs its tasks in their order, each task as soon as its input has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from weft.core.errors import InputError
from weft.graph.graph import earliest
from weft.step.pipeline.orders import BACKWARD, FORWARD, NONE, WEIGHT, Floats, Ints, Schedule
from weft.step.pipeline.times import PipelineTimes


@dataclass(frozen=True, eq=False)
class Durations:
    """How long tasks take [s]: a number, one per stage, or one per (stage, micro-batch).

    `backward` is the gradient of the inputs, `weight` that of the weights; a whole backward takes their sum.
    `together` is the time of a forward and a backward that run at once, a number or one per device (None: the sum of
    both).
    """

    forward: ArrayLike
    backward: ArrayLike = 0.0
    weight: ArrayLike = 0.0
    together: ArrayLike | None = None


@dataclass(frozen=True, eq=False)
class Send:
    """What it takes to pass a tensor on to the next stage [s]: a number, or one per boundary between two stages.

    The tensor arrives `latency` after its task has ended. For `sender_busy` after that task the sender's compute stream
    does nothing else, for `receiver_busy` before the next one the receiver's. A device sends nothing to itself.
    """

    latency: ArrayLike = 0.0
    sender_busy: ArrayLike = 0.0
    receiver_busy: ArrayLike = 0.0


def run_schedule(
    schedule: Schedule, durations: Durations, send: float | Send | tuple[Send, Send] = 0.0
) -> PipelineTimes:
    """Return when each task of a schedule runs: in its device's order, as soon as its input has arrived.

    `send` is a latency [s], a Send, or two: of activations, and of gradients.

    Raises InputError for times that are negative, not finite or of another shape, and if devices wait for each other.
    """
    ran = schedule.position >= 0
    taken = task_times(schedule, durations)
    receiving = np.where(ran, _on_arrival(schedule, "receiver_busy", send), 0.0)
    sending = np.where(ran, _on_departure(_on_arrival(schedule, "sender_busy", send)), 0.0)
    start, wait, cause = starts(schedule, taken, latencies(schedule, send), receiving, sending)
    start = np.where(ran, start, np.nan)
    return PipelineTimes(schedule, start, start + taken, np.where(ran, wait, np.nan), cause, receiving, sending)


def task_times(schedule: Schedule, durations: Durations) -> Floats:
    """Return the time that each task takes [s]; two that run together both take the time of the pair."""
    times = np.empty(schedule.shape)
    for kind, name in enumerate(("forward", "backward", "weight")):
        times[kind] = seconds(f"the {name} time", getattr(durations, name), schedule.shape[1:])
    times[BACKWARD] += np.where(schedule.whole, times[WEIGHT], 0.0)
    first, second = schedule.pairs.T
    if durations.together is None:
        both = times.flat[first] + times.flat[second]
    else:
        device = schedule.device.ravel()[first % schedule.device.size]
        both = seconds("the time together", durations.together, (schedule.devices,))[device]
    times.flat[first] = times.flat[second] = both
    return times


def seconds(what: str, value: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Return the times [s] as an array of a shape, from a number or an array of its first axes."""
    try:
        times = np.asarray(value, float)
        spread = np.broadcast_to(times.reshape(times.shape + (1,) * (len(shape) - times.ndim)), shape)
    except (TypeError, ValueError):
        sizes = " x ".join(map(str, shape))
        raise InputError(f"{what} does not fit; give a number, {shape[0]} numbers, or an array of {sizes}") from None
    if not (np.isfinite(spread) & (spread >= 0)).all():
        raise InputError(f"{what} is negative or not finite; give seconds, zero or more")
    return spread


def latencies(schedule: Schedule, send: float | Send | tuple[Send, Send]) -> Floats:
    """Return the send latency before each task [s]; zero where nothing comes from another device."""
    return _on_arrival(schedule, "latency", send)


def _on_arrival(schedule: Schedule, part: str, send: float | Send | tuple[Send, Send]) -> Floats:
    """Return a part of the sends [s] by the task that receives; zero where nothing comes from another device."""
    values = np.zeros(schedule.shape)
    pair = send if isinstance(send, tuple) else (send, send)
    sends = [one if isinstance(one, Send) else Send(one) for one in pair]
    what = f"the {part.replace('_', ' ')} of a send"
    forward, backward = (seconds(what, getattr(one, part), (schedule.stages - 1,))[:, None] for one in sends)
    moves = schedule.device[1:] != schedule.device[:-1]
    values[FORWARD, 1:] = np.where(moves, forward, 0.0)
    values[BACKWARD, :-1] = np.where(moves, backward, 0.0)
    return values


def _on_departure(arriving: Floats) -> Floats:
    """Values by the task that sends, from those by the task that receives."""
    values = np.zeros_like(arriving)
    values[FORWARD, :-1] = arriving[FORWARD, 1:]
    values[BACKWARD, 1:] = arriving[BACKWARD, :-1]
    return values


def least_makespan(schedule: Schedule, durations: Durations, send: float | Send | tuple[Send, Send] = 0.0) -> float:
    """Return a makespan that no order of a schedule's tasks can beat [s].

    The longer of the work of the busiest device and the way of one micro-batch, forward through all stages and back.
    """
    ran = schedule.position >= 0
    times = np.where(ran, task_times(schedule, durations), 0.0)
    chain = (times[:2] + np.where(ran, latencies(schedule, send), 0.0)[:2]).sum(axis=(0, 1)).max()
    times.flat[schedule.pairs[:, 1]] = 0.0
    device = np.broadcast_to(schedule.device, times.shape).ravel()
    work = np.bincount(device, times.ravel(), schedule.devices).max()
    return float(max(chain, work))


def find_inputs(schedule: Schedule) -> Ints:
    """The task of another stage whose output each task reads, as an integer; NONE for none."""
    code = np.arange(np.prod(schedule.shape)).reshape(schedule.shape)
    source = np.full(schedule.shape, NONE)
    source[FORWARD, 1:] = code[FORWARD, :-1]
    source[BACKWARD, :-1] = code[BACKWARD, 1:]
    return source.ravel()


def _wakes(schedule: Schedule) -> Ints:
    """Return the device that reads the output of each task; NONE if it stays on its device."""
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
    need, wakes, mate = (each.tolist() for each in (find_inputs(schedule), _wakes(schedule), mates))
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
    need = find_inputs(schedule)
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
    """Return the tasks that wait for each other: on each device the next one, and what it needs."""
    needs, device = find_inputs(schedule), np.broadcast_to(schedule.device, schedule.shape).ravel()

    def missing(at: int) -> int:
        """Return what the next task of a device waits for."""
        return next(int(needs[each]) for each in (rows[at][-1], mate[rows[at][-1]]) if not done[needs[each]])

    chain = [next(at for at, row in enumerate(rows) if row)]
    while chain[-1] not in chain[:-1]:
        chain.append(int(device[missing(chain[-1])]))
    waiting = [
        f"{schedule.task(rows[at][-1])}, next on device {at}, waits for {schedule.task(missing(at))}"
        for at in chain[chain.index(chain[-1]) + 1 :]
    ]
    return f"the schedule '{schedule.name}' deadlocks: {'; '.join(waiting)}; move one of them"
