"""Find a pipeline order for given times and memory, and say how far it can be from the best one.

After the heuristics of zero bubble (arXiv:2401.10241): list scheduling under many settings, then a local search of how
many forwards each stage runs ahead, then of single tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import numpy as np

from weft.core.errors import check_name, check_whole
from weft.step.pipeline.clock import Durations, Send, run_schedule
from weft.step.pipeline.filling import BACKWARD, FORWARD, SLACK, WEIGHT, Scratch, Settings, compile_filling
from weft.step.pipeline.orders import Floats, Ints, Schedule, weave
from weft.step.pipeline.problem import OrderProblem, least_end, least_spans, round_trips
from weft.step.pipeline.times import PipelineTimes

Objective = Literal["span", "makespan"]
OBJECTIVES = get_args(Objective)
"""What is made short: the longest span of a stage, as zero bubble counts, or the makespan."""
_AHEAD = (-1.0, 0.0, 0.5, 0.99, 1.5, 2.0, 3.0)
"""Forwards before the first backward, beyond those that fill a round trip."""
_PATIENCE = (1e-9, 0.25, 0.5, 0.75, 1.0)
"""Shortest gap that a weight gradient fills, relative to its own time."""
_PREFER = (0, 1, 2, 3)
_CHOICES, _CLIMBED = 1_000_000_000, 500_000_000
"""Choices of a stage's next task, 10 ns each, that list scheduling and the search of its settings make at most."""
_TASKS_RUN = 20_000_000
"""Tasks that the search of single tasks runs at most."""
_MOST_MOVES = 50_000
"""Moves that a search of single tasks tries at most."""
_HEAT = 0.02
"""Temperature at which the search of single tasks starts, relative to the work of a micro-batch."""
_CLOSE = 1e-9
EVEN = Durations(1.0, 1.0, 1.0)
"""Times of F, B and W while none are known."""


@dataclass(frozen=True, eq=False)
class FoundOrder:
    """An order that a search found: when its tasks run, and the least that any order can take.

    `least` is a lower bound of the `objective` [s]: no order of the problem is shorter.
    """

    problem: OrderProblem
    objective: Objective
    times: PipelineTimes
    least: float

    @property
    def cost(self) -> float:
        """The longest span or the makespan [s]."""
        return float(self.times.span.max()) if self.objective == "span" else self.times.makespan

    @property
    def gap(self) -> float:
        """By how much the best order can be shorter, relative to this one."""
        return max(0.0, 1 - self.least / self.cost) if self.cost else 0.0


def find_order(problem: OrderProblem, objective: Objective = "span", name: str = "found") -> FoundOrder:
    """Return an order for a problem, within its memory: the best of some 400 list schedules, improved by local search.

    Stops at the lower bound. Takes O(devices^2 x micro-batches) per list schedule; the same problem always gives the
    same order. Raises UnknownNameError for an unknown objective.
    """
    check_name("objective", objective, OBJECTIVES)
    least = float(least_spans(problem).max()) if objective == "span" else least_end(problem)
    search = _Search(problem, objective == "makespan", least)
    search.try_fixed()
    search.try_settings()
    search.climb()
    search.move_tasks()
    found = run_schedule(problem.schedule(search.order, name), problem.durations, problem.send)
    return FoundOrder(problem, objective, found, least)


def zb_1p(devices: int, micro_batches: int, durations: Durations = EVEN, send: Send | float = 0.0) -> Schedule:
    """Return the order found for the memory of 1F1B: p micro-batches, all held until W (arXiv:2401.10241)."""
    return find_order(OrderProblem(devices, micro_batches, durations, send, devices), name="zb-1p").times.schedule


def zb_2p(devices: int, micro_batches: int, durations: Durations = EVEN, send: Send | float = 0.0) -> Schedule:
    """Return the order found for twice the memory of 1F1B: 2 p micro-batches, all held until W (arXiv:2401.10241)."""
    return find_order(OrderProblem(devices, micro_batches, durations, send, 2 * devices), name="zb-2p").times.schedule


def search(
    devices: int, micro_batches: int, memory: int | None = None, durations: Durations = EVEN, send: Send | float = 0.0
) -> Schedule:
    """Return the order of shortest makespan found for a memory of some micro-batches (None: as many as devices).

    Raises InputError for fewer than one.
    """
    check_whole("the memory of 'search'", devices if memory is None else memory, 1, 2 * devices)
    problem = OrderProblem(devices, micro_batches, durations, send, devices if memory is None else memory)
    return find_order(problem, "makespan", "search" if memory is None else f"search:{memory}").times.schedule


SEARCHED: Mapping[str, Callable[..., Schedule]] = {"zb-1p": zb_1p, "zb-2p": zb_2p, "search": search}
"""Schedules whose order depends on times; without any, F, B and W take equally long and sends no time."""


class _Search:
    """The best order so far, its cost [s] and its settings."""

    def __init__(self, problem: OrderProblem, wants_makespan: bool, least: float) -> None:
        self.problem, self.costs, self.wants_makespan, self.least = problem, problem.costs, wants_makespan, least
        self.code = compile_filling()
        self.tasks = 3 * problem.micro_batches
        self.choices = problem.devices**2 * self.tasks
        self.order, self.cost = np.empty(0, np.int64), (np.inf, np.inf)
        self.settings: Settings | None = None
        self._scratch = Scratch.of(problem.devices, problem.micro_batches)

    @property
    def done(self) -> bool:
        """Whether no order can be better."""
        return self.cost[0] <= self.least * (1 + _CLOSE)

    def offer(self, order: Ints, settings: Settings | None) -> bool:
        """Keep an order if it is better than the best one."""
        longest, mean, makespan = self.code["clock"](self.costs, order, self._scratch)
        cost = (makespan if self.wants_makespan else longest, mean)
        if cost >= self.cost:
            return False
        self.order, self.cost, self.settings = order, cost, settings or self.settings
        return True

    def try_fixed(self) -> None:
        """Offer ZB-H1, ZB-H2 and what lies between them, where memory allows."""
        count = self.problem.micro_batches
        stage = np.arange(self.problem.devices)
        for reach in np.unique([1.0, 1.25, 1.5, 1.75, 2.0]):
            ahead, back = np.ceil(reach * stage[::-1]).astype(int), np.ceil(reach * stage).astype(int)
            rows = [_woven(count, int(a), int(b)) for a, b in zip(ahead, back, strict=True)]
            order = np.stack(rows)
            if self._fits(order):
                self.offer(order, None)

    def _fits(self, order: Ints) -> bool:
        ran = [np.cumsum(order == kind, axis=1) for kind in (FORWARD, BACKWARD, WEIGHT)]
        kept = self.costs.kept[:, None]
        held = ran[0] - (1 - kept) * ran[1] - kept * ran[2]
        return bool((held <= self.costs.limit[:, None] + SLACK).all())

    def try_settings(self) -> None:
        """Offer list schedules under many settings, of large pipelines under some of them."""
        every = list(self._all_settings())
        for settings in every[:: -(-len(every) * self.choices // _CHOICES)]:
            if self.done:
                return
            self.try_one(settings)

    def _all_settings(self) -> Iterator[Settings]:
        for ahead in _AHEAD:
            warmup = np.floor(self._round_trips() + ahead).astype(np.int64) + 1
            warmup = np.clip(warmup, 1, np.maximum(self.costs.limit.astype(np.int64), 1))
            free = np.full_like(warmup, self.problem.micro_batches)
            for most, patience, prefer in product((warmup, warmup + 1, free), _PATIENCE, _PREFER):
                yield Settings(warmup, most, patience, prefer)

    def _round_trips(self) -> Floats:
        """Return how many forwards fit into each stage's wait for its first gradient."""
        forward = self.costs.took[:, FORWARD]
        trips: Floats = round_trips(self.problem) / np.maximum(forward, 1e-300)
        return np.minimum(trips, self.problem.micro_batches)

    def try_one(self, settings: Settings) -> bool:
        """Offer the list schedule of some settings."""
        order = np.empty((self.problem.devices, self.tasks), np.int64)
        filled = self.code["fill"](self.costs, order, settings, self._scratch)
        return bool(filled) and self.offer(order, settings)

    def climb(self) -> None:
        """Change by one, stage by stage, how far it runs ahead, as long as that helps."""
        left = _CLIMBED // self.choices
        improved = True
        while improved:
            improved = False
            for stage, field, step in product(range(self.problem.devices), ("warmup", "most"), (1, -1)):
                if self.settings is None or self.done or not left:
                    return
                left -= 1
                improved |= self.try_one(_change_setting(self.settings, field, stage, step))

    def move_tasks(self) -> None:
        """Move single tasks at random, ever more reluctant to accept what is longer."""
        if self.done:
            return
        order = self.order.copy()
        steps = min(_MOST_MOVES, _TASKS_RUN // order.size)
        heat = _HEAT * float(self.problem.work.max()) / self.problem.micro_batches
        for seed in range(2):
            draws = np.random.default_rng(seed).random((steps, 4))
            temperature = heat * (1 - seed)
            self.code["anneal"](self.costs, order, draws, self.least, self.wants_makespan, temperature, self._scratch)
            self.offer(order.copy(), None)


def _change_setting(settings: Settings, field: str, stage: int, step: int) -> Settings:
    values = getattr(settings, field).copy()
    values[stage] = max(1, values[stage] + step)
    return settings._replace(**{field: values})


def _woven(count: int, warmup: int, held_back: int) -> Ints:
    """Return the kinds of one stage's tasks: `warmup` forwards, then F, B, W in turn, W held back."""
    each = np.full(count, 0)
    return weave(each + FORWARD, each + BACKWARD, warmup, each + WEIGHT, held_back)
