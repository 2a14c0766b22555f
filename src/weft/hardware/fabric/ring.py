"""A ring: each GPU has a link to the GPU before it and one to the GPU behind it."""

from __future__ import annotations

from weft.hardware.fabric.base import Fabric, Link, pairs


def ring(gpus: int, bandwidth: float, latency: float) -> Fabric:
    """`gpus` GPUs with `bandwidth` [bytes/s] to each of two neighbours; others are reached the shorter way round."""
    down = [Link("down", g, g, (g - 1) % gpus, bandwidth, latency, to_peer=True) for g in range(gpus)]
    up = [Link("up", g, g, (g + 1) % gpus, bandwidth, latency, to_peer=True) for g in range(gpus)]
    routes = {(s, t): _around(s, t, gpus) for s, t in pairs(gpus)}
    return Fabric("ring", gpus, (*down, *up), routes, symmetric=True)


def _around(source: int, target: int, gpus: int) -> tuple[int, ...]:
    steps = signed_distance(source, target, gpus)
    if steps < 0:
        return tuple((source - step) % gpus for step in range(-steps))
    return tuple(gpus + (source + step) % gpus for step in range(steps))


def signed_distance(source: int, target: int, length: int) -> int:
    """Steps from one place of a ring to another, the shorter way; the way down (negative) where both are as long."""
    up = (target - source) % length
    return up if up < length - up else up - length
