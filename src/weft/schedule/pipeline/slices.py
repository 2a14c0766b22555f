"""Where TeraPipe cuts a sequence: dynamic programming over the borders of its slices (arXiv:2102.07988)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.errors import InputError, check_whole
from weft.schedule.pipeline.orders import Floats

_MOST_CUTS = 128


def slice_sequence(
    length: int, cost: Callable[[int, int], float], devices: int, grain: int | None = None
) -> tuple[int, ...]:
    """Lengths of the slices of a sequence [tokens] that pass a pipeline of `devices` soonest.

    `cost(start, tokens)` is the time of a slice on one stage [s], where `start` tokens come before it. Borders are
    multiples of `grain` tokens (None: a 64th of the sequence). The time of a pass is `slices_pass`; for each possible
    longest slice, dynamic programming finds the least sum.

    Raises InputError for a length that is no multiple of the grain, and for more than 128 of them.
    """
    check_whole("the length of the sequence", length, 1, 2048)
    check_whole("the number of pipeline devices", devices, 1, 8)
    unit = max(1, length // 64) if grain is None else grain
    check_whole("the grain of the slices", unit, 1, 32)
    if length % unit or length // unit > _MOST_CUTS:
        raise InputError(
            f"a sequence of {length} tokens cannot be cut into at most {_MOST_CUTS} pieces of {unit}; "
            f"take a grain that divides it, such as {_divisor(length)}"
        )
    count = length // unit
    times = np.full((count + 1, count + 1), np.inf)  # by start and end
    for start in range(count):
        for end in range(start + 1, count + 1):
            times[start, end] = cost(start * unit, (end - start) * unit)
    best, borders = np.inf, [0, count]
    for longest in np.unique(times[np.isfinite(times)]):
        if (devices - 1) * longest >= best:
            break
        total, found = _least_sum(np.where(times <= longest, times, np.inf))
        if total + (devices - 1) * longest < best:
            best, borders = total + (devices - 1) * longest, found
    return tuple(int(each) * unit for each in np.diff(borders))


def slices_pass(times: Floats, devices: int) -> float:
    """Time of one pass of slices through a pipeline [s]: sum(times) + (devices - 1) max(times) (arXiv:2102.07988)."""
    return float(np.sum(times) + (devices - 1) * np.max(times))


def _least_sum(times: Floats) -> tuple[float, list[int]]:
    """The least sum of times over borders from the first to the last, and those borders."""
    size = len(times)
    least, before = np.full(size, np.inf), np.zeros(size, int)
    least[0] = 0.0
    for end in range(1, size):
        through = least[:end] + times[:end, end]
        before[end] = through.argmin()
        least[end] = through[before[end]]
    borders = [size - 1]
    while borders[-1]:
        borders.append(int(before[borders[-1]]))
    return float(least[-1]), borders[::-1]


def _divisor(length: int) -> int:
    """The smallest grain that divides a length into few enough pieces."""
    return next(each for each in range(-(-length // _MOST_CUTS), length + 1) if length % each == 0)
