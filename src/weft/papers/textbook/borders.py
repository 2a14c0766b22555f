"""Cut a model into pipeline stages by dynamic programming, in O(p L^2) for L layers and p stages.

Alpa's stages on meshes are in `meshes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, check_whole

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Borders:
    """How many layers each stage holds, and the time of the slowest stage [s]."""

    layers: tuple[int, ...]
    bottleneck: float


def balanced(
    times: Sequence[float],
    stages: int,
    *,
    states: Sequence[float] = (),
    kept: Sequence[float] = (),
    capacity: float = math.inf,
) -> Borders:
    """The stages of consecutive layers whose slowest one is fastest, in O(p L^2).

    `times` [s], `states` [bytes] and activations `kept` of one micro-batch [bytes] are those of each layer. Stage i of
    p keeps p - i micro-batches in flight, as 1F1B does; states and kept activations must fit `capacity` [bytes]. Raises
    InputError for more stages than layers, for lists of other lengths, and if no borders fit.

    >>> balanced([1, 1, 1, 3], 2)
    Borders(layers=(3, 1), bottleneck=3.0)
    """
    count = len(times)
    time, state, keep = (
        _ranges(name, values if len(values) else [0.0] * count, count)
        for name, values in (("times", times), ("states", states), ("kept", kept))
    )
    check_whole("stages", stages, 1, 4)
    if stages > count:
        raise InputError(f"{count} layers cannot fill {stages} stages; give at most {count} stages")
    costs = (np.where(state + flight * keep <= capacity, time, math.inf) for flight in range(stages, 0, -1))
    slowest, layers = _cut(costs, np.maximum)
    if math.isinf(slowest):
        raise InputError(f"no {stages} stages of {count} layers fit {capacity:g} bytes; give more stages, or recompute")
    return Borders(layers, slowest)


def clustered(times: Sequence[float], groups: int) -> tuple[int, ...]:
    """How many consecutive operators each group holds, so that the squares of the groups' times add up to least.

    Equal groups let a later search consider few borders, as Alpa does before its own; O(g L^2). Raises InputError for
    more groups than operators.

    >>> clustered([1, 1, 1, 3], 2)
    (3, 1)
    """
    count = len(times)
    squares = _ranges("times", times, count) ** 2
    check_whole("groups", groups, 1, 16)
    if groups > count:
        raise InputError(f"{count} operators cannot fill {groups} groups; give at most {count} groups")
    return _cut([squares] * groups, np.add)[1]


def _ranges(name: str, values: Sequence[float], count: int) -> FloatArray:
    """The sums of values from each begin to each end, as an array [begin, end]; infinite for empty ranges."""
    if len(values) != count or not count:
        raise InputError(f"{name} has {len(values)} values for {count} layers; give one for each of at least one layer")
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
    return np.where(np.tri(count + 1, dtype=bool), math.inf, sums - sums[:, None])


def _cut(costs: Iterable[FloatArray], join: np.ufunc) -> tuple[float, tuple[int, ...]]:
    """The least sum, or maximum, of the costs [begin, end] of consecutive ranges, and the length of each range."""
    best, begins = np.array([0.0]), []
    for cost in costs:
        whole = join(np.append(best, [math.inf] * (len(cost) - len(best)))[:, None], cost)
        begins.append(whole.argmin(axis=0))
        best = whole.min(axis=0)
    borders = [len(best) - 1]
    for begin in reversed(begins):
        borders.append(int(begin[borders[-1]]))
    return float(best[-1]), tuple(-int(length) for length in np.diff(borders))[::-1]
