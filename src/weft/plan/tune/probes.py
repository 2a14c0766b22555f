"""Make a machine's slowdown tables from a few hundred short simulations, each cached on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import log
from statistics import fmean
from typing import NamedTuple

from weft.core.errors import InputError, check_name
from weft.core.options import RunOptions
from weft.core.store import Store
from weft.graph import Collective, Gemm
from weft.hardware import Described, Gpu
from weft.overlaps.lower.collectives import BY_UNITS, PUSHES
from weft.plan.tune.heuristics import case_of, forecasts
from weft.plan.tune.tables import (
    GIVEN,
    LOOKED_UP,
    CollectiveTable,
    Curve,
    GemmTable,
    MutualSlowdowns,
    SlowdownTables,
    profile_of,
)
from weft.sweep.simulations import Bench, Jobs, Runs, Simulation
from weft.sweep.tasks import Progress

MIB = 1 << 20
SIZES = tuple(size * MIB for size in (1, 4, 16, 64, 256, 1024))
"""Sizes at which collectives are simulated [bytes]; between them times are interpolated."""
COLLECTIVES: tuple[str, ...] = ("all_gather", "all_to_all", "reduce_scatter", "all_reduce")
ROWS = (64, 256, 512, 1024, 8192)
"""M of the simulated GEMMs: from memory-bound to compute-bound. N and K are `WIDE`."""
WIDE = 8192
CHECKS = ((384, 14336, 8192), (4096, 10240, 8192))
"""GEMMs outside the tables, with which the tables' answers are checked."""


def tables_for(
    system: Described,
    collectives: Sequence[str] = COLLECTIVES,
    options: RunOptions | None = None,
    *,
    ranks: int = 8,
    jobs: int = 1,
    progress: Progress | None = None,
    store: Store | None = None,
) -> SlowdownTables:
    """Return the slowdown tables of a system, or of `ranks` GPUs, for some collectives, simulated on `jobs` processes.

    Runs in `store` are not repeated. Raises InputError for a machine without a known collective library,
    UnknownNameError for an unknown GPU or collective, and what the simulations raise.
    """
    return tables_of(Bench.of(system, ranks, options), collectives, Jobs(jobs, store, progress))


def tables_of(bench: Bench, collectives: Sequence[str], jobs: Jobs) -> SlowdownTables:
    """Return the slowdown tables of the system of a bench; otherwise as `tables_for`."""
    for name in collectives:
        check_name("collective", name, BY_UNITS)
    if bench.gpu.vendor == "none":
        raise InputError(
            f"no collective library is known for {bench.gpu.name}, so no co-run on it can be predicted; "
            "choose a real GPU (weft hardware list)"
        )
    return _Probes(bench, tuple(collectives), jobs).tables()


def splits_of(gpu: Gpu) -> tuple[int, ...]:
    """Numbers of compute units to reserved: doubling from one per XCD, or four, to less than half of the GPU."""
    first = max(4, gpu.dies)
    most = 0.45 * gpu.compute.compute_units
    return tuple(first << power for power in range(5) if first << power <= most)


class _Check(NamedTuple):
    """A pair that no table contains, under one way to share, to measure the tables' error."""

    gemm: Gemm
    collective: Collective
    strategy: str
    units: int | None


class _Probes:
    """The simulations behind the tables of one machine."""

    def __init__(self, bench: Bench, names: tuple[str, ...], jobs: Jobs) -> None:
        self.bench, self.names, self.jobs = bench, names, jobs
        self.splits = splits_of(bench.gpu)
        self.dtype = "bf16" if bench.gpu.supports("bf16") else "fp16"
        self.probes = [Gemm(rows, WIDE, WIDE, self.dtype) for rows in ROWS]
        # Every collective with each driver: its compute units, or 0 for DMA engines.
        drivers = ((name, units) for name in names for units in (0, *self.splits))
        self.movers = [(name, units) for name, units in drivers if units or name in PUSHES]

    def tables(self) -> SlowdownTables:
        """Simulate everything alone first, then pairs whose sizes make both last about equally long."""
        alone = self.jobs.run(self._alone())
        collectives = {name: self._collective(name, alone) for name in self.names}
        gpus, clock = self.bench.system.gpus, self.bench.options.clock
        bare = SlowdownTables(self.bench.gpu, gpus, clock, self._gemm(alone), collectives, {})
        pairs = {mover: [(gemm, *self._pair(gemm, *mover, bare)) for gemm in self.probes] for mover in self.movers}
        checks = {check: self._check_tasks(check) for check in self._checks(bare)}
        runs = self.jobs.run([*(pair for each in pairs.values() for *_, pair in each), *chain(*checks.values())])
        interference: dict[str, dict[int, MutualSlowdowns]] = {}
        for (name, units), each in pairs.items():
            rows = []
            for gemm, size, pair in each:
                moved_s = alone[self._time_collective(name, size, units)].makespan
                gemm_s = alone[self.bench.gemm(gemm, units)].makespan
                profile = bare.profile(gemm)
                of_gemm, moved = slowdowns(runs[pair].end("gemm"), runs[pair].end(name), gemm_s, moved_s)
                lost = profile.beside[units] if units else 1.0
                # A clock that memory hides does not make a GEMM faster beside a collective than alone.
                rows.append((profile.boundness[0], max(of_gemm / lost, min(of_gemm, 1.0)), moved, size / moved_s))
            interference.setdefault(name, {})[units] = _interference(rows)
        tables = replace(bare, interference=interference)
        return replace(tables, errors=_errors(tables, checks, runs))

    def _alone(self) -> Iterator[Simulation]:
        for name, units in [*((name, None) for name in self.names), *self.movers]:
            yield from (self._time_collective(name, size, units) for size in SIZES)
        for gemm in self.probes:
            yield from (self.bench.gemm(gemm, taken) for taken in (0, *self.splits))

    def _collective(self, name: str, alone: Runs) -> CollectiveTable:
        def column(units: int | None) -> tuple[float, ...]:
            return tuple(alone[self._time_collective(name, size, units)].makespan for size in SIZES)

        return CollectiveTable(
            SIZES,
            alone[self._time_collective(name, SIZES[-1], None)].held[name],
            column(None),
            {units: column(units) for units in self.splits},
            column(0) if name in PUSHES else (),
        )

    def _gemm(self, alone: Runs) -> GemmTable:
        """Ratios of simulated to closed-form GEMM time: higher for one wave, whose tiles all request memory at once."""
        one: list[tuple[float, float]] = []
        more: list[tuple[float, float]] = []
        for gemm in self.probes:
            plain = profile_of(gemm, self.bench.gpu, self.splits, self.bench.options)
            for units, seconds in plain.seconds.items():
                ratio = alone[self.bench.gemm(gemm, units)].makespan / seconds
                (one if plain.waves(units) == 1 else more).append((plain.boundness[units], ratio))
        return GemmTable(_curve(one or more), _curve(more or one))

    def _pair(self, gemm: Gemm, name: str, units: int, tables: SlowdownTables) -> tuple[int, Simulation]:
        """Return a GEMM concurrent with a collective of about the same duration: its size [bytes], and the task."""
        table = tables.collective(name)
        column = table.units[units] if units else table.dma
        lasts = tables.profile(gemm).seconds[units]
        size = min(SIZES, key=lambda size: abs(log(table.seconds(column, size) / lasts)))
        moved = self._of(name, size)
        return size, self.bench.together(gemm, moved, "partition" if units else "dma", units or None)

    def _of(self, name: str, size: int) -> Collective:
        return Collective(name, size, self.bench.system.gpus, self.dtype)

    def _time_collective(self, name: str, size: int, units: int | None) -> Simulation:
        """Return a collective alone: on `units` compute units, by DMA engines (0), or as the library runs it (None)."""
        return self.bench.collective(self._of(name, size), units)

    def _checks(self, tables: SlowdownTables) -> Iterator[_Check]:
        """Pairs that no table contains, under every strategy."""
        middle = self.splits[len(self.splits) // 2]
        for gemm in (Gemm(*shape, self.dtype) for shape in CHECKS):
            for name in self.names:
                moved = self._of(name, self._pair(gemm, name, middle, tables)[0] * 3 // 4)
                for one in forecasts(case_of(gemm, moved, tables)):
                    if one.units in (None, middle):
                        yield _Check(gemm, moved, one.strategy, one.units)

    def _check_tasks(self, check: _Check) -> tuple[Simulation, ...]:
        """Tasks of a check: the co-run under the strategy, and each alone."""
        return self.bench.together(*check), self.bench.gemm(check.gemm), self.bench.collective(check.collective)


def _interference(rows: Iterable[tuple[float, float, float, float]]) -> MutualSlowdowns:
    """The interference of a collective, from rows of boundness, both slowdowns, and the collective's rate [bytes/s]."""
    boundness, of_gemm, of_collective, rates = zip(*sorted(rows), strict=True)
    rate = max(rates)
    return MutualSlowdowns(boundness, _at_rate(of_gemm, rates, rate), _at_rate(of_collective, rates, rate), rate)


def _at_rate(slowed: Sequence[float], rates: Sequence[float], rate: float) -> tuple[float, ...]:
    """Rescale slowdowns to those beside a collective that moves `rate` [bytes/s]."""
    return tuple(1 + (factor - 1) * rate / own for factor, own in zip(slowed, rates, strict=True))


def _errors(
    tables: SlowdownTables, checks: Mapping[_Check, Iterable[Simulation]], runs: Runs
) -> dict[str, tuple[float, ...]]:
    """Predicted over simulated makespans, minus one, with isolated times given and looked up."""
    found: dict[str, list[float]] = {GIVEN: [], LOOKED_UP: []}
    for (gemm, moved, *way), tasks in checks.items():
        both, *alone = (runs[task].makespan for task in tasks)
        for how, given in ((GIVEN, alone), (LOOKED_UP, ())):
            ways = forecasts(case_of(gemm, moved, tables, *given))
            found[how].append(next(one.makespan_s for one in ways if [*one[:2]] == way) / both - 1)
    return {how: tuple(errors) for how, errors in found.items()}


def slowdowns(gemm_end: float, moved_end: float, gemm_s: float, collective_s: float) -> tuple[float, float]:
    """Slowdowns of GEMM and collective while both ran, from their ends and their isolated times.

    After the first end, the rest of the other is assumed to run at its isolated pace.
    """
    if moved_end <= gemm_end:
        return _while_both(moved_end, gemm_end, gemm_s), moved_end / collective_s
    return gemm_end / gemm_s, _while_both(gemm_end, moved_end, collective_s)


def _while_both(until: float, end: float, alone: float) -> float:
    done = 1 - (end - until) / alone
    return until / alone / done if done > 0 else 1.0


def _curve(points: Sequence[tuple[float, float]]) -> Curve:
    """Return a curve through the means of neighbouring points, in ascending order."""
    groups: dict[float, list[float]] = {}
    for place, value in sorted(points):
        groups.setdefault(round(place, 2), []).append(value)
    return Curve(tuple(groups), tuple(fmean(values) for values in groups.values()))
