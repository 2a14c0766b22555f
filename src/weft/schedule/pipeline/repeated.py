"""Schedules in the shape of a V that trade idle time for memory: one pattern, repeated for every micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from weft.schedule.pipeline.orders import BACKWARD, FORWARD, WEIGHT, Schedule, codes, one_way

_SLOTS = 6
"""Tasks of a micro-batch on a device: F, B and W of two stages."""


def v_half(devices: int, micro_batches: int) -> Schedule:
    """Half of 1F1B's memory and, if F = B = W, about half of its idle time (V-Half of arXiv:2405.15362)."""
    return _repeated("v-half", devices, micro_batches, (1, 2, 1, 2))


def v_min(devices: int, micro_batches: int) -> Schedule:
    """A third of 1F1B's memory and, if F = B = W, about two thirds of its idle time (V-Min of arXiv:2405.15362)."""
    return _repeated("v-min", devices, micro_batches, (1, 1, 1, 1))


def _repeated(name: str, devices: int, micro_batches: int, hops: tuple[int, int, int, int]) -> Schedule:
    """A V in which all micro-batches pass alike, one every six slots; F, B and W of a stage take one slot each.

    From device to device a micro-batch takes `hops` slots: in forwards down and up, in backwards down and up. It waits
    at the three turns for as few slots as keep the tasks of each device apart; what is held follows from the way.
    """
    waits = sorted(product(range(_SLOTS), repeat=3), key=lambda each: (sum(each), -each[0]))
    ways = next(way for way in (_way(devices, hops, each) for each in waits) if _apart(way))
    stages, numbers = 2 * devices, np.arange(micro_batches)
    orders = []
    for near, begins in enumerate(ways):
        far = stages - 1 - near
        tasks = ((FORWARD, near), (FORWARD, far), (BACKWARD, far), (BACKWARD, near), (WEIGHT, far), (WEIGHT, near))
        slots = [begin + _SLOTS * numbers for begin in (*begins, *_leftover(begins))]
        every = [codes(kind, stage, numbers, stages, micro_batches) for kind, stage in tasks]
        orders.append(np.concatenate(every)[np.argsort(np.concatenate(slots), kind="stable")])
    down = np.arange(devices)
    return one_way(name, np.concatenate([down, down[::-1]]), micro_batches, orders)


def _way(devices: int, hops: Sequence[int], waits: Sequence[int]) -> list[tuple[int, ...]]:
    """Slots in which a micro-batch's forwards (down, up) and backwards (down, up) begin, by device."""
    down = np.arange(devices)
    legs = [hops[0] * down]
    for hop, wait, along in zip(hops[1:], waits, (down[::-1], down, down[::-1]), strict=True):
        legs.append(legs[-1].max() + 1 + wait + hop * along)
    return [tuple(map(int, begins)) for begins in zip(*legs, strict=True)]


def _apart(way: list[tuple[int, ...]]) -> bool:
    """Whether no two tasks of a device fall on the same one of the six slots."""
    return all(len({begin % _SLOTS for begin in begins}) == len(begins) for begins in way)


def _leftover(begins: tuple[int, ...]) -> tuple[int, int]:
    """The slots of W of both backwards: the two that are left over, each as early as it can be."""
    one, other = set(range(_SLOTS)) - {begin % _SLOTS for begin in begins}
    ends = begins[2] + 1, begins[3] + 1
    choices = [
        tuple(end + (slot - end) % _SLOTS for end, slot in zip(ends, each, strict=True))
        for each in ((one, other), (other, one))
    ]
    first, second = min(choices, key=sum)
    return first, second
