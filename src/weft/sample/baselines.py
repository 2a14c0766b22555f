"""The choices that SeqPoint is compared with: one length, or a run of consecutive iterations, for the whole epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from weft.errors import check_name
from weft.sample.seqpoint import Floats, Ints, Points

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
    """The first iteration of a length."""
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
