"""SeqPoint (arXiv:2007.10459): one iteration for each bin of sequence lengths stands for the bin; and its baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, check_name

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FEW = 10
"""Distinct lengths up to which each is a point of its own [about 10; arXiv:2007.10459 as remembered]."""
_BINS = 5
"""Bins of equal width to begin with [arXiv:2007.10459 as remembered]."""
_ERROR = 0.005
"""Error of the total above which a bin more is tried, as a fraction [assumed, 0.001 to 0.01]."""


@dataclass(frozen=True, eq=False)
class Points:
    """Iterations that stand for others: `chosen` are their places in the log, `weights` how many each stands for.

    `bins` is the number of bins that were cut, empty ones included.
    """

    chosen: Ints
    weights: Ints
    bins: int

    def total(self, statistic: Floats) -> float:
        """Return the total of a statistic of all iterations, projected from the points."""
        return float(self.weights @ statistic[self.chosen])

    def speedup(self, before: Floats, after: Floats) -> float:
        """Return the ratio of two projected totals."""
        return self.total(before) / self.total(after)

    def savings(self, statistic: Floats) -> tuple[float, float]:
        """Return how many times less is run if the points run in turn, and if they run at once."""
        own = statistic[self.chosen]
        return float(statistic.sum() / own.sum()), float(statistic.sum() / own.max())


def seqpoints(
    lengths: Floats, statistic: Floats, few: int = FEW, bins: int = _BINS, error: float = _ERROR, most: int = 1000
) -> Points:
    """SeqPoint's choice for iterations of these padded `lengths` and this `statistic` (their times), shape (n,) each.

    Up to `few` distinct lengths are a point each. Otherwise lengths fall into `bins` bins of equal width; the iteration
    whose statistic is nearest the bin's mean stands for the bin. A bin is added until the projected total is within
    `error` of the real one. Raises InputError if `most` bins are not enough.
    """
    unique, which = np.unique(lengths, return_inverse=True)
    if len(unique) <= few:
        return _points(which, statistic, len(unique))
    whole = statistic.sum()
    for count in range(bins, most + 1):
        edges = np.linspace(unique[0], unique[-1], count + 1)
        found = _points(np.digitize(lengths, edges[1:-1], right=True), statistic, count)
        if abs(found.total(statistic) / whole - 1) <= error:
            return found
    raise InputError(
        f"{most} bins of equal width project the total no nearer than {error:.2%}; allow a larger error, "
        "or sample with an interval"
    )


def _points(which: npt.NDArray[np.intp], statistic: Floats, bins: int) -> Points:
    """Return the iteration nearest the mean of each class that is not empty."""
    count = np.bincount(which, minlength=bins)
    mean = np.bincount(which, statistic, bins) / np.maximum(count, 1)
    away = np.abs(statistic - mean[which])
    order = np.lexsort((away, which))
    filled = np.flatnonzero(count)
    first = np.searchsorted(which[order], filled)
    return Points(order[first].astype(np.int64), count[filled].astype(np.int64), bins)


WARM_UP, RUN = 50, 10
"""Iterations that "prior" leaves out at first, and those that it takes then [arXiv:2007.10459 as remembered]."""


def _frequent(lengths: Floats) -> Ints:
    unique, count = np.unique(lengths, return_counts=True)
    return _with(lengths, unique[count.argmax()])


def _median(lengths: Floats) -> Ints:
    return _with(lengths, np.sort(lengths)[(len(lengths) - 1) // 2])


def _worst(lengths: Floats) -> Ints:
    return _with(lengths, lengths.max())


def _with(lengths: Floats, length: float) -> Ints:
    """Return the first iteration of a length."""
    return np.flatnonzero(lengths == length)[:1]


def _prior(lengths: Floats) -> Ints:
    first = min(WARM_UP, max(len(lengths) - RUN, 0))
    return np.arange(first, min(first + RUN, len(lengths)))


BASELINES: Mapping[str, Callable[[Floats], Ints]] = {
    "most-frequent": _frequent,
    "median": _median,
    "worst": _worst,
    "prior": _prior,
}
"""Baselines of the paper by name, each from the lengths of an epoch's iterations in their order."""


def baseline(name: str, lengths: Floats) -> Points:
    """A baseline's iterations, each standing for an equal part of the epoch; UnknownNameError for an unknown name."""
    check_name("baseline", name, BASELINES)
    chosen = BASELINES[name](lengths)
    weights = np.full(len(chosen), len(lengths) // len(chosen))
    weights[: len(lengths) % len(chosen)] += 1
    return Points(chosen.astype(np.int64), weights.astype(np.int64), 1)
