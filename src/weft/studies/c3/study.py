"""The C3 study: 30 scenarios on 8 x MI300X under six strategies, its curves, and published figures beside Weft's.

Published: A. Agrawal, S. Aga, S. Pati, M. Islam, "Optimizing ML Concurrent Computation and Communication with GPU DMA
Engines", ISPASS 2025, arXiv:2412.14335.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from weft.files import write_atomically
from weft.hardware import Gpu
from weft.hardware import load as load_gpu
from weft.overlap.strategies import STRATEGIES
from weft.result.sharing import CLASSES, Sharing
from weft.result.stream_run import StreamRun
from weft.studies.c3.curves import Curves, curve_runs, curves
from weft.studies.c3.runs import (
    Progress,
    Run,
    Runs,
    as_published,
    both,
    collective_alone,
    gemm_alone,
    scenario_runs,
    search,
    sharing,
    simulate,
)
from weft.studies.c3.scenarios import Scenario, Suite, declared_suite
from weft.studies.headline import HeadlineRow
from weft.sweep import Store
from weft.sweep.streams import CollectiveAlone, GemmAlone, Setting, Together
from weft.tuning import choose, tables_for
from weft.workload import Gemm

PUBLISHED_GPU = "mi300x"
"""The GPU that the published figures hold for, eight of them."""
RANKS = 8
REQUEST_BYTES = 32 << 10
"""Requests of the study: as exact as finer ones within 2 %, and eight times fewer than at the channel interleave."""
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
    `chosen_s` are what the heuristics choose, and how long that takes; None where they were not asked.
    """

    scenario: Scenario
    sharing: Sharing
    dma_alone_s: float
    best: tuple[str, int | None]
    best_s: float
    chosen: tuple[str, int | None] | None = None
    chosen_s: float | None = None

    @property
    def heuristic_loss(self) -> float | None:
        """How much longer what the heuristics choose takes than the best of the search."""
        return None if self.chosen_s is None else self.chosen_s / self.best_s - 1

    @property
    def declared(self) -> bool:
        """Whether the scenario lies in its declared class; true where none is declared."""
        return self.scenario.kind in (None, self.sharing.kind)

    def as_json(self) -> dict[str, Any]:
        """The case as plain data."""
        scenario = self.scenario.model_dump(by_alias=True)
        scenario["declared_class"] = scenario.pop("class")
        best = {"strategy": self.best[0], "units": self.best[1], "makespan_us": self.best_s * 1e6}
        alone = {"collective_alone_by_dma_us": self.dma_alone_s * 1e6}
        return {**scenario, **alone, **self.sharing.as_json(), "best": best, "heuristics": self._heuristics()}

    def _heuristics(self) -> dict[str, Any] | None:
        if self.chosen is None or self.chosen_s is None:
            return None
        return {"strategy": self.chosen[0], "units": self.chosen[1], "makespan_us": self.chosen_s * 1e6}


@dataclass(frozen=True)
class C3Study:
    """What the study simulated: the cases of a suite, the curves, and one published run on another machine.

    `square` is that run by "dma" and "streams". `simulated_s` is what all runs took on one core, `wall_s` what the
    study took [s]; `changed` lists the machine's values that the user set.
    """

    suite: Suite
    cases: Sequence[Case]
    curves: Curves
    square: Sharing | None
    gpu: str
    ranks: int
    request_bytes: int
    changed: tuple[str, ...]
    runs: int
    events: int
    simulated_s: float
    wall_s: float

    @property
    def comparable(self) -> bool:
        """Whether the published figures hold for what was simulated."""
        return (
            self.gpu == PUBLISHED_GPU and self.ranks == RANKS and self.suite.title == declared_suite().title
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known to read the figures."""
        moved = [case.scenario.title for case in self.cases if not case.declared]
        out_of_class = (
            (f"{len(moved)} scenarios lie outside their declared class: {'; '.join(moved)}",) if moved else ()
        )
        return (
            "a collective's size is that of the whole buffer, of which each GPU holds an equal part",
            "the heuristics are judged by the best of what was searched: every strategy, up to 128 CUs set apart",
            "the baseline is the GEMM, then the library's collective on compute units",
            *out_of_class,
        )

    def share(self, strategy: str, kind: str | None = None) -> float | None:
        """The mean share of the ideal of a strategy, over one class or all; None without a case."""
        found = [case.sharing.share(strategy) for case in self.cases if kind in (None, case.sharing.kind)]
        return fmean(found) if found else None

    def headline(self) -> list[HeadlineRow]:
        """Weft's figures, beside the published ones where those hold."""
        return list(_headline(self))

    def as_json(self) -> dict[str, Any]:
        """The study as plain data: what was run, the headline, every case and the curves."""
        return {
            "study": "c3",
            "published": "ISPASS 2025, arXiv:2412.14335",
            "suite": {"title": self.suite.title, "rule": self.suite.rule},
            "gpu": self.gpu,
            "ranks": self.ranks,
            "changed": list(self.changed),
            "notes": list(self.notes),
            "request_bytes": self.request_bytes,
            "runs": self.runs,
            "events": self.events,
            "simulated_s": self.simulated_s,
            "wall_s": self.wall_s,
            "headline": [row.as_json() for row in self.headline()],
            "shares_by_class": {
                name: {kind: self.share(name, kind) for kind in CLASSES} for name in STRATEGIES
            },
            "scenarios": [case.as_json() for case in self.cases],
            "curves": asdict(self.curves),
        }

    def save(self, path: str | Path) -> Path:
        """Write the study as JSON; OutputError if the path cannot be written."""
        return write_atomically(path, json.dumps(self.as_json(), indent=1) + "\n")


def _headline(study: C3Study) -> Iterator[HeadlineRow]:
    for strategy, published in SHARES.items():
        found = study.share(strategy)
        if found is not None:
            what = f"{STRATEGIES[strategy].title}, mean share of the ideal"
            yield _row(study, f"c3.{_ID[strategy]}", what, published, found, "share")
    yield _row(study, "c3.max_speedup", "largest speedup", 1.67, _largest(study), "ratio")
    for bound, lost, published in (("compute", 32, 0.17), ("compute", 64, 0.27), ("memory", 8, -0.05)):
        slower = study.curves.mean_slowdown(bound, lost)
        if slower is not None:
            what = f"{bound}-bound GEMMs with {lost} compute units less, longer by"
            yield _row(
                study, f"c3.gemm_slowdown.{bound}_bound.minus{lost}", what, published, slower, "fraction"
            )
    for collective in study.curves.bandwidth:
        units, reached = SATURATION[collective], study.curves.saturation(collective)
        yield _row(study, f"c3.saturation.{collective}", f"{collective} saturates at", units, reached, "CUs")
    small = study.curves.small_slowdown()
    yield _row(
        study, "c3.dma_small_slowdown", "DMA engines below 32 MB, times longer than CUs", 4, small, "ratio"
    )
    losses = [case.heuristic_loss for case in study.cases if case.heuristic_loss is not None]
    if losses:
        what = "the heuristics' choice, longer than the best by"
        yield HeadlineRow("c3.heuristic_loss", what, None, fmean(losses), "fraction")
    if study.square is not None:
        for name, strategy, published in (("dma", "dma", 1.41), ("cu", "streams", 1.23)):
            what = f"16384^3 beside 1 GiB all-gather on 8 x {FAST_GPU}, by {name.upper()}"
            yield HeadlineRow(f"c3.mi355x.{name}", what, published, study.square.speedup(strategy), "ratio")


_ID = {"streams": "base", **{name: name.replace("-", "_") for name in STRATEGIES if name != "streams"}}
"""What figures call a strategy."""


def _row(study: C3Study, id_: str, what: str, published: float, weft: float, unit: str) -> HeadlineRow:
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
    request_bytes: int = REQUEST_BYTES,
    store: Store | None = None,
    heuristics: bool = True,
) -> C3Study:
    """Simulate a suite (None: the declared one) on `ranks` GPUs, with `jobs` processes.

    With `heuristics` these are judged by the best of the search, which takes the machine's slowdown tables.
    `progress(done, all, what)` is called after every run; what `store` holds is not simulated again. A script that asks
    for more than one job calls this below `if __name__ == "__main__":`. Raises what the simulations raise.
    """
    begin = time.perf_counter()
    suite = suite or declared_suite()
    setting = Setting(load_gpu(gpu) if isinstance(gpu, str) else gpu, ranks, request_bytes=request_bytes)
    whole = setting.gpu.name == PUBLISHED_GPU and suite == declared_suite()
    runs = simulate(_all_runs(suite.scenarios, setting, whole), jobs, progress, store)
    drawn = curves(suite.scenarios, setting, runs)
    saturation = {name: drawn.saturation(name) for name in drawn.bandwidth}
    chosen = _chosen(suite.scenarios, setting, runs, jobs, progress, store) if heuristics else {}
    published = [as_published(s, setting, name, saturation) for s in suite.scenarios for name in STRATEGIES]
    rest = {task for task in (*published, *chosen.values()) if task not in runs}
    runs |= simulate(rest, jobs, progress, store)
    changed = (f"{path} = {p.text}" for path, p in setting.gpu.provenance.items() if p.kind == "set by user")
    return C3Study(
        suite=suite,
        cases=[_case(s, setting, runs, saturation, chosen.get(s)) for s in suite.scenarios],
        curves=drawn,
        square=_square(runs) if whole else None,
        gpu=setting.gpu.name,
        ranks=ranks,
        request_bytes=request_bytes,
        changed=tuple(changed),
        runs=len(runs),
        events=sum(run.events for run in runs.values()),
        simulated_s=sum(run.wall_s for run in runs.values()),
        wall_s=time.perf_counter() - begin,
    )


def _all_runs(scenarios: Sequence[Scenario], setting: Setting, whole: bool) -> Iterator[Run]:
    for scenario in scenarios:
        yield from scenario_runs(scenario, setting)
    yield from curve_runs(scenarios, setting)
    if whole:
        yield from _square_runs().values()


def _chosen(
    scenarios: Sequence[Scenario],
    setting: Setting,
    runs: Runs,
    jobs: int,
    progress: Progress | None,
    store: Store | None,
) -> dict[Scenario, Together]:
    """What the heuristics choose for each scenario, from the machine's slowdown tables and both times alone."""
    tables = tables_for(
        setting.gpu,
        **setting.options(),
        jobs=jobs,
        progress=progress,
        store=store,
    )
    chosen = {}
    for scenario in scenarios:
        gemm_s = runs[gemm_alone(scenario, setting)].makespan_s
        collective_s = runs[collective_alone(scenario, setting)].makespan_s
        choice = choose(
            scenario.product,
            scenario.collective,
            scenario.size,
            tables,
            gemm_s=gemm_s,
            collective_s=collective_s,
        )
        chosen[scenario] = both(scenario, setting, choice.strategy, choice.units)
    return chosen


def _case(
    scenario: Scenario, setting: Setting, runs: Runs, saturation: Mapping[str, int], chosen: Together | None
) -> Case:
    best = min(search(scenario, setting), key=lambda task: runs[task].makespan_s)
    return Case(
        scenario=scenario,
        sharing=sharing(scenario, setting, runs, saturation),
        dma_alone_s=runs[collective_alone(scenario, setting, "dma")].makespan_s,
        best=(best.strategy, best.units),
        best_s=runs[best].makespan_s,
        chosen=None if chosen is None else (chosen.strategy, chosen.units),
        chosen_s=None if chosen is None else runs[chosen].makespan_s,
    )


def _square_runs() -> dict[str, Run]:
    """The published run on eight MI355X; frameworks launch the collective before the GEMM that hides it."""
    setting = Setting(load_gpu(FAST_GPU), RANKS, request_bytes=REQUEST_BYTES)
    return {
        "gemm": GemmAlone(SQUARE, setting),
        "collective": CollectiveAlone("all_gather", GATHERED, setting),
        "streams": Together(SQUARE, "all_gather", GATHERED, setting, "streams", first="collective"),
        "dma": Together(SQUARE, "all_gather", GATHERED, setting, "dma", first="collective"),
    }


def _square(runs: Runs) -> Sharing:
    found: dict[str, StreamRun] = {name: runs[task] for name, task in _square_runs().items()}
    return Sharing(found.pop("gemm"), found.pop("collective"), found)
