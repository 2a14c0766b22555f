"""Schedules in which a device holds a stage of each end: Chimera, DualPipe and, in the shape of a V, zero bubble and
those that trade idle time for memory by one pattern, repeated for every micro-batch.

Device i holds stage i and, counted from the other end, stage i again. Micro-batches enter at both ends, into two
copies of the model, or pass the devices down and back up as one model of twice as many stages.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np

from weft.core.errors import InputError, check_whole
from weft.step.pipeline.greedy import list_schedule
from weft.step.pipeline.orders import BACKWARD, FORWARD, NO_PAIRS, WEIGHT, Ints, Schedule, codes, one_way

_SLOTS = 6
"""Tasks of a micro-batch on a device: F, B and W of two stages."""
_KINDS = {"F": FORWARD, "B": BACKWARD, "S": BACKWARD, "W": WEIGHT}


def _check_two_ended(name: str, devices: int, micro_batches: int, least: int) -> None:
    """Raise InputError unless devices and micro-batches are even, and micro-batches at least `least`."""
    for what, number, fits in (
        ("devices", devices, devices + devices % 2),
        ("micro-batches", micro_batches, max(least, micro_batches + micro_batches % 2)),
    ):
        if number != fits:
            raise InputError(
                f"'{name}' takes an even number of {what}, half from each end"
                f"{f', at least {least}' if what == 'micro-batches' and least > 2 else ''}, not {number}; take {fits}"
            )


def _from_both_ends(name: str, micro_batches: int, orders: list[Ints], pairs: Ints = NO_PAIRS) -> Schedule:
    """A schedule of two copies of the model: even micro-batches enter at device 0, odd ones at the last device."""
    down = np.arange(len(orders))
    return Schedule(name, np.stack([down, down[::-1]]), np.arange(micro_batches) % 2, tuple(orders), pairs)


def chimera(devices: int, micro_batches: int, ratio: int = 1) -> Schedule:
    """Two 1F1B pipelines in opposite directions that fill each other's bubbles (arXiv:2107.06925).

    The order suits backwards that take `ratio` times a forward: the idle share is then (p - 2) / (2 m + p - 2), with a
    ratio of 1 for multiples of p micro-batches, with larger ones from 2 p on. For 1 it is the paper's order, units of p
    micro-batches serially, and a device holds at most p micro-batches. For larger ratios forwards go first,
    and device i, counted from its end, holds up to p + (ratio - 1) i.

    Raises InputError for odd numbers of devices or of micro-batches.
    """
    _check_two_ended("chimera", devices, micro_batches, 2)
    check_whole("the ratio of 'chimera', of backward to forward", ratio, 1, 2)
    down = np.arange(devices)
    if ratio == 1:
        return _from_both_ends("chimera", micro_batches, _collision_free(devices, micro_batches))
    window = devices + (ratio - 1) * np.minimum(down, down[::-1])
    orders = list_schedule(
        np.stack([down, down[::-1]]), np.arange(micro_batches) % 2, ratio, window.tolist(),
        lambda kind, stage, number, _: (kind, -stage, number) if kind == FORWARD else (kind, number // 2, -stage),
    )  # fmt: skip
    return _from_both_ends(f"chimera:{ratio}", micro_batches, orders)


def _collision_free(devices: int, micro_batches: int) -> list[Ints]:
    """Chimera's orders, from slots in which forward and backward take one each.

    No two tasks of a device share a slot: a unit of p micro-batches takes 2 p of the 3 p - 2 slots that it lasts, and
    the next unit begins 2 p slots later.
    """
    numbers = np.arange(micro_batches)
    unit, place = np.divmod(numbers // 2, devices // 2)
    begin = 2 * (devices * unit + place)
    orders = []
    for device in range(devices):
        stage = np.where(numbers % 2, devices - 1 - device, device)
        tasks = [codes(kind, stage, numbers, devices, micro_batches) for kind in (FORWARD, BACKWARD)]
        slots = [begin + stage, begin + 2 * devices - 1 - stage]
        orders.append(np.concatenate(tasks)[np.argsort(np.concatenate(slots), kind="stable")])
    return orders


def dualpipe(devices: int, micro_batches: int) -> Schedule:
    """DualPipe: forwards from one end run together with backwards from the other (arXiv:2412.19437).

    Raises InputError for odd numbers, and for fewer micro-batches than twice the devices.
    """
    _check_two_ended("dualpipe", devices, micro_batches, 2 * devices)
    orders, pairs = [], []
    for device in range(devices):
        near = min(device, devices - 1 - device)
        side = int(device > near)
        even_and_odd = (range(side, micro_batches, 2), range(1 - side, micro_batches, 2))
        order, joined = _follow(
            _dual(devices // 2, micro_batches // 2, near),
            (near, devices - 1 - near),
            even_and_odd,
            devices,
            micro_batches,
        )
        orders.append(order)
        pairs += joined
    return _from_both_ends("dualpipe", micro_batches, orders, np.array(pairs))


def dualpipe_v(devices: int, micro_batches: int) -> Schedule:
    """DualPipe folded into a V: the same order on half the devices, with one copy of the model.

    Raises InputError for fewer micro-batches than twice the devices.
    """
    if micro_batches < 2 * devices:
        raise InputError(
            f"'dualpipe-v' needs at least {2 * devices} micro-batches, two a device, not {micro_batches}; "
            f"take {2 * devices}"
        )
    return _fold_schedule(
        "dualpipe-v", devices, micro_batches, [_dual(devices, micro_batches, i) for i in range(devices)]
    )


def zb_v(devices: int, micro_batches: int) -> Schedule:
    """Zero bubble with 1F1B's memory: the stages lie in a V, so that the first micro-batch is soon back.

    The schedule is that of arXiv:2401.10241, in the order of phases of PyTorch's ScheduleZBVZeroBubble.
    """
    return _fold_schedule(
        "zb-v", devices, micro_batches, [_zero_bubble(devices, micro_batches, i) for i in range(devices)]
    )


def _fold_schedule(name: str, devices: int, micro_batches: int, steps: Sequence[list[str]]) -> Schedule:
    """Return a schedule of twice as many stages as devices, down and back up."""
    stages, numbers = 2 * devices, range(micro_batches)
    orders, pairs = [], []
    for device, each in enumerate(steps):
        order, joined = _follow(each, (device, stages - 1 - device), (numbers, numbers), stages, micro_batches)
        orders.append(order)
        pairs += joined
    down = np.arange(devices)
    placement = np.concatenate([down, down[::-1]])
    return one_way(name, placement, micro_batches, orders, pairs=np.array(pairs) if pairs else NO_PAIRS)


def _follow(
    steps: Iterable[str], stage: tuple[int, int], numbers: tuple[range, range], stages: int, micro_batches: int
) -> tuple[Ints, list[tuple[int, int]]]:
    """Return one device's order and pairs, from its steps; those beyond the last micro-batch are left out.

    "F0" is the next forward of the device's stage 0 (the near end; 1: the far end), "B1" the next whole backward of
    stage 1, "S1" the next without its weight gradient, "W1" the oldest weight gradient left over, "F0B1" a pair.
    """
    following: Counter[tuple[int, int]] = Counter()
    left: tuple[deque[int], deque[int]] = (deque(), deque())
    order: list[int] = []
    pairs = []
    for step in steps:
        for letter, side in zip(step[::2], map(int, step[1::2]), strict=True):
            kind = _KINDS[letter]
            if kind == WEIGHT:
                order += [left[side].popleft() + stages * micro_batches] if left[side] else []
            elif following[kind, side] < len(numbers[side]):
                order.append((kind * stages + stage[side]) * micro_batches + numbers[side][following[kind, side]])
                following[kind, side] += 1
                if letter == "S":
                    left[side].append(order[-1])
        if len(step) > 2:
            pairs.append((order[-2], order[-1]))
    return np.array(order), pairs


def _dual(half: int, micro_batches: int, at: int) -> list[str]:
    """The eight phases of DualPipe on the device `at` steps from its end, for the micro-batches of one direction."""
    middle = half - 1 - at
    last = [f"{'BS'[place > at]}{1 - place % 2}" for place in range(2 * at + 2)]
    weights = [f"W{step[1]}" for step in last if step[0] == "S"] + ["W0"] * middle
    return [
        *["F0"] * (2 * middle),
        *["F0", "F1"] * (at + 1),
        *["S1", "W1", "F1"] * middle,
        *(["F0B1"] if middle else ["F0", "B1"]),
        "F1B0",
        *["F0B1", "F1B0"] * (micro_batches - 2 * half + at),
        *["B1", "F1B0"] * middle,
        *last,
        *[step for weight in weights[:middle] for step in (weight, "S0")],
        *weights[middle:],
    ]


def _zero_bubble(devices: int, micro_batches: int, at: int) -> list[str]:
    """Return the steps of ZB-V on device `at`."""
    ahead = devices - at
    return [
        *["F0"] * (2 * ahead - 1),
        *["F1", "F0"] * at,
        *["F1", "S1", "W1"] * ahead,
        *["F0", "S0", "W0", "F1", "S1", "W1"] * max(0, micro_batches - devices),
        *["S0", "S1"] * at,
        *["S0", "W0"] * ahead,
        *["W1"] * at,
        *["W0"] * at,
    ]


def v_half(devices: int, micro_batches: int) -> Schedule:
    """Half of 1F1B's memory and, if F = B = W, about half of its idle time (V-Half of arXiv:2405.15362)."""
    return _repeat_schedule("v-half", devices, micro_batches, (1, 2, 1, 2))


def v_min(devices: int, micro_batches: int) -> Schedule:
    """A third of 1F1B's memory and, if F = B = W, about two thirds of its idle time (V-Min of arXiv:2405.15362)."""
    return _repeat_schedule("v-min", devices, micro_batches, (1, 1, 1, 1))


def _repeat_schedule(name: str, devices: int, micro_batches: int, hops: tuple[int, int, int, int]) -> Schedule:
    """Return a V schedule in which a micro-batch starts every six slots; F, B and W of a stage take a slot each.

    From device to device a micro-batch takes `hops` slots: in forwards down and up, in backwards down and up. A
    micro-batch waits at the three turns for the fewest slots that keep the tasks of each device apart; the activations
    in flight follow.
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
    """Return whether no two tasks of a device fall on the same one of the six slots."""
    return all(len({begin % _SLOTS for begin in begins}) == len(begins) for begins in way)


def _leftover(begins: tuple[int, ...]) -> tuple[int, int]:
    """Return the slots of W of both backwards: the two that are left over, each as early as it can be."""
    one, other = set(range(_SLOTS)) - {begin % _SLOTS for begin in begins}
    ends = begins[2] + 1, begins[3] + 1
    choices = [
        tuple(end + (slot - end) % _SLOTS for end, slot in zip(ends, each, strict=True))
        for each in ((one, other), (other, one))
    ]
    first, second = min(choices, key=sum)
    return first, second
