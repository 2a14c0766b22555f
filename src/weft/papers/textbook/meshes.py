"""Stages of a pipeline: borders by dynamic programming, and meshes of different sizes (Alpa, inter-operator)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, check_whole

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Borders:
    """How many layers each stage holds, and the time of the slowest stage [s]."""

    layers: tuple[int, ...]
    bottleneck: float


def balance_stages(
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

    >>> balance_stages([1, 1, 1, 3], 2)
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


def cluster_operators(times: Sequence[float], groups: int) -> tuple[int, ...]:
    """Return how many consecutive operators each group holds, so that the squares of the groups' times add up to least.

    Equal groups let a later search consider few borders, as Alpa does before its own; O(g L^2). Raises InputError for
    more groups than operators.

    >>> cluster_operators([1, 1, 1, 3], 2)
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
class StageCosts:
    """What a stage of layer groups i to j costs on choice c: arrays of shape [groups, groups, choices].

    `seconds` of a micro-batch, forward and backward; `states` [bytes] that do not depend on micro-batches, what a pass
    needs beside them included; `kept` [bytes] for each micro-batch in flight. `devices` of each choice tell meshes of
    different sizes apart: choices of as many devices are ways to use the same mesh.
    """

    seconds: FloatArray
    states: FloatArray
    kept: FloatArray
    devices: tuple[int, ...]
    capacity: float = math.inf


@dataclass(frozen=True)
class MeshStage:
    """Layer groups `first` to `last` on a mesh of `devices`, used by `choice`."""

    first: int
    last: int
    devices: int
    choice: int
    seconds: float


@dataclass(frozen=True)
class MeshPlan:
    """Stages in order, and the step's time: the sum of the stages' and (m - 1) times the slowest [s]."""

    stages: tuple[MeshStage, ...]
    seconds: float

    @property
    def meshes(self) -> tuple[int, ...]:
        """The devices of each stage, in order."""
        return tuple(stage.devices for stage in self.stages)


def mesh_plans(costs: StageCosts, devices: int, micro_batches: int, best: int = 1) -> tuple[MeshPlan, ...]:
    """The `best` fastest plans on exactly `devices` devices; each has other numbers of stages on meshes of each size.

    Minimises sum t_i + (m - 1) max t_i for m micro-batches. For every possible slowest time t_max, from below, F(s, k,
    d) is the least sum of s stages from group k on with d devices, each at most t_max; the last stage but s - 1 keeps s
    micro-batches in flight. It ends when (m - 1) t_max alone exceeds the worst plan that is kept. One t_max takes O(s
    K^2 n d) for K groups and n sizes of meshes, and there are O(s K^2 n) of them. Further plans follow by best-first
    search over sequences of meshes, with F as the exact bound: of plans that differ only in the order of their meshes
    the fastest is kept. Raises InputError if no plan fits the memory.
    """
    for name, value in (("devices", devices), ("micro_batches", micro_batches), ("best", best)):
        check_whole(name, value, 1, 8)
    program = _MeshRecursion(costs, devices)
    least = program.least(math.inf)
    if math.isinf(least.best):
        raise InputError(
            f"no stages on {devices} devices hold the model within {costs.capacity:g} bytes; give more devices, or "
            "smaller micro-batches"
        )
    found: dict[tuple[int, ...], _Found] = {}
    for slowest in program.candidates():
        rest, limit = (micro_batches - 1) * slowest, _worst(found, best)
        if rest + least.best >= limit:
            break
        for total, meshes in islice(program.sequences(program.least(slowest), limit - rest), best):
            own = _Found(total + rest, slowest, meshes)
            key = tuple(sorted(meshes))
            found[key] = min(found.get(key, own), own)
    return tuple(program.plan(one.meshes, one.slowest, micro_batches) for one in sorted(found.values())[:best])


class _Found(NamedTuple):
    """A plan by its step time, its slowest stage, and the devices of its stages."""

    seconds: float
    slowest: float
    meshes: tuple[int, ...]


def cost_of(costs: StageCosts, meshes: Sequence[int], micro_batches: int) -> MeshPlan:
    """Return the best plan whose stages have these numbers of devices; InputError if none fits the memory."""
    program = _MeshRecursion(costs, sum(meshes))
    if len(meshes) > program.groups or not set(meshes) <= set(program.sizes):
        raise InputError(
            f"the stages are on {', '.join(map(str, meshes))} devices; give at most {program.groups} stages on meshes "
            f"of {', '.join(map(str, program.sizes))}"
        )
    best: tuple[float, float] = (math.inf, math.inf)
    for slowest in program.candidates():
        if (micro_batches - 1) * slowest >= best[0]:
            break
        total = program.along(meshes, slowest)[0][0] + (micro_batches - 1) * slowest
        best = min(best, (total, slowest))
    if math.isinf(best[0]):
        raise InputError(f"no borders let stages on {', '.join(map(str, meshes))} devices hold the model")
    return program.plan(tuple(meshes), best[1], micro_batches)


def _worst(found: Mapping[tuple[int, ...], _Found], most: int) -> float:
    return sorted(found.values())[most - 1].seconds if len(found) >= most else math.inf


@dataclass(frozen=True)
class _Least:
    """F(s, k, d) for stages of at most `slowest`, and the smallest F(s, 0, all)."""

    slowest: float
    sums: FloatArray

    @cached_property
    def best(self) -> float:
        return float(self.sums[1:, 0, -1].min())


class _Prefix(NamedTuple):
    """The first meshes of plans that have `stages` more stages on `left` devices.

    `low` is the least sum of such a plan, `reached` the least sums of stages that end before each group; `number` puts
    equal ones in the order in which they were found.
    """

    low: float
    number: int
    meshes: tuple[int, ...]
    stages: int
    left: int
    reached: FloatArray


class _MeshRecursion:
    """The recursion over groups, meshes and stages."""

    def __init__(self, costs: StageCosts, devices: int) -> None:
        self.costs, self.devices = costs, devices
        self.groups = len(costs.seconds)
        self.sizes = sorted({size for size in costs.devices if size <= devices})
        if not self.sizes:
            raise InputError(f"every mesh has more than {devices} devices; give smaller ones")
        self.most = min(self.groups, devices // self.sizes[0])
        held = [self._fitting(flight) for flight in range(1, self.most + 1)]
        self.times = np.array([[self._on(size, one).min(-1) for size in self.sizes] for one in held])

    def _fitting(self, flight: int) -> FloatArray:
        """Return the seconds of the choices that fit with `flight` micro-batches in flight, else infinity."""
        costs = self.costs
        fits = costs.states + flight * costs.kept <= costs.capacity
        upper = np.arange(self.groups)[:, None] <= np.arange(self.groups)
        return np.where(fits & upper[..., None], costs.seconds, math.inf)

    def _on(self, size: int, seconds: FloatArray) -> FloatArray:
        """Return the choices on meshes of one size; others are infinite."""
        return np.where(np.asarray(self.costs.devices) == size, seconds, math.inf)

    def candidates(self) -> Iterator[float]:
        """Return the times of stages, ascending from the smallest that lets a plan exist."""
        values = np.unique(self.times[np.isfinite(self.times)])
        low, high = 0, len(values)
        while low < high:
            middle = (low + high) // 2
            if math.isinf(self.least(float(values[middle])).best):
                low = middle + 1
            else:
                high = middle
        return (float(value) for value in values[low:])

    def least(self, slowest: float) -> _Least:
        groups, devices = self.groups, self.devices
        sums = np.full((self.most + 1, groups + 1, devices + 1), math.inf)
        sums[0, groups, 0] = 0.0
        times = np.where(self.times <= slowest, self.times, math.inf)
        for stages in range(1, self.most + 1):
            for at, size in enumerate(self.sizes):
                after = sums[stages - 1, 1:, : devices + 1 - size]
                cost = (times[stages - 1, at][:, :, None] + after).min(1)
                part = sums[stages, :groups, size:]
                np.minimum(part, cost, out=part)
        return _Least(slowest, sums)

    def sequences(self, bound: _Least, limit: float) -> Iterator[tuple[float, tuple[int, ...]]]:
        """Yield sums and sequences of meshes below a limit, the smallest first, each set of meshes in its best order.

        Best-first search with an exact bound. The same meshes in another order are dropped where they reach no group
        faster.
        """
        start = np.full(self.groups + 1, math.inf)
        start[0] = 0.0
        heap: list[_Prefix] = []

        def push(meshes: tuple[int, ...], stages: int, left: int, reached: FloatArray) -> None:
            low = float((reached + bound.sums[stages, :, left]).min())
            if low < limit:
                heapq.heappush(heap, _Prefix(low, next(number), meshes, stages, left, reached))

        number = count()
        seen: dict[tuple[int, ...], list[FloatArray]] = {}
        for stages in range(1, self.most + 1):
            push((), stages, self.devices, start)
        while heap:
            low, _, meshes, stages, left, reached = heapq.heappop(heap)
            key = (stages, *sorted(meshes))
            if any(np.all(other <= reached) for other in seen.setdefault(key, [])) or (not stages and seen[key]):
                continue
            seen[key].append(reached)
            if not stages:
                yield low, meshes
                continue
            for at, size in enumerate(self.sizes):
                if size <= left:
                    after = self._extend_sums(reached, stages, at, bound.slowest)
                    push((*meshes, size), stages - 1, left - size, after)

    def _extend_sums(self, before: FloatArray, stages: int, at: int, slowest: float) -> FloatArray:
        """Return the least sums of stages that end before each group, with one more stage on a size of mesh."""
        times = self.times[stages - 1, at]
        times = np.where(times <= slowest, times, math.inf)
        after = np.full(self.groups + 1, math.inf)
        after[1:] = (before[:-1, None] + times).min(0)
        return after

    def along(self, meshes: Sequence[int], slowest: float) -> tuple[FloatArray, list[FloatArray]]:
        """The least sums from each group to the end for a sequence of meshes, and those of every later part of it."""
        sums = np.full(self.groups + 1, math.inf)
        sums[self.groups] = 0.0
        later = [sums]
        for stages, size in enumerate(reversed(meshes), 1):
            times = self.times[stages - 1, self.sizes.index(size)]
            times = np.where(times <= slowest, times, math.inf)
            sums = np.append((times + sums[1:]).min(1), math.inf)
            later.append(sums)
        return sums, later[::-1]

    def plan(self, meshes: tuple[int, ...], slowest: float, micro_batches: int) -> MeshPlan:
        """Return the stages of a sequence of meshes, from the sums of the parts that follow each."""
        _, later = self.along(meshes, slowest)
        first, stages = 0, []
        for place, size in enumerate(meshes):
            flight = len(meshes) - place
            times = self.times[flight - 1, self.sizes.index(size), first]
            times = np.where(times <= slowest, times, math.inf)
            last = int((times + later[place + 1][1:]).argmin())
            choice = int(self._on(size, self._fitting(flight))[first, last].argmin())
            stages.append(MeshStage(first, last, size, choice, float(times[last])))
            first = last + 1
        seconds = [stage.seconds for stage in stages]
        return MeshPlan(tuple(stages), sum(seconds) + (micro_batches - 1) * max(seconds))
