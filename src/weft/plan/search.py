"""The search of the planner, whatever the workload: candidates, bounds, evaluation, and the Pareto front.

A workload is a subclass of `Workload`; `plan/training.py` and `plan/serving.py` have one each. Closed forms say which
candidates are simulated; no simulation starts once the time of the search is over.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, TypeVar

from weft.sweep.tasks import Progress

T = TypeVar("T")
C = TypeVar("C")
P = TypeVar("P")
_KEPT_S = 10.0
"""Least time after which what was simulated is kept again [s]."""


@dataclass(frozen=True)
class Group(Generic[C, P]):
    """Candidates that `evaluate` takes serially, `at_once` together, and which the progress `says`.

    Where it `simulates`, none of them starts once the time of the search is over. `says` returns the number of
    finished ones, their total, and the title of the one at a place; None for a group that takes no time.
    """

    candidates: Sequence[C]
    evaluate: Callable[[Sequence[C]], Iterable[P]]
    says: Callable[[int], tuple[int, int, str]] | None = None
    at_once: int = 1
    simulates: bool = False


Groups = Generator[Group[Any, P], list[P], T]
"""Yields groups, receives what `evaluate` returned for each, and returns what all of them make."""


class Workload(ABC, Generic[C, P, T]):
    """What training or serving adds to the search: candidates `C`, evaluated deployments `P`, and the answer `T`.

    Bounds exclude candidates: one by one as `excludes` says, many at once inside of a group's `evaluate`.
    """

    @abstractmethod
    def groups(self, search: Search[C, P, T]) -> Groups[P, T]:
        """Yield candidates in the order in which they are tried, and return the answer."""

    @abstractmethod
    def objectives(self, planned: P) -> tuple[float, ...]:
        """Return the objectives to minimise, all of them compared by the Pareto front."""

    def excludes(self, candidate: C) -> bool:
        """Return whether a bound says that a candidate need not be evaluated."""
        return False

    def is_kept(self, candidate: C) -> bool:
        """Return whether a candidate's simulation is on disk, so that it takes no time."""
        return False

    def keep(self) -> None:
        """Keep what was simulated, for a search that is interrupted; nothing to do where each simulation is stored."""

    def forget(self) -> None:
        """Remove what was kept, once the search has ended."""


class Search(Generic[C, P, T]):
    """One search: its time, its progress, and the number of `infeasible` candidates by reason.

    `untried` are the candidates that no bound excludes, and that the time of the search did not reach.
    """

    def __init__(self, workload: Workload[C, P, T], budget_s: float = inf, progress: Progress | None = None) -> None:
        self.workload, self.budget_s, self._progress = workload, budget_s, progress
        self.infeasible: Counter[str] = Counter()
        self.untried: list[C] = []
        self.began = time.perf_counter()
        self._simulates_from: float | None = None
        self._kept = time.monotonic()

    def run(self) -> T:
        """Return the answer of the workload; an interrupted search keeps what it has simulated."""
        try:
            answer = self.drive(self.workload.groups(self))
        except BaseException:
            self.workload.keep()
            raise
        self.workload.forget()
        return answer

    def drive(self, groups: Groups[P, T]) -> T:
        """Evaluate groups serially and return their results."""
        try:
            group = next(groups)
            while True:
                group = groups.send(self._evaluate(group))
        except StopIteration as end:
            answer: T = end.value
            return answer

    @property
    def wall_s(self) -> float:
        """Time since the search began [s]."""
        return time.perf_counter() - self.began

    @property
    def time_left(self) -> bool:
        """Whether another simulation may start: `budget_s` of CPU, from the first one on."""
        if self._simulates_from is None:
            self._simulates_from = time.process_time()
        return time.process_time() - self._simulates_from < self.budget_s

    def _share(self, tried: float) -> float:
        """Return the finished share of the simulations, which end with the last candidate or with `budget_s`."""
        assert self._simulates_from is not None
        return max(tried, (time.process_time() - self._simulates_from) / self.budget_s)

    def _evaluate(self, group: Group[C, P]) -> list[P]:
        found: list[P] = []
        excludes = self.workload.excludes
        for at in range(0, len(group.candidates), group.at_once):
            some = [one for one in group.candidates[at : at + group.at_once] if not excludes(one)]
            if not some:
                continue
            is_kept = all(map(self.workload.is_kept, some))
            if group.simulates and not self.time_left and not is_kept:
                self.untried += [one for one in group.candidates[at:] if not excludes(one)]
                break
            if self._progress and group.says and not is_kept:
                if group.simulates:
                    getattr(self._progress, "expect", lambda share: None)(self._share(at / len(group.candidates)))
                self._progress(*group.says(at))
            found += group.evaluate(some)
            if group.simulates and time.monotonic() - self._kept > _KEPT_S:
                self.workload.keep()
                self._kept = time.monotonic()
        return found


def pareto_front(
    planned: Iterable[P], objectives: Callable[[P], tuple[float, ...]], alike: float = 0.0
) -> tuple[P, ...]:
    """Return, in order, the plans that no other plan beats or equals in all objectives (smaller is better).

    The last objective counts as better by a share above `alike`.
    """
    front: list[P] = []
    least: dict[tuple[float, ...], float] = {}  # the last objective by those between the first and the last
    for (_, *between, last), one in sorted(((objectives(one), one) for one in planned), key=lambda pair: pair[0]):
        rivals = (held for others, held in least.items() if all(a <= b for a, b in zip(others, between, strict=True)))
        if all(last < (1 - alike) * held for held in rivals):
            least[tuple(between)] = last
            front.append(one)
    return tuple(front)
