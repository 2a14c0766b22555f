"""Advice for one GEMM beside one collective: what the tables choose, what simulation says of it, how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import hypot
from typing import Any, NamedTuple

from weft.hardware import Gpu, find_gpu
from weft.overlap.library_ring import PUSHES
from weft.overlap.tile import tiling_for
from weft.result.sharing import Sharing
from weft.result.stream_run import StreamRun
from weft.simulation.runner import collective_on
from weft.sweep import Progress, Store, sweep
from weft.sweep.streams import CollectiveAlone, GemmAlone, Setting, Together
from weft.tuning.heuristics import TIE, Case, Choice, Forecast, case_of, choose, forecasts, plainest
from weft.tuning.knobs import Knob, knobs_for
from weft.tuning.model_errors import CONTENTION, collective_error, gemm_error
from weft.tuning.probes import tables_for
from weft.tuning.tables import SlowdownTables
from weft.workload import Gemm

CONFIRMED = 3
"""So many of the best forecasts are simulated, whatever their strategy; and the best of each strategy."""
ASSUMED = {
    "the clock of long runs": ("clocks.sustained",),
    "how much of its bandwidth the cache reaches": ("cache.efficiency",),
    "the latency of the memory-side cache": ("memory_cache.latency",),
    "the queues of the memory": ("memory.queue_entries",),
    "the latency of a link": ("link.latency",),
    "what a copy costs host and engine": (
        "dma.setup", "dma.enqueue", "dma.doorbell", "dma.fetch", "dma.trigger", "dma.drain", "dma.sync", "dma.signal",
    ),
    "how much an engine has on its way": ("dma.window",),
}  # fmt: skip
"""Values of a GPU that may move the answer; those that are assumed are moved together, to each end of their ranges."""
AS_FAST = 1.05
"""DMA engines are as fast as compute units if they take at most so many times as long."""
_MIB = 1 << 20
GRID = 8
"""Sizes per doubling at which a crossover is looked for."""


class Option(NamedTuple):
    """One way to share: what the tables expect [s], and its simulation if it was made."""

    strategy: str
    units: int | None
    forecast_s: float
    run: StreamRun | None

    @property
    def label(self) -> str:
        """The way in a few words."""
        return label(self.strategy, self.units)


class Doubt(NamedTuple):
    """A reason to doubt a speedup, and what it would be if that were so."""

    why: str
    low: float
    high: float


@dataclass(frozen=True)
class Advice:
    """How a GEMM and a collective of `bytes_` should share each of `tables.ranks` GPUs.

    `options` are all ways, the plainest first; `choice` is what the tables alone choose, knowing what both take
    alone. `doubts` say what the speedup of the best option would be for another reason each. `crossover` is the size
    from which DMA engines gather or exchange as fast as compute units alone, `pays` from which a DMA strategy is the
    best beside this GEMM [bytes]; None where there is none.
    """

    gemm: Gemm
    collective: str
    bytes_: int
    tables: SlowdownTables
    alone: Sharing
    choice: Choice
    options: tuple[Option, ...]
    doubts: tuple[Doubt, ...]
    crossover: int | None
    pays: int | None

    @property
    def gpu(self) -> Gpu:
        """The GPU."""
        return self.tables.gpu

    @property
    def best(self) -> Option:
        """The fastest option that was simulated; of those that are as good as it, the plainest."""
        fastest = min(map(_makespan, self.simulated))
        return next(one for one in self.simulated if _makespan(one) <= (1 + TIE) * fastest)

    @property
    def simulated(self) -> tuple[Option, ...]:
        """The options that were simulated."""
        return tuple(option for option in self.options if option.run is not None)

    @property
    def speedup(self) -> float:
        """That of the best option over running both one after the other."""
        return self.speedup_of(self.best)

    def speedup_of(self, option: Option) -> float:
        """Serial time over that of an option: simulated, or else as forecast."""
        return self.alone.serial_s / _makespan(option)

    def share_of(self, option: Option) -> float:
        """How much of what the ideal saves an option saves."""
        return (self.speedup_of(option) - 1) / (self.alone.ideal - 1)

    @property
    def loss(self) -> float:
        """How much longer the tables' choice takes than the best option, both simulated."""
        chosen = next(
            one
            for one in self.simulated
            if (one.strategy, one.units) == (self.choice.strategy, self.choice.units)
        )
        return _makespan(chosen) / _makespan(self.best) - 1

    @property
    def low(self) -> float:
        """The speedup if doubts come true, each by itself and against the user, as the root of their squares."""
        return self.speedup - hypot(*(max(0.0, self.speedup - doubt.low) for doubt in self.doubts))

    @property
    def high(self) -> float:
        """The same in the user's favour."""
        return self.speedup + hypot(*(max(0.0, doubt.high - self.speedup) for doubt in self.doubts))

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """What to set for the best option."""
        return knobs_for(self.gpu, self.best.strategy, self.best.units, self.collective)

    @property
    def why_no_dma(self) -> str:
        """Why no DMA strategy stands among the options; empty where they do."""
        if self.collective in PUSHES:
            return ""
        return (
            f"DMA engines copy and cannot add, so none drives {self.collective}: it stays with compute units, or is "
            "split so that only its all-gather is copied."
        )

    @property
    def sentences(self) -> list[str]:
        """The advice in words: what to take, what both take alone, how good the tables are, where DMA engines pay."""
        alone, choice = self.alone, self.choice
        take = (
            f"Take {self.best.label}: {self.speedup:.2f}x over one after the other, {self.low:.2f}x to "
            f"{self.high:.2f}x with all doubts; the ideal is {alone.ideal:.2f}x."
        )
        if self.speedup < 1:
            take = f"Run one after the other: the best way to share is {1 / self.speedup - 1:.0%} slower."
        times = f"Alone the GEMM takes {alone.gemm_s * 1e6:.0f} us, the collective {alone.collective_s * 1e6:.0f} us."
        chosen = label(choice.strategy, choice.units)
        tables = (
            f"The tables alone choose {chosen}, which takes {self.loss:.1%} longer than the best simulated."
        )
        return [take, times, tables, self.why_no_dma or self._dma_pays()]

    def _dma_pays(self) -> str:
        smallest = self.tables.collective(self.collective).bytes[0]
        alone, beside = (_since(size, smallest) for size in (self.crossover, self.pays))
        return (
            f"DMA engines alone are as fast as compute units alone {alone}; "
            f"beside this GEMM they are the best way {beside}."
        )

    def as_json(self) -> dict[str, Any]:
        """Everything as plain data; times in seconds."""
        return {
            "gemm": asdict(self.gemm),
            "collective": self.collective,
            "bytes": self.bytes_,
            "gpu": self.gpu.name,
            "ranks": self.tables.ranks,
            "gemm_alone_s": self.alone.gemm_s,
            "collective_alone_s": self.alone.collective_s,
            "ideal_speedup": self.alone.ideal,
            "best": self._option(self.best),
            "speedup_low": self.low,
            "speedup_high": self.high,
            "doubts": [doubt._asdict() for doubt in self.doubts],
            "choice_of_the_tables": asdict(self.choice),
            "loss_of_the_tables": self.loss,
            "options": [self._option(option) for option in self.options],
            "dma_faster_from_bytes": self.crossover,
            "dma_pays_from_bytes": self.pays,
            "set": [knob._asdict() for knob in self.knobs],
            "why_no_dma": self.why_no_dma,
        }

    def _option(self, option: Option) -> dict[str, Any]:
        run = option.run
        return {
            "strategy": option.strategy,
            "units": option.units,
            "forecast_s": option.forecast_s,
            "simulated_s": None if run is None else run.makespan_s,
            "gemm_ends_s": None if run is None else run.gemm_s,
            "collective_ends_s": None if run is None else run.collective_s,
            "speedup": self.speedup_of(option),
            "share_of_ideal": self.share_of(option),
        }


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
        gemm, moved = self._run(self._both_alone(self.setting))
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
        )
        doubts = self._model_doubts(case, advice)
        return replace(advice, doubts=(*doubts, *(self._assumed_doubts(advice) if spread else ())))

    def _run(self, tasks: Sequence[Any]) -> list[StreamRun]:
        """The runs of the tasks, in their order."""
        found = dict(sweep(tasks, jobs=self.jobs, progress=self.progress, store=self.store))
        return [StreamRun.from_record(found[task]) for task in tasks]

    def _both_alone(self, setting: Setting) -> tuple[GemmAlone, CollectiveAlone]:
        moved = CollectiveAlone(self.collective, self.bytes_, setting, dtype=self.gemm.dtype)
        return GemmAlone(self.gemm, setting), moved

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
        gpu, best = self.tables.gpu.name, advice.best
        of_gemm, here_g = gemm_error(gpu)
        of_moved, here_c = collective_error(gpu, self.collective)
        factors = {
            f"GEMMs are predicted within {of_gemm:.1%}{_where(here_g, gpu)}": [
                (1 + off, 1.0) for off in (-of_gemm, of_gemm)
            ],
            f"{self.collective} is predicted within {of_moved:.1%}{_where(here_c, gpu)}": [
                (1.0, 1 + off) for off in (-of_moved, of_moved)
            ],
        }
        doubts = [
            _doubt(why, [self._speedup_if(case, best, *pair) for pair in pairs])
            for why, pairs in factors.items()
        ]
        both = [advice.speedup / (1 + off) for off in (-CONTENTION, CONTENTION)]
        return [*doubts, _doubt(f"both side by side within {CONTENTION:.1%}, as on four A100", both)]

    def _speedup_if(self, case: Case, best: Option, gemm: float, collective: float) -> float:
        """The best option's speedup if both alone took other times, as the tables forecast the change."""
        other = case.off(gemm, collective)
        makespan = next(one.makespan_s for one in forecasts(other) if one[:2] == best[:2])
        return (other.gemm_s + other.collective_s) / (makespan * _makespan(best) / best.forecast_s)

    def _assumed_doubts(self, advice: Advice) -> list[Doubt]:
        """What each assumed value would make of the speedup at both ends of its range: simulated."""
        best = advice.best
        ends = {
            f"{what}, assumed ({_listed(low)})": [
                replace(self.setting, gpu=self.tables.gpu.with_values(values)) for values in (low, high)
            ]
            for what, (low, high) in assumed_ends(self.tables.gpu, best.strategy).items()
        }
        tasks = [
            task
            for settings in ends.values()
            for at in settings
            for task in (*self._both_alone(at), self._together(best.strategy, best.units, at))
        ]
        times = iter(run.makespan_s for run in self._run(tasks))
        return [
            _doubt(why, [(next(times) + next(times)) / next(times) for _ in settings])
            for why, settings in ends.items()
        ]


def assumed_ends(gpu: Gpu, strategy: str) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """What is assumed of a GPU and may move a strategy's speedup: the low and the high end of each value, by path."""
    found = {}
    for what, paths in ASSUMED.items():
        known = {path: gpu.provenance[path] for path in paths if path in gpu.provenance}
        if strategy.startswith("dma") or not any(path.startswith("dma.") for path in paths):
            assumed = {path: p for path, p in known.items() if p.kind == "assumed" and p.low is not None}
            if assumed:
                low = {path: str(p.low) for path, p in assumed.items()}
                found[what] = low, {path: str(p.high) for path, p in assumed.items()}
    return found


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


def label(strategy: str, units: int | None) -> str:
    """A way to share in a few words."""
    return strategy if units is None else f"{strategy} with {units} CUs"


def _since(size: int | None, smallest: int) -> str:
    """From which size on, in words."""
    if size is None:
        return "at no size"
    return "at every size" if size <= 1.1 * smallest else f"from {size / _MIB:.0f} MiB on"


def _makespan(option: Option) -> float:
    return option.forecast_s if option.run is None else option.run.makespan_s


def _doubt(why: str, speedups: Sequence[float]) -> Doubt:
    return Doubt(why, min(speedups), max(speedups))


def _listed(paths: Iterable[str]) -> str:
    """The paths, or their table where there are several."""
    names = list(paths)
    return names[0] if len(names) == 1 else f"{names[0].partition('.')[0]}, {len(names)} values"


def _where(here: bool, gpu: str) -> str:
    return f" on {gpu}" if here else f" at worst where they were measured, which was not on {gpu}"
