"""The clock of pipeline schedules: durations of tasks and of sends, and when each task runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from weft.errors import InputError
from weft.schedule.pipeline.earliest import starts
from weft.schedule.pipeline.orders import BACKWARD, FORWARD, WEIGHT, Floats, Schedule
from weft.schedule.pipeline.times import PipelineTimes


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
    """When each task of a schedule runs: in its device's order, as soon as its input has arrived.

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
    """The time that each task takes [s]; two that run together both take the time of the pair."""
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
    """Times [s] as an array of a shape, from a number or an array of its first axes."""
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
    """The send latency before each task [s]; zero where nothing comes from another device."""
    return _on_arrival(schedule, "latency", send)


def _on_arrival(schedule: Schedule, part: str, send: float | Send | tuple[Send, Send]) -> Floats:
    """A part of the sends [s] by the task that receives; zero where nothing comes from another device."""
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
