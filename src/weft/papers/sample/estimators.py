"""Strata of iterations by length, and totals and speedups from sampled ones, with intervals.

After W. G. Cochran, Sampling Techniques, chapters 5 to 7. Stratified: Y = sum N_h mean_h. Difference: f(length) is
fitted to the sample, Y = sum f(all lengths) + sum N_h mean_h(y - f), and only what f leaves unexplained varies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import special

from weft.core.errors import InputError, check_name
from weft.papers.sample.seqpoint import Floats, Ints

STRATA = 3
"""Strata of lengths that lie in no groups."""
LEAST = 2
"""Iterations of a stratum from which its variance can be told."""


def strata(lengths: Floats, count: int | None = None) -> Ints:
    """Return the stratum of each iteration, 0 to count - 1, shape (n,): cut so that lengths vary least within them.

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
    """Return the number of strata at which lengths stop to vary: that of their groups, or three if they have none."""
    many = np.arange(2, len(least) + 1)
    with np.errstate(over="ignore"):  # infinitely, if nothing varies any more
        falls = least[:-1] / np.maximum(least[1:], np.finfo(float).tiny) / (many / (many - 1))
    clear = many[falls > _CLEAR]
    return int(clear[-1]) if len(clear) else min(STRATA, len(least))


def _cuts(place: npt.NDArray[np.intp], lengths: Floats, most: int) -> tuple[list[Ints], Floats]:
    """Return the best cuts of the grid into 1, 2, ... strata, and the sum of size x standard deviation of each.

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
    """Return how many of `iterations` iterations each stratum gets by Neyman's allocation, in proportion to its size x
    `spread`.

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
    """Return places of `given` iterations of each stratum, drawn at random without replacement, in the log's order."""
    places = (np.flatnonzero(own == name) for name in range(len(given)))
    chosen = [rng.choice(all_, count, replace=False) for all_, count in zip(places, given.tolist(), strict=True)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)


Method = Literal["stratified", "affine", "quadratic", "automatic"]
"""What estimates the total: means of strata, differences from a fitted line or parabola, or the better of these two."""
_DEGREES = {"affine": 1, "quadratic": 2}
CONFIDENCE = 0.95
_FIELLER = 0.1
"""Coefficient of variation of a divisor above which a ratio's interval is not symmetric."""
_FOLLOWED = 0.95
"""Most leverage that counts: a curve that follows one iteration alone says nothing of how far it misses it."""
_CURVED = 0.002
"""Significance at which residuals of a line are called curved."""


@dataclass(frozen=True)
class SampledTotal:
    """A total with its interval at 95 %: `value`, `low`, `high`, and the `degrees` of freedom of its variance.

    `curved` says that a parabola fits the sample significantly better than the line that was used.
    """

    value: float
    low: float
    high: float
    degrees: float
    method: Method
    curved: bool = False

    @property
    def half_width(self) -> float:
        """Half of the interval, as a fraction of the value."""
        return (self.high - self.low) / 2 / abs(self.value)


@dataclass(frozen=True)
class Speedup:
    """How many times faster the second machine is, with its interval at 95 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class _Design:
    """A stratified sample: sizes of the strata, and the strata and lengths of the sampled iterations."""

    sizes: Floats
    own: Ints
    lengths: Floats
    everywhere: Floats

    @classmethod
    def of(cls, lengths: Floats, own: Ints, chosen: Ints) -> _Design:
        return cls(np.bincount(own).astype(float), own[chosen], lengths[chosen], lengths)

    @property
    def counts(self) -> Floats:
        """Sampled iterations of each stratum."""
        return np.bincount(self.own, minlength=len(self.sizes)).astype(float)

    def total(self, values: Floats) -> float:
        """Return the sum over all iterations, from the means of strata."""
        means = np.bincount(self.own, values, len(self.sizes)) / self.counts
        return float(self.sizes @ means)

    def variance(self, values: Floats) -> tuple[float, float]:
        """Return the variance of `total`, and its degrees of freedom by Satterthwaite."""
        counts, sizes = self.counts, self.sizes
        means = np.bincount(self.own, values, len(sizes)) / counts
        squares = np.bincount(self.own, (values - means[self.own]) ** 2, len(sizes)) / np.maximum(counts - 1, 1)
        weights = sizes * (sizes - counts) / counts
        parts = weights * squares
        whole = float(parts.sum())
        spread = float((parts**2 / np.maximum(counts - 1, 1)).sum())
        return whole, whole**2 / spread if spread else float(counts.sum() - len(sizes))

    def fit(self, values: Floats, degree: int) -> Floats:
        """Coefficients of the polynomial that fits the sample best, each iteration weighing as those it stands for."""
        return np.asarray(np.polynomial.polynomial.polyfit(self.lengths, values, degree, w=self._weights), np.float64)

    @property
    def _weights(self) -> Floats:
        return np.sqrt((self.sizes / self.counts)[self.own]) / np.maximum(self.lengths, 1e-300)

    def leverage(self, degree: int) -> Floats:
        """Return how much of each sampled value `fit` takes over, 0 to below 1: the diagonal of its hat matrix."""
        powers = np.vander(self.lengths / self.lengths.max(), degree + 1) * self._weights[:, None]
        return np.asarray(np.minimum((np.linalg.qr(powers).Q ** 2).sum(axis=1), _FOLLOWED), np.float64)


def _at(lengths: Floats, line: Floats) -> Floats:
    return np.asarray(np.polynomial.polynomial.polyval(lengths, line), np.float64)


def estimate(
    lengths: Floats, own: Ints, chosen: Ints, seconds: Floats, method: Method = "automatic", again: float = 0.0
) -> SampledTotal:
    """Return the total time of all iterations from those `chosen` at random from each stratum, with its interval.

    `lengths` and strata `own` have shape (n,), places `chosen` and their `seconds` [s] shape (sample,). For a claim
    about another run, `again` is the run-to-run spread of whole totals, as a fraction. Raises UnknownNameError for an
    unknown method.
    """
    check_name("method", method, get_args(Method))
    design = _Design.of(lengths, own, chosen)
    curved = _is_curved(design, seconds)
    if method == "automatic":
        method = "quadratic" if curved else "affine"
    value, residuals = _differences(design, seconds, method)
    variance, degrees = design.variance(residuals)
    half = quantile(degrees) * np.sqrt(variance + (again * value) ** 2)
    return SampledTotal(value, value - half, value + half, degrees, method, curved and method == "affine")


def _differences(design: _Design, seconds: Floats, method: str) -> tuple[float, Floats]:
    """Return the total, and what varies in it: what a curve fitted to all other iterations misses of each.

    Residuals of the curve itself are too small where it follows single iterations, as a parabola does at the ends.
    """
    if method == "stratified":
        return design.total(seconds), seconds
    line = design.fit(seconds, _DEGREES[method])
    residuals = seconds - _at(design.lengths, line)
    total = float(_at(design.everywhere, line).sum()) + design.total(residuals)
    return total, residuals / (1 - design.leverage(_DEGREES[method]))


def _is_curved(design: _Design, seconds: Floats) -> bool:
    """Return whether a parabola fits the sample significantly better than a line (F test, relative errors)."""
    free = len(seconds) - 3
    if free < 1 or len(np.unique(design.lengths)) <= 3:
        return False
    line, parabola = (
        float((((seconds - _at(design.lengths, design.fit(seconds, degree))) / seconds) ** 2).sum())
        for degree in (1, 2)
    )
    if parabola <= 0:
        return line > 0
    return bool(special.fdtrc(1, free, (line - parabola) / (parabola / free)) < _CURVED)


def speedup(
    lengths: Floats, own: Ints, chosen: Ints, before: Floats, after: Floats, method: Method = "automatic"
) -> Speedup:
    """Return how many times faster the machine of times `after` is than that of `before`, on the same sampled
    iterations.

    The interval is that of a ratio of totals; Fieller's where the divisor varies by more than 10 %.
    """
    check_name("method", method, get_args(Method))
    design = _Design.of(lengths, own, chosen)
    if method == "automatic":
        method = "quadratic" if _is_curved(design, before) or _is_curved(design, after) else "affine"
    first, own_first = _differences(design, before, method)
    second, own_second = _differences(design, after, method)
    ratio = first / second
    variance, degrees = design.variance(own_first - ratio * own_second)
    t = quantile(degrees)
    divisor = np.sqrt(design.variance(own_second)[0]) / second
    if divisor > _FIELLER:
        return Speedup(ratio, *_fieller(design, (first, second), (own_first, own_second), t))
    half = t * np.sqrt(variance) / second
    return Speedup(ratio, ratio - half, ratio + half)


def _fieller(
    design: _Design, totals: tuple[float, float], values: tuple[Floats, Floats], t: float
) -> tuple[float, float]:
    """Return the ratios at which the difference of the totals may be zero."""
    (one, two), (a, b) = totals, values
    v11, v22 = design.variance(a)[0], design.variance(b)[0]
    v12 = (design.variance(a + b)[0] - v11 - v22) / 2
    square = two**2 - t**2 * v22
    if square <= 0:
        return 0.0, float("inf")
    middle = one * two - t**2 * v12
    root = np.sqrt(max(middle**2 - square * (one**2 - t**2 * v11), 0.0))
    return float((middle - root) / square), float((middle + root) / square)


def quantile(degrees: float) -> float:
    """Return how many standard deviations half an interval at 95 % is wide (Student)."""
    return float(special.stdtrit(max(degrees, 1.0), (1 + CONFIDENCE) / 2))


def iterations_for(sizes: Ints, spread: Floats, total: float, half_width: float) -> int:
    """Return the least number of iterations for a wanted `half_width` of the interval, as a fraction of the total.

    `spread` is the standard deviation of what varies in each stratum [s], `total` the sum of all iterations [s].
    n = (sum N_h S_h)^2 / ((eps Y / t)^2 + sum N_h S_h^2), t of n - strata - 1 degrees of freedom, at least two
    iterations a stratum.
    """
    many, deviation = sizes.astype(float), np.asarray(spread, np.float64)

    def enough(count: int) -> bool:
        wanted = (half_width * total / quantile(count - len(sizes) - 1)) ** 2
        return float((many @ deviation) ** 2 / (wanted + many @ deviation**2)) <= count

    low, high = 2 * len(sizes), int(many.sum())
    if low >= high or enough(low):
        return min(low, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def residual_spread(lengths: Floats, own: Ints, noise: float) -> npt.NDArray[np.float64]:
    """Standard deviation in each stratum of times whose noise is a fraction of a length's time [in units of length]."""
    sizes = np.bincount(own)
    return np.asarray(noise * np.sqrt(np.bincount(own, lengths**2) / sizes), np.float64)
