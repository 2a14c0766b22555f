"""The contract of a pipeline schedule: what its orders and its clock keep, whatever tasks and sends take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from weft.core.errors import InputError
from weft.step.pipeline import Durations, PipelineTimes, Schedule, Send, least_makespan, read_schedule, run_schedule
from weft.step.pipeline import schedule as named_schedule
from weft.testing.laws import ContractError, Law, check_laws, runs_to_the_end

SIZES = ((1, 4), (2, 4), (4, 8), (6, 12), (8, 24), (5, 20))
"""Devices and micro-batches of the cases."""
TIMES, SENDS = Durations(1.0, 1.2, 0.7), (Send(0.1), Send(0.15, sender_busy=0.02, receiver_busy=0.01))
"""What tasks take, and the sends of activations and of gradients [s]."""
_KEPT_FOR_WEIGHT = 0.4
_RUNS = "Its devices run all of their tasks, and do not wait for each other"


def check_pipeline_schedule(schedule: str | Schedule | Callable[[int, int], Schedule]) -> None:
    """Raise ContractError unless a pipeline schedule keeps every law: of its orders, and of the times that follow.

    `schedule` is a name such as "interleaved:2", a file of `read_schedule`, a `Schedule`, or a function that builds one
    for a number of devices and of micro-batches. Sizes that a function or a name refuses by an InputError are left out;
    it must take one of them.

    >>> check_pipeline_schedule("1f1b")
    """
    is_named = isinstance(schedule, str | Schedule)
    member = (
        f"schedule '{getattr(schedule, 'name', schedule) if is_named else getattr(schedule, '__name__', schedule)}'"
    )
    for case, one in _built(member, schedule):
        with runs_to_the_end(member, _RUNS, case):
            ran, even = (run_schedule(one, TIMES, send) for send in (SENDS, 0.25))
        check_laws(member, case, LAWS, one, ran)
        check_laws(member, case, (critical_path_has_no_gap,), one, even)


def _built(member: str, schedule: str | Schedule | Callable[[int, int], Schedule]) -> Iterator[tuple[str, Schedule]]:
    """Each case with its schedule."""
    if isinstance(schedule, str) and schedule.endswith(".json"):
        schedule = read_schedule(schedule)
    if isinstance(schedule, Schedule):
        yield _case(schedule.devices, schedule.micro_batches), schedule
        return
    taken, refused = 0, ""
    for size in SIZES:
        try:
            one = named_schedule(schedule, *size) if isinstance(schedule, str) else schedule(*size)
        except InputError as error:
            refused = str(error)
            continue
        taken += 1
        yield _case(*size), one
    if not taken:
        raise ContractError(member, "It takes one of the sizes", _case(*SIZES[-1]), refused)


def _case(devices: int, micro_batches: int) -> str:
    return f"{devices} devices, {micro_batches} micro-batches"


def tasks_run_once(one: Schedule, ran: PipelineTimes) -> str | None:
    """Every task runs once, and a backward has its forward."""
    codes = np.concatenate(one.orders)
    forward, backward, weight = one.position >= 0
    if len(codes) != len(set(codes.tolist())):
        return "a task is repeated"
    if not forward.all():
        return f"{(~forward).sum()} forwards are missing"
    if backward.any() and not backward.all():
        return f"{(~backward).sum()} backwards are missing"
    return None if (weight == ~one.whole).all() else "a weight gradient belongs to a whole backward"


def tasks_wait_for_their_input(one: Schedule, ran: PipelineTimes) -> str | None:
    """A task starts when its input has arrived: from the stage before, of a backward from the stage behind."""
    moves = one.device[1:] != one.device[:-1]
    if (ran.start[0, 1:] < ran.end[0, :-1] + 0.1 * moves).any():
        return "a forward starts before the activations of the stage before it have arrived"
    if not one.trains:
        return None
    if (ran.start[1, :-1] < ran.end[1, 1:] + 0.15 * moves).any():
        return "a backward starts before the gradients of the stage behind it have arrived"
    if (ran.start[1] < ran.end[0]).any():
        return "a backward starts before its forward has ended"
    early = (ran.start[2] < ran.end[1])[~one.whole].any()
    return "a weight gradient starts before its backward has ended" if early else None


def devices_run_one_task_at_a_time(one: Schedule, ran: PipelineTimes) -> str | None:
    """A device runs one task after the other, except for the pairs that run together."""
    second = set(one.pairs[:, 1].tolist())
    for device, order in enumerate(one.orders):
        alone = np.array([code for code in order if code not in second])
        if (ran.start.flat[alone[1:]] < ran.end.flat[alone[:-1]]).any():
            return f"device {device} runs two tasks at once"
    return None


def activations_are_released(one: Schedule, ran: PipelineTimes) -> str | None:
    """The memory for activations is empty at the end of a step, and never negative before."""
    for device in range(one.devices if one.trains else 0):
        moments, held = ran.in_flight(device, _KEPT_FOR_WEIGHT)
        if (np.diff(moments) < 0).any() or held.min() < 0 or held[0] <= 0 or held[-1] != 0:
            return f"device {device} holds {held[-1]:.6g} micro-batches at the end, {held.min():.6g} at least"
        last = one.orders[device][-1]
        of_last = 1.0 - _KEPT_FOR_WEIGHT if last < 2 * one.device.size else _KEPT_FOR_WEIGHT
        part = 1.0 if one.whole.ravel()[last % one.device.size] else of_last
        if not math.isclose(held[-2], one.devices / one.stages * part):
            return f"the last task of device {device} releases {held[-2]:.6g} micro-batches"
    return None


def makespans_keep_the_bounds(one: Schedule, ran: PipelineTimes) -> str | None:
    """No makespan beats the work of the busiest device, or the way of one micro-batch."""
    least = least_makespan(one, TIMES, SENDS)
    if ran.makespan < least * (1 - 1e-12):
        return f"{ran.makespan:.6g} s is below the bound of {least:.6g} s"
    return "a device is busy for longer than the step" if (ran.idle < -1e-9).any() else None


def time_is_accounted_for(one: Schedule, ran: PipelineTimes) -> str | None:
    """Of each device, work, sends and waits add up to the makespan."""
    for device in range(one.devices):
        waits = ran.waits(device)
        total = ran.busy[device] + ran.sending_busy[device] + sum(waits.values())
        if min(waits.values()) < -1e-9 or not math.isclose(total, ran.makespan, rel_tol=1e-6):
            return f"those of device {device} add up to {total:.6g} s of {ran.makespan:.6g} s"
    return None


def critical_path_has_no_gap(one: Schedule, ran: PipelineTimes) -> str | None:
    """The critical path leaves no gap but sends from the first start to the last end."""
    codes = [("FBW".index(task.kind), task.stage, task.micro_batch) for task in ran.critical_path()]
    if ran.start[codes[0]] != 0 or ran.end[codes[-1]] != ran.makespan:
        return f"it lasts from {ran.start[codes[0]]:.6g} to {ran.end[codes[-1]]:.6g} s of {ran.makespan:.6g} s"
    for before, code in pairwise(codes):
        gap = ran.start[code] - ran.end[before]
        if min(abs(gap), abs(gap - 0.25)) > 1e-9:
            return f"it has a gap of {gap:.6g} s"
    return None


LAWS: Sequence[Law] = (
    tasks_run_once,
    tasks_wait_for_their_input,
    devices_run_one_task_at_a_time,
    activations_are_released,
    makespans_keep_the_bounds,
    time_is_accounted_for,
)
"""Laws of a schedule and of the times of its tasks."""
