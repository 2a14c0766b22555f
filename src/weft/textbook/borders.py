"""Where to cut a model into stages: dynamic programs for the slowest stage, replicated stages, and stages on meshes.

`balanced` takes O(p L^2) for L layers and p stages, `pipedream` O(L^3 m^2) for each level of m machines. The stages on
meshes of Alpa are in `meshes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    time, state, keep = (_sums(name, values, len(times)) for name, values in _named(times, states, kept))
    count = len(time) - 1
    check_whole("stages", stages, 1, 4)
    if stages > count:
        raise InputError(f"{count} layers cannot fill {stages} stages; give at most {count} stages")
    best = np.full((stages + 1, count + 1), math.inf)
    before = np.zeros((stages + 1, count + 1), dtype=int)
    best[0, 0] = 0.0
    for stage in range(1, stages + 1):
        flight = stages - stage + 1
        for end in range(stage, count - (stages - stage) + 1):
            begins = np.arange(stage - 1, end)
            held = state[end] - state[begins] + flight * (keep[end] - keep[begins])
            slowest = np.maximum(best[stage - 1, begins], time[end] - time[begins])
            slowest = np.where(held <= capacity, slowest, math.inf)
            at = int(slowest.argmin())
            best[stage, end], before[stage, end] = slowest[at], begins[at]
    if math.isinf(best[stages, count]):
        raise InputError(f"no {stages} stages of {count} layers fit {capacity:g} bytes; give more stages, or recompute")
    return Borders(_lengths(before, stages, count), float(best[stages, count]))


def clustered(times: Sequence[float], groups: int) -> tuple[int, ...]:
    """How many consecutive operators each group holds, so that the squares of the groups' times add up to least.

    Equal groups let a later search consider few borders, as Alpa does before its own; O(g L^2). Raises InputError for
    more groups than operators.

    >>> clustered([1, 1, 1, 3], 2)
    (3, 1)
    """
    sums = _sums("times", times, len(times))
    count = len(times)
    check_whole("groups", groups, 1, 16)
    if groups > count:
        raise InputError(f"{count} operators cannot fill {groups} groups; give at most {count} groups")
    best = np.full((groups + 1, count + 1), math.inf)
    before = np.zeros((groups + 1, count + 1), dtype=int)
    best[0, 0] = 0.0
    for group in range(1, groups + 1):
        for end in range(group, count + 1):
            squares = best[group - 1, :end] + (sums[end] - sums[:end]) ** 2
            before[group, end] = int(squares.argmin())
            best[group, end] = squares[before[group, end]]
    return _lengths(before, groups, count)


def _named(
    times: Sequence[float], states: Sequence[float], kept: Sequence[float]
) -> Iterator[tuple[str, Sequence[float]]]:
    yield "times", times
    for name, values in (("states", states), ("kept", kept)):
        yield name, values or [0.0] * len(times)


def _sums(name: str, values: Sequence[float], count: int) -> FloatArray:
    """The sums of the first 0, 1, 2, ... values."""
    if len(values) != count or not count:
        raise InputError(f"{name} has {len(values)} values for {count} layers; give one for each of at least one layer")
    return np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])


def _lengths(before: npt.NDArray[np.int_], stages: int, count: int) -> tuple[int, ...]:
    lengths = []
    for stage in range(stages, 0, -1):
        begin = int(before[stage, count])
        lengths.append(count - begin)
        count = begin
    return tuple(reversed(lengths))


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
    time, weight = _sums("times", times, count), _sums("weights", weights, count)
    _sums("activations", activations, count)
    inner = time[None, 1:] - time[:-1, None]
    size, sends = weight[None, 1:] - weight[:-1, None], 2 * np.asarray(activations, dtype=np.float64)
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
