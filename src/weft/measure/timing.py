"""The time of a piece of work: repeated until it can be told from the clock's grain, the median of several samples."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from weft.measure.device import Device, Work

LEAST_SECONDS = 0.02
"""Shortest sample [s]: far above the grain of any device's clock."""
SAMPLES = 5
MOST_REPEATS = 2000
_WARM_UP = 3


@dataclass(frozen=True)
class Timing:
    """Median time of one run [s], the samples' range as a share of it, and how many runs each sample took."""

    seconds: float
    spread: float
    repeats: int

    @property
    def note(self) -> str:
        """How it was taken, for the table."""
        return f"median of {SAMPLES} samples of {self.repeats} runs; spread={self.spread:.3f}"


def time_work(device: Device, work: Work, *, least: float = LEAST_SECONDS, graph: bool = True) -> Timing:
    """The time of one run after a warm-up, each sample at least `least` seconds long (or `MOST_REPEATS` runs)."""
    device.seconds(work, _WARM_UP, graph=False)
    repeats = 1
    once = device.seconds(work, repeats, graph=graph)
    while once < least / 10 and repeats < MOST_REPEATS:
        # A short first guess is mostly overhead: close in on the number of repeats tenfold at a time.
        repeats = min(repeats * 10, MOST_REPEATS)
        once = device.seconds(work, repeats, graph=graph)
    repeats = max(1, min(math.ceil(least * repeats / max(once, 1e-9)), MOST_REPEATS))
    samples = [device.seconds(work, repeats, graph=graph) / repeats for _ in range(SAMPLES)]
    median = statistics.median(samples)
    return Timing(median, (max(samples) - min(samples)) / median, repeats)
