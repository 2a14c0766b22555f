"""The search for pipeline orders against an integer program, which may run micro-batches in any sequence."""

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from weft.step.pipeline import Durations
from weft.step.pipeline.problem import OrderProblem
from weft.step.pipeline.search import find_order

STAGES_AND_MICRO_BATCHES = [(1, 2), (2, 2), (3, 2), pytest.param(2, 3, marks=pytest.mark.slow)]


class Program:
    """Start times of all tasks and, for each two of a stage, which comes first; minimises a span or the makespan."""

    def __init__(self, took, send, count):
        self.took, self.stages, self.count = took, len(took), count
        self.tasks = [(kind, i, j) for i in range(self.stages) for kind in range(3) for j in range(count)]
        self.pairs = [(a, b) for a, b in combinations(self.tasks, 2) if a[1] == b[1]]
        self.names = [*self.tasks, *self.pairs, "cost"]
        self.at = {name: place for place, name in enumerate(self.names)}
        self.rows, self.least = [], []
        self.late = 2 * count * (took.sum() + 2 * send * self.stages)
        for kind, i, j in self.tasks:
            if kind == 0 and i > 0:
                self.after((0, i - 1, j), (0, i, j), send)
            if kind == 1:
                before = (0, i, j) if i == self.stages - 1 else (1, i + 1, j)
                self.after(before, (1, i, j), send if before[0] else 0.0)
            if kind == 2:
                self.after((1, i, j), (2, i, j), 0.0)
        for a, b in self.pairs:
            self.after(a, b, 0.0, switch=((a, b), 1))
            self.after(b, a, 0.0, switch=((a, b), 0))

    def after(self, a, b, delay, switch=None):
        """Start b no sooner than `delay` after the end of a or, with a switch, only if it has that value."""
        row, least = {b: 1.0, a: -1.0}, self.took[a[1], a[0]] + delay
        if switch is not None:
            name, value = switch
            row[name] = -self.late if value else self.late
            least -= self.late if value else 0.0
        self.need(row, least)

    def need(self, row, least):
        line = np.zeros(len(self.names))
        for name, factor in row.items():
            line[self.at[name]] += factor
        self.rows.append(line)
        self.least.append(least)

    def one_at_a_time(self):
        """Let each stage hold one micro-batch: one's F follows the other's W."""
        for i in range(self.stages):
            for a, b in combinations(range(self.count), 2):
                pair = ((0, i, a), (0, i, b))
                self.after((2, i, a), (0, i, b), 0.0, switch=(pair, 1))
                self.after((2, i, b), (0, i, a), 0.0, switch=(pair, 0))

    def solve(self, objective):
        for kind, i, j in self.tasks:
            for first in self.tasks if objective == "span" else [None]:
                if first is None:
                    self.need({"cost": 1.0, (kind, i, j): -1.0}, self.took[i, kind])
                elif first[1] == i and first != (kind, i, j):
                    self.need({"cost": 1.0, (kind, i, j): -1.0, first: 1.0}, self.took[i, kind])
        size, binary = len(self.names), np.array([name in set(self.pairs) for name in self.names])
        goal = np.zeros(size)
        goal[self.at["cost"]] = 1.0
        solved = milp(
            goal, integrality=binary, bounds=Bounds(0, np.where(binary, 1, np.inf)),
            constraints=LinearConstraint(np.array(self.rows), np.array(self.least), np.inf),
        )  # fmt: skip
        assert solved.success
        return solved.fun


@pytest.mark.parametrize("objective", ["span", "makespan"])
@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize(("stages", "count"), STAGES_AND_MICRO_BATCHES)
def test_no_integer_program_finds_a_shorter_order(stages, count, limit, objective):
    numbers = np.random.default_rng(stages * 100 + count * 10 + limit)
    took, send = numbers.uniform(0.2, 2.0, (stages, 3)), 0.3
    program = Program(took, send, count)
    if limit == 1:
        program.one_at_a_time()
    found = find_order(OrderProblem(stages, count, Durations(*took.T), send, limit), objective)
    assert found.cost == pytest.approx(program.solve(objective), rel=1e-5)
