"""Bounds and closed forms of pipeline schedules, and TeraPipe's cuts of a sequence (arXiv:2102.07988).

The closed forms have p devices, m micro-batches, equal stages unless said otherwise. `forward`, `backward` and
`weight` are the times of one micro-batch on all layers of one device [s]: forward, gradient of the inputs, gradient of
the weights. A whole backward takes backward + weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.errors import InputError, check_whole
from weft.schedule.pipeline.orders import Floats


def one_stage_makespan(stage_times: Sequence[float], micro_batches: int) -> float:
    """A makespan that no order beats with one stage a device and whole backwards [s].

    `stage_times` is F + B of each stage. A stage starts after the forwards before it, runs all micro-batches, and the
    backwards before it follow its last one. On equal stages that is (m + p - 1) (F + B); GPipe and 1F1B reach it.
    """
    times = np.asarray(stage_times, float)
    return float((np.cumsum(times) + (micro_batches - 1) * times).max())


def interleaved_idle(devices: int, chunks: int, forward: float, backward: float, weight: float = 0.0) -> float:
    """Idle time of interleaved 1F1B [s]: (p - 1) (F + B) / v (arXiv:2104.04473)."""
    return (devices - 1) * (forward + backward + weight) / chunks


def interleaved_peak(devices: int, chunks: int) -> float:
    """Micro-batches that device 0 holds under interleaved 1F1B: p (1 + (p - 1) / (p v)) (arXiv:2205.05198)."""
    return devices + (devices - 1) / chunks


def inference_idle_share(devices: int, inputs: int) -> float:
    """Idle share of a pipeline of forwards: (p - 1) / (p - 1 + n)."""
    return (devices - 1) / (devices - 1 + inputs)


def chimera_idle_share(devices: int, micro_batches: int) -> float:
    """Idle share of Chimera: (p - 2) / (2 m + p - 2) (arXiv:2107.06925)."""
    return (devices - 2) / (2 * micro_batches + devices - 2)


def zb_h1_idle(devices: int, forward: float, backward: float, weight: float) -> float:
    """Idle time within the longest span of ZB-H1 [s]: (p - 1) (F + B - W) (arXiv:2401.10241)."""
    return (devices - 1) * (forward + backward - weight)


def zb_h2_idle(devices: int, forward: float, backward: float, weight: float) -> float:
    """Idle time within the longest span of ZB-H2 [s]: (p - 1) (F + B - 2 W) (arXiv:2401.10241)."""
    return (devices - 1) * (forward + backward - 2 * weight)


def dualpipe_idle(devices: int, together: float, backward: float, weight: float) -> float:
    """Idle time of DualPipe [s]: (p / 2 - 1) (F&B + whole B - 3 W), F&B being both together (arXiv:2412.19437)."""
    return (devices / 2 - 1) * (together + backward + weight - 3 * weight)


def one_forward_one_backward_sends(devices: int, micro_batches: int, latency: float) -> float:
    """What a send latency adds to 1F1B [s], for a multiple of p micro-batches: (2 (p - 1) m / p + 2 (p - 2)) latency.

    Neighbours have no slack between them, so every p micro-batches pay one round trip; GPipe pays one in all.
    """
    return (2 * (devices - 1) * micro_batches / devices + 2 * (devices - 2)) * latency if devices > 1 else 0.0


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
