"""Which plans need not be timed: another one is faster, and needs no more memory, than they can possibly be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
_MARGIN = 1e-6
"""Share by which a lower bound must exceed a time, far above the rounding of sums."""


class ParetoFront:
    """Step times [s] and peaks of memory [bytes] of the plans that no other one so far beats in both."""

    def __init__(self) -> None:
        self._seconds, self._peaks = np.empty(0), np.empty(0)

    def add(self, seconds: FloatArray, peaks: FloatArray) -> None:
        """Add timed plans."""
        seconds, peaks = np.append(self._seconds, seconds), np.append(self._peaks, peaks)
        order = np.lexsort((peaks, seconds))
        seconds, peaks = seconds[order], peaks[order]
        falls = np.diff(np.minimum.accumulate(peaks), prepend=np.inf) < 0
        self._seconds, self._peaks = seconds[falls], peaks[falls]

    def beats(self, least: FloatArray, peaks: FloatArray) -> NDArray[np.bool_]:
        """Return which plans it beats whatever their times, of which `least` are lower bounds [s]."""
        faster = np.searchsorted(self._seconds, least * (1 - _MARGIN))
        lowest = np.append(np.inf, self._peaks)[faster]  # peaks fall with the time
        found: NDArray[np.bool_] = lowest <= peaks
        return found


class Pruning:
    """Excludes plans that are neither on a Pareto `front` nor among the first `fastest` plans by time."""

    def __init__(self, front: ParetoFront, fastest: int) -> None:
        self.front, self.fastest = front, fastest
        self._times = np.empty(0)

    def of_fewer(self, fastest: int) -> Pruning:
        """Return what keeps fewer of the fastest plans, those so far among them."""
        found = Pruning(self.front, fastest)
        found._times = self._times[:fastest]
        return found

    def add(self, seconds: FloatArray, peaks: FloatArray) -> None:
        """Add timed plans."""
        self.front.add(seconds, peaks)
        self._times = np.sort(np.append(self._times, seconds))[: self.fastest]

    def excludes(self, least: FloatArray, peaks: FloatArray) -> NDArray[np.bool_]:
        """Return which plans need no time, by lower bounds of their times [s] and their peaks [bytes]."""
        if len(self._times) < self.fastest:
            return np.zeros(len(least), bool)
        slow = least * (1 - _MARGIN) > self._times[-1] if self.fastest else True
        return self.front.beats(least, peaks) & slow
