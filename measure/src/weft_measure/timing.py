"""The time of a piece of work: repeated until it can be told from the clock's grain, the median of several samples."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from weft_measure.device import Device, Work

LEAST_SECONDS = 0.02
"""Shortest sample [s]: far above the grain of any device's clock."""
SAMPLES = 5
MOST_REPEATS = 2000
_WARM_UP = 3
_GUESSES = 3


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
    repeats, once = 1, 0.0
    while True:
        # The shortest of a few: a hiccup in a guess would leave the samples too short.
        once = min(device.seconds(work, repeats, graph=graph) for _ in range(_GUESSES))
        if once >= least / 10 or repeats == MOST_REPEATS:
            break
        repeats = min(repeats * 10, MOST_REPEATS)
    repeats = max(1, min(math.ceil(least * repeats / max(once, 1e-9)), MOST_REPEATS))
    samples = [device.seconds(work, repeats, graph=graph) / repeats for _ in range(SAMPLES)]
    median = statistics.median(samples)
    return Timing(median, (max(samples) - min(samples)) / median, repeats)
