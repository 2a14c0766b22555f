"""The C3 study: 30 scenarios on 8 x MI300X under six strategies, its curves, and published figures beside Weft's.

Published: A. Agrawal, S. Aga, S. Pati, M. Islam, "Optimizing ML Concurrent Computation and Communication with GPU DMA
Engines", ISPASS 2025, arXiv:2412.14335.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, NamedTuple

from weft import hardware
from weft.graph import Collective, Gemm
from weft.hardware import Gpu
from weft.lower.machine import default_request_bytes
from weft.options import SUSTAINED, RunOptions
from weft.result import Comparison
from weft.result.metrics import CLASSES, class_of, ideal_speedup, share_of_ideal
from weft.run.sweep import Progress, Store
from weft.run.sweep.run import Simulation, timelines
from weft.schedule import SHARING
from weft.search import SlowdownTables, tables_for
from weft.search.heuristics import case_of, forecasts, plainest
from weft.search.tasks import Bench, Runs
from weft.studies.c3.candidates import DTYPE, candidates
from weft.studies.c3.curves import CurveRuns, Curves, gemms_of
from weft.studies.c3.runs import ScenarioRuns
from weft.studies.c3.scenarios import Scenario, Suite, declared_suite
from weft.studies.headline import Claim, HeadlineRow, PaperStudy, rows
from weft.units import format_bytes

PUBLISHED_GPU = "mi300x"
"""The GPU that the published figures hold for, eight of them."""
RANKS = 8
SHARES: Mapping[str, float] = {
    "streams": 0.21,
    "priority": 0.42,
    "partition": 0.41,
    "priority-partition": 0.42,
    "dma": 0.66,
    "dma-partition": 0.72,
}
"""Published mean shares of the ideal speedup, by strategy."""
SATURATION: Mapping[str, int] = {"all_gather": 32, "all_to_all": 64}
"""Published compute units that saturate a collective."""
FAST_GPU = "mi355x"
SQUARE = Gemm(16384, 16384, 16384, "bf16")
GATHERED = Collective("all_gather", 1 << 30, RANKS)
"""The published run on eight MI355X: this GEMM beside an all-gather of 128 MiB per GPU [bytes of the whole buffer]."""


class Way(NamedTuple):
    """A strategy, the compute units that it sets apart, and how long both take [s]."""

    strategy: str
    units: int | None
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The way as plain data."""
        return {"strategy": self.strategy, "units": self.units, "makespan_us": self.seconds * 1e6}


@dataclass(frozen=True)
class Case:
    """A scenario, what the published way of each strategy makes of it, and the best of all that were searched.

    `best` is the fastest way, `chosen` the heuristics' one (None where they were not asked); those that end in `_cu`
    are without DMA engines.
    """

    scenario: Scenario
    comparison: Comparison
    best: Way
    best_cu: Way
    chosen: Way | None = None
    chosen_cu: Way | None = None

    @property
    def gemm_s(self) -> float:
        """The GEMM alone [s]."""
        return self.comparison.alone["gemm"].makespan

    @property
    def collective_s(self) -> float:
        """The collective alone, by compute units [s]."""
        return self.comparison.alone[self.scenario.collective].makespan

    @property
    def serial_s(self) -> float:
        """Both, one after the other [s]."""
        return self.gemm_s + self.collective_s

    @property
    def kind(self) -> str:
        """Which of CLASSES the two times make."""
        return class_of(self.gemm_s, self.collective_s)

    @property
    def ideal(self) -> float:
        """The speedup if the shorter one cost nothing."""
        return ideal_speedup(self.gemm_s, self.collective_s)

    @property
    def strategies(self) -> list[str]:
        """The strategies, by name."""
        return list(self.comparison.timelines)

    def speedup(self, strategy: str) -> float:
        """How many times faster than serial execution a strategy is."""
        return self.serial_s / self.comparison[strategy].makespan

    def share(self, strategy: str) -> float:
        """How much of what the ideal saves a strategy saves; below 0 where it loses."""
        return share_of_ideal(self.speedup(strategy), self.ideal)

    def gemm_slowdown(self, strategy: str) -> float:
        """The GEMM's end from the common start over its time alone."""
        return self.comparison[strategy].end("gemm") / self.gemm_s

    def collective_slowdown(self, strategy: str) -> float:
        """The collective's end from the common start over its time alone by compute units."""
        return self.comparison[strategy].end(self.scenario.collective) / self.collective_s

    @property
    def heuristic_loss(self) -> float | None:
        """How much longer what the heuristics choose takes than the best of the search."""
        return self.chosen and self.chosen.seconds / self.best.seconds - 1

    @property
    def heuristic_loss_cu(self) -> float | None:
        """The same where neither the heuristics nor the search may use DMA engines."""
        return self.chosen_cu and self.chosen_cu.seconds / self.best_cu.seconds - 1

    @property
    def dma_loss(self) -> float:
        """How much longer plain DMA engines take than the best of the search."""
        return self.comparison["dma"].makespan / self.best.seconds - 1

    @property
    def declared(self) -> bool:
        """Whether the scenario lies in its declared class; true where none is declared."""
        return self.scenario.kind in (None, self.kind)

    def as_json(self) -> dict[str, Any]:
        """The case as plain data."""
        scenario = self.scenario.model_dump(by_alias=True)
        by_dma = self.comparison.alone[f"{self.scenario.collective} by dma"]
        return {
            **scenario,
            "declared_class": scenario["class"],
            "class": self.kind,
            "gemm_alone_us": self.gemm_s * 1e6,
            "collective_alone_us": self.collective_s * 1e6,
            "collective_alone_by_dma_us": by_dma.makespan * 1e6,
            "ideal": self.ideal,
            "strategies": {name: self._strategy(name) for name in self.strategies},
            "best": self.best.as_json(),
            "heuristics": self.chosen
            and self.chosen_cu
            and {
                **self.chosen.as_json(),
                "without_dma": self.chosen_cu.as_json(),
                "best_without_dma_us": self.best_cu.seconds * 1e6,
            },
        }

    def _strategy(self, name: str) -> dict[str, Any]:
        slower = {
            "gemm_slowdown": self.gemm_slowdown(name),
            "collective_slowdown": self.collective_slowdown(name),
        }
        counters = {"counters": dict(self.comparison[name].counters)}
        return {**self.comparison.corun(name).record(), **slower, **counters}


@dataclass(frozen=True)
class C3Study(PaperStudy):
    """What the study simulated: the cases of a suite, the curves, and one published run on another machine.

    `square` are the speedups of that run by "dma", "priority" and "streams"; `simulated_s` is what all runs took on
    one core [s].
    """

    NAME = "c3"
    PAPER = "ISPASS 2025, arXiv:2412.14335"
    PAPER_GPU = PUBLISHED_GPU

    suite: Suite
    cases: Sequence[Case]
    curves: Curves
    square: Mapping[str, float] | None
    ranks: int
    runs: int
    events: int
    simulated_s: float

    def _other_than_published(self) -> str:
        if self.ranks != RANKS:
            return f"they are of {RANKS} GPUs, these of {self.ranks}"
        return "" if self.suite == declared_suite() else "the suite is not the declared one"

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known to read the figures."""
        moved = [case.scenario.title for case in self.cases if not case.declared]
        lie = "scenario lies" if len(moved) == 1 else "scenarios lie"
        out_of_class = (f"{len(moved)} {lie} outside the declared class: {'; '.join(moved)}",) if moved else ()
        return (
            "a collective's size is that of the whole buffer, of which each GPU holds an equal part",
            "the baseline is the GEMM, then the library's collective on compute units",
            "the heuristics are judged by the best of a search over all strategies, with up to 128 CUs set apart",
            "priority-partition is not searched: between masks nobody comes first, so that it runs as partition does",
            f"partition sets apart what saturates {format_bytes(self.curves.bandwidth_bytes)}, whatever the size",
            *filter(None, (self.unlike,)),
            *out_of_class,
        )

    def share(self, strategy: str, kind: str | None = None) -> float | None:
        """The mean share of the ideal of a strategy, over one class or all; None without a case."""
        found = [case.share(strategy) for case in self.cases if kind in (None, case.kind)]
        return fmean(found) if found else None

    def headline(self) -> list[HeadlineRow]:
        """Weft's figures, beside the published ones where those hold."""
        cases = dict(enumerate(self.cases))
        return [
            *rows(_CASE_CLAIMS, cases, self.comparable),
            *rows(_curve_claims(self.curves), {"curves": self.curves}, self.comparable),
            *rows(_LOSS_CLAIMS, cases),
            *rows(_SQUARE_CLAIMS, {} if self.square is None else {"square": self.square}),
        ]

    def own(self) -> dict[str, Any]:
        """Every case and the curves as plain data."""
        return {
            "suite": {"title": self.suite.title, "rule": self.suite.rule},
            "ranks": self.ranks,
            "runs": self.runs,
            "events": self.events,
            "simulated_s": self.simulated_s,
            "shares_by_class": {name: {kind: self.share(name, kind) for kind in CLASSES} for name in SHARING},
            "scenarios": [case.as_json() for case in self.cases],
            "curves": asdict(self.curves),
        }


def _mean(measure: Callable[[Case], float | None]) -> Callable[[Sequence[Case]], float | None]:
    """The mean over the cases that have such a figure; None without any."""

    def mean(cases: Sequence[Case]) -> float | None:
        known = [value for value in map(measure, cases) if value is not None]
        return fmean(known) if known else None

    return mean


def _share(strategy: str) -> Callable[[Case], float]:
    return lambda case: case.share(strategy)


def _figure_id(strategy: str) -> str:
    """What figures call a strategy."""
    return f"c3.{'base' if strategy == 'streams' else strategy.replace('-', '_')}"


_CASE_CLAIMS: tuple[Claim[Case], ...] = (
    *(Claim(_figure_id(name), f"{SHARING[name].title}, mean share of the ideal", published, "share",
            _mean(_share(name))) for name, published in SHARES.items()),
    Claim("c3.max_speedup", "largest speedup", 1.67, "ratio",
          lambda cases: max(case.speedup(name) for case in cases for name in case.strategies)),
)  # fmt: skip
_LOSS = "longer than the best by"
_LOSS_CLAIMS: tuple[Claim[Case], ...] = (
    Claim("c3.heuristic_loss", f"the heuristics' choice, {_LOSS}", None, "fraction",
          _mean(lambda case: case.heuristic_loss)),
    Claim("c3.heuristic_loss_cu", f"the heuristics' choice, without DMA for it and the best, {_LOSS}", None, "fraction",
          _mean(lambda case: case.heuristic_loss_cu)),
    Claim("c3.always_dma_loss", f"plain DMA engines always, {_LOSS}", None, "fraction",
          _mean(lambda case: case.dma_loss)),
)  # fmt: skip
"""How far choices stay behind the best of the search."""
_ON_FAST = f"16384^3 beside 1 GiB all-gather on 8 x {FAST_GPU}, by"
_SQUARE_CLAIMS: tuple[Claim[Mapping[str, float]], ...] = (
    Claim("c3.mi355x.dma", f"{_ON_FAST} DMA", 1.41, "ratio", lambda found: found[0]["dma"]),
    Claim("c3.mi355x.cu", f"{_ON_FAST} CU, launched before the GEMM", 1.23, "ratio",
          lambda found: found[0]["priority"]),
    Claim("c3.mi355x.cu_gemm_first", f"{_ON_FAST} CU, launched after the GEMM", None, "ratio",
          lambda found: found[0]["streams"]),
)  # fmt: skip
"""Frameworks launch the collective before the GEMM that hides it, as `priority` does; `streams` is the other order."""
_SLOWDOWNS: tuple[tuple[str, int, float | tuple[float, float]], ...] = (
    ("compute", 32, 0.17),
    ("compute", 64, 0.27),
    ("memory", 8, (-0.10, 0.0)),
)
"""Published changes of GEMMs' times by boundness and compute units lost."""


def _curve_claims(curves: Curves) -> Iterator[Claim[Curves]]:
    """Slowdowns, saturation, and small collectives by DMA engines."""
    for bound, lost, published in _SLOWDOWNS:
        count = curves.gemms(bound)
        what = f"{count} {bound}-bound GEMM{'s' * (count != 1)} with {lost} CUs less, longer by"
        id_, slower = f"c3.gemm_slowdown.{bound}_bound.minus{lost}", curves.mean_slowdown(bound, lost)
        yield Claim(id_, what, published, "fraction", _constant(slower))
    for name in curves.bandwidth:
        what = f"{name} of {format_bytes(curves.bandwidth_bytes)} saturates at"
        units = _constant(curves.saturation(name))
        yield Claim(f"c3.saturation.{name}", what, SATURATION[name], "CUs", units)
    what = "collectives below 32 MB, by DMA over by CU (geomean over sizes and kinds)"
    yield Claim("c3.dma_small_slowdown", what, 4, "ratio", _constant(curves.small_slowdown()))


def _constant(value: float | None) -> Callable[[Sequence[Curves]], float | None]:
    return lambda _: value


def run(
    suite: Suite | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    *,
    gpu: Gpu | str = PUBLISHED_GPU,
    ranks: int = RANKS,
    options: RunOptions = SUSTAINED,
    store: Store | None = None,
    heuristics: bool = True,
) -> C3Study:
    """Simulate a suite (None: the declared one) on `ranks` GPUs, with `jobs` processes.

    `options.request_bytes` suits the GPU unless given. With `heuristics` these are judged by the best of the search,
    which takes the machine's slowdown tables.
    `progress(done, all, what)` is called after every run; what `store` holds is not simulated again. A script that asks
    for more than one job calls this below `if __name__ == "__main__":`. Raises what the simulations raise.
    """
    begin = time.perf_counter()
    suite = suite or declared_suite()
    machine = hardware.gpu(gpu)
    bench = Bench.of(machine, ranks, options)
    whole = machine.name == PUBLISHED_GPU and suite == declared_suite()
    gemms = {**gemms_of(suite.scenarios), **(_rule_gemms(machine) if whole else {})}
    scenarios = [ScenarioRuns(scenario, bench) for scenario in suite.scenarios]
    curve_runs = CurveRuns(suite.scenarios, bench, gemms)
    square = _square_runs() if whole else {}
    first = (*(task for one in scenarios for task in one.tasks()), *curve_runs.tasks(), *square.values())
    runs = timelines(first, jobs, progress, store)
    curves = curve_runs.curves(runs)
    saturation = {name: curves.saturation(name) for name in curves.bandwidth}
    chosen: dict[ScenarioRuns, Chosen] = {}
    if heuristics:
        tables = tables_for(bench.system, options=bench.options, ranks=ranks, jobs=jobs, progress=progress, store=store)
        chosen = {one: _chosen(one, tables, runs) for one in scenarios}
    rest = [one.as_published(name, saturation) for one in scenarios for name in SHARING]
    rest += [one.both(*way) for one in scenarios for way in chosen.get(one, ())]
    runs |= timelines([task for task in rest if task not in runs], jobs, progress, store)
    return C3Study(
        suite=suite,
        cases=[_case(one, runs, saturation, chosen.get(one, ())) for one in scenarios],
        curves=curves,
        square=_square(square, runs) if whole else None,
        machine=machine,
        ranks=ranks,
        request_bytes=options.request_bytes or default_request_bytes(machine),
        runs=len(runs),
        events=sum(run.events for run in runs.values()),
        simulated_s=sum(run.wall_s for run in runs.values()),
        wall_s=time.perf_counter() - begin,
    )


def _rule_gemms(gpu: Gpu) -> dict[Gemm, str | None]:
    """Every GEMM that the suite was chosen from: curves over those taken alone would stand for few wave counts."""
    return {Gemm(*gemm, DTYPE): bound for _, gemm, bound in candidates(gpu)}


Chosen = tuple[tuple[str, int | None], ...]
"""Strategy and compute units that the heuristics choose: of all strategies, then of those without DMA engines."""


def _chosen(one: ScenarioRuns, tables: SlowdownTables, runs: Runs) -> Chosen:
    """What the heuristics choose for a scenario, from the machine's slowdown tables and both times alone."""
    alone = runs[one.gemm].makespan, runs[one.collective()].makespan
    ways = list(forecasts(case_of(one.scenario.product, one.op, tables, *alone)))
    by_units = [way for way in ways if _by_units(way.strategy)]
    return tuple((best.strategy, best.units) for best in map(plainest, (ways, by_units)))


def _by_units(strategy: str) -> bool:
    return SHARING[strategy].driver == "cu"


def _case(one: ScenarioRuns, runs: Runs, saturation: Mapping[str, int], chosen: Chosen) -> Case:
    def timed(way: tuple[str, int | None]) -> Way:
        return Way(*way, runs[one.both(*way)].makespan)

    searched = [timed(way) for way in one.search()]
    best, best_cu = (
        min(ways, key=lambda way: way.seconds)
        for ways in (searched, [way for way in searched if _by_units(way.strategy)])
    )
    return Case(one.scenario, one.compared(runs, saturation), best, best_cu, *map(timed, chosen))


def _square_runs() -> dict[str, Simulation]:
    """The published run on eight MI355X."""
    bench = Bench.of(FAST_GPU, RANKS)
    return {
        "gemm": bench.gemm(SQUARE),
        "collective": bench.collective(GATHERED),
        **{name: bench.together(SQUARE, GATHERED, name) for name in ("streams", "priority", "dma")},
    }


def _square(tasks: Mapping[str, Simulation], runs: Runs) -> dict[str, float]:
    """Speedups over serial execution, by strategy."""
    seconds = {name: runs[task].makespan for name, task in tasks.items()}
    serial = seconds.pop("gemm") + seconds.pop("collective")
    return {name: serial / time for name, time in seconds.items()}
