"""Several ways to run one graph side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.core.answer import Answer
from weft.core.errors import UnknownNameError
from weft.graph import Driver
from weft.graph.choice import driver_of
from weft.hardware import Stragglers
from weft.overlaps import find_strategy
from weft.overlaps.corun import alone_key
from weft.simulate.result.corun import CoRun
from weft.simulate.result.metrics import speedup
from weft.simulate.result.timeline import Timeline


@dataclass(frozen=True)
class Drawn:
    """What stragglers cost under an overlap: `equal_s` with equal GPUs, `seconds` with those of each draw."""

    equal_s: float
    seconds: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        """The mean of the draws [s]."""
        return sum(self.seconds) / len(self.seconds)

    @property
    def lost(self) -> float:
        """How much longer the mean draw takes than equal GPUs, as a share of their time."""
        return self.mean_s / self.equal_s - 1

    @property
    def range(self) -> tuple[float, float]:
        """The same of the shortest and the longest draw."""
        return min(self.seconds) / self.equal_s - 1, max(self.seconds) / self.equal_s - 1

    def record(self) -> dict[str, Any]:
        """Plain data."""
        low, high = self.range
        return {
            "equal_s": self.equal_s,
            "mean_s": self.mean_s,
            "lost": self.lost,
            "lost_low": low,
            "lost_high": high,
            "draws_s": list(self.seconds),
        }


_ALIKE = 0.005
"""Share of a time below which two runs take as long [assumed, 0.001 to 0.02: below the known errors of streams]."""


@dataclass(frozen=True, repr=False)
class Comparison(Answer):
    """Timelines by overlap, the baseline first; `refused` gives the reason for overlaps that cannot run.

    With stragglers, `timelines` are those of the first draw, and `drawn` says what all draws cost, by overlap;
    `slowest` names the slowest GPU of each draw, and by what share its clock is lower (None: GPUs are equal).

    For streams that do not wait for each other, `alone` holds a short loop of each operator on its own, by operator,
    and for collectives also by driver and stated channels, as in "all_gather by dma", "all_gather by cu on 8 channels".

    `unchanged` is the run of the overlap that was asked for (of several strategies: the best) on the machine without
    the user's changes, if there are any.

    Iterates over the timelines; prints as a table; `plot` draws when each overlap computes and communicates.
    """

    kind = "comparison"

    timelines: Mapping[str, Timeline]
    alone: Mapping[str, Timeline] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    drawn: Mapping[str, Drawn] = field(default_factory=dict)
    stragglers: Stragglers | None = None
    slowest: tuple[tuple[int, float] | None, ...] = ()
    unchanged: Timeline | None = None

    @property
    def baseline(self) -> Timeline:
        """The first run."""
        return next(iter(self.timelines.values()))

    def speedup(self, overlap: str) -> float:
        """Return how many times faster than the baseline."""
        return speedup(self[overlap], self.baseline)

    def corun(self, overlap: str | None = None) -> CoRun:
        """Return a loop of GEMMs and one of collectives under an overlap (None: the first), against each alone."""
        run = self.baseline if overlap is None else self[overlap]
        gemm, moved = run.graph.gemms[0].name, run.graph.collectives[0]
        driver, kernel = driver_of(moved.choice.kernel), moved.choice.kernel
        driven = self.alone.get(alone_key(moved.name, driver, getattr(kernel, "channels", None)))
        library = self.alone[moved.name] if driven is None or driver is Driver.DMA else driven
        return CoRun(run, self.alone[gemm], driven or self.alone[alone_key(moved.name, driver)], library)

    @property
    def is_shared(self) -> bool:
        """Whether the runs are of independent streams that share a GPU, a GEMM's and a collective's."""
        return (
            bool(self.alone)
            and bool(self.baseline.graph.collectives)
            and find_strategy(self.baseline.overlap) is not None
        )

    @property
    def best(self) -> str:
        """The overlap that takes least time; of streams that take as little, that which slows them least."""
        least = min(run.makespan for run in self)
        alike = [name for name, run in self.timelines.items() if run.makespan <= (1 + _ALIKE) * least]
        return min(alike, key=self._slowdown)

    def _slowdown(self, overlap: str) -> tuple[float, float]:
        """Return how many times longer both streams take under an overlap, together, and its time [s]."""
        both = (self.corun(overlap).gemm, self.corun(overlap).collective) if self.is_shared else ()
        return sum(loop.slowdown for loop in both), self[overlap].makespan

    def __getitem__(self, overlap: str) -> Timeline:
        if overlap not in self.timelines:
            raise UnknownNameError("overlap in this comparison", overlap, self.timelines)
        return self.timelines[overlap]

    def __iter__(self) -> Iterator[Timeline]:
        return iter(self.timelines.values())

    def __len__(self) -> int:
        return len(self.timelines)

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain record per overlap, with its speedup if there are several; of streams that share a GPU,
        co-runs.
        """
        if self.is_shared:
            return [self.corun(name).record() for name in self.timelines]
        if len(self) == 1:
            return [self.baseline.to_dict()]
        return [{**one.to_dict(), "speedup": speedup(one, self.baseline)} for one in self]

    @property
    def is_by_share(self) -> bool:
        """Whether the draws are of one slow GPU, slower by another share in each."""
        return self.stragglers is not None and len(self.stragglers.shares) > 1

    def late_rows(self) -> list[dict[str, Any]]:
        """Return one plain record per draw of stragglers and overlap: the slowest GPU, and how much longer the run
        takes.
        """
        return [
            {
                "draw": draw,
                "slowest_gpu": late and late[0],
                "slower": late and late[1],
                "overlap": name,
                "seconds": one.seconds[draw],
                "lost": one.seconds[draw] / one.equal_s - 1,
            }
            for draw, late in enumerate(self.slowest)
            for name, one in self.drawn.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return every run as plain data, and the reason for each overlap that cannot run."""
        best = {"best": self.best} if self.is_shared else {}
        drawn = {name: one.record() for name, one in self.drawn.items()}
        late: dict[str, Any] = {}
        if self.stragglers is not None:
            late["stragglers"] = {
                "who": self.stragglers.title, "by_overlap": drawn, "by_draw": self.late_rows()
            }  # fmt: skip
        before = {} if self.unchanged is None else {"unchanged": self.unchanged.to_dict()}
        return {**best, "runs": self.rows(), "refused": dict(self.refused), **late, **before}
