"""What a closed-form model answers: seconds, the bound that was hit, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Bound(IntEnum):
    """What limits an operator."""

    COMPUTE = 0
    CACHE = 1
    MEMORY = 2
    LAUNCH = 3
    LINK = 4
    LATENCY = 5


@dataclass(frozen=True)
class Prediction:
    """Times of any number of cases: `seconds` [s], the `bound` of each (codes of `Bound`), and `parts` [s].

    All arrays have one shape; the parts of a case add up to its seconds.
    """

    seconds: FloatArray
    bound: IntArray
    parts: Mapping[str, FloatArray]

    def bound_names(self) -> npt.NDArray[np.str_]:
        """The bound of each case in words."""
        names = np.array([bound.name.lower() for bound in Bound])
        return names[self.bound]


@dataclass(frozen=True)
class Parameter:
    """A physical parameter that calibration may fit: its path in the catalog and its plausible range.

    `low` and `high` are in the base unit of `unit`; `needs_rows` is how many measurements it takes to tell it from
    the others; `about` says what it is, for people.
    """

    path: str
    low: float
    high: float
    unit: str
    needs_rows: int
    about: str
