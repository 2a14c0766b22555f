"""One choice for each node of a graph, at least cost: an integer linear program, solved by SciPy's HiGHS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Costs of the choices of each node and of pairs of choices along edges; and sizes, whose sum may have a limit.

    `edges` maps two different nodes to a matrix, a row for each choice of the first.
    """

    costs: Sequence[FloatArray]
    sizes: Sequence[FloatArray]
    edges: Mapping[tuple[int, int], FloatArray] = field(default_factory=dict)

    def cost(self, chosen: Sequence[int]) -> float:
        """The cost of one choice for each node."""
        nodes = sum(float(costs[at]) for costs, at in zip(self.costs, chosen, strict=True))
        return nodes + sum(float(matrix[chosen[u], chosen[v]]) for (u, v), matrix in self.edges.items())

    def size(self, chosen: Sequence[int]) -> float:
        """The size of one choice for each node."""
        return sum(float(sizes[at]) for sizes, at in zip(self.sizes, chosen, strict=True))


def cheapest(problem: Problem, limit: float = math.inf) -> tuple[int, ...] | None:
    """The choices of least cost whose sizes add up to at most `limit`; None if there are none.

    A 0-1 variable for each choice, one of which is 1 for each node; the product of two choices along an edge is a
    variable of its own, whose sums over rows and columns are the choices' variables (arXiv:2201.12023, section 4.2).
    Exponential in the worst case; a layer of a Transformer takes tens of milliseconds.
    """
    counts = [len(costs) for costs in problem.costs]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(int)
    pairs = [(u, v, np.asarray(matrix)) for (u, v), matrix in problem.edges.items() if np.any(matrix)]
    objective = np.concatenate([*problem.costs, *(matrix.ravel() for _, _, matrix in pairs)])
    rows = _Rows(len(objective))
    for node, count in enumerate(counts):
        rows.add(starts[node] + np.arange(count), np.ones(count), 1.0, 1.0)
    begin = int(starts[-1])
    for u, v, matrix in pairs:
        places = begin + np.arange(matrix.size).reshape(matrix.shape)
        for of, along in ((u, places), (v, places.T)):
            for choice, products in enumerate(along):
                columns = np.append(products, starts[of] + choice)
                rows.add(columns, np.append(np.ones(len(products)), -1.0), 0.0, 0.0)
        begin += matrix.size
    if math.isfinite(limit):
        scale = max(limit, 1.0)
        rows.add(np.arange(starts[-1]), np.concatenate(problem.sizes) / scale, -math.inf, limit / scale)
    whole = (np.arange(len(objective)) < starts[-1]).astype(int)
    scale = float(np.abs(objective).max()) or 1.0
    found = milp(
        objective / scale,
        integrality=whole,
        bounds=Bounds(0, 1),
        constraints=rows.constraint(),
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    return tuple(int(found.x[starts[node] : starts[node + 1]].argmax()) for node in range(len(counts)))


class _Rows:
    """Linear constraints, collected row by row."""

    def __init__(self, variables: int) -> None:
        self.variables = variables
        self.entries: list[tuple[npt.NDArray[np.int_], FloatArray]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, columns: npt.NDArray[np.int_], values: FloatArray, low: float, high: float) -> None:
        self.entries.append((columns, values))
        self.low.append(low)
        self.high.append(high)

    def constraint(self) -> LinearConstraint:
        lines = np.repeat(np.arange(len(self.entries)), [len(columns) for columns, _ in self.entries])
        columns = np.concatenate([columns for columns, _ in self.entries])
        values = np.concatenate([values for _, values in self.entries])
        matrix = coo_array((values, (lines, columns)), shape=(len(self.entries), self.variables))
        return LinearConstraint(matrix.tocsr(), self.low, self.high)
