"""Make advice: simulate both alone, the best ways to share, and the uncertainties; look everything else up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from weft.core.errors import check_type
from weft.core.options import RunOptions
from weft.core.store import Store
from weft.estimate.errors import collective_error, contention_error, gemm_error
from weft.graph import Collective, Gemm, LibraryCollective
from weft.hardware import Described
from weft.overlaps.lower.collectives import collective_kernel
from weft.overlaps.lower.fit import check_tile, tiling_for
from weft.plan.tune.advice import ALIKE, Advice, Doubt, LibraryAlgorithm, SharingOption
from weft.plan.tune.heuristics import Forecast, LookedUpPair, case_of, choose, forecasts, plainest
from weft.plan.tune.perturb import COPIES, moves, perturb, sharing_values
from weft.plan.tune.probes import tables_of
from weft.plan.tune.tables import SlowdownTables
from weft.simulate import alone
from weft.simulate.result import CoRun, Timeline
from weft.sweep.simulations import Alone, Bench, Jobs, Runs, Simulation, by_dma
from weft.sweep.tasks import Progress

_CONFIRMED = 3
"""Number of best forecasts to simulate, besides the best of each strategy."""
_AS_FAST = 1.05
"""DMA engines count as equally fast as compute units up to this ratio of times."""
_GRID = 8
"""Sizes per doubling in the search for a crossover."""


def advise(
    gemm: Gemm,
    collective: Collective,
    system: Described,
    options: RunOptions | None = None,
    *,
    channels: int | None = None,
    spread: bool = True,
    jobs: int = 1,
    progress: Progress | None = None,
    store: Store | None = None,
) -> Advice:
    """Return how `gemm` and `collective` should share each GPU of a system, or of as many GPUs as the collective has
    ranks.

    The collective has `channels` wherever compute units drive it (None: the library's own number, and on compute units
    reserved for it one for each). The machine's slowdown tables are made first, unless `store` holds their runs. The
    tables' best choices are then simulated, and the best of them again with each assumed value of the machine at both
    ends of its range (`spread`). With `channels`, which the tables do not know, every way on compute units is
    simulated. Raises UnknownNameError for an unknown GPU, InputError for a collective, dtype or number of channels that
    the library or the GPU lacks.
    """
    check_type("the GEMM", gemm, Gemm, "give weft.gemm(8192, 8192, 8192)")
    check_type("the collective", collective, Collective, 'give weft.all_gather("896 MiB", ranks=8)')
    bench = Bench.of(system, collective.ranks, options)
    # Fail early, before the minute of work for the tables.
    check_tile(gemm, tiling_for(gemm, bench.gpu, bench.options), bench.gpu)
    bench.collective(collective)
    collective_kernel(alone(collective, kernel=LibraryCollective(channels=channels)).nodes[0], bench.system)
    own = Jobs(jobs, store, progress)
    tables = tables_of(bench, (collective.name,), own)
    return _Advisor(gemm, collective, tables, bench, own, channels).advice(spread)


@dataclass(frozen=True)
class _Advisor:
    """Runs the simulations behind one piece of advice."""

    gemm: Gemm
    collective: Collective
    tables: SlowdownTables
    bench: Bench
    jobs: Jobs
    channels: int | None = None

    def advice(self, spread: bool) -> Advice:
        """Simulate both alone, the best ways to share, and the uncertainties."""
        runs = self.jobs.run(self._alone)
        gemm, moved = (runs[task] for task in self._alone)
        own = Alone(gemm.makespan, moved.makespan)
        case = case_of(self.gemm, self.collective, self.tables, *own)
        options = self._options(case)
        streams = next(one.run for one in options if one.strategy == "streams" and one.run)
        advice = Advice(
            gemm=self.gemm,
            collective=self.collective,
            tables=self.tables,
            alone=own,
            choice=choose(self.gemm, self.collective, self.tables, *own),
            options=options,
            doubts=(),
            crossover=crossover(self.tables, self.collective.name),
            pays=_pays_from(self.gemm, self.tables, self.collective),
            library=_library_choice(CoRun(streams, gemm, moved, moved)),
            channels=self.channels,
        )
        doubts = [*self._model_doubts(case, advice), *_library_doubt(advice)]
        doubts += self._assumed_doubts(advice) if spread else []
        return replace(advice, masked=self._best_mask(advice, gemm, moved), doubts=tuple(doubts))

    @cached_property
    def _alone(self) -> tuple[Simulation, Simulation]:
        return self.bench.gemm(self.gemm), self.bench.collective(self.collective)

    def _together(self, strategy: str, units: int | None) -> Simulation:
        given = {} if self.channels is None or by_dma(strategy) else {"channels": self.channels}
        return self.bench.together(self.gemm, self.collective, strategy, units, **given)

    def _options(self, case: LookedUpPair) -> tuple[SharingOption, ...]:
        """Every way to share; the best few, the best of each strategy, and all that the tables lack are simulated."""
        every = tuple(forecasts(case))
        ranked = sorted(every, key=lambda one: one.makespan_s)
        best: dict[str, Forecast] = {}
        for one in ranked:
            best.setdefault(one.strategy, one)
        unknown = () if self.channels is None else (one for one in every if not by_dma(one.strategy))
        confirmed = [*ranked[:_CONFIRMED], *best.values(), plainest(every), *unknown]
        tasks = {one: self._together(one.strategy, one.units) for one in confirmed}
        runs = self.jobs.run(tasks.values())
        return tuple(SharingOption(*one, runs[tasks[one]] if one in tasks else None) for one in every)

    def _best_mask(self, advice: Advice, gemm: Timeline, moved: Timeline) -> CoRun | None:
        """The best partition with a mask alone, the library keeping its channels, if that takes longer than with fewer;
        with a number of channels asked for, the best partition if its mask does not hold them at once.
        """
        fewer = next((one for one in advice.simulated if one[:2] == ("partition", advice.most_apart)), None)
        if fewer is None:
            return None
        if self.channels is not None and fewer.run:
            asked = CoRun(fewer.run, gemm, moved, moved)
            return asked if asked.rounds > 1 else None
        task = self.bench.together(self.gemm, self.collective, "partition", fewer.units, channels=None)
        both = CoRun(self.jobs.run([task])[task], gemm, moved, moved)
        return both if both.rounds > 1 and both.makespan > (1 + ALIKE) * fewer.makespan_s else None

    def _model_doubts(self, case: LookedUpPair, advice: Advice) -> list[Doubt]:
        """Return the range of the speedup from the 80 % intervals of the models."""
        gpu, best = self.tables.gpu, advice.best
        of_gemm = gemm_error(gpu.name, advice.alone.gemm_s)
        moved = collective_error(gpu.name, self.collective.name, self.collective.bytes)
        factors = {
            of_gemm.why: [(end, 1.0) for end in (of_gemm.low, of_gemm.high)],
            moved.why: [(1.0, end) for end in (moved.low, moved.high)],
        }
        doubts = [
            _doubt(why, [self._speedup_if(case, best, *pair) for pair in pairs]) for why, pairs in factors.items()
        ]
        shared = contention_error(gpu, best.strategy)
        both = Doubt(shared.why, advice.speedup * shared.low, advice.speedup * shared.high)
        return [*doubts, both]

    def _speedup_if(self, case: LookedUpPair, best: SharingOption, gemm: float, collective: float) -> float:
        """The best option's speedup if the isolated times were others, by the change that the tables forecast."""
        other = case.off(gemm, collective)
        makespan = next(one.makespan_s for one in forecasts(other) if one[:2] == best[:2])
        return (other.gemm_s + other.collective_s) / (makespan * best.makespan_s / best.forecast_s)

    def _assumed_doubts(self, advice: Advice) -> Iterator[Doubt]:
        """Return the range of the speedup from each assumed value at both ends of its range, simulated."""
        both = self._together(advice.best.strategy, advice.best.units)

        def speedup(runs: Runs) -> dict[str, float]:
            return {"speedup": sum(runs[task].makespan for task in self._alone) / runs[both].makespan}

        copied = by_dma(advice.best.strategy)
        values = sharing_values(self.bench.system, self.gemm.dtype)
        moved = list(moves(self.bench.system, (v for v in values if copied or v.parts != COPIES)))
        ends: dict[str, list[float]] = {}
        for row in perturb((*self._alone, both), moved, speedup, self.jobs)[1:]:
            ends.setdefault(row.what, []).append(row.figures["speedup"])
        copies = {move.what for move in moved if move.parts == COPIES}
        for what, speedups in ends.items():
            if any(one != advice.speedup for one in speedups):
                yield _doubt(f"{what}, uncertain", speedups)._replace(copies=what in copies)


def _library_choice(both: CoRun) -> LibraryAlgorithm | None:
    """Return the library's algorithm for the collective of a run on compute units, if it is not the simulated one."""
    chosen, kernel = both.choice, collective_kernel(both.run.graph.collectives[0], both.run.system)
    if chosen is None or chosen.algorithm not in _INSTEAD or kernel.algorithm != "ring":
        return None
    return LibraryAlgorithm(_INSTEAD[chosen.algorithm], chosen.seconds)


_INSTEAD = {"tree": "a tree", "nvls": "the switch's reduction (NVLS)", "direct": "one step to all peers"}
"""Algorithms that a library uses instead of a ring, in words."""


def _library_doubt(advice: Advice) -> Iterator[Doubt]:
    """Yield the speedup over serial execution with the library's own algorithm, if it is not the simulated ring."""
    if advice.library is not None:
        serial = advice.alone.gemm_s + advice.library.seconds
        other = serial / advice.best.makespan_s
        yield _doubt(f"alone the library takes {advice.library.name}", (advice.speedup, other))


def crossover(tables: SlowdownTables, collective: str) -> int | None:
    """Size from which DMA engines alone are as fast as the library's kernel alone [bytes]; None if there is none."""
    table = tables.collective(collective)
    if not table.dma:
        return None
    return _from(
        table.bytes,
        lambda size: table.seconds(table.dma, size) <= _AS_FAST * table.seconds(table.library, size),
    )


def _pays_from(gemm: Gemm, tables: SlowdownTables, collective: Collective) -> int | None:
    """Return the size [bytes] from which a DMA strategy is forecast to be best in a co-run; None if there is none."""

    def pays(size: int) -> bool:
        return by_dma(choose(gemm, replace(collective, bytes=size), tables).strategy)

    table = tables.collective(collective.name)
    return _from(table.bytes, pays) if table.dma else None


def _from(sizes: Sequence[int], holds: Callable[[int], bool]) -> int | None:
    """Return the least size of a grid from which on a condition holds for every larger size."""
    found = None
    size = float(sizes[-1])
    while size >= sizes[0] and holds(round(size)):
        found = round(size)
        size /= 2 ** (1 / _GRID)
    return found


def _doubt(why: str, speedups: Sequence[float]) -> Doubt:
    return Doubt(why, min(speedups), max(speedups))
