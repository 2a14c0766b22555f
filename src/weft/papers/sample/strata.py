"""Strata of iterations by length, how many to sample from each, and which."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError
from weft.papers.sample.seqpoint import Floats, Ints

STRATA = 3
"""Strata of lengths that lie in no groups."""
LEAST = 2
"""Iterations of a stratum from which its variance can be told."""


def strata(lengths: Floats, count: int | None = None) -> Ints:
    """The stratum of each iteration, 0 to count - 1, shape (n,): cut so that lengths vary least within them.

    The cuts minimise the sum of size x standard deviation (Neyman's criterion), exactly for up to 256 distinct lengths
    and over as many quantiles beyond. Iterations of one length share a stratum, and each stratum has at least two
    iterations. Without a `count`, lengths in clear groups (buckets of a data loader) get a stratum each, others
    three. Raises InputError for fewer distinct lengths than strata.
    """
    grid = np.unique(np.quantile(lengths, np.linspace(0, 1, _GRID), method="inverted_cdf"))
    place = np.searchsorted(grid, lengths)
    most = count or min(_MOST, len(grid))
    if len(grid) < most:
        raise InputError(f"{len(grid)} distinct lengths cannot be cut into {most} strata; ask for fewer strata")
    cuts, least = _cuts(place, lengths, most)
    chosen = count or _groups(least)
    return np.searchsorted(cuts[min(chosen, len(cuts)) - 1], place, side="right").astype(np.int64)


_GRID = 256
_MOST = 10
_CLEAR = 1.8
"""How many times more than evenly spread lengths, whose spread falls by k / (k - 1) with the k-th stratum, those in
groups lose with the stratum that completes these [assumed, 1.5 to 2.2; buckets of GNMT in MLPerf 2.2 to 5]."""


def _groups(least: Floats) -> int:
    """The number of strata at which lengths stop to vary: that of their groups, or three if they have none."""
    many = np.arange(2, len(least) + 1)
    with np.errstate(over="ignore"):  # infinitely, if nothing varies any more
        falls = least[:-1] / np.maximum(least[1:], np.finfo(float).tiny) / (many / (many - 1))
    clear = many[falls > _CLEAR]
    return int(clear[-1]) if len(clear) else min(STRATA, len(least))


def _cuts(place: npt.NDArray[np.intp], lengths: Floats, most: int) -> tuple[list[Ints], Floats]:
    """The best cuts of the grid into 1, 2, ... strata, and the sum of size x standard deviation of each.

    best[k][j] = min over i of best[k - 1][i] + (size x deviation of grid values i to j - 1): O(most x grid^2).
    """
    size = int(place.max()) + 1
    count, first, second = (
        np.concatenate([[0.0], np.cumsum(np.bincount(place, weights, size))]) for weights in (None, lengths, lengths**2)
    )
    many = count[None, :] - count[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = (first[None, :] - first[:, None]) / many
        spread = np.sqrt(np.maximum((second[None, :] - second[:, None]) / many - mean**2, 0.0)) * many
    cost = np.where(many >= LEAST, spread, np.inf)
    best, backs, ends, sums = cost[0], [], [], []
    for strata_ in range(1, most + 1):
        if strata_ > 1:
            whole = best[:, None] + cost
            backs.append(whole.argmin(axis=0))
            best = whole.min(axis=0)
        if not np.isfinite(best[-1]):
            break
        cut, at = [], size
        for back in reversed(backs):
            at = int(back[at])
            cut.append(at)
        ends.append(np.array(cut[::-1], np.int64))
        sums.append(float(best[-1]))
    return ends, np.array(sums)


def allocate(sizes: Ints, spread: Floats, iterations: int, least: int = LEAST) -> Ints:
    """How many of so many iterations each stratum gets: Neyman's allocation, in proportion to its size x `spread`.

    `sizes` and `spread` have shape (strata,). Each gets at least `least`, and at most all of its own. Raises InputError
    if that takes more iterations than asked for.
    """
    floor = np.minimum(sizes, least)
    if iterations < floor.sum():
        raise InputError(
            f"{iterations} iterations are fewer than {floor.sum()}, {least} from each of {len(sizes)} strata; sample "
            "more, or cut fewer strata"
        )
    given = floor.copy()
    want = sizes * np.maximum(spread, np.finfo(float).tiny)
    for _ in range(min(iterations, int(sizes.sum())) - int(floor.sum())):
        open_ = np.where(given < sizes, want / np.sqrt(given * (given + 1.0)), -1.0)
        given[open_.argmax()] += 1
    return given


def draw(own: Ints, given: Ints, rng: np.random.Generator) -> Ints:
    """Places of so many iterations of each stratum, drawn at random without replacement, in the log's order."""
    places = (np.flatnonzero(own == name) for name in range(len(given)))
    chosen = [rng.choice(all_, count, replace=False) for all_, count in zip(places, given.tolist(), strict=True)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)
