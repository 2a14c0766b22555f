"""Bounds and closed forms of pipeline schedules: p devices, m micro-batches, equal stages unless said otherwise.

`forward`, `backward` and `weight` are the times of one micro-batch on all layers of one device [s]: forward, gradient
of the inputs, gradient of the weights. A whole backward takes backward + weight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.step.pipeline.orders import Floats


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


def slices_pass(times: Floats, devices: int) -> float:
    """Time of one pass of slices through a pipeline [s]: sum(times) + (devices - 1) max(times) (arXiv:2102.07988)."""
    return float(np.sum(times) + (devices - 1) * np.max(times))
