"""Which simulations the C3 study needs, as tasks of a sweep, and their answers by task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.overlap.strategies import DMA_UNITS, STRATEGIES
from weft.result.sharing import Sharing
from weft.result.stream_run import StreamRun
from weft.studies.c3.scenarios import Scenario
from weft.sweep.streams import CollectiveAlone, GemmAlone, Setting, Together

Run = GemmAlone | CollectiveAlone | Together
Runs = Mapping[Run, StreamRun]
"""What was simulated, by task."""

SEARCHED: Mapping[str, tuple[int | None, ...]] = {
    "streams": (None,),
    "priority": (None,),
    "partition": (8, 16, 32, 64, 128),
    "dma": (None,),
    "dma-partition": (8, 16, 32),
}
"""Compute units set apart that the exhaustive search tries, by strategy; priority-partition runs as partition does."""


def gemm_alone(scenario: Scenario, setting: Setting, units: int | None = None) -> GemmAlone:
    """The scenario's GEMM alone."""
    return GemmAlone(scenario.product, setting, units)


def collective_alone(scenario: Scenario, setting: Setting, driver: str = "cu") -> CollectiveAlone:
    """The scenario's collective alone."""
    return CollectiveAlone(scenario.collective, scenario.size, setting, driver, dtype=scenario.dtype)


def both(scenario: Scenario, setting: Setting, strategy: str, units: int | None = None) -> Together:
    """The scenario under a strategy."""
    return Together(scenario.product, scenario.collective, scenario.size, setting, strategy, units)


def published_units(scenario: Scenario, strategy: str, saturation: Mapping[str, int]) -> int | None:
    """The compute units that the paper sets apart: what saturates the collective, or 8 off memory-bound GEMMs."""
    chosen = STRATEGIES[strategy]
    if not chosen.partition:
        return None
    return DMA_UNITS if chosen.driver == "dma" else saturation[scenario.collective]


def as_published(
    scenario: Scenario, setting: Setting, strategy: str, saturation: Mapping[str, int]
) -> Together:
    """The run that stands for a strategy: units as the paper sets them apart; none off compute-bound GEMMs."""
    if STRATEGIES[strategy].driver == "dma" and scenario.bound != "memory":
        return both(scenario, setting, "dma")
    return both(scenario, setting, strategy, published_units(scenario, strategy, saturation))


def search(scenario: Scenario, setting: Setting) -> Iterator[Together]:
    """Every strategy with every number of compute units that is searched."""
    for strategy, choices in SEARCHED.items():
        for units in choices:
            if units is None or units < setting.gpu.compute.compute_units:
                yield both(scenario, setting, strategy, units)


def scenario_runs(scenario: Scenario, setting: Setting) -> Iterator[Run]:
    """Both alone, by either driver, and together in every way."""
    yield gemm_alone(scenario, setting)
    yield collective_alone(scenario, setting)
    yield collective_alone(scenario, setting, "dma")
    yield from search(scenario, setting)


def sharing(scenario: Scenario, setting: Setting, runs: Runs, saturation: Mapping[str, int]) -> Sharing:
    """What every strategy, its units as published, makes of a scenario."""
    return Sharing(
        runs[gemm_alone(scenario, setting)],
        runs[collective_alone(scenario, setting)],
        {name: runs[as_published(scenario, setting, name, saturation)] for name in STRATEGIES},
    )
