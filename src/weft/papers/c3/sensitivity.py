"""Sensitivity of the shares of the ideal to assumed values at either end of their ranges.

Part of the suite represents it: of each class a compute-bound and a memory-bound GEMM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

from weft.hardware import System
from weft.overlaps import STRATEGIES, CoRunStrategy
from weft.papers.c3.runs import ScenarioRuns
from weft.papers.c3.scenarios import DECLARED, DTYPE, Scenario, ScenarioSuite
from weft.papers.headline import Conditions
from weft.plan.tune.perturb import UNITS, Sensitivity, ValueMove, moves, option_move, perturb, sharing_values
from weft.sweep.simulations import Alone, Runs, Simulation

_SATURATION = {
    name: int(published)
    for name in ("all_gather", "all_to_all")
    if isinstance(published := DECLARED.claims[f"c3.saturation.{name}"].published, float)
}
"""Published compute units that saturate a collective."""


def move_assumptions(at: Conditions, suite: ScenarioSuite, ranks: int) -> Sensitivity:
    """Move the machine's assumed values, the clock and the collective's units; raises what the simulations raise."""
    bench = at.bench(ranks)
    chosen = [ScenarioRuns(one, bench) for one in representatives(suite.scenarios)]
    tasks = (task for one in chosen for task in _tasks(one).values())
    rows = perturb(tasks, _moves(bench.system), partial(_shares, chosen), at.jobs)
    return Sensitivity("c3", [one.scenario.title for one in chosen], rows, dict.fromkeys(STRATEGIES, ".0%"))


def representatives(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """For each class and bound of the GEMM, the scenario with the least bytes and operations."""
    least: dict[tuple[str | None, str | None], Scenario] = {}
    for scenario in sorted(scenarios, key=lambda s: (s.size, s.product.flops)):
        least.setdefault((scenario.kind, scenario.bound), scenario)
    return list(least.values())


def _moves(system: System) -> Iterator[ValueMove]:
    yield from moves(system, sharing_values(system, DTYPE), measured=True)
    yield option_move("the clock", clock="short")
    for setting, times in (("half", 0.5), ("twice", 2.0)):
        yield ValueMove("units set apart for the collective", setting, parts=UNITS, change=partial(_apart, times))


def _apart(times: float, task: Simulation) -> Simulation:
    """Return the task with the collective's compute units multiplied by `times`, and as many channels."""
    overlap = task.overlap
    if not isinstance(overlap, CoRunStrategy) or overlap.units is None:
        return task
    units = int(overlap.units * times)
    return replace(task, overlap=replace(overlap, units=units, channels=overlap.channels and units))


def _tasks(one: ScenarioRuns) -> Mapping[str, Simulation]:
    """Return the GEMM alone, the collective alone, and both under every strategy, with the published split of units."""
    both = {strategy: one.as_published(strategy, _SATURATION) for strategy in STRATEGIES}
    return {"gemm": one.gemm, "collective": one.collective(), **both}


def _shares(scenarios: Sequence[ScenarioRuns], runs: Runs) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for one in scenarios:
        seconds = {name: runs[task].makespan for name, task in _tasks(one).items()}
        alone = Alone(seconds.pop("gemm"), seconds.pop("collective"))
        for strategy, makespan in seconds.items():
            found.setdefault(strategy, []).append(alone.share(makespan))
    return {strategy: fmean(shares) for strategy, shares in found.items()}
