"""The C3 study: 30 scenarios on 8 x MI300X under six strategies, its curves, and published figures against Weft's.

Published: A. Agrawal, S. Aga, S. Pati, M. Islam, "Optimizing ML Concurrent Computation and Communication with GPU DMA
Engines", ISPASS 2025, arXiv:2412.14335.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from weft.core.report import Part, Section, drop_empty
from weft.core.report.table import Table, number, text
from weft.core.units import format_bytes
from weft.graph import Collective, Gemm
from weft.overlaps import STRATEGIES
from weft.papers.c3.curves import CurveRuns, Curves, gemms_of
from weft.papers.c3.runs import CoRunCase, ScenarioRuns
from weft.papers.c3.scenarios import DECLARED, DTYPE, IDS, ScenarioSuite, candidates
from weft.papers.headline import RANKS as RANKS_OPTION
from weft.papers.headline import Conditions, PaperStudy, StudyFigure, StudyOption
from weft.plan.tune.perturb import Sensitivity
from weft.plan.tune.probes import COLLECTIVES, tables_of
from weft.simulate import compare
from weft.simulate.result import CoRun
from weft.simulate.result.metrics import CLASSES
from weft.simulate.result.timeline import REASONS
from weft.sweep.simulations import Alone, Bench, Runs, Simulation
from weft.sweep.tasks import Progress
from weft.view import looks
from weft.view.corun import held_units
from weft.view.explorer import timeline, waits_table
from weft.view.figure import Axis, Color, Faint, Figure, Label, Lane, Level, Lines, bars, curves, scatter
from weft.view.predictions import SIZES
from weft.view.words import percent, us

RANKS = 8
"""Number of GPUs for which the published figures hold."""
_FAST_GPU = "mi355x"
SQUARE = Gemm(16384, 16384, 16384, "bf16")
GATHERED = Collective("all_gather", 1 << 30, RANKS)
"""The published co-run on eight MI355X: this GEMM and an all-gather of 128 MiB per GPU [bytes of the whole buffer]."""
_SQUARE_CLAIMS: Mapping[str, str] = {"dma": "dma", "cu": "priority", "cu_gemm_first": "streams"}
"""The strategy of each claim of that run: frameworks launch the collective before the GEMM, as "priority" does."""
SHOWN = ("streams", "priority", "partition", "dma")
"""Strategies with distinct pictures of compute units over time."""


CLASS_LOOKS: looks.Looks = {
    "GEMM is longer": looks.BLUE, "both alike": looks.RED, "collective is longer": looks.GREEN,
}  # fmt: skip
"""Colours of scenarios by which of both is longer."""


@dataclass(frozen=True, repr=False)
class C3Study(PaperStudy):
    """Results of the study: the cases of a suite, the curves, and one published run on another machine.

    `square` are the speedups of that run by strategy; `simulated_s` is the simulation time on one core [s].
    """

    DECLARED = DECLARED
    OPTIONS = (
        StudyOption(
            "--scenarios", "suite", "file", "FILE", "A TOML file with your own scenarios, not the declared ones."
        ),
        RANKS_OPTION,
    )

    suite: ScenarioSuite
    cases: Sequence[CoRunCase]
    curves: Curves
    square: Mapping[str, float] | None
    ranks: int
    runs: int
    events: int
    simulated_s: float

    @classmethod
    def simulated(
        cls, at: Conditions, suite: ScenarioSuite | Path | None = None, ranks: int = RANKS, heuristics: bool = True
    ) -> dict[str, Any]:
        """Simulate the suite of a file (None: the declared one) on `ranks` GPUs, and the curves.

        With `heuristics` their choices are compared with the best of the search, which needs the machine's slowdown
        tables. Raises what the simulations raise.
        """
        suite, bench = ScenarioSuite.given(suite), at.bench(ranks)
        whole = at.gpu.name == DECLARED.gpu and suite == ScenarioSuite.declared()
        gemms = gemms_of(suite.scenarios)
        if whole:  # all candidate GEMMs, since the suite's own have few different wave counts
            gemms |= {Gemm(*gemm, DTYPE): bound for _, gemm, bound in candidates(at.gpu)}
        scenarios = [ScenarioRuns(scenario, bench) for scenario in suite.scenarios]
        curve_runs = CurveRuns(suite.scenarios, bench, gemms)
        square = _square_runs() if whole else {}
        first = (*(task for one in scenarios for task in one.tasks()), *curve_runs.tasks(), *square.values())
        runs = dict(at.jobs.run(first))
        curves = curve_runs.curves(runs)
        tables = tables_of(bench, COLLECTIVES, at.jobs) if heuristics else None
        chosen = [() if tables is None else one.heuristic(tables, runs) for one in scenarios]
        rest = [one.as_published(name, curves.saturations) for one in scenarios for name in STRATEGIES]
        rest += [one.both(*way) for one, ways in zip(scenarios, chosen, strict=True) for way in ways]
        runs |= at.jobs.run(task for task in rest if task not in runs)
        return {
            "suite": suite,
            "cases": [one.case(runs, curves.saturations, ways) for one, ways in zip(scenarios, chosen, strict=True)],
            "curves": curves,
            "square": _square(square, runs) if whole else None,
            "ranks": ranks,
            "runs": len(runs),
            "events": sum(run.events for run in runs.values()),
            "simulated_s": sum(run.cpu_s for run in runs.values()),
        }

    @classmethod
    def moved(cls, at: Conditions, suite: ScenarioSuite | Path | None = None, ranks: int = RANKS) -> Sensitivity:
        """Return the shares of the ideal when assumed values, the clock and the partitioned units move."""
        from weft.papers.c3.sensitivity import move_assumptions

        return move_assumptions(at, ScenarioSuite.given(suite), ranks)

    def _other_than_published(self) -> str:
        if self.ranks != RANKS:
            return f"they are of {RANKS} GPUs, these of {self.ranks}"
        return "" if self.suite == ScenarioSuite.declared() else "the suite is not the declared one"

    @property
    def remarks(self) -> tuple[str, ...]:
        """The units reserved, and scenarios outside their class."""
        moved = [case.scenario.title for case in self.cases if not case.declared]
        lie = "scenario lies" if len(moved) == 1 else "scenarios lie"
        out_of_class = (f"{len(moved)} {lie} outside the declared class: {'; '.join(moved)}",) if moved else ()
        return (
            f"partition sets apart what saturates {format_bytes(self.curves.bandwidth_bytes)}, whatever the size",
            "a partitioned collective has a channel for each of its CUs, not RCCL's own number",
            *out_of_class,
        )

    def share(self, strategy: str, kind: str | None = None) -> float | None:
        """Return a strategy's mean share of the ideal over one class or all cases; None without a case."""
        found = [case.share(strategy) for case in self.cases if kind in (None, case.kind)]
        return fmean(found) if found else None

    def figures(self) -> Iterator[StudyFigure]:
        """Yield shares of the ideal, the curves' figures, the heuristics' losses, and the run on another machine."""
        for name, id_ in IDS.items():
            yield StudyFigure(id_, fmean(case.share(name) for case in self.cases))
        yield StudyFigure("c3.max_speedup", max(case.speedup(name) for case in self.cases for name in case.strategies))
        yield from self.curves.figures()
        losses = [case.losses for case in self.cases]
        for claim in losses[0]:
            yield StudyFigure(f"c3.{claim}", fmean(each[claim] for each in losses))
        if self.square is not None:
            for claim, strategy in _SQUARE_CLAIMS.items():
                yield StudyFigure(f"c3.mi355x.{claim}", self.square[strategy], always=True)

    def own(self) -> dict[str, Any]:
        """Return every case and the curves as plain data."""
        return {
            "suite": {"title": self.suite.title, "rule": self.suite.rule},
            "ranks": self.ranks,
            "runs": self.runs,
            "events": self.events,
            "simulated_s": self.simulated_s,
            "shares_by_class": {name: {kind: self.share(name, kind) for kind in CLASSES} for name in STRATEGIES},
            "scenarios": [case.as_json() for case in self.cases],
            "curves": asdict(self.curves),
        }

    @property
    def shown(self) -> CoRunCase:
        """The case to draw: the shortest with similar isolated times and a compute-bound GEMM, if there is one."""
        return min(self.cases, key=lambda c: (c.kind != "GC-equal", c.scenario.bound == "memory", c.alone.serial_s))

    def watch(self, progress: Progress | None = None) -> dict[str, CoRun]:
        """Simulate the shown scenario again with full timelines, under each strategy whose picture differs."""
        bench = self.bench(self.ranks)
        one = ScenarioRuns(self.shown.scenario, bench)
        if progress is not None:
            progress(0, 1, "who held which unit")
        overlaps = [one.as_published(name, self.curves.saturations).overlap for name in SHOWN]
        made = compare(one.both("streams").graph, bench.system, overlaps, bench.options)
        return {name: made.corun(name) for name in SHOWN}

    @property
    def lead(self) -> str:
        """What was simulated, and on which machine."""
        return f"{self.suite.title}: {len(self.cases)} scenarios on {self.ranks} × {self.gpu}."

    @property
    def strategies(self) -> list[str]:
        """The strategies, by name."""
        return list(STRATEGIES)

    @property
    def class_rows(self) -> Iterator[tuple[Any, ...]]:
        """The mean share of the ideal of each strategy, over all scenarios and by class."""
        return ((name, *(self.share(name, kind) for kind in (None, *CLASSES))) for name in STRATEGIES)

    @property
    def mean_shares(self) -> Iterator[tuple[Any, ...]]:
        """Mean share of the ideal of each strategy, over all scenarios and by class."""
        for kind, words in ((None, "all scenarios"), *CLASSES.items()):
            count = sum(kind in (None, case.kind) for case in self.cases)
            for name in STRATEGIES if count else ():
                share = self.share(name, kind)
                yield f"{words} ({count})", name, share, percent(share)

    @property
    def published_shares(self) -> Iterator[tuple[Any, ...]]:
        """Published mean shares of all scenarios."""
        known = {row.id: row.published for row in self.headline()}
        lane = f"all scenarios ({len(self.cases)})"
        return ((lane, name, known[id_]) for name, id_ in IDS.items() if isinstance(known.get(id_), float))

    @property
    def slowdowns(self) -> Iterator[tuple[Any, ...]]:
        """Every scenario: slowdowns of the GEMM and the collective under each strategy, relative to alone."""
        for name in STRATEGIES:
            for case in self.cases:
                slower = case.gemm_slowdown(name), case.collective_slowdown(name)
                yield name, case.scenario.title, CLASSES[case.kind], *slower

    @property
    def waits(self) -> Iterator[tuple[Any, ...]]:
        """Every scenario and strategy: the longest waits of a workgroup on each side, and slowdowns."""
        for case in self.cases:
            one = case.scenario
            for name, run in case.comparison.timelines.items():
                waited = (_longest(run.waits(operator)) for operator in ("gemm", one.collective))
                slower = case.gemm_slowdown(name), case.collective_slowdown(name)
                yield one.layer, one.shape, one.beside, name, *waited, *slower

    def timelines(self, runs: Mapping[str, CoRun]) -> list[Part]:
        """Return which operator held which compute unit under each strategy."""
        until = max(run.makespan for run in runs.values())
        said = (
            f"One scenario, {self.shown.scenario.title}, on one of the GPUs; both are launched at 0. First, when each "
            "kernel ran and what it waited for; then a line per compute unit, empty where it was idle."
        )
        shown = {name: run.run for name, run in runs.items()}
        return [said, timeline(shown), waits_table(shown), *(held_units(run, until) for run in runs.values())]

    @property
    def work(self) -> str:
        """How much was simulated, in words."""
        return f"{self.runs} runs of {self.events:,} events in {self.simulated_s:.0f} s of one core."

    @property
    def elsewhere(self) -> str:
        """The headline's title on machines for which nothing is published."""
        return f"Figures for {self.ranks} x {self.gpu}"

    def tables(self) -> list[Table]:
        """Return the tables of the terminal."""
        return drop_empty(self._speedups_table(), self._classes_table())

    def sections(self, watched: Any = None) -> list[Part]:
        """Return the sections of the page."""
        return [
            Section("How much of the ideal", drop_empty(self._shares_figure())),
            Section("What each costs the other", drop_empty(self._slowdowns_figure())),
            Section("Why", drop_empty(self._gemms_figure(), self._bandwidth_figure(), self._drivers_figure())),
            Section("Who held which compute unit", [] if watched is None else self.timelines(watched)),
            Section(
                "Mean share of the ideal by class",
                drop_empty(
                    "G-long: the GEMM takes more than 1.15 times as long as the collective; C-long: the reverse.",
                    self._classes_table(),
                ),
            ),
            Section(
                "Every scenario",
                drop_empty(
                    "Share of the ideal under each strategy, with compute units as published; ideal and fastest "
                    "of all that was searched as speedups over serial execution.",
                    self._shares_table(),
                ),
            ),
            Section(
                "Slowdowns of every scenario under every strategy, and where its time goes",
                drop_empty(
                    "What a workgroup does or waits for longest, all that run in its place added up; copies by "
                    "DMA engines have no workgroups. Slowdowns are over the time alone, by compute units.",
                    self._waits_table(),
                ),
                folded=True,
            ),
            Section("How the scenarios were chosen", drop_empty(self.suite.rule)),
        ]

    def _speedups_table(self) -> Table:
        columns = [
            text("gemm", "GEMM"), text("beside"), text("class"), number("gemm_us", "GEMM", "µs", ",.0f"),
            number("collective_us", "collective", "µs", ",.0f"), number("ideal", format_=".2f"),
            *(number(name, format_=".2f") for name in self.strategies), text("best", prose=True),
        ]  # fmt: skip
        rows = [
            (one.scenario.shape, one.scenario.beside, one.kind, one.alone.gemm_s * 1e6, one.alone.collective_s * 1e6,
             one.alone.ideal, *(one.speedup(name) for name in self.strategies), one.best.words)
            for one in self.cases
        ]  # fmt: skip
        return Table(
            columns, rows, f"{self.suite.title}: {self.ranks} x {self.gpu}, times alone, speedups over serial execution"
        )

    def _shares_table(self) -> Table:
        columns = [
            text("gemm", "GEMM"), text("beside"), text("class"), number("gemm_us", "GEMM", "µs", ",.0f"),
            number("collective_us", "collective", "µs", ",.0f"), number("ideal", format_=".2f"),
            *(number(name, format_=percent) for name in self.strategies), number("fastest"),
        ]  # fmt: skip
        rows = [
            (one.scenario.shape, one.scenario.beside, one.kind, one.alone.gemm_s * 1e6, one.alone.collective_s * 1e6,
             one.alone.ideal, *(one.share(name) for name in self.strategies), one.fastest)
            for one in self.cases
        ]  # fmt: skip
        return Table(columns, rows, "")

    def _classes_table(self) -> Table:
        columns = [
            text("strategy"), number("all", format_=percent),
            number("G-long", "G-long: GEMM is longer", format_=percent),
            number("GC-equal", "GC-equal: both alike", format_=percent),
            number("C-long", "C-long: collective is longer", format_=percent),
        ]  # fmt: skip
        rows = list(self.class_rows)
        return Table(columns, rows, "Mean share of the ideal speedup")

    def _waits_table(self) -> Table:
        columns = [
            text("layer"), text("gemm", "GEMM"), text("beside"), text("strategy"),
            text("gemm_most_of_its_time", "GEMM: most of its time"),
            text("collective_most_of_its_time", "collective: most of its time"),
            number("GEMM_slowdown", "GEMM", format_="{:.2f}×"),
            number("collective_slowdown", "collective", format_="{:.2f}×"),
        ]  # fmt: skip
        rows = list(self.waits)
        return Table(columns, rows, "")

    def _shares_figure(self) -> Figure:
        columns = [
            text("class"), text("strategy"), number("share", "share of the ideal speedup", format_=".1%"),
            text("said", " "),
        ]  # fmt: skip
        table = Table(columns, list(self.mean_shares))
        marked = [text("class"), text("strategy"), number("share", "published mean", format_=".0%")]
        marks = Table(marked, list(self.published_shares))
        return bars(
            "How much of what overlap could save does each strategy save?", table, lane=Lane("class", "strategy"),
            end=Axis("share", percent=True), color=Color("strategy", looks.STRATEGIES),
            over=[Label("said"), Lines(marks, "share", "strategy", "class") if marks.rows else None],
        ).with_caption(
            "Serial execution with the collective on compute units is 0 %, hiding the shorter of both at no cost "
            "100 %. Where the collective is the longer one, faster DMA engines may exceed it."
        )  # fmt: skip

    def _slowdowns_figure(self) -> Figure:
        columns = [
            text("strategy"), text("scenario"), text("class"), number("gemm", "GEMM over alone", "×", ".2f"),
            number("collective", "collective over alone", "×", ".2f"),
        ]  # fmt: skip
        table = Table(columns, list(self.slowdowns))
        return scatter(
            "What does each strategy cost the GEMM and the collective?", table, x="gemm", y="collective",
            color=Color("class", CLASS_LOOKS), facet="strategy", cross=1.0,
        ).with_caption(
            "A dot per scenario. To the right the GEMM suffers, upwards the collective does; a collective that "
            "waits for the GEMM to leave compute units free lies far up."
        )  # fmt: skip

    def _gemms_figure(self) -> Figure:
        columns = [
            text("bound", "means of GEMMs"), number("lost", "compute units lost"),
            number("slower", "time over that on all", "×", ".3f"),
        ]  # fmt: skip
        table = Table(columns, list(self.curves.gemm_means))
        thin = [
            text("gemm", "GEMM"), text("bound"), number("lost", "compute units lost"),
            number("slower", "time over that on all", "×", ".3f"),
        ]  # fmt: skip
        faint = Table(thin, list(self.curves.each_gemm))
        return curves(
            "What does a GEMM lose?", table, x="lost", y=Axis("slower", zero=False),
            color=Color("bound", {"compute-bound": looks.BLUE, "memory-bound": looks.RED}), over=[Faint(faint)],
        ).with_caption("Thin lines are single GEMMs, whose tiles come in waves.")  # fmt: skip

    def _bandwidth_figure(self) -> Figure:
        columns = [
            text("collective"), number("units", "compute units given"),
            number("share", "share of its best bandwidth", format_=".1%"),
        ]  # fmt: skip
        table = Table(columns, list(self.curves.bandwidth_shares))
        return curves(
            "How many compute units does a collective need?", table,
            x=Axis("units", log=True, ticks=sorted(table.distinct("units"))), y=Axis("share", percent=True),
            color=Color("collective"),
        ).with_caption(
            "A workgroup's bytes in flight are limited, so that few workgroups do not fill the links."
        )  # fmt: skip

    def _drivers_figure(self) -> Figure:
        columns = [
            text("collective"), number("mib", "size of the whole buffer", "MiB", ".4g"), text("size"),
            number("ratio", "DMA engines over compute units", "×", ".2f"),
        ]  # fmt: skip
        table = Table(columns, list(self.curves.drivers))
        return curves(
            "From which size on are DMA engines the faster driver?", table, x=Axis("mib", log=True, labels=SIZES),
            y=Axis("ratio", log=True), color=Color("collective"), over=[Level(1.0)],
        ).with_caption(
            "Below 1 the engines are faster. Small collectives pay for the host, which enqueues a copy per peer "
            "and waits for their completion."
        )  # fmt: skip


STUDY = C3Study
run = C3Study.run


def _square_runs() -> dict[str, Simulation]:
    """The published run on eight MI355X."""
    bench = Bench.of(_FAST_GPU, RANKS)
    return {
        "gemm": bench.gemm(SQUARE),
        "collective": bench.collective(GATHERED),
        **{name: bench.together(SQUARE, GATHERED, name) for name in _SQUARE_CLAIMS.values()},
    }


def _square(tasks: Mapping[str, Simulation], runs: Runs) -> dict[str, float]:
    """Speedups over serial execution in the published MI355X run, by strategy."""
    seconds = {name: runs[task].makespan for name, task in tasks.items()}
    alone = Alone(seconds.pop("gemm"), seconds.pop("collective"))
    return {name: alone.speedup(makespan) for name, makespan in seconds.items()}


def _longest(waits: Mapping[str, float]) -> str:
    """Return the two longest waits, in words."""
    longest = sorted(waits.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{REASONS[why]} {us(s, 0)}\N{NO-BREAK SPACE}µs" for why, s in longest if s > 0)
