"""Makes the slowdown tables of a machine from a few hundred short simulations, each made once and kept on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from statistics import fmean

from weft.collectives.fabric import fabric_of
from weft.errors import InputError, UnknownNameError
from weft.hardware import Gpu, find_gpu
from weft.overlap.library_ring import PUSHES
from weft.result.stream_run import StreamRun
from weft.sweep import Progress, Store, results
from weft.sweep.streams import CollectiveAlone, GemmAlone, Setting, Together
from weft.tuning.heuristics import case_of, forecasts
from weft.tuning.profile import profile_of
from weft.tuning.tables import (
    GIVEN,
    LOOKED_UP,
    CollectiveTable,
    Curve,
    GemmTable,
    Interference,
    SlowdownTables,
)
from weft.workload import Gemm

MIB = 1 << 20
SIZES = tuple(size * MIB for size in (1, 4, 16, 64, 256, 1024))
"""Sizes at which collectives are simulated [bytes]: straight lines join them."""
COLLECTIVES: tuple[str, ...] = ("all_gather", "all_to_all", "reduce_scatter", "all_reduce")
ROWS = (64, 256, 512, 1024, 8192)
"""Rows of the GEMMs that are simulated: from bound by memory to bound by compute. N and K are `WIDE`."""
WIDE = 8192
CHECKS = ((384, 14336, 8192), (4096, 10240, 8192))
"""GEMMs in no table, with which the answers are checked."""
Probe = GemmAlone | CollectiveAlone | Together
Runs = Mapping[Probe, StreamRun]


def tables_for(
    machine: Gpu | str,
    *,
    ranks: int = 8,
    collectives: Sequence[str] = COLLECTIVES,
    clock: str = "sustained",
    request_bytes: int | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
    store: Store | None = None,
) -> SlowdownTables:
    """The slowdown tables of `ranks` equal GPUs for some collectives, simulated on `jobs` processes.

    Requests are as large as suits the GPU unless `request_bytes` says. What `store` holds is not run again.

    Raises InputError for a machine that no collective library is known for, UnknownNameError for an unknown GPU or
    collective, and what the simulations raise.
    """
    for name in collectives:
        if name not in COLLECTIVES:
            raise UnknownNameError("collective", name, COLLECTIVES)
    gpu = find_gpu(machine) if isinstance(machine, str) else machine
    if fabric_of(gpu).vendor == "none":
        raise InputError(
            f"no collective library is known for {gpu.name}, so nothing can be said of what it shares; "
            "choose a real GPU (weft hardware list)"
        )
    setting = Setting(gpu, ranks, clock, request_bytes)
    return _Probes(setting, tuple(collectives), jobs, progress, store).tables()


def splits_of(gpu: Gpu) -> tuple[int, ...]:
    """Compute units worth setting apart: doubling from one per XCD, or four, to less than half of the GPU."""
    first = max(4, gpu.dies)
    most = 0.45 * gpu.compute.compute_units
    return tuple(first << power for power in range(5) if first << power <= most)


class _Probes:
    """The simulations behind the tables of one machine."""

    def __init__(
        self,
        setting: Setting,
        names: tuple[str, ...],
        jobs: int,
        progress: Progress | None,
        store: Store | None,
    ) -> None:
        self.names = names
        self.setting, self.jobs, self.progress, self.store = setting, jobs, progress, store
        self.gpu = setting.gpu
        self.splits = splits_of(self.gpu)
        self.dtype = "bf16" if self.gpu.supports("bf16") else "fp16"
        self.probes = [Gemm(rows, WIDE, WIDE, self.dtype) for rows in ROWS]
        self.checks = [Gemm(*shape, self.dtype) for shape in CHECKS]

    def tables(self) -> SlowdownTables:
        """Everything alone first, then pairs whose sizes were chosen to last about as long as each other."""
        alone = self._run(self._alone())
        collectives = {name: self._collective(name, alone) for name in self.names}
        gemm = self._gemm(alone)
        bare = SlowdownTables(self.gpu, self.setting.ranks, self.setting.clock, gemm, collectives, {})
        checks = [check for pair in self._checks(bare) for check in (pair, *self._both_alone(pair))]
        pairs = self._run([*self._pairs(bare), *checks])
        interference = {
            (name, units): self._interference(name, units, bare, alone, pairs)
            for name, units in self._movers()
        }
        tables = replace(bare, interference=interference)
        return replace(tables, errors=self._errors(tables, pairs))

    def _run(self, tasks: Sequence[Probe]) -> Runs:
        return results(tasks, StreamRun.from_record, self.jobs, self.progress, self.store)

    def _alone(self) -> list[Probe]:
        tasks: list[Probe] = [
            self._moved(name, size, units)
            for name in self.names
            for size in SIZES
            for units in (None, 0, *self.splits)
            if units != 0 or name in PUSHES
        ]
        return tasks + [self._gemm_alone(gemm, units) for gemm in self.probes for units in (0, *self.splits)]

    def _gemm_alone(self, gemm: Gemm, taken: int) -> GemmAlone:
        return GemmAlone(gemm, self.setting, self.gpu.compute.compute_units - taken if taken else None)

    def _collective(self, name: str, alone: Runs) -> CollectiveTable:
        def column(units: int | None) -> tuple[float, ...]:
            return tuple(alone[self._moved(name, size, units)].makespan_s for size in SIZES)

        return CollectiveTable(
            SIZES,
            alone[self._moved(name, SIZES[-1], None)].units["collective"],
            column(None),
            {units: column(units) for units in self.splits},
            column(0) if name in PUSHES else (),
        )

    def _gemm(self, alone: Runs) -> GemmTable:
        """What the simulation adds to the closed form: more in one wave, whose tiles ask memory all at once."""
        one: list[tuple[float, float]] = []
        more: list[tuple[float, float]] = []
        for gemm in self.probes:
            plain = profile_of(gemm, self.gpu, self.splits, self.setting.clock)
            for units, seconds in plain.seconds.items():
                ratio = alone[self._gemm_alone(gemm, units)].makespan_s / seconds
                (one if plain.waves(units) == 1 else more).append((plain.boundness[units], ratio))
        return GemmTable(_curve(one or more), _curve(more or one))

    def _movers(self) -> list[tuple[str, int]]:
        """Every collective with everything that may drive it: so many compute units, or 0 for DMA engines."""
        every = [(name, units) for name in self.names for units in (0, *self.splits)]
        return [(name, units) for name, units in every if units or name in PUSHES]

    def _pairs(self, tables: SlowdownTables) -> list[Together]:
        """The pairs of the interference tables."""
        return [self._pair(gemm, *mover, tables) for gemm in self.probes for mover in self._movers()]

    def _pair(self, gemm: Gemm, name: str, units: int, tables: SlowdownTables) -> Together:
        """A GEMM beside a collective of the size that lasts about as long."""
        table = tables.collective(name)
        column = table.units[units] if units else table.dma
        lasts = tables.profile(gemm).seconds[units]
        size = min(SIZES, key=lambda size: abs(log(table.seconds(column, size) / lasts)))
        strategy = "partition" if units else "dma"
        return Together(gemm, name, size, self.setting, strategy, units or None)

    def _interference(
        self, name: str, units: int, tables: SlowdownTables, alone: Runs, pairs: Runs
    ) -> Interference:
        rows = []
        for gemm in self.probes:
            pair = self._pair(gemm, name, units, tables)
            moved_s = alone[self._moved(name, pair.bytes_, units)].makespan_s
            gemm_s = alone[self._gemm_alone(gemm, units)].makespan_s
            slowed = slowdowns(pairs[pair], gemm_s, moved_s)
            rows.append((tables.profile(gemm).boundness[0], *slowed, pair.bytes_ / moved_s))
        rows.sort()
        boundness, of_gemm, of_collective, rates = zip(*rows, strict=True)
        rate = max(rates)
        return Interference(
            boundness, _at_rate(of_gemm, rates, rate), _at_rate(of_collective, rates, rate), rate
        )

    def _moved(self, name: str, size: int, units: int | None) -> CollectiveAlone:
        """A collective alone: by so many units, by DMA engines (0), or as the library does it (None)."""
        driver = "dma" if units == 0 else "cu"
        return CollectiveAlone(name, size, self.setting, driver=driver, units=units or None, dtype=self.dtype)

    def _checks(self, tables: SlowdownTables) -> list[Together]:
        """Pairs that no table has seen, under every strategy."""
        middle = self.splits[len(self.splits) // 2]
        return [
            Together(gemm, name, size, self.setting, one.strategy, one.units)
            for gemm in self.checks
            for name in self.names
            for size in [self._pair(gemm, name, middle, tables).bytes_ * 3 // 4]
            for one in forecasts(case_of(gemm, name, size, tables))
            if one.units in (None, middle)
        ]

    def _both_alone(self, pair: Together) -> tuple[GemmAlone, CollectiveAlone]:
        return GemmAlone(pair.gemm, self.setting), self._moved(pair.collective, pair.bytes_, None)

    def _errors(self, tables: SlowdownTables, runs: Runs) -> dict[str, tuple[float, ...]]:
        """Predicted over simulated makespans less one, with the times alone given and looked up."""
        found: dict[str, list[float]] = {GIVEN: [], LOOKED_UP: []}
        for pair in self._checks(tables):
            gemm, moved = (runs[task].makespan_s for task in self._both_alone(pair))
            times = {GIVEN: {"gemm_s": gemm, "collective_s": moved}, LOOKED_UP: {}}
            for how, given in times.items():
                case = case_of(pair.gemm, pair.collective, pair.bytes_, tables, **given)
                asked = (pair.strategy, pair.units)
                predicted = next(one for one in forecasts(case) if (one.strategy, one.units) == asked)
                found[how].append(predicted.makespan_s / runs[pair].makespan_s - 1)
        return {how: tuple(errors) for how, errors in found.items()}


def slowdowns(beside: StreamRun, gemm_s: float, collective_s: float) -> tuple[float, float]:
    """How many times longer the GEMM and the collective took while both ran, from when each ended and takes alone.

    What was left of the one that ended last ran at its pace alone.
    """
    gemm_end, moved_end = beside.gemm_s or 0.0, beside.collective_s or 0.0
    if moved_end <= gemm_end:
        return _while_both(moved_end, gemm_end, gemm_s), moved_end / collective_s
    return gemm_end / gemm_s, _while_both(gemm_end, moved_end, collective_s)


def _while_both(until: float, end: float, alone: float) -> float:
    done = 1 - (end - until) / alone
    return until / alone / done if done > 0 else 1.0


def _at_rate(slowed: Sequence[float], rates: Sequence[float], rate: float) -> tuple[float, ...]:
    """Slowdowns as they would be beside a collective that moves `rate`."""
    return tuple(1 + (factor - 1) * rate / own for factor, own in zip(slowed, rates, strict=True))


def _curve(points: Sequence[tuple[float, float]]) -> Curve:
    """The means of points that lie together, in rising order."""
    groups: dict[float, list[float]] = {}
    for place, value in sorted(points):
        groups.setdefault(round(place, 2), []).append(value)
    return Curve(tuple(groups), tuple(fmean(values) for values in groups.values()))
