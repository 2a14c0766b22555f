"""Optimal rematerialization of a small graph of tensors: Checkmate's integer program (arXiv:1910.02653), by HiGHS.

Nodes are computed in a fixed order, one new node a stage; before it, a stage may compute earlier nodes again. R[t, i]
says that stage t computes node i, S[t, i] that node i stays in memory from stage t - 1 to t. The program has about n^2
unknowns for R and S and n x edges for what is freed when: seconds of solving for 12 nodes, too much for whole models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError
from weft.models.parallel.recompute import extra_sources
from weft.plan.program import Columns, LinearProgram
from weft.plan.recompute import Layers

Matrix = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tensors:
    """A graph of tensors in the order in which they are first computed.

    Tensor i takes `bytes[i]`, and `cost[i]` to compute from the tensors `needs[i]`, which all come before it. Raises
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
        """Return the tensors computed from one."""
        return [at for at, needs in enumerate(self.needs) if tensor in needs]


@dataclass(frozen=True)
class RematerializationPlan:
    """What every stage computes and keeps: `computed` (R) and `kept` (S), of the shape (tensors, tensors) of 0 and 1.

    `cost` is that of all that is computed, `peak` the most memory in use at once, in the units of the graph.
    """

    computed: Matrix
    kept: Matrix
    cost: float
    peak: float


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


def rematerialize(graph: Tensors, budget: float, seconds: float = 60.0) -> RematerializationPlan | None:
    """The plan of least cost whose peak is at most `budget`; None if no plan has so low a peak.

    HiGHS may take `seconds` [s]; InputError if it proves no optimum in that time.
    """
    program, computed, kept = _program(graph, budget)
    found = program.solve(seconds)
    if found is None:
        return None
    again, held = (np.rint(found[columns]).astype(np.int64) for columns in (computed, kept))
    cost = float((again * np.asarray(graph.cost)).sum())
    return RematerializationPlan(again, held, cost, peak_of(graph, again, held))


def _program(graph: Tensors, budget: float) -> tuple[LinearProgram, Columns, Columns]:
    """Return the program with the columns of R and S, over F (freed after a computation) and U (memory in use)."""
    count, scale = len(graph.cost), max(*graph.bytes, 1e-300)
    program, cost = LinearProgram(), np.asarray(graph.cost, dtype=float)
    computed = program.unknowns(np.tile(cost / (cost.max() or 1.0), (count, 1)))
    kept = program.unknowns(np.full((count, count), 1e-9))  # a hair, so that nothing is kept for nothing
    ends = [(k, i) for k in range(count) for i in (*graph.needs[k], k)]
    freed = program.unknowns(np.zeros((count, len(ends))))
    used = program.unknowns(np.zeros((count, count)), budget / scale, whole=False)
    # Stage t computes tensor t for the first time: nothing later, and nothing is kept that was not computed.
    program.fix(np.diagonal(computed), 1)
    program.fix(computed[np.triu_indices(count, 1)], 0)
    program.fix(kept[np.triu_indices(count)], 0)
    for stage in range(count):
        R, S, F, U = (columns[stage].tolist() for columns in (computed, kept, freed, used))
        for i in range(count):
            if stage:
                program.row({S[i]: 1.0, int(computed[stage - 1, i]): -1.0, int(kept[stage - 1, i]): -1.0}, high=0)
            for need in graph.needs[i]:
                program.row({R[i]: 1.0, R[need]: -1.0, S[need]: -1.0}, high=0)
        for (k, i), free in zip(ends, F, strict=True):
            # Tensor i is freed after k exactly if k was computed, i is not kept and no later user of it is computed.
            # Each that is not so is a hazard: 1 - F <= hazards <= most x (1 - F).
            hazards = {R[user]: 1.0 for user in graph.users(i) if user > k}
            if stage + 1 < count:
                hazards[int(kept[stage + 1, i])] = 1.0
            hazards[R[k]] = -1.0  # one hazard less if k is computed
            program.row({**hazards, free: 1.0}, low=0.0)
            program.row({**hazards, free: float(len(hazards))}, high=len(hazards) - 1.0)
        sizes = (np.asarray(graph.bytes) / scale).tolist()
        for k in range(count):  # in use before, less what was freed, and the new tensor
            row = {U[k]: 1.0, R[k]: -sizes[k]}
            if k:
                gone = {F[ends.index((k - 1, i))]: sizes[i] for i in (*graph.needs[k - 1], k - 1)}
                row |= {U[k - 1]: -1.0, **gone}
            else:
                row |= {S[i]: -sizes[i] for i in range(count)}
            program.row(row, low=0.0, high=0.0)
    return program, computed, kept
