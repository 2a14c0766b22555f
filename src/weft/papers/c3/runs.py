"""The simulations of a scenario, and the scenario's figures from their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from weft.core.report.table import Shown
from weft.graph import Collective, Driver
from weft.overlaps import STRATEGIES
from weft.overlaps.corun import DMA_UNITS
from weft.papers.c3.scenarios import Scenario
from weft.plan.tune import SlowdownTables
from weft.plan.tune.heuristics import case_of, forecasts, plainest
from weft.simulate.result import Comparison
from weft.sweep.simulations import Alone, Bench, Runs, Simulation, by_dma

SEARCHED: Mapping[str, tuple[int | None, ...]] = {
    "streams": (None,),
    "priority": (None,),
    "partition": (8, 16, 32, 64, 128),
    "dma": (None,),
    "dma-partition": (8, 16, 32),
}
"""Numbers of partitioned compute units in the exhaustive search, by strategy; priority-partition equals partition."""


class StrategySplit(NamedTuple):
    """A strategy and the compute units that it sets apart (None: none, or its default)."""

    strategy: str
    units: int | None = None

    @property
    def words(self) -> str:
        """The way in words."""
        return " ".join(str(part) for part in self if part is not None)


@dataclass(frozen=True)
class ScenarioRuns:
    """The simulations of a scenario on a bench."""

    scenario: Scenario
    bench: Bench

    @property
    def op(self) -> Collective:
        """The collective."""
        return self.scenario.collective_among(self.bench.system.gpus)

    @property
    def gemm(self) -> Simulation:
        """The GEMM alone."""
        return self.bench.gemm(self.scenario.product)

    def collective(self, driver: Driver = Driver.CU) -> Simulation:
        """Return the collective alone."""
        return self.bench.collective(self.op, 0 if driver is Driver.DMA else None)

    def both(self, strategy: str, units: int | None = None) -> Simulation:
        """Return the co-run under a strategy."""
        return self.bench.together(self.scenario.product, self.op, strategy, units)

    def as_published(self, strategy: str, saturation: Mapping[str, int]) -> Simulation:
        """Return the co-run of a strategy as published: as many compute units apart as saturate the collective.

        With DMA engines 8 units are reserved, and none if the GEMM is compute-bound.
        """
        if by_dma(strategy) and self.scenario.bound != "memory":
            return self.both("dma")
        units = DMA_UNITS if by_dma(strategy) else saturation[self.scenario.collective]
        return self.both(strategy, units if STRATEGIES[strategy].partition else None)

    @property
    def search(self) -> list[StrategySplit]:
        """Every strategy with every number of compute units that the exhaustive search tries."""
        have = self.bench.gpu.compute.compute_units
        ways = (StrategySplit(strategy, units) for strategy, choices in SEARCHED.items() for units in choices)
        return [way for way in ways if way.units is None or way.units < have]

    def tasks(self) -> Iterator[Simulation]:
        """Yield each alone, the collective by either driver, and the co-runs of the exhaustive search."""
        yield from (self.gemm, self.collective(), self.collective(Driver.DMA))
        yield from (self.both(*way) for way in self.search)

    def heuristic(self, tables: SlowdownTables, runs: Runs) -> tuple[StrategySplit, StrategySplit]:
        """Return the heuristics' choices: among all ways, and among those without DMA engines."""
        alone = runs[self.gemm].makespan, runs[self.collective()].makespan
        ways = list(forecasts(case_of(self.scenario.product, self.op, tables, *alone)))
        by_units = [one for one in ways if not by_dma(one.strategy)]
        best, best_cu = (StrategySplit(one.strategy, one.units) for one in map(plainest, (ways, by_units)))
        return best, best_cu

    def case(self, runs: Runs, saturation: Mapping[str, int], chosen: Iterable[StrategySplit] = ()) -> CoRunCase:
        """Return the scenario with its results; `chosen` are the heuristics' choices."""
        by_cu, name = runs[self.collective()], self.scenario.collective
        alone = {
            "gemm": runs[self.gemm],
            name: by_cu,
            f"{name} by cu": by_cu,
            f"{name} by dma": runs[self.collective(Driver.DMA)],
        }
        published = {strategy: runs[self.as_published(strategy, saturation)] for strategy in STRATEGIES}
        searched, heuristic = tuple(self.search), tuple(chosen)
        seconds = {way: runs[self.both(*way)].makespan for way in (*searched, *heuristic)}
        return CoRunCase(self.scenario, Comparison(published, alone), seconds, searched, heuristic)


@dataclass(frozen=True)
class CoRunCase:
    """A scenario with the co-run of each strategy as published, and the makespans of other ways, `seconds` [s].

    `searched` are the ways of the exhaustive search, `heuristic` the heuristics' choices among all ways and among those
    without DMA engines (empty if they were not asked).
    """

    scenario: Scenario
    comparison: Comparison
    seconds: Mapping[StrategySplit, float]
    searched: tuple[StrategySplit, ...]
    heuristic: tuple[StrategySplit, ...] = ()

    @cached_property
    def alone(self) -> Alone:
        """Isolated times of the GEMM and of the collective by compute units."""
        return Alone(*(self.comparison.alone[name].makespan for name in ("gemm", self.scenario.collective)))

    @property
    def kind(self) -> str:
        """The class (one of CLASSES) of the isolated times."""
        return self.alone.kind

    @property
    def strategies(self) -> list[str]:
        """The strategies, by name."""
        return list(self.comparison.timelines)

    @property
    def best(self) -> StrategySplit:
        """The fastest way of the exhaustive search."""
        return min(self.searched, key=self.seconds.__getitem__)

    @property
    def best_cu(self) -> StrategySplit:
        """The fastest way of the exhaustive search without DMA engines."""
        return min((way for way in self.searched if not by_dma(way.strategy)), key=self.seconds.__getitem__)

    @property
    def fastest(self) -> Shown:
        """Speedup of the fastest way over serial execution, with its name."""
        speedup = self.alone.speedup(self.seconds[self.best])
        return Shown(speedup, f"{speedup:.2f}, {self.best.words}")

    def speedup(self, strategy: str) -> float:
        """Speedup of a strategy over serial execution."""
        return self.alone.speedup(self.comparison[strategy].makespan)

    def share(self, strategy: str) -> float:
        """Return the share of the ideal saving that a strategy reaches."""
        return self.alone.share(self.comparison[strategy].makespan)

    def gemm_slowdown(self, strategy: str) -> float:
        """The GEMM's end from the common start over its isolated time."""
        return self.comparison[strategy].end("gemm") / self.alone.gemm_s

    def collective_slowdown(self, strategy: str) -> float:
        """The collective's end from the common start over its isolated time by compute units."""
        return self.comparison[strategy].end(self.scenario.collective) / self.alone.collective_s

    @property
    def losses(self) -> dict[str, float]:
        """Extra time of the heuristics' choices and of plain DMA engines over the best of the search, by claim."""
        best, best_cu = self.seconds[self.best], self.seconds[self.best_cu]
        chosen = zip(("heuristic_loss", "heuristic_loss_cu"), self.heuristic, (best, best_cu), strict=False)
        losses = {claim: self.seconds[way] / least - 1 for claim, way, least in chosen}
        return {**losses, "always_dma_loss": self.comparison["dma"].makespan / best - 1}

    @property
    def declared(self) -> bool:
        """Whether the isolated times fall into the declared class; true if none is declared."""
        return self.scenario.kind in (None, self.kind)

    def as_json(self) -> dict[str, Any]:
        """Return the case as plain data."""
        scenario = self.scenario.model_dump(by_alias=True)
        by_dma = self.comparison.alone[f"{self.scenario.collective} by dma"]
        return {
            **scenario,
            "declared_class": scenario["class"],
            "class": self.kind,
            "gemm_alone_us": self.alone.gemm_s * 1e6,
            "collective_alone_us": self.alone.collective_s * 1e6,
            "collective_alone_by_dma_us": by_dma.makespan * 1e6,
            "ideal": self.alone.ideal,
            "strategies": {name: self._strategy(name) for name in self.strategies},
            "best": self._time_split(self.best),
            "heuristics": self._heuristics(*self.heuristic) if self.heuristic else None,
        }

    def _strategy(self, name: str) -> dict[str, Any]:
        return {
            **self.comparison.corun(name).record(),
            "gemm_slowdown": self.gemm_slowdown(name),
            "collective_slowdown": self.collective_slowdown(name),
            "counters": dict(self.comparison[name].counters),
        }

    def _heuristics(self, chosen: StrategySplit, chosen_cu: StrategySplit) -> dict[str, Any]:
        best_cu_us = self.seconds[self.best_cu] * 1e6
        return {
            **self._time_split(chosen),
            "without_dma": self._time_split(chosen_cu),
            "best_without_dma_us": best_cu_us,
        }

    def _time_split(self, way: StrategySplit) -> dict[str, Any]:
        return {**way._asdict(), "makespan_us": self.seconds[way] * 1e6}
