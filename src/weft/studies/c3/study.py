"""The C3 study: 30 scenarios on 8 x MI300X under six strategies, its curves, and published figures beside Weft's.

Published: A. Agrawal, S. Aga, S. Pati, M. Islam, "Optimizing ML Concurrent Computation and Communication with GPU DMA
Engines", ISPASS 2025, arXiv:2412.14335.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from weft.hardware import Gpu
from weft.hardware import load as load_gpu
from weft.overlap.machine import default_request_bytes
from weft.overlap.strategies import STRATEGIES
from weft.result.sharing import CLASSES, Sharing
from weft.result.stream_run import StreamRun
from weft.studies.c3.choosing import DTYPE, candidates
from weft.studies.c3.curves import Curves, Gemms, curve_runs, curves, gemms_of
from weft.studies.c3.runs import (
    Run,
    Runs,
    as_published,
    both,
    collective_alone,
    gemm_alone,
    scenario_runs,
    search,
    sharing,
)
from weft.studies.c3.scenarios import Scenario, Suite, declared_suite
from weft.studies.headline import HeadlineRow, PaperStudy, unlike
from weft.sweep import Progress, Store, results
from weft.sweep.streams import CollectiveAlone, GemmAlone, Setting, Together
from weft.tuning import tables_for
from weft.tuning.heuristics import case_of, forecasts, plainest
from weft.units import format_bytes
from weft.workload import Gemm

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
GATHERED = 1 << 30
"""The published run on eight MI355X: this GEMM beside an all-gather of 128 MiB per GPU [bytes of the whole buffer]."""


@dataclass(frozen=True)
class Case:
    """A scenario, what the published way of each strategy makes of it, and the best of all that were searched.

    `best` names the strategy and the compute units set apart of the fastest run, `best_s` is its time [s]; `chosen` and
    `chosen_s` are what the heuristics choose, and how long that takes; None where they were not asked. The same without
    DMA engines, for the search and the heuristics, end in `_cu` and `_cu_s`.
    """

    scenario: Scenario
    sharing: Sharing
    dma_alone_s: float
    best: tuple[str, int | None]
    best_s: float
    best_cu_s: float
    chosen: tuple[str, int | None] | None = None
    chosen_s: float | None = None
    chosen_cu: tuple[str, int | None] | None = None
    chosen_cu_s: float | None = None

    @property
    def heuristic_loss(self) -> float | None:
        """How much longer what the heuristics choose takes than the best of the search."""
        return None if self.chosen_s is None else self.chosen_s / self.best_s - 1

    @property
    def heuristic_loss_cu(self) -> float | None:
        """The same where neither the heuristics nor the search may use DMA engines."""
        return None if self.chosen_cu_s is None else self.chosen_cu_s / self.best_cu_s - 1

    @property
    def dma_loss(self) -> float:
        """How much longer plain DMA engines take than the best of the search."""
        return self.sharing.runs["dma"].makespan_s / self.best_s - 1

    @property
    def declared(self) -> bool:
        """Whether the scenario lies in its declared class; true where none is declared."""
        return self.scenario.kind in (None, self.sharing.kind)

    def as_json(self) -> dict[str, Any]:
        """The case as plain data."""
        scenario = self.scenario.model_dump(by_alias=True)
        scenario["declared_class"] = scenario.pop("class")
        best = _way(self.best, self.best_s)
        alone = {"collective_alone_by_dma_us": self.dma_alone_s * 1e6}
        return {**scenario, **alone, **self.sharing.as_json(), "best": best, "heuristics": self._heuristics()}

    def _heuristics(self) -> dict[str, Any] | None:
        if self.chosen is None or self.chosen_s is None or self.chosen_cu is None or self.chosen_cu_s is None:
            return None
        return {
            **_way(self.chosen, self.chosen_s),
            "without_dma": _way(self.chosen_cu, self.chosen_cu_s),
            "best_without_dma_us": self.best_cu_s * 1e6,
        }


def _way(chosen: tuple[str, int | None], seconds: float) -> dict[str, Any]:
    return {"strategy": chosen[0], "units": chosen[1], "makespan_us": seconds * 1e6}


@dataclass(frozen=True)
class C3Study(PaperStudy):
    """What the study simulated: the cases of a suite, the curves, and one published run on another machine.

    `square` is that run by "dma", "priority" and "streams"; `simulated_s` is what all runs took on one core [s].
    """

    NAME = "c3"
    PAPER = "ISPASS 2025, arXiv:2412.14335"

    suite: Suite
    cases: Sequence[Case]
    curves: Curves
    square: Sharing | None
    ranks: int
    runs: int
    events: int
    simulated_s: float

    @property
    def _unlike(self) -> str | None:
        if self.ranks != RANKS:
            return f"no published figures stand beside these: they are of {RANKS} GPUs, these of {self.ranks}"
        return unlike(self.gpu, PUBLISHED_GPU, self.changed, self.suite == declared_suite())

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known to read the figures."""
        moved = [case.scenario.title for case in self.cases if not case.declared]
        lie = "scenario lies" if len(moved) == 1 else "scenarios lie"
        out_of_class = (
            (f"{len(moved)} {lie} outside the declared class: {'; '.join(moved)}",) if moved else ()
        )
        return (
            "a collective's size is that of the whole buffer, of which each GPU holds an equal part",
            "the baseline is the GEMM, then the library's collective on compute units",
            "the heuristics are judged by the best of a search over all strategies, with up to 128 CUs set apart",
            "priority-partition is not searched: between masks nobody comes first, so that it runs as partition does",
            f"partition sets apart what saturates {format_bytes(self.curves.bandwidth_bytes)}, whatever the size",
            *((self._unlike,) if self._unlike is not None else ()),
            *out_of_class,
        )

    def share(self, strategy: str, kind: str | None = None) -> float | None:
        """The mean share of the ideal of a strategy, over one class or all; None without a case."""
        found = [case.sharing.share(strategy) for case in self.cases if kind in (None, case.sharing.kind)]
        return fmean(found) if found else None

    def headline(self) -> list[HeadlineRow]:
        """Weft's figures, beside the published ones where those hold."""
        return list(_headline(self))

    def own(self) -> dict[str, Any]:
        """Every case and the curves as plain data."""
        return {
            "suite": {"title": self.suite.title, "rule": self.suite.rule},
            "ranks": self.ranks,
            "runs": self.runs,
            "events": self.events,
            "simulated_s": self.simulated_s,
            "shares_by_class": {
                name: {kind: self.share(name, kind) for kind in CLASSES} for name in STRATEGIES
            },
            "scenarios": [case.as_json() for case in self.cases],
            "curves": asdict(self.curves),
        }


def _headline(study: C3Study) -> Iterator[HeadlineRow]:
    for strategy, published in SHARES.items():
        found = study.share(strategy)
        if found is not None:
            what = f"{STRATEGIES[strategy].title}, mean share of the ideal"
            yield _row(study, f"c3.{_ID[strategy]}", what, published, found, "share")
    yield _row(study, "c3.max_speedup", "largest speedup", 1.67, _largest(study), "ratio")
    yield from _curve_rows(study)
    yield from _loss_rows(study)
    if study.square is not None:
        for name, strategy, measured, how in _SQUARE_ROWS:
            what = f"16384^3 beside 1 GiB all-gather on 8 x {FAST_GPU}, by {how}"
            yield HeadlineRow(f"c3.mi355x.{name}", what, measured, study.square.speedup(strategy), "ratio")


_SQUARE_ROWS: tuple[tuple[str, str, float | None, str], ...] = (
    ("dma", "dma", 1.41, "DMA"),
    ("cu", "priority", 1.23, "CU, launched before the GEMM"),
    ("cu_gemm_first", "streams", None, "CU, launched after the GEMM"),
)
_SLOWDOWNS: tuple[tuple[str, int, float | tuple[float, float]], ...] = (
    ("compute", 32, 0.17),
    ("compute", 64, 0.27),
    ("memory", 8, (-0.10, 0.0)),
)
"""Published changes of GEMMs' times by boundness and compute units lost."""


def _curve_rows(study: C3Study) -> Iterator[HeadlineRow]:
    """What the curves say: slowdowns, saturation, and small collectives by DMA engines."""
    curves = study.curves
    for bound, lost, published in _SLOWDOWNS:
        slower = curves.mean_slowdown(bound, lost)
        if slower is not None:
            count = curves.gemms(bound)
            gemms = "GEMM" if count == 1 else "GEMMs"
            what = f"{count} {bound}-bound {gemms} with {lost} CUs less, longer by"
            id_ = f"c3.gemm_slowdown.{bound}_bound.minus{lost}"
            yield _row(study, id_, what, published, slower, "fraction")
    size = format_bytes(curves.bandwidth_bytes)
    for collective in curves.bandwidth:
        units, reached = SATURATION[collective], curves.saturation(collective)
        what = f"{collective} of {size} saturates at"
        yield _row(study, f"c3.saturation.{collective}", what, units, reached, "CUs")
    what = "collectives below 32 MB, by DMA over by CU (geomean over sizes and kinds)"
    yield _row(study, "c3.dma_small_slowdown", what, 4, curves.small_slowdown(), "ratio")


def _loss_rows(study: C3Study) -> Iterator[HeadlineRow]:
    """How far choices stay behind the best of the search."""
    losses: dict[str, tuple[str, Sequence[float | None]]] = {
        "heuristic_loss": ("the heuristics' choice", [case.heuristic_loss for case in study.cases]),
        "heuristic_loss_cu": (
            "the heuristics' choice, without DMA for it and the best",
            [case.heuristic_loss_cu for case in study.cases],
        ),
        "always_dma_loss": ("plain DMA engines always", [case.dma_loss for case in study.cases]),
    }
    for id_, (what, found) in losses.items():
        known = [loss for loss in found if loss is not None]
        if known:
            yield HeadlineRow(f"c3.{id_}", f"{what}, longer than the best by", None, fmean(known), "fraction")


_ID = {"streams": "base", **{name: name.replace("-", "_") for name in STRATEGIES if name != "streams"}}
"""What figures call a strategy."""


def _row(
    study: C3Study, id_: str, what: str, published: float | tuple[float, float], weft: float, unit: str
) -> HeadlineRow:
    return HeadlineRow(id_, what, published if study.comparable else None, weft, unit)


def _largest(study: C3Study) -> float:
    return max(case.sharing.speedup(name) for case in study.cases for name in STRATEGIES)


def run(
    suite: Suite | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    *,
    gpu: Gpu | str = PUBLISHED_GPU,
    ranks: int = RANKS,
    request_bytes: int | None = None,
    store: Store | None = None,
    heuristics: bool = True,
) -> C3Study:
    """Simulate a suite (None: the declared one) on `ranks` GPUs, with `jobs` processes.

    `request_bytes` suits the GPU unless given. With `heuristics` these are judged by the best of the search, which
    takes the machine's slowdown tables.
    `progress(done, all, what)` is called after every run; what `store` holds is not simulated again. A script that asks
    for more than one job calls this below `if __name__ == "__main__":`. Raises what the simulations raise.
    """
    begin = time.perf_counter()
    suite = suite or declared_suite()
    setting = Setting(load_gpu(gpu) if isinstance(gpu, str) else gpu, ranks, request_bytes=request_bytes)
    whole = setting.gpu.name == PUBLISHED_GPU and suite == declared_suite()
    gemms = {**gemms_of(suite.scenarios), **(_rule_gemms(setting.gpu) if whole else {})}
    runs = results(
        _all_runs(suite.scenarios, setting, gemms, whole), StreamRun.from_record, jobs, progress, store
    )
    drawn = curves(suite.scenarios, setting, gemms, runs)
    saturation = {name: drawn.saturation(name) for name in drawn.bandwidth}
    chosen = _chosen(suite.scenarios, setting, runs, jobs, progress, store) if heuristics else {}
    published = [as_published(s, setting, name, saturation) for s in suite.scenarios for name in STRATEGIES]
    ways = [task for pair in chosen.values() for task in pair]
    rest = [task for task in (*published, *ways) if task not in runs]
    runs |= results(rest, StreamRun.from_record, jobs, progress, store)
    return C3Study(
        suite=suite,
        cases=[_case(s, setting, runs, saturation, chosen.get(s)) for s in suite.scenarios],
        curves=drawn,
        square=_square(runs) if whole else None,
        gpu=setting.gpu.name,
        ranks=ranks,
        request_bytes=request_bytes or default_request_bytes(setting.gpu),
        changed=setting.gpu.changes,
        runs=len(runs),
        events=sum(run.events for run in runs.values()),
        simulated_s=sum(run.wall_s for run in runs.values()),
        wall_s=time.perf_counter() - begin,
    )


def _rule_gemms(gpu: Gpu) -> dict[Gemm, str | None]:
    """Every GEMM that the suite was chosen from: curves over those taken alone would stand for few wave counts."""
    return {Gemm(*gemm, DTYPE): bound for _, gemm, bound in candidates(gpu)}


def _all_runs(scenarios: Sequence[Scenario], setting: Setting, gemms: Gemms, whole: bool) -> Iterator[Run]:
    for scenario in scenarios:
        yield from scenario_runs(scenario, setting)
    yield from curve_runs(scenarios, setting, gemms)
    if whole:
        yield from _square_runs().values()


def _chosen(
    scenarios: Sequence[Scenario],
    setting: Setting,
    runs: Runs,
    jobs: int,
    progress: Progress | None,
    store: Store | None,
) -> dict[Scenario, tuple[Together, Together]]:
    """What the heuristics choose for each scenario, of all strategies and of those without DMA engines.

    They know the machine's slowdown tables and both times alone.
    """
    tables = tables_for(setting.gpu, **setting.options(), jobs=jobs, progress=progress, store=store)
    chosen = {}
    for scenario in scenarios:
        case = case_of(
            scenario.product,
            scenario.collective,
            scenario.size,
            tables,
            gemm_s=runs[gemm_alone(scenario, setting)].makespan_s,
            collective_s=runs[collective_alone(scenario, setting)].makespan_s,
        )
        ways = list(forecasts(case))
        by_units = [way for way in ways if STRATEGIES[way.strategy].driver == "cu"]
        best, best_cu = (plainest(some) for some in (ways, by_units))
        chosen[scenario] = (
            both(scenario, setting, best.strategy, best.units),
            both(scenario, setting, best_cu.strategy, best_cu.units),
        )
    return chosen


def _case(
    scenario: Scenario,
    setting: Setting,
    runs: Runs,
    saturation: Mapping[str, int],
    chosen: tuple[Together, Together] | None,
) -> Case:
    searched = list(search(scenario, setting))
    best = min(searched, key=lambda task: runs[task].makespan_s)
    return Case(
        scenario=scenario,
        sharing=sharing(scenario, setting, runs, saturation),
        dma_alone_s=runs[collective_alone(scenario, setting, "dma")].makespan_s,
        best=(best.strategy, best.units),
        best_s=runs[best].makespan_s,
        best_cu_s=min(runs[task].makespan_s for task in searched if STRATEGIES[task.strategy].driver == "cu"),
        **_chosen_ways(chosen, runs),
    )


def _chosen_ways(chosen: tuple[Together, Together] | None, runs: Runs) -> dict[str, Any]:
    """What a case says of the heuristics' choices."""
    if chosen is None:
        return {}
    best, best_cu = chosen
    return {
        "chosen": (best.strategy, best.units),
        "chosen_s": runs[best].makespan_s,
        "chosen_cu": (best_cu.strategy, best_cu.units),
        "chosen_cu_s": runs[best_cu].makespan_s,
    }


def _square_runs() -> dict[str, Run]:
    """The published run on eight MI355X.

    Frameworks launch the collective before the GEMM that hides it, as `priority` does; `streams` is the other order.
    """
    setting = Setting(load_gpu(FAST_GPU), RANKS)
    ways = ("streams", "priority", "dma")
    return {
        "gemm": GemmAlone(SQUARE, setting),
        "collective": CollectiveAlone("all_gather", GATHERED, setting),
        **{name: Together(SQUARE, "all_gather", GATHERED, setting, name) for name in ways},
    }


def _square(runs: Runs) -> Sharing:
    found: dict[str, StreamRun] = {name: runs[task] for name, task in _square_runs().items()}
    return Sharing(found.pop("gemm"), found.pop("collective"), found)
