"""The C3 study: 30 scenarios on 8 x MI300X under six strategies, its curves, and published figures beside Weft's.

Published: A. Agrawal, S. Aga, S. Pati, M. Islam, "Optimizing ML Concurrent Computation and Communication with GPU DMA
Engines", ISPASS 2025, arXiv:2412.14335.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from weft.graph import Collective, Gemm
from weft.hardware import Gpu
from weft.options import RunOptions
from weft.result import Comparison, CoRun
from weft.result.metrics import CLASSES, class_of, ideal_speedup, share_of_ideal
from weft.result.timeline import REASONS
from weft.run import compare
from weft.run.sweep import Progress
from weft.run.sweep.run import Simulation
from weft.schedule import SHARING
from weft.search import SlowdownTables, tables_for
from weft.search.heuristics import case_of, forecasts, plainest
from weft.search.perturb import Sensitivity
from weft.search.tasks import Bench, Runs
from weft.studies.c3.candidates import DTYPE, candidates
from weft.studies.c3.curves import CurveRuns, Curves, gemms_of
from weft.studies.c3.runs import ScenarioRuns
from weft.studies.c3.scenarios import DECLARED, Scenario, Suite, declared_suite, load_suite
from weft.studies.headline import RANKS as RANKS_OPTION
from weft.studies.headline import Conditions, Measured, Option, PaperStudy
from weft.units import format_bytes
from weft.view.corun import held_units
from weft.view.explorer import timeline, waits_table
from weft.view.page import Part, Section
from weft.view.studies import (
    bandwidth_against_units,
    drivers,
    gemm_against_units,
    strategy_shares,
    strategy_slowdowns,
)  # fmt: skip
from weft.view.table import Shown, Table, microseconds, number, text, texts, times_faster
from weft.view.words import percent, us

RANKS = 8
"""GPUs that the published figures hold for."""
IDS: Mapping[str, str] = {name: f"c3.{'base' if name == 'streams' else name.replace('-', '_')}" for name in SHARING}
"""The claim of each strategy: its mean share of the ideal speedup."""
FAST_GPU = "mi355x"
SQUARE = Gemm(16384, 16384, 16384, "bf16")
GATHERED = Collective("all_gather", 1 << 30, RANKS)
"""The published run on eight MI355X: this GEMM beside an all-gather of 128 MiB per GPU [bytes of the whole buffer]."""


SHOWN = ("streams", "priority", "partition", "dma")
"""Strategies whose pictures of who held which unit differ."""
_CLASSED = "G-long: the GEMM takes more than 1.15 times as long as the collective; C-long: the reverse."
_WAITS = "Slowdowns of every scenario under every strategy, and where its time goes"
_COLUMNS = (
    text("gemm", "GEMM"), text("beside"), text("class"), microseconds("gemm", "GEMM", 0),
    microseconds("collective", "collective", 0), times_faster("ideal", format_=".2f"),
)  # fmt: skip


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

    DECLARED = DECLARED
    OPTIONS = (
        Option(
            "--scenarios",
            "suite",
            "file",
            "FILE",
            "A TOML file with scenarios of your own, not the declared ones.",
        ),
        RANKS_OPTION,
    )

    suite: Suite
    cases: Sequence[Case]
    curves: Curves
    square: Mapping[str, float] | None
    ranks: int
    runs: int
    events: int
    simulated_s: float

    @classmethod
    def simulated(
        cls, at: Conditions, suite: Suite | Path | None = None, ranks: int = RANKS, heuristics: bool = True
    ) -> dict[str, Any]:
        """The cases of a suite, or of that in a file (None: the declared one), on `ranks` GPUs, and the curves.

        With `heuristics` these are judged by the best of the search, which takes the machine's slowdown tables. Raises
        what the simulations raise.
        """
        suite, bench, jobs = _suite_of(suite), at.bench(ranks), at.jobs
        whole = at.gpu.name == DECLARED.gpu and suite == declared_suite()
        gemms = {**gemms_of(suite.scenarios), **(_rule_gemms(at.gpu) if whole else {})}
        scenarios = [ScenarioRuns(scenario, bench) for scenario in suite.scenarios]
        curve_runs = CurveRuns(suite.scenarios, bench, gemms)
        square = _square_runs() if whole else {}
        first = (*(task for one in scenarios for task in one.tasks()), *curve_runs.tasks(), *square.values())
        runs = dict(jobs.run(first))
        curves = curve_runs.curves(runs)
        saturation = curves.saturations
        chosen: dict[ScenarioRuns, Chosen] = {}
        if heuristics:
            sweep: dict[str, Any] = {"jobs": jobs.count, "progress": jobs.progress, "store": jobs.store}
            tables = tables_for(bench.system, options=bench.options, ranks=ranks, **sweep)
            chosen = {one: _chosen(one, tables, runs) for one in scenarios}
        rest = [one.as_published(name, saturation) for one in scenarios for name in SHARING]
        rest += [one.both(*way) for one in scenarios for way in chosen.get(one, ())]
        runs |= jobs.run(task for task in rest if task not in runs)
        return {
            "suite": suite,
            "cases": [_case(one, runs, saturation, chosen.get(one, ())) for one in scenarios],
            "curves": curves,
            "square": _square(square, runs) if whole else None,
            "ranks": ranks,
            "runs": len(runs),
            "events": sum(run.events for run in runs.values()),
            "simulated_s": sum(run.wall_s for run in runs.values()),
        }

    @classmethod
    def moved(cls, at: Conditions, suite: Suite | Path | None = None, ranks: int = RANKS) -> Sensitivity:
        """What the shares of the ideal become where assumed values, the clock and the units set apart move."""
        from weft.studies.c3.sensitivity import moved

        return moved(at, _suite_of(suite), ranks)

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

    def figures(self) -> Iterator[Measured]:
        """Shares of the ideal, the curves' figures, what the heuristics lose, and the run on another machine."""
        for name, id_ in IDS.items():
            yield Measured(id_, fmean(case.share(name) for case in self.cases))
        yield Measured("c3.max_speedup", max(case.speedup(name) for case in self.cases for name in case.strategies))
        yield from self.curves.figures()
        for id_, losses in (
            ("c3.heuristic_loss", [case.heuristic_loss for case in self.cases]),
            ("c3.heuristic_loss_cu", [case.heuristic_loss_cu for case in self.cases]),
            ("c3.always_dma_loss", [case.dma_loss for case in self.cases]),
        ):
            known = [loss for loss in losses if loss is not None]
            if known:
                yield Measured(id_, fmean(known))
        # Frameworks launch the collective before the GEMM that hides it, as "priority" does, not as "streams" does.
        for id_, strategy in (("dma", "dma"), ("cu", "priority"), ("cu_gemm_first", "streams")):
            if self.square is not None:
                yield Measured(f"c3.mi355x.{id_}", self.square[strategy], always=True)

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

    @property
    def shown(self) -> Case:
        """The case that is drawn: the shortest of those with times alike and a compute-bound GEMM, if any."""
        return min(self.cases, key=lambda c: (c.kind != "GC-equal", c.scenario.bound == "memory", c.serial_s))

    def watch(self, progress: Progress | None = None) -> dict[str, CoRun]:
        """The shown scenario once more under each strategy whose picture differs, its units as published."""
        bench = Bench.of(self.machine, self.ranks, RunOptions(request_bytes=self.request_bytes))
        one = ScenarioRuns(self.shown.scenario, bench)
        if progress is not None:
            progress(0, 1, "who held which unit")
        overlaps = [one.as_published(name, self.curves.saturations).overlap for name in SHOWN]
        made = compare(one.both("streams").graph, bench.system, overlaps, bench.options)
        return {name: made.corun(name) for name in SHOWN}

    def tables(self) -> list[Table]:
        """Every scenario under every strategy, and the means by class."""
        return [self._scenario_table(), self._class_table()]

    @property
    def lead(self) -> str:
        """What was run, and where."""
        return f"{self.suite.title}: {len(self.cases)} scenarios on {self.ranks} × {self.gpu}."

    @property
    def work(self) -> str:
        """How much was simulated."""
        return f"{self.runs} runs of {self.events:,} events in {self.simulated_s:.0f} s of one core."

    def sections(self, watched: Mapping[str, CoRun] | None = None) -> list[Part]:
        """Shares of the ideal, what both cost each other and why, who held which unit, and every scenario."""
        cases, curves = self.cases, self.curves
        shares = strategy_shares(cases, self._published()).captioned(
            "Serial execution with the collective on compute units is 0 %, hiding the shorter of both for nothing 100 "
            "%. Where the collective is the longer one, faster DMA engines may exceed it.",
        )
        slowdowns = strategy_slowdowns(cases).captioned(
            "A dot per scenario. To the right the GEMM suffers, upwards the collective does; a collective that waits "
            "for the GEMM to leave compute units free lies far up.",
        )
        lost = gemm_against_units(curves.slowdown, curves.boundness).captioned(
            "Thin lines are single GEMMs, whose tiles come in waves."
        )
        given = bandwidth_against_units(curves.bandwidth).captioned(
            "A workgroup has only so many bytes on their way, so that few of them do not fill the links."
        )
        engines = drivers(curves.cu_s, curves.dma_s).captioned(
            "Below 1 the engines are faster. Small collectives pay for the host, which enqueues a copy per peer and "
            "waits for their completion.",
        )
        every = (
            "Share of the ideal under each strategy, with compute units as published; ideal and fastest of all that "
            "was searched as speedups over serial execution."
        )
        longest = (
            "What a workgroup does or waits for longest, all that run in its place added up; copies by DMA engines "
            "have no workgroups. Slowdowns are over the time alone, by compute units."
        )
        return [
            Section("How much of the ideal", [shares]),
            Section("What each costs the other", [slowdowns]),
            Section("Why", [lost, given, engines]),
            _timelines(watched or {}, self.shown.scenario.title),
            Section("Mean share of the ideal by class", [_CLASSED, self._class_table()]),
            Section("Every scenario", [every, self._share_table()]),
            Section(_WAITS, [longest, self._wait_table()], folded=True),
            Section("How the scenarios were chosen", [self.suite.rule] if self.suite.rule else []),
        ]

    def _published(self) -> dict[str, float]:
        """Published shares by strategy."""
        known = {row.id: row.published for row in self.headline() if isinstance(row.published, float)}
        return {name: known[id_] for name, id_ in IDS.items() if id_ in known and name in self.cases[0].strategies}

    def _class_table(self) -> Table:
        """The mean share of the ideal of each strategy, by class."""
        names = self.cases[0].strategies
        rows = [(name, *(self.share(name, kind) for kind in (None, *CLASSES))) for name in names]
        kinds = {"all": "all", **{kind: f"{kind}: {words}" for kind, words in CLASSES.items()}}
        columns = [text("strategy"), *(number(kind, head, format_=percent) for kind, head in kinds.items())]
        return Table(columns, rows, "Mean share of the ideal speedup")

    def _scenario_table(self) -> Table:
        """Every scenario: times alone, the ideal, and every strategy's speedup over serial execution."""
        names = self.cases[0].strategies
        rows = [(*_times(case), *map(case.speedup, names), _best(case)) for case in self.cases]
        columns = [*_COLUMNS, *(times_faster(name, format_=".2f") for name in names), text("best", prose=True)]
        title = f"{self.suite.title}: {self.ranks} x {self.gpu}, times alone, speedups over serial execution"
        return Table(columns, rows, title)

    def _share_table(self) -> Table:
        """Every scenario: times alone, the ideal, and every strategy's share of it."""
        names = self.cases[0].strategies
        rows = [
            (
                *_times(case),
                *map(case.share, names),
                Shown(fastest := case.serial_s / case.best.seconds, f"{fastest:.2f}, {_best(case)}"),
            )
            for case in self.cases
        ]
        shares = (number(name, format_=percent) for name in names)
        return Table([*_COLUMNS, *shares, number("fastest")], rows)

    def _wait_table(self) -> Table:
        """Every scenario and strategy: where most of the time of a workgroup of each went, and slowdowns."""
        rows = [
            (
                case.scenario.layer,
                *_name(case),
                name,
                *(_longest(run.waits(operator)) for operator in ("gemm", case.scenario.collective)),
                case.gemm_slowdown(name),
                case.collective_slowdown(name),
            )
            for case in self.cases
            for name, run in case.comparison.timelines.items()
        ]
        heads = ("layer", "GEMM", "beside", "strategy", "GEMM: most of its time", "collective: most of its time")
        slower = [times_faster(f"{what}_slowdown", what, "{:.2f}×") for what in ("GEMM", "collective")]
        return Table([*texts(heads), *slower], rows)


STUDY = C3Study
run = C3Study.run


def _suite_of(given: Suite | Path | None) -> Suite:
    return load_suite(given) if isinstance(given, Path) else given or declared_suite()


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


def _timelines(runs: Mapping[str, CoRun], drawn: str) -> Section:
    """Who held which compute unit under each strategy."""
    until = max((run.makespan for run in runs.values()), default=None)
    said = (
        f"One scenario, {drawn}, on one of the GPUs; both are launched at 0. First, when each kernel ran and what it "
        "waited for; then a line per compute unit, empty where it was idle."
    )
    held = [held_units(run, until) for run in runs.values()]
    shown = {name: run.run for name, run in runs.items()}
    parts: list[Part] = [said, timeline(shown), waits_table(shown), *held] if runs else []
    return Section("Who held which compute unit", parts)


def _name(case: Case) -> tuple[str, str]:
    one = case.scenario
    return "×".join(map(str, one.gemm)), f"{one.collective} {format_bytes(one.size, 4)}"


def _best(case: Case) -> str:
    return case.best.strategy if case.best.units is None else f"{case.best.strategy} {case.best.units}"


def _times(case: Case) -> tuple[Any, ...]:
    return *_name(case), case.kind, case.gemm_s * 1e6, case.collective_s * 1e6, case.ideal


def _longest(waits: Mapping[str, float]) -> str:
    """Where most of the time went, in words: the two longest."""
    longest = sorted(waits.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{REASONS[why]} {us(s, 0)}\N{NO-BREAK SPACE}µs" for why, s in longest if s > 0)
