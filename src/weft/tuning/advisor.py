"""Makes advice: both alone, the best ways to share, and the doubts, each simulated; everything else is looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from weft.collectives.fabric import fabric_of
from weft.collectives.library import Algorithm
from weft.collectives.library import choose as library
from weft.hardware import Gpu, find_gpu
from weft.kernels.channels import ChannelRing
from weft.overlap.strategies import STRATEGIES
from weft.overlap.tile import tiling_for
from weft.predict import collective as closed_form
from weft.result.sharing import Sharing
from weft.result.stream_run import StreamRun
from weft.simulation.runner import collective_on, one_node
from weft.sweep import Progress, Store, results
from weft.sweep.streams import CollectiveAlone, GemmAlone, Setting, Together
from weft.tuning.advice import Advice, Doubt, LibraryChoice, Option, makespan_of
from weft.tuning.assumptions import COPIES, moved_settings
from weft.tuning.heuristics import Case, Forecast, case_of, choose, forecasts, plainest
from weft.tuning.model_errors import collective_error, contention_error, gemm_error
from weft.tuning.probes import Probe, tables_for
from weft.tuning.tables import SlowdownTables
from weft.workload import Gemm

CONFIRMED = 3
"""So many of the best forecasts are simulated, whatever their strategy; and the best of each strategy."""
AS_FAST = 1.05
"""DMA engines are as fast as compute units if they take at most so many times as long."""
GRID = 8
"""Sizes per doubling at which a crossover is looked for."""


def advise(
    gemm: Gemm,
    collective: str,
    bytes_: int,
    machine: Gpu | str,
    *,
    ranks: int = 8,
    clock: str = "sustained",
    request_bytes: int | None = None,
    spread: bool = True,
    jobs: int = 1,
    progress: Progress | None = None,
    store: Store | None = None,
) -> Advice:
    """How `gemm` and a collective of `bytes_` (the whole buffer) should share each of `ranks` equal GPUs.

    The machine's slowdown tables are made first, unless `store` holds their runs. The tables' best choices are then
    simulated, and the best of them again with each assumed value of the machine at both ends of its range (`spread`).
    Raises UnknownNameError for an unknown GPU or collective, InputError for what no library or matrix unit can do.
    """
    gpu = find_gpu(machine) if isinstance(machine, str) else machine
    # What cannot be run is refused before the tables' minute of work.
    tiling_for(gemm, gpu, clock)
    one_node(gpu, ranks)
    collective_on(gpu, collective, bytes_, ranks, gemm.dtype, "cu")
    tables = tables_for(
        gpu,
        ranks=ranks,
        collectives=(collective,),
        clock=clock,
        request_bytes=request_bytes,
        jobs=jobs,
        progress=progress,
        store=store,
    )
    setting = Setting(tables.gpu, ranks, clock, request_bytes)
    return _Advisor(gemm, collective, bytes_, tables, setting, jobs, progress, store).advice(spread)


class _Advisor:
    """Simulates what one piece of advice rests on."""

    def __init__(
        self,
        gemm: Gemm,
        collective: str,
        bytes_: int,
        tables: SlowdownTables,
        setting: Setting,
        jobs: int,
        progress: Progress | None,
        store: Store | None,
    ) -> None:
        self.gemm, self.collective, self.bytes_ = gemm, collective, bytes_
        self.tables, self.setting = tables, setting
        self.jobs, self.progress, self.store = jobs, progress, store

    def advice(self, spread: bool) -> Advice:
        """Both alone, the best ways to share, and the doubts."""
        gemm, moved = self._run([self._gemm(self.setting), self._moved(self.setting)])
        given = {"gemm_s": gemm.makespan_s, "collective_s": moved.makespan_s}
        case = case_of(self.gemm, self.collective, self.bytes_, self.tables, **given)
        options = self._options(case)
        runs = {
            f"{one.strategy} {one.units or ''}".strip(): one.run for one in options if one.run is not None
        }
        advice = Advice(
            gemm=self.gemm,
            collective=self.collective,
            bytes_=self.bytes_,
            tables=self.tables,
            alone=Sharing(gemm, moved, runs),
            choice=choose(self.gemm, self.collective, self.bytes_, self.tables, **given),
            options=options,
            doubts=(),
            crossover=crossover(self.tables, self.collective),
            pays=pays_from(self.gemm, self.tables, self.collective),
            library=library_choice(
                self.tables.gpu, self.collective, self.bytes_, self.setting.ranks, self.gemm.dtype
            ),
        )
        doubts = [*self._model_doubts(case, advice), *_library_doubt(advice)]
        return replace(advice, doubts=(*doubts, *(self._assumed_doubts(advice) if spread else ())))

    def _run(self, tasks: Sequence[Probe]) -> list[StreamRun]:
        """The runs of the tasks, in their order."""
        found = results(tasks, StreamRun.from_record, self.jobs, self.progress, self.store)
        return [found[task] for task in tasks]

    def _gemm(self, setting: Setting) -> GemmAlone:
        return GemmAlone(self.gemm, setting)

    def _moved(self, setting: Setting) -> CollectiveAlone:
        return CollectiveAlone(self.collective, self.bytes_, setting, dtype=self.gemm.dtype)

    def _together(self, strategy: str, units: int | None, setting: Setting) -> Together:
        return Together(self.gemm, self.collective, self.bytes_, setting, strategy, units)

    def _options(self, case: Case) -> tuple[Option, ...]:
        """Every way to share; the best few, and the best of each strategy, simulated."""
        every = tuple(forecasts(case))
        ranked = sorted(every, key=lambda one: one.makespan_s)
        best: dict[str, Forecast] = {}
        for one in ranked:
            best.setdefault(one.strategy, one)
        confirmed = [*dict.fromkeys([*ranked[:CONFIRMED], *best.values(), plainest(every)])]
        runs = self._run([self._together(one.strategy, one.units, self.setting) for one in confirmed])
        found = dict(zip(confirmed, runs, strict=True))
        return tuple(Option(*one, found.get(one)) for one in every)

    def _model_doubts(self, case: Case, advice: Advice) -> list[Doubt]:
        """What the known errors of the models would make of the speedup."""
        gpu, best = self.tables.gpu, advice.best
        of_gemm, here_g = gemm_error(gpu.name)
        of_moved, here_c = collective_error(gpu.name, self.collective)
        factors = {
            f"GEMMs are off by {of_gemm:.1%}{_where(here_g, gpu.name)}": [
                (1 + off, 1.0) for off in (-of_gemm, of_gemm)
            ],
            f"{self.collective} is off by {of_moved:.1%}{_where(here_c, gpu.name)}": [
                (1.0, 1 + off) for off in (-of_moved, of_moved)
            ],
        }
        doubts = [
            _doubt(why, [self._speedup_if(case, best, *pair) for pair in pairs])
            for why, pairs in factors.items()
        ]
        shared = contention_error(gpu.vendor, best.strategy)
        both = Doubt(shared.why, advice.speedup * shared.low, advice.speedup * shared.high)
        return [*doubts, both]

    def _speedup_if(self, case: Case, best: Option, gemm: float, collective: float) -> float:
        """The best option's speedup if both alone took other times, as the tables forecast the change."""
        other = case.off(gemm, collective)
        makespan = next(one.makespan_s for one in forecasts(other) if one[:2] == best[:2])
        return (other.gemm_s + other.collective_s) / (makespan * makespan_of(best) / best.forecast_s)

    def _assumed_doubts(self, advice: Advice) -> Iterator[Doubt]:
        """What each assumed value would make of the speedup at both ends of its range, if anything: simulated."""
        best = advice.best
        driver = STRATEGIES[best.strategy].driver
        both = self._together(best.strategy, best.units, self.setting)
        ends: dict[tuple[str, bool], list[list[StreamRun]]] = {}
        moved = [
            m for m in moved_settings(self.setting, self.gemm.dtype) if m.moves - COPIES or driver == "dma"
        ]
        alone = self._gemm(self.setting), self._moved(self.setting)
        runs = iter(self._run([m.run(task) for m in moved for task in (*alone, both)]))
        for m in moved:
            why = f"{m.what}, uncertain" + (f" ({m.listed})" if m.paths else "")
            ends.setdefault((why, m.moves == COPIES), []).append([next(runs) for _ in range(3)])
        for (why, copies), triples in ends.items():
            speedups = [(g.makespan_s + c.makespan_s) / b.makespan_s for g, c, b in triples]
            if any(speedup != advice.speedup for speedup in speedups):
                yield _doubt(why, speedups)._replace(copies=copies)


def library_choice(
    gpu: Gpu, collective: str, bytes_: int, ranks: int, dtype: str = "bf16"
) -> LibraryChoice | None:
    """What the GPU's library takes for a collective by compute units, if that is not what is simulated."""
    if not isinstance(collective_on(gpu, collective, bytes_, ranks, dtype, "cu"), ChannelRing):
        return None
    fabric, floating = fabric_of(gpu), dtype != "int8"
    algorithm, _ = library(
        collective, bytes_, ranks, fabric, nodes=-(-ranks // fabric.gpus_per_node), floating=floating
    )
    name = _INSTEAD.get(Algorithm(int(algorithm)))
    if name is None:
        return None
    return LibraryChoice(name, float(closed_form(collective, bytes_, ranks, fabric, dtype=dtype).seconds))


_INSTEAD = {
    Algorithm.TREE: "a tree",
    Algorithm.NVLS: "the switch's reduction (NVLS)",
    Algorithm.DIRECT: "one step to all peers",
}


def _library_doubt(advice: Advice) -> Iterator[Doubt]:
    """The gain over the library's own choice, which no overlap of a ring can claim."""
    if advice.library is not None:
        serial = advice.alone.gemm_s + advice.library.seconds
        other = serial / makespan_of(advice.best)
        yield _doubt(f"alone the library takes {advice.library.name}", (advice.speedup, other))


def crossover(tables: SlowdownTables, collective: str) -> int | None:
    """The size from which DMA engines are as fast as the library's kernel, both alone; None if there is none."""
    table = tables.collective(collective)
    if not table.dma:
        return None
    return _from(
        table.bytes,
        lambda size: table.seconds(table.dma, size) <= AS_FAST * table.seconds(table.library, size),
    )


def pays_from(gemm: Gemm, tables: SlowdownTables, collective: str) -> int | None:
    """The size from which a DMA strategy is the best one beside a GEMM, as forecast; None if there is none."""

    def pays(size: int) -> bool:
        return choose(gemm, collective, size, tables).strategy.startswith("dma")

    table = tables.collective(collective)
    return _from(table.bytes, pays) if table.dma else None


def _from(sizes: Sequence[int], holds: Callable[[int], bool]) -> int | None:
    """The least size of a grid from which on a claim holds for every size."""
    found = None
    size = float(sizes[-1])
    while size >= sizes[0] and holds(round(size)):
        found = round(size)
        size /= 2 ** (1 / GRID)
    return found


def _doubt(why: str, speedups: Sequence[float]) -> Doubt:
    return Doubt(why, min(speedups), max(speedups))


def _where(here: bool, gpu: str) -> str:
    return f", the mean error on {gpu}" if here else f", the worst mean error known: none is public for {gpu}"
