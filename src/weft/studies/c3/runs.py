"""Which simulations a scenario needs, as tasks of a sweep, and what they say of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft.graph import Collective
from weft.result import Comparison
from weft.run.sweep.run import Simulation
from weft.schedule import SHARING
from weft.schedule.sharing import DMA_UNITS
from weft.search.tasks import Bench, Runs
from weft.studies.c3.scenarios import Scenario

SEARCHED: Mapping[str, tuple[int | None, ...]] = {
    "streams": (None,),
    "priority": (None,),
    "partition": (8, 16, 32, 64, 128),
    "dma": (None,),
    "dma-partition": (8, 16, 32),
}
"""Compute units set apart that the exhaustive search tries, by strategy; priority-partition runs as partition does."""


@dataclass(frozen=True)
class ScenarioRuns:
    """The runs of a scenario on a bench."""

    scenario: Scenario
    bench: Bench

    @property
    def op(self) -> Collective:
        """The collective."""
        return self.scenario.moved(self.bench.system.gpus)

    @property
    def gemm(self) -> Simulation:
        """The GEMM alone."""
        return self.bench.gemm(self.scenario.product)

    def collective(self, driver: str = "cu") -> Simulation:
        """The collective alone."""
        return self.bench.collective(self.op, 0 if driver == "dma" else None)

    def both(self, strategy: str, units: int | None = None) -> Simulation:
        """Both under a strategy."""
        return self.bench.together(self.scenario.product, self.op, strategy, units)

    def as_published(self, strategy: str, saturation: Mapping[str, int]) -> Simulation:
        """The run that stands for a strategy: the compute units apart are those that saturate the collective.

        Beside DMA engines they are 8, and none off compute-bound GEMMs.
        """
        chosen = SHARING[strategy]
        if chosen.driver == "dma" and self.scenario.bound != "memory":
            return self.both("dma")
        units = DMA_UNITS if chosen.driver == "dma" else saturation[self.scenario.collective]
        return self.both(strategy, units if chosen.partition else None)

    def search(self) -> Iterator[tuple[str, int | None]]:
        """Every strategy with every number of compute units that is searched."""
        for strategy, choices in SEARCHED.items():
            for units in choices:
                if units is None or units < self.bench.gpu.compute.compute_units:
                    yield strategy, units

    def tasks(self) -> Iterator[Simulation]:
        """Both alone, by either driver, and together in every way that is searched."""
        yield self.gemm
        yield self.collective()
        yield self.collective("dma")
        yield from (self.both(*way) for way in self.search())

    def compared(self, runs: Runs, saturation: Mapping[str, int]) -> Comparison:
        """Every strategy, its units as published, beside each operator alone."""
        by_cu, name = runs[self.collective()], self.scenario.collective
        alone = {
            "gemm": runs[self.gemm],
            name: by_cu,
            f"{name} by cu": by_cu,
            f"{name} by dma": runs[self.collective("dma")],
        }
        published = {strategy: runs[self.as_published(strategy, saturation)] for strategy in SHARING}
        return Comparison(published, alone)
