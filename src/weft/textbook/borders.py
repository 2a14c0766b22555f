"""Where to cut a model into stages, and a sequence into slices: dynamic programs.

`balanced` takes O(p L^2) for L layers and p stages, `pipedream` O(L^3 m^2) for each level of m machines. The stages on
meshes of Alpa are in `meshes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.errors import InputError, check_whole

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


@dataclass(frozen=True)
class Level:
    """`machines` of the level below, or GPUs, joined at `bandwidth` [bytes/s] each."""

    machines: int
    bandwidth: float


@dataclass(frozen=True)
class Replicated:
    """A stage of layers `first` to `last` on `replicas` machines, each of which is split like `inside`."""

    first: int
    last: int
    replicas: int
    inside: tuple[Replicated, ...] = ()


@dataclass(frozen=True)
class Partition:
    """Replicated stages, the time of the slowest stage or send [s], and the micro-batches that start without a wait."""

    stages: tuple[Replicated, ...]
    seconds: float
    in_flight: int


def pipedream(
    times: Sequence[float], weights: Sequence[float], activations: Sequence[float], levels: Sequence[Level]
) -> Partition:
    """The partition of PipeDream's planner (SOSP'19, section 3.1): stages, and how many machines run each.

    A stage of layers i to j on q machines takes T(i..j, q) = max(A'(i..j), 2 (q - 1) weights / bandwidth) / q, where
    A' is the best time inside one machine: on the lowest level the sum of `times` [s]. On m machines the best is
    A(i..j, m) = min(T(i..j, m), min over s, q of max(A(i..s, m - q), 2 activations_s / bandwidth, T(s+1..j, q))).
    `weights` and outputs, the `activations`, are in bytes; `levels` go from the GPUs of a server outwards. All machines
    are used. In flight are the machines divided by those of the first stage, rounded up. O(L^3 m^2) for a level.

    >>> found = pipedream([1, 1, 2], [0, 0, 8], [1, 1, 1], [Level(4, 1e3)])
    >>> [(stage.first, stage.last, stage.replicas) for stage in found.stages]
    [(0, 2, 4)]
    """
    if not levels:
        raise InputError("no level of machines is given; give at least one, such as [Level(8, 25e9)]")
    count = len(times)
    inner, size = (
        np.triu(_ranges(name, values, count)[:-1, 1:]) for name, values in (("times", times), ("weights", weights))
    )
    _ranges("activations", activations, count)
    sends = 2 * np.asarray(activations, dtype=np.float64)
    solved: list[_Level] = []
    for level in levels:
        check_whole("machines", level.machines, 1, 4)
        solved.append(_Level(inner, size, sends, level))
        inner = solved[-1].best[level.machines]
    stages = _stages(solved, len(levels) - 1, 0, count - 1)
    machines = sum(stage.replicas for stage in stages)
    return Partition(stages, float(inner[0, count - 1]), -(-machines // stages[0].replicas))


class _Level:
    """The best times `best[m][i, j]` of layers i to j on m machines of one level, and the last stage of each."""

    def __init__(self, inner: FloatArray, weights: FloatArray, sends: FloatArray, level: Level) -> None:
        count, most = len(inner), level.machines
        self.alone = [np.maximum(inner, 2 * (q - 1) * weights / level.bandwidth) / q for q in range(1, most + 1)]
        self.best = [np.full((count, count), math.inf), *(one.copy() for one in self.alone)]
        self.last: dict[tuple[int, int, int], tuple[int, int]] = {}
        wire = sends / level.bandwidth
        for machines in range(2, most + 1):
            for first in range(count):
                for last in range(first + 1, count):
                    self._split(machines, first, last, wire)

    def _split(self, machines: int, first: int, last: int, wire: FloatArray) -> None:
        ends = np.arange(first, last)
        for q in range(1, machines):
            head = np.maximum(self.best[machines - q][first, ends], wire[ends])
            slowest = np.maximum(head, self.alone[q - 1][ends + 1, last])
            at = int(slowest.argmin())
            if slowest[at] < self.best[machines][first, last]:
                self.best[machines][first, last] = slowest[at]
                self.last[machines, first, last] = int(ends[at]), q


def _stages(solved: Sequence[_Level], level: int, first: int, last: int) -> tuple[Replicated, ...]:
    """The stages of a level's machines, each with those inside it."""
    if level < 0:
        return ()
    machines, found = len(solved[level].best) - 1, []
    while True:
        end, replicas = solved[level].last.get((machines, first, last), (first - 1, machines))
        found.append(Replicated(end + 1, last, replicas, _stages(solved, level - 1, end + 1, last)))
        if end < first:
            return tuple(reversed(found))
        machines, last = machines - replicas, end


_MOST_CUTS = 128


def slice_sequence(
    length: int, cost: Callable[[int, int], float], devices: int, grain: int | None = None
) -> tuple[int, ...]:
    """Lengths of the slices of a sequence [tokens] that pass a pipeline of `devices` soonest.

    `cost(start, tokens)` is the time of a slice on one stage [s], where `start` tokens come before it. Borders are
    multiples of `grain` tokens (None: a 64th of the sequence). A pass takes
    sum(times) + (devices - 1) max(times) (TeraPipe, arXiv:2102.07988); for each possible longest slice, dynamic
    programming finds the least sum.

    Raises InputError for a length that is no multiple of the grain, and for more than 128 of them.
    """
    check_whole("the length of the sequence", length, 1, 2048)
    check_whole("the number of pipeline devices", devices, 1, 8)
    unit = max(1, length // 64) if grain is None else grain
    check_whole("the grain of the slices", unit, 1, 32)
    if length % unit or length // unit > _MOST_CUTS:
        raise InputError(
            f"a sequence of {length} tokens cannot be cut into at most {_MOST_CUTS} pieces of {unit}; "
            f"take a grain that divides it, such as {_divisor(length)}"
        )
    count = length // unit
    times = np.full((count + 1, count + 1), np.inf)  # by start and end
    for start in range(count):
        for end in range(start + 1, count + 1):
            times[start, end] = cost(start * unit, (end - start) * unit)
    best, borders = np.inf, [0, count]
    for longest in np.unique(times[np.isfinite(times)]):
        if (devices - 1) * longest >= best:
            break
        total, cuts = _least_sum(np.where(times <= longest, times, np.inf))
        if total + (devices - 1) * longest < best:
            best, borders = total + (devices - 1) * longest, cuts
    return tuple(int(length) * unit for length in np.diff(borders))


def _least_sum(times: FloatArray) -> tuple[float, list[int]]:
    """The least sum of times over borders from the first to the last, and those borders."""
    size = len(times)
    least, before = np.full(size, np.inf), np.zeros(size, int)
    least[0] = 0.0
    for end in range(1, size):
        through = least[:end] + times[:end, end]
        before[end] = through.argmin()
        least[end] = through[before[end]]
    borders = [size - 1]
    while borders[-1]:
        borders.append(int(before[borders[-1]]))
    return float(least[-1]), borders[::-1]


def _divisor(length: int) -> int:
    """The smallest grain that divides a length into few enough pieces."""
    return next(grain for grain in range(-(-length // _MOST_CUTS), length + 1) if length % grain == 0)
