"""Operators of any model projected from the measured operators of one: a baseline's rows, and the rows not seen.

The closed form of an operator is fitted to the baseline's rows alone (parameters of the machine, within their plausible
ranges, from what other machines say), and then anchored at them: log(measured / predicted) of the baseline's points
near a size corrects the prediction there. Scaling by the amount of work, as in arXiv:2302.02825 (GEMMs by FLOPs,
normalisation by elements, collectives by bytes), is compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import permutations

import numpy as np
import pandas as pd

from weft.core.errors import InputError
from weft.lab.calibration import fit, unseen
from weft.lab.subjects import BoolArray, Errors, Subject, errors_of, predict_subject
from weft.lab.tables import FloatArray

HIDDEN = 1024
"""Hidden size of the baseline, BERT-Large."""
WEIGHTS = (HIDDEN, 3 * HIDDEN, 4 * HIDDEN, 30522)
"""Widths of BERT-Large's weights beside its hidden size: projections, QKV, MLP, vocabulary."""
REACHES = (0.25, 0.5, 1.0, 2.0)
"""Distances in log(size) to which a baseline's point corrects others; the one with the least error of its own points,
each left out in turn, is taken."""
EVERY = 4
"""Factor between the sizes of a baseline's collectives."""
_DIMENSIONS = ("m", "n", "k")


@dataclass(frozen=True)
class Projection:
    """What an operator's rows on one machine become from a baseline's: `seconds` of each row of `unseen` [s].

    `scaled` are the same rows at the mean rate of the larger half of the baseline's rows [s].
    """

    baseline: Subject
    unseen: Subject
    seconds: FloatArray
    scaled: FloatArray

    @property
    def errors(self) -> Errors:
        """Errors of the projection on the rows that the baseline lacks."""
        return errors_of(self.seconds, self.unseen.measured)

    @property
    def scaling(self) -> Errors:
        """Errors of scaling by the amount of work on the same rows."""
        return errors_of(self.scaled, self.unseen.measured)


def projection(subject: Subject, own: BoolArray, work: FloatArray, others: Sequence[Subject] = ()) -> Projection:
    """Project the rows of a subject from its `own` ones, the baseline's; `work` is what scaling goes by.

    `others` are subjects of other machines, from whose values the fit starts. Raises InputError if the baseline has no
    rows, or no others are left.
    """
    if not own.any() or own.all():
        raise InputError(
            f"{own.sum()} of {len(own)} rows of {subject.machine} are the baseline's; a projection needs some of them, "
            "and some that are not"
        )
    baseline, rest = subject.take(own), subject.take(~own)
    start = unseen(baseline, others).start if others else subject.start
    values = dict(start)
    # With too few rows that depend on any parameter, the machine keeps its start.
    with suppress(InputError):
        if baseline.parameters:
            model = partial(baseline.predict, baseline.rows)
            values = fit(model, baseline.measured, baseline.parameters, start).values()
    base, new = predict_subject(baseline, values).seconds, predict_subject(rest, values).seconds
    sizes = np.log(sizes_of(baseline.rows)), np.log(sizes_of(rest.rows))
    found = new * np.exp(_corrections(*sizes, np.log(baseline.measured / base)))
    large = work[own] >= np.median(work[own])
    rate = np.exp(np.log(baseline.measured / work[own])[large].mean())
    return Projection(baseline, rest, found, np.asarray(work[~own] * rate))


def sizes_of(rows: pd.DataFrame) -> FloatArray:
    """The sizes of each row, a column for each dimension that it has."""
    names = [name for name in (*_DIMENSIONS, "ranks", "bytes") if name in rows]
    return np.asarray(rows[names].dropna(axis="columns"), dtype=np.float64)


def _corrections(base: FloatArray, new: FloatArray, off: FloatArray) -> FloatArray:
    """Corrections at `new` points from what the `base` points are `off` [ln units]."""
    apart = _squares(base, base)
    np.fill_diagonal(apart, np.inf)
    misses = [float(np.abs(_near(apart, off, reach) - off).mean()) for reach in REACHES]
    if min(misses) >= float(np.abs(off).mean()):
        return np.zeros(len(new))
    return _near(_squares(new, base), off, REACHES[int(np.argmin(misses))])


def _squares(ends: FloatArray, starts: FloatArray) -> FloatArray:
    return np.asarray(((ends[:, None] - starts[None]) ** 2).sum(axis=-1))


def _near(squares: FloatArray, off: FloatArray, reach: float) -> FloatArray:
    """The mean of what near points are off, and of one point without error (Gaussian weights)."""
    weight = np.exp(-squares / (2 * reach**2))
    return np.asarray((weight * off).sum(axis=1) / (weight.sum(axis=1) + 1))


def of_bert(rows: pd.DataFrame) -> BoolArray:
    """Return which GEMMs are BERT-Large's, forward or backward, at any number of tokens: two sizes are those of a
    weight.
    """
    sizes = rows[[*_DIMENSIONS]].to_numpy().T
    mask = np.zeros(len(rows), dtype=np.bool_)
    for one, other in permutations(range(3), 2):
        mask |= (sizes[one] == HIDDEN) & np.isin(sizes[other], WEIGHTS)
    return mask


def flops_of(rows: pd.DataFrame) -> FloatArray:
    """The FLOPs of GEMMs."""
    return np.asarray(2 * rows["m"] * rows["n"] * rows["k"], dtype=np.float64)


def sparse_sizes(subject: Subject) -> BoolArray:
    """Return which collectives a baseline profiles: those of the most ranks, each of `EVERY` times the bytes of the
    last.
    """
    ranks, powers = subject.labels["ranks"].to_numpy(), np.log(subject.rows["bytes"].to_numpy()) / np.log(EVERY)
    return np.asarray((ranks == ranks.max()) & (np.abs(powers - np.round(powers)) < 1e-9))
