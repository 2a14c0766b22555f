"""The answer of closed forms: seconds, the bound that was hit, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.core.answer import Answer

FloatArray = npt.NDArray[np.float64]
Words = npt.NDArray[np.str_]
Parts = Mapping[str, FloatArray]
"""Times by cause, which add up to the total [s]."""


class Bound(StrEnum):
    """What limits an operator."""

    COMPUTE = "compute"
    CACHE = "cache"
    MEMORY = "memory"
    LAUNCH = "launch"
    LINK = "link"
    LATENCY = "latency"


_BOUND_OF = {
    "launch": Bound.LAUNCH,
    "host": Bound.LAUNCH,
    "latency": Bound.LATENCY,
    "memory": Bound.MEMORY,
    "cache": Bound.CACHE,
    "compute": Bound.COMPUTE,
    "tail": Bound.COMPUTE,
    "fill": Bound.LATENCY,
    "link": Bound.LINK,
    "network": Bound.LINK,
    "copy": Bound.MEMORY,
    "units": Bound.COMPUTE,
    "measured": Bound.LATENCY,
}
"""The bound of each part of a streaming kernel's or a collective's time."""


@dataclass(frozen=True, repr=False)
class Estimate(Answer):
    """Times of any number of cases: `seconds` [s], the `bound` of each (words of `Bound`), and `parts` [s].

    Each is an array of one shape, or one number or word for a single case. The parts of a case add up to its seconds,
    except for a graph whose streams overlap. `by` names the algorithm and protocol of a collective, `operators` holds
    the estimates of a graph's nodes by name.
    """

    kind = "estimate"

    seconds: FloatArray
    bound: Words
    parts: Parts
    by: Words | None = None
    operators: Mapping[str, Estimate] = field(default_factory=dict)

    def case(self, place: tuple[int, ...] = ()) -> Estimate:
        """One case of the arrays, by its index, as Python numbers and words."""
        return _case(self, np.shape(self.seconds), place)

    def to_dict(self) -> dict[str, Any]:
        """Return the seconds, bound and parts as plain data: numbers and words, or nested lists of them."""
        return {
            "seconds": _to_lists(self.seconds),
            "bound": _to_lists(self.bound),
            "parts": {name: _to_lists(part) for name, part in self.parts.items()},
            **({} if self.by is None else {"by": _to_lists(self.by)}),
            **({"operators": {name: one.to_dict() for name, one in self.operators.items()}} if self.operators else {}),
        }


def _case(whole: Estimate, shape: tuple[int, ...], place: tuple[int, ...]) -> Estimate:
    def at(values: Any) -> Any:
        return np.broadcast_to(values, shape)[place].item()

    return Estimate(
        at(whole.seconds),
        at(whole.bound),
        {name: at(part) for name, part in whole.parts.items()},
        None if whole.by is None else at(whole.by),
        {name: _case(one, shape, place) for name, one in whole.operators.items()},
    )


def _to_lists(values: Any) -> Any:
    return np.asarray(values).tolist()


@dataclass(frozen=True)
class Parameter:
    """A physical parameter that calibration may fit: its path in the catalog and its plausible range.

    `low` and `high` are in the base unit of `unit`; `needs_rows` is how many measurements it takes to separate it from
    the others; `about` describes it in words.
    """

    path: str
    low: float
    high: float
    unit: str
    needs_rows: int
    about: str


def floats(size: object) -> FloatArray:
    """Return a dimension, or a number computed from dimensions, as an array of floats."""
    return np.asarray(size, dtype=np.float64)


def from_parts(parts: Parts, by: npt.NDArray[np.str_] | None = None) -> Estimate:
    """Return the estimate whose seconds are the sum of `parts`, with the bound that has the largest share of them."""
    stacked = np.stack(np.broadcast_arrays(*parts.values()))
    seconds = stacked.sum(axis=0)
    shares: dict[Bound, FloatArray] = {}
    for name, values in zip(parts, stacked, strict=True):
        bound = _BOUND_OF[name]
        shares[bound] = shares.get(bound, np.zeros_like(seconds)) + values
    bounds = np.array(list(shares))
    largest = np.argmax(np.stack(list(shares.values())), axis=0)
    return Estimate(seconds, bounds[largest], dict(zip(parts, stacked, strict=True)), by)


def slowest(times: Parts) -> dict[str, FloatArray]:
    """Return the longest of several parts that overlap, under its own name; the other parts are 0."""
    stacked = np.stack(np.broadcast_arrays(*times.values()))
    longest = stacked.argmax(axis=0)
    return {name: np.where(longest == place, stacked[place], 0.0) for place, name in enumerate(times)}


def blend_parts(times: Parts, power: float) -> dict[str, FloatArray]:
    """Parts that overlap in the main, under their own names: they add up to their norm of exponent `power`.

    It lies between their sum (1) and the longest of them (infinity), as they share pipelines.
    """
    powers = {name: np.asarray(time, dtype=np.float64) ** power for name, time in times.items()}
    total = sum(powers.values(), np.float64(0.0))
    longest = total ** (1 / power)
    scale = np.divide(longest, total, out=np.zeros_like(longest), where=total > 0)
    return {name: part * scale for name, part in powers.items()}


def in_sequence(steps: Sequence[Estimate]) -> Estimate:
    """Estimates in sequence: seconds and parts add up; the bound is that of the longest."""
    every = side_by_side(steps)
    longest = every.seconds.argmax(axis=0)
    return Estimate(
        every.seconds.sum(axis=0),
        np.take_along_axis(every.bound, longest[None], axis=0)[0],
        {name: part.sum(axis=0) for name, part in every.parts.items()},
    )


def side_by_side(estimates: Sequence[Estimate]) -> Estimate:
    """Stack several estimates along a new leading axis; a part that one of them lacks is 0 there."""
    seconds = np.stack(np.broadcast_arrays(*(one.seconds for one in estimates)))
    shape, names = seconds.shape[1:], dict.fromkeys(name for one in estimates for name in one.parts)
    by = [np.broadcast_to(one.by, shape) for one in estimates if one.by is not None]
    return Estimate(
        seconds,
        np.stack([np.broadcast_to(one.bound, shape) for one in estimates]),
        {name: np.stack([np.broadcast_to(one.parts.get(name, 0.0), shape) for one in estimates]) for name in names},
        np.stack(by) if len(by) == len(estimates) else None,
    )
