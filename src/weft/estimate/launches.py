"""Kernels that wait for the host to launch them, and what a graph of launches saves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.errors import InputError


@dataclass(frozen=True)
class Launched:
    """A sequence of kernels as the host launches them: its time, and that of the kernels alone [s]."""

    seconds: float
    busy: float

    @property
    def idle(self) -> float:
        """Share of the time in which the GPU waits for the host."""
        return 1 - self.busy / self.seconds


def launched(kernels: npt.ArrayLike, host: float) -> Launched:
    """Kernels of given times [s], launched one after the other, each `host` seconds of a thread that never waits.

    A kernel begins when it is launched and its predecessor has ended, so the sequence takes the longest of launches up
    to some kernel and the kernels from there on. Raises InputError for negative times and no kernels.
    """
    times = _times(kernels, host=host)
    issued = host * np.arange(1, len(times) + 1)
    left = np.cumsum(times[::-1])[::-1]
    return Launched(float(np.max(issued + left)), float(times.sum()))


def replayed(kernels: npt.ArrayLike, host: float, gap: float = 0.0) -> Launched:
    """The same kernels as one graph: one launch of `host` seconds, and `gap` between kernels on the device [s].

    Graphs remove launches; the kernels still move the same bytes.
    """
    times = _times(kernels, host=host, gap=gap)
    return Launched(host + float(times.sum()) + gap * (len(times) - 1), float(times.sum()))


def _times(kernels: npt.ArrayLike, **costs: float) -> npt.NDArray[np.float64]:
    times = np.atleast_1d(np.asarray(kernels, dtype=np.float64))
    for name, cost in costs.items():
        if not 0 <= cost < np.inf:
            raise InputError(f"{name} is {cost:g} s; it must be a time of at least 0")
    if not times.size or not np.all((times > 0) & np.isfinite(times)):
        raise InputError("kernels must be times above 0 s, at least one of them")
    return times
