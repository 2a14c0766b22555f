"""What each method makes of an epoch: the total and the speedup that its iterations project, on every machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.papers.sample import allocate, baseline, draw, estimate, seqpoints, speedup, strata
from weft.papers.sample.seqpoint import BASELINES, Points
from weft.papers.seqpoint.epochs import Epoch

Floats = NDArray[np.float64]
SEQPOINT, INTERVAL = "SeqPoint", "with an interval"
ITERATIONS, EACH = 12, 4
"""Iterations of a sample with an interval, and those of each stratum."""
_TINY = 1e-6
"""Error below which a geometric mean counts no less: a millionth."""


@dataclass(frozen=True)
class Outcome:
    """A method on one machine: relative errors of the projected total, and of the speedup from the first machine."""

    network: str
    method: str
    machine: str
    total: float
    speedup: float | None


def outcomes(epoch: Epoch, times: Mapping[str, Floats]) -> Iterator[Outcome]:
    """Yield every method on every machine: points are chosen on the first machine, and kept for the others."""
    first, *_ = times
    base = times[first]
    ways: dict[str, Points] = {SEQPOINT: seqpoints(epoch.lengths, base)}
    ways |= {name: baseline(name, epoch.lengths) for name in BASELINES}
    for name, points in ways.items():
        for machine, seconds in times.items():
            real = base.sum() / seconds.sum()
            faster = None if machine == first else float(points.speedup(base, seconds) / real - 1)
            yield Outcome(epoch.network, name, machine, float(points.total(seconds) / seconds.sum() - 1), faster)
    own, chosen = sample_epoch(epoch.lengths, 0)
    for machine, seconds in times.items():
        whole = estimate(epoch.lengths, own, chosen, seconds[chosen]).value
        found = speedup(epoch.lengths, own, chosen, base[chosen], seconds[chosen]).value
        faster = None if machine == first else float(found / (base.sum() / seconds.sum()) - 1)
        yield Outcome(epoch.network, INTERVAL, machine, float(whole / seconds.sum() - 1), faster)


def sample_epoch(lengths: Floats, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Strata of an epoch, and the places of ITERATIONS drawn from them."""
    own = strata(lengths, ITERATIONS // EACH)
    sizes = np.bincount(own)
    given = allocate(sizes, np.bincount(own, lengths) / sizes, ITERATIONS, EACH)
    return own, draw(own, given, np.random.default_rng(seed))


def geomean(errors: Iterator[float]) -> float:
    """Return the geometric mean of absolute errors."""
    return float(np.exp(np.mean(np.log(np.maximum(np.abs([*errors]), _TINY)))))


@dataclass(frozen=True)
class Noisy:
    """Times that vary by `noise` from one iteration to the next: the mean error of SeqPoint, and of the sample.

    `covered` is how often the sample's interval holds the real total, `half_width` half of it, as a fraction.
    """

    network: str
    noise: float
    seqpoint: float
    sample: float
    covered: float
    half_width: float


def noisy(epoch: Epoch, seconds: Floats, noise: float, redraws: int) -> Noisy:
    """Redraw an epoch's noise, and with it SeqPoint's choice and the sample."""
    rng = np.random.default_rng(0)
    ours, theirs, inside, half = [], [], 0, 0.0
    for seed in range(redraws):
        real = seconds * np.maximum(1 + noise * rng.standard_normal(len(seconds)), 0.1)
        total = real.sum()
        theirs.append(abs(seqpoints(epoch.lengths, seconds).total(real) / total - 1))
        own, chosen = sample_epoch(epoch.lengths, seed)
        found = estimate(epoch.lengths, own, chosen, real[chosen])
        ours.append(abs(found.value / total - 1))
        inside += found.low <= total <= found.high
        half += found.half_width
    errors = float(np.mean(theirs)), float(np.mean(ours))
    return Noisy(epoch.network, noise, *errors, inside / redraws, half / redraws)
