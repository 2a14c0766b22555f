"""SeqPoint (arXiv:2007.10459): one iteration for each bin of sequence lengths stands for all of the bin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.errors import InputError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FEW = 10
"""Distinct lengths up to which each is a point of its own [about 10; arXiv:2007.10459 as remembered]."""
BINS = 5
"""Bins of equal width to begin with [arXiv:2007.10459 as remembered]."""
ERROR = 0.005
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
        """The total of a statistic of all iterations, projected from the points."""
        return float(self.weights @ statistic[self.chosen])

    def speedup(self, before: Floats, after: Floats) -> float:
        """The ratio of two projected totals."""
        return self.total(before) / self.total(after)

    def savings(self, statistic: Floats) -> tuple[float, float]:
        """How many times less is run if the points run in turn, and if they run at once."""
        own = statistic[self.chosen]
        return float(statistic.sum() / own.sum()), float(statistic.sum() / own.max())


def seqpoints(
    lengths: Floats, statistic: Floats, few: int = FEW, bins: int = BINS, error: float = ERROR, most: int = 1000
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
    """The iteration nearest the mean of each class that is not empty."""
    count = np.bincount(which, minlength=bins)
    mean = np.bincount(which, statistic, bins) / np.maximum(count, 1)
    away = np.abs(statistic - mean[which])
    order = np.lexsort((away, which))
    filled = np.flatnonzero(count)
    first = np.searchsorted(which[order], filled)
    return Points(order[first].astype(np.int64), count[filled].astype(np.int64), bins)
