"""Optimal rematerialization of a small graph of tensors: Checkmate's integer program (arXiv:1910.02653), by HiGHS.

Nodes are computed in a fixed order, one new node a stage; before it, a stage may compute earlier nodes again. R[t, i]
says that stage t computes node i, S[t, i] that node i stays in memory from stage t - 1 to t. The program has about n^2
unknowns for R and S and n x edges for what is freed when: seconds of solving for 12 nodes, too much for whole models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.parallel.again import extra_sources
from weft.plan.recompute import Layers
from weft.textbook.shard import Rows

Matrix = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tensors:
    """A graph of tensors in the order in which they are first computed.

    Tensor i takes `bytes[i]`, and `cost[i]` to compute from the tensors `needs[i]`, all of which come before it. Raises
    InputError for lists of different lengths, and for a tensor that needs a later one.
    """

    cost: tuple[float, ...]
    bytes: tuple[float, ...]
    needs: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not len(self.cost) == len(self.bytes) == len(self.needs):
            raise InputError(
                f"the graph has {len(self.cost)} costs, {len(self.bytes)} sizes and {len(self.needs)} lists of needs; "
                "give one of each for every tensor"
            )
        for at, needs in enumerate(self.needs):
            for one in needs:
                if not 0 <= one < at:
                    raise InputError(f"tensor {at} needs tensor {one}, which does not come before it; reorder them")

    def users(self, tensor: int) -> list[int]:
        """The tensors computed from one."""
        return [at for at, needs in enumerate(self.needs) if tensor in needs]


@dataclass(frozen=True)
class Plan:
    """What every stage computes and keeps: `computed` (R) and `kept` (S), of the shape (tensors, tensors) of 0 and 1.

    `cost` is that of all that is computed, `peak` the most memory in use at once, in the units of the graph.
    """

    computed: Matrix
    kept: Matrix
    cost: float
    peak: float


def chain(cost: Sequence[float], bytes: Sequence[float]) -> Tensors:
    """Forward and backward pass of layers in a row: the gradient of layer i needs its input and the next gradient.

    `cost` are the forward times of the layers, a backward takes twice as long; `bytes` are the layers' outputs, and the
    gradients of their inputs have the size of these, the first the size of the first output.
    """
    count = len(cost)
    forward = [(at - 1,) if at else () for at in range(count)]
    backward = []
    for place in range(count):  # of layer count - 1 - place
        layer = count - 1 - place
        backward.append(tuple(one for one in (layer - 1, count + place - 1 if place else count - 1) if one >= 0))
    costs = (*cost, *(2 * each for each in reversed(cost)))
    return Tensors(tuple(costs), (*bytes, *reversed(bytes)), (*forward, *backward))


def layer_tensors(layers: Layers) -> Tensors:
    """Forward and backward pass of one layer as a graph of tensors: seconds, bytes, and who needs what.

    An operator whose output no gradient needs is one with what reads it first. The layer's input is outside the graph.
    """
    names = [one.name for one in layers.saved]
    merged = {source: min(_readers(layers, source)) for source in extra_sources(layers.saved)}
    groups: dict[int, list[int]] = {}
    for at in range(len(names)):
        last = at
        while last in merged:
            last = merged[last]
        groups.setdefault(last, []).append(at)
    place = {member: number for number, group in enumerate(groups.values()) for member in group}
    count = len(groups)
    costs, sizes, needs, gradients = [], [], [], []
    for last, group in groups.items():
        reads = [source for member in group for source, _ in layers.saved[member].kept if source >= 0]
        kept = [source for member in group for source, size in layers.saved[member].kept if source >= 0 and size]
        costs.append(sum(layers.seconds[names[member]] for member in group))
        sizes.append(float(layers.saved[last].output + sum(layers.saved[member].own for member in group)))
        needs.append(tuple(sorted({place[source] for source in reads} - {place[last]})))
        gradients.append(tuple(sorted({place[source] for source in kept} - {place[last]})))
    again = [sum(layers.backward[names[member]] for member in group) for group in groups.values()]
    after = [(*gradients[number], count + count - 2 - number) for number in range(count - 1)]
    backward = [(*gradients[-1], count - 1), *reversed(after)]
    return Tensors(
        (*costs, *reversed(again)), (*sizes, *reversed(sizes)), (*needs, *(tuple(sorted(set(one))) for one in backward))
    )


def _readers(layers: Layers, source: int) -> list[int]:
    return [at for at, one in enumerate(layers.saved) if source in dict(one.kept)]


def peak_of(graph: Tensors, computed: Matrix, kept: Matrix) -> float:
    """Most memory in use under a plan: each stage holds what is kept, and what it computes until its last use there."""
    most = 0.0
    for stage, (row, here) in enumerate(zip(computed, kept, strict=True)):
        later = kept[stage + 1] if stage + 1 < len(kept) else np.zeros_like(here)
        live = {at for at in range(len(row)) if here[at]}
        for at in np.flatnonzero(row).tolist():
            live.add(at)
            most = max(most, sum(graph.bytes[one] for one in live))
            for one in (*graph.needs[at], at):
                used = any(row[user] and user > at for user in graph.users(one))
                if not later[one] and not used:
                    live.discard(one)
    return most


def rematerialize(graph: Tensors, budget: float, seconds: float = 60.0) -> Plan | None:
    """The plan of least cost whose peak is at most `budget`; None if no plan has so low a peak.

    HiGHS is given so many `seconds`; InputError if it proves no optimum in that time.
    """
    from scipy.optimize import Bounds, milp

    program = _Program(graph, budget)
    found = milp(
        program.costs(),
        integrality=program.integral(),
        bounds=Bounds(program.low, program.high),
        constraints=program.rows.constraint(),
        options={"time_limit": seconds},
    )
    if found.status == 1:
        raise InputError(
            f"the program of {len(graph.cost)} tensors has no proven optimum after {seconds:g} s; give more seconds, "
            "or a smaller graph"
        )
    if found.x is None:
        return None
    computed, kept = (np.rint(program.part(found.x, name)).astype(np.int64) for name in ("R", "S"))
    cost = float((computed * np.asarray(graph.cost)).sum())
    return Plan(computed, kept, cost, peak_of(graph, computed, kept))


class _Program:
    """The unknowns R, S, F (freed after a computation) and U (memory in use), and the rows that join them."""

    def __init__(self, graph: Tensors, budget: float) -> None:
        self.graph, self.count = graph, len(graph.cost)
        self.scale = max(*graph.bytes, 1e-300)
        count, self.places = self.count, {}
        ends = [(k, i) for k in range(count) for i in (*graph.needs[k], k)]
        self.ends = {end: at for at, end in enumerate(ends)}
        at = 0
        for name, size in (("R", count * count), ("S", count * count), ("F", count * len(ends)), ("U", count * count)):
            self.places[name] = (at, at + size)
            at += size
        self.size = at
        self.rows = Rows(at)
        self.low, self.high = np.zeros(at), np.ones(at)
        begin, end = self.places["U"]
        self.high[begin:end] = budget / self.scale
        self._fix()
        for stage in range(count):
            self._stage(stage)

    def at(self, name: str, stage: int, place: int) -> int:
        """The column of an unknown."""
        width = len(self.ends) if name == "F" else self.count
        return self.places[name][0] + stage * width + place

    def part(self, x: Any, name: str) -> Any:
        """The values of R or S as a matrix."""
        begin, end = self.places[name]
        return x[begin:end].reshape(self.count, self.count)

    def costs(self) -> Any:
        """Cost by unknown; what is kept costs a hair, so that nothing is kept for nothing."""
        found = np.zeros(self.size)
        begin, end = self.places["R"]
        each = np.asarray(self.graph.cost, dtype=float)
        found[begin:end] = np.tile(each / (each.max() or 1.0), self.count)
        begin, end = self.places["S"]
        found[begin:end] = 1e-9
        return found

    def integral(self) -> Any:
        """1 for unknowns that are 0 or 1, 0 for memory in use."""
        found = np.ones(self.size, dtype=np.int64)
        begin, end = self.places["U"]
        found[begin:end] = 0
        return found

    def _row(self, row: dict[int, float], low: float = -np.inf, high: float = np.inf) -> None:
        self.rows.add(np.fromiter(row, dtype=int), np.fromiter(row.values(), dtype=float), low, high)

    def _fix(self) -> None:
        """Stage t computes tensor t for the first time: nothing later, and nothing is kept that was not computed."""
        for stage in range(self.count):
            self.low[self.at("R", stage, stage)] = 1
            for later in range(stage, self.count):
                self.high[self.at("S", stage, later)] = 0
                if later > stage:
                    self.high[self.at("R", stage, later)] = 0

    def _stage(self, stage: int) -> None:
        for i in range(self.count):
            if stage:
                before = {self.at("R", stage - 1, i): -1.0, self.at("S", stage - 1, i): -1.0}
                self._row({self.at("S", stage, i): 1.0, **before}, high=0)
            for need in self.graph.needs[i]:
                here = {self.at("R", stage, need): -1.0, self.at("S", stage, need): -1.0}
                self._row({self.at("R", stage, i): 1.0, **here}, high=0)
        for (k, i), place in self.ends.items():
            self._freed(stage, k, i, self.at("F", stage, place))
        self._memory(stage)

    def _freed(self, stage: int, k: int, i: int, column: int) -> None:
        """Tensor i is freed after k exactly if k was computed, i is not kept and no later user of it is computed.

        Each that is not so is a hazard: 1 - F <= hazards <= most x (1 - F).
        """
        hazards = {self.at("R", stage, user): 1.0 for user in self.graph.users(i) if user > k}
        if stage + 1 < self.count:
            hazards[self.at("S", stage + 1, i)] = 1.0
        hazards[self.at("R", stage, k)] = -1.0  # one hazard less if k is computed
        most = float(len(hazards))
        self._row({**hazards, column: 1.0}, low=0.0)
        self._row({**hazards, column: most}, high=most - 1.0)

    def _memory(self, stage: int) -> None:
        """U after each computation: what was in use before, less what was freed, and the new tensor."""
        sizes = np.asarray(self.graph.bytes) / self.scale
        for k in range(self.count):
            row = {self.at("U", stage, k): 1.0}
            row[self.at("R", stage, k)] = -float(sizes[k])
            if k:
                row[self.at("U", stage, k - 1)] = -1.0
                for i in (*self.graph.needs[k - 1], k - 1):
                    row[self.at("F", stage, self.ends[k - 1, i])] = float(sizes[i])
            else:
                for i in range(self.count):
                    row[self.at("S", stage, i)] = -float(sizes[i])
            self._row(row, low=0.0, high=0.0)
