"""The GOLDYLOC study: a suite of independent GEMMs on MI100, with published figures against Weft's.

Published: S. Pati, S. Aga, N. Jayasena, M. D. Sinclair, "Global Optimizations & Lightweight Dynamic Logic for
Concurrency", ACM TACO 2025, arXiv:2409.02227.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from weft.core.report import Part, Section, drop_empty
from weft.core.report.table import Shown, Table, number, text
from weft.graph import Gemm, gemm_queue
from weft.kernels import GemmTiling
from weft.papers.goldyloc.cases import JudgedQueue, solve
from weft.papers.goldyloc.predictor import Predictor
from weft.papers.goldyloc.shares import ShareLosses, share_losses, share_runs
from weft.papers.goldyloc.suite import DECLARED, QueueSuite, SuiteEntry
from weft.papers.headline import Conditions, PaperStudy, StudyFigure, StudyOption
from weft.plan.tune.perturb import Sensitivity, ValueMove, gemm_values, moves, option_move, perturb
from weft.plan.tune.queues import DEFAULT, DEGREES, GoKernels, WatchedQueue, watch_queue
from weft.simulate.result import Timeline
from weft.sweep.simulations import Bench, Runs, Simulation, drain_seconds
from weft.sweep.tasks import Progress
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Label, Level, Lines, bars, curves, scatter
from weft.view.tune import held_by_gemms


@dataclass(frozen=True)
class KernelEffect:
    """The effect of a GO-kernel: co-running copies of one GEMM, with the isolated kernel and with the GO-kernel."""

    network: str
    layer: str
    gemm: Gemm
    degree: int
    isolated: GemmTiling
    go: GemmTiling
    before: Timeline
    after: Timeline

    @property
    def faster(self) -> float:
        """Speedup by the GO-kernel."""
        return drain_seconds(self.before) / drain_seconds(self.after)

    def as_json(self) -> dict[str, Any]:
        """Return the change as plain data."""
        return {
            "network": self.network,
            "layer": self.layer,
            "gemm": [self.gemm.m, self.gemm.n, self.gemm.k],
            "degree": self.degree,
            "isolated": {"tiling": asdict(self.isolated), "run": _record(self.before)},
            "go_kernel": {"tiling": asdict(self.go), "run": _record(self.after)},
            "faster": self.faster,
        }


def _record(run: Timeline) -> dict[str, Any]:
    """Return the differences of two kernels: times, waits of workgroups, traffic of caches and memory."""
    spent = Counter[str]()
    for span in run.spans:
        spent.update(span.waits)
    whole = max(sum(spent.values()), 1)
    return {
        "makespan_s": drain_seconds(run),
        "ends_s": [run.end(node.name) for node in run.graph],
        "waits": {name: value / whole for name, value in spent.items()},
        "bytes": {" ".join(cause): amount for cause, amount in run.traffic.items()},
        "counters": dict(run.counters),
        "workgroups": [span.workgroups for span in run.spans],
        "resident": [span.resident for span in run.spans],
        "events": run.events,
    }


@dataclass(frozen=True, repr=False)
class GoldylocStudy(PaperStudy):
    """Results of the study: every queue, effects of GO-kernels, losses on parts of the GPU, and the predictor.

    `predictor` was trained on the whole suite; each case was judged by one trained without its network.
    """

    DECLARED = DECLARED
    OPTIONS = (
        StudyOption("--suite", "suite", "file", "FILE", "A TOML file with GEMMs of your own, not the declared ones."),
    )

    suite: QueueSuite
    cases: Sequence[JudgedQueue]
    changes: Sequence[KernelEffect]
    losses: ShareLosses
    predictor: Predictor
    clock: str
    runs: int
    events: int

    @classmethod
    def simulated(cls, at: Conditions, suite: QueueSuite | Path | None = None) -> dict[str, Any]:
        """Simulate and judge every queue of the suite in a file (None: the declared one), and what explains the gains.

        Raises InputError for what cannot be simulated, such as a data type that the GPU lacks.
        """
        suite, bench = QueueSuite.given(suite), at.bench()
        # Parts of the GPU first: the tuning that follows reuses runs of the same candidates.
        parts = at.jobs.run(share_runs(suite.shapes, bench))
        cases, predictor, kernels, runs = solve(suite, bench, at.jobs)
        tuned = [one for each in kernels.values() for tried in each.runs.values() for one in tried.values()]
        everything = [*parts.values(), *tuned, *runs.values()]
        return {
            "suite": suite,
            "cases": cases,
            "changes": [_change(entry, kernels) for entry in suite.gemm],
            "losses": share_losses(suite.shapes, bench, parts),
            "predictor": predictor,
            "clock": at.options.clock,
            "runs": len(everything),
            "events": sum(one.events for one in everything),
        }

    @classmethod
    def moved(cls, at: Conditions, suite: QueueSuite | Path | None = None) -> Sensitivity:
        """The gains when assumed values, the clock and the queues move, with kernels and degrees unchanged."""
        return move_assumptions(at, QueueSuite.given(suite))

    def _other_than_published(self) -> str:
        return "" if self.suite == QueueSuite.declared() else "the suite is not the declared one"

    @property
    def units(self) -> int:
        """Compute units of the GPU."""
        return self.machine.compute.compute_units

    @property
    def accuracy(self) -> float:
        """How often a predicted degree was the best one."""
        return fmean(case.degree == case.judged.best_degree for case in self.cases)

    def at_degree(self, degree: int) -> float:
        """Speedup of GO-kernels at a fixed degree over default concurrency, geometric mean."""
        return geometric_mean(case.judged.default / case.judged.at(degree) for case in self.cases)

    def watch(self, progress: Progress | None = None) -> WatchedQueue:
        """Return the queue with the largest gain over default concurrency (of mixed shapes if any), simulated again."""
        mixed = [case for case in self.cases if case.is_mixed]
        case = max(mixed or self.cases, key=lambda case: case.over_default)
        return watch_queue(case.title, case.plans)

    def gain(self, name: str) -> float:
        """Return the geometric mean of a figure of the cases, such as "over_default"."""
        return geometric_mean(getattr(case, name) for case in self.cases)

    def figures(self) -> Iterator[StudyFigure]:
        """Yield the gains over all queues, and the losses of the whole GPU's best kernels on parts of it."""
        for name in ("over_default", "over_sequential"):
            yield StudyFigure(f"goldyloc.{name}.geomean", self.gain(name))
            yield StudyFigure(f"goldyloc.{name}.max", max(getattr(case, name) for case in self.cases))
        yield StudyFigure("goldyloc.default_over_sequential.geomean", self.gain("default_over_sequential"))
        yield StudyFigure("goldyloc.of_oracle", self.gain("of_oracle"))
        yield StudyFigure("goldyloc.loss_on_half", self.losses.median(2))
        yield StudyFigure("goldyloc.loss_on_quarter", self.losses.median(4))
        yield StudyFigure("goldyloc.changed_tiles", self.losses.changed)

    @property
    def remarks(self) -> tuple[str, ...]:
        """How often the predictors are right."""
        blind = (
            "the degree was chosen by predictors that had not seen the network; "
            f"{self.accuracy:.0%} of them name the best degree"
        )
        return (blind,)

    def own(self) -> dict[str, Any]:
        """Suite, predictor and every case as plain data."""
        return {
            "suite": self.suite.title,
            "clock": self.clock,
            "fixed_degrees": {str(degree): self.at_degree(degree) for degree in DEGREES},
            "accuracy": self.accuracy,
            "predictor": self.predictor.record(),
            "cases": [case.as_json() for case in self.cases],
            "changes": [change.as_json() for change in self.changes],
            "losses": [
                {"gemm": [row.gemm.m, row.gemm.n, row.gemm.k], "share": row.share, "loss": row.loss}
                for row in self.losses.rows
            ],
            "runs": self.runs,
            "events": self.events,
        }

    @property
    def degrees(self) -> Sequence[int]:
        """The degrees at which GO-kernels run."""
        return DEGREES

    @property
    def queue_rows(self) -> Iterator[tuple[Any, ...]]:
        """Every queue [us]: one after another, by default, with GO-kernels at each degree and at the chosen one."""
        for case in self.cases:
            judged = case.judged
            fixed = (judged.at_degree[d] * 1e6 if d in judged.at_degree else Shown(None, "") for d in DEGREES)
            times = judged.sequential * 1e6, judged.default * 1e6, *fixed, case.degree, case.goldyloc * 1e6
            yield case.title, *times, case.over_default, case.over_sequential, case.of_oracle

    @property
    def lead(self) -> str:
        """What was simulated, and on which machine."""
        return f"{self.suite.title}: {len(self.cases)} queues on {self.gpu}."

    @property
    def summary(self) -> list[str]:
        """The gains at the chosen degrees, and the quality of the choice."""
        speeds = dict(self._speeds())
        best = max(self.cases, key=lambda case: case.over_default)
        fixed = max((name for name in speeds if name.startswith("degree")), key=speeds.__getitem__)
        gain = (
            f"GO-kernels at the chosen degree are {speeds['GOLDYLOC']:.2f} times as fast as all at once with kernels "
            f"tuned alone, at best {best.over_default:.2f} times ({best.title})."
        )
        blind = (
            f"Degrees chosen for networks that the predictor had not seen reach {self.gain('of_oracle'):.1%} of the "
            f"oracle's performance; always {fixed} gives {speeds[fixed]:.2f} times."
        )
        return [gain, blind]

    @property
    def longest(self) -> list[JudgedQueue]:
        """The longest queue of each layer."""
        return list({(case.network, case.layer): case for case in self.cases}.values())

    @property
    def chosen_ways(self) -> Iterator[tuple[Any, ...]]:
        """Speedup of GOLDYLOC over default concurrency on each layer's longest queue."""
        return ((case.title, "GOLDYLOC", case.over_default) for case in self.longest)

    @property
    def other_ways(self) -> Iterator[tuple[Any, ...]]:
        """The speedup of every other way to run these queues."""
        for case in self.longest:
            ways = {"one after another": case.judged.sequential, "oracle": case.judged.oracle}
            ways |= {f"GO-kernels, always {degree}": seconds for degree, seconds in case.judged.at_degree.items()}
            yield from ((case.title, way, case.judged.default / seconds) for way, seconds in ways.items())

    @property
    def fixed_degrees(self) -> Iterator[tuple[Any, ...]]:
        """Geometric means over default concurrency: GO-kernels at each fixed degree, GOLDYLOC, the oracle."""
        for name, speed in self._speeds():
            yield name, "fixed" if name.startswith("degree") else "chosen", speed, f"{speed:.2f}"

    @property
    def count_rows(self) -> Iterator[tuple[Any, ...]]:
        """GO-kernels relative to isolated ones: speed over cache loads, and over cache misses."""
        for what, names in _COUNTED.items():
            for one in self.changes:
                before, after = (sum(run.counters[name] for name in names) for run in (one.before, one.after))
                yield what, f"{one.degree} of {one.gemm}", after / max(before, 1), one.faster

    @property
    def sorted_losses(self) -> Iterator[tuple[Any, ...]]:
        """Loss of the whole GPU's best kernel on a half and a quarter of the compute units, per GEMM, sorted."""
        for share, name in ((2, "half"), (4, "a quarter")):
            lost = sorted(row.loss for row in self.losses.rows if row.share == share)
            yield from ((f"on {name} of the units", at, loss) for at, loss in enumerate(lost, 1))

    @property
    def kernels(self) -> Iterator[tuple[Any, ...]]:
        """Tile, waves and use of the GPU for kernels tuned alone and GO-kernels."""
        for one in self.changes:
            copies = f"{one.degree} of {one.gemm.m}x{one.gemm.n}x{one.gemm.k}"
            for kernel, tile, run in (("tuned alone", one.isolated, one.before), ("GO-kernel", one.go, one.after)):
                yield copies, kernel, *_kernel(tile, run, self.units)

    @property
    def chosen(self) -> list[Part]:
        """How the suite was chosen, and the source of each network."""
        sources = [f"{name}: {source}" for name, source in self.suite.networks.items()]
        return [self.suite.rule, sources] if self.suite.rule else []

    def units_figure(self, queue: WatchedQueue) -> Figure:
        """Return which GEMM of a queue held which compute unit over time."""
        return held_by_gemms(queue)

    def _speeds(self) -> list[tuple[str, float]]:
        fixed = [(f"degree {degree}", self.at_degree(degree)) for degree in DEGREES]
        oracle = geometric_mean(case.judged.default / case.judged.oracle for case in self.cases)
        return [*fixed, ("GOLDYLOC", self.gain("over_default")), ("oracle", oracle)]

    @property
    def work(self) -> str:
        """How much was simulated, in words."""
        return f"{self.runs} runs of {self.events:,} events; compute units at the {self.clock} clock."

    def tables(self) -> list[Table]:
        """Return the tables of the terminal."""
        return drop_empty(self._queues_table())

    def sections(self, watched: Any = None) -> list[Part]:
        """Return the sections of the page."""
        return [
            Section("Every way to run a queue", drop_empty(self._ways_figure(), self._degrees_figure())),
            Section("One queue, compute unit by compute unit", [] if watched is None else [self.units_figure(watched)]),
            Section("What GO-kernels change", drop_empty(self._changes_figure(), self._losses_figure())),
            Section(
                "Kernels tuned alone, and for the share they get",
                drop_empty(
                    "Waves: workgroups of all copies over what the GPU holds at once. Units busy: share of time "
                    "that matrix units compute.",
                    self._kernels_table(),
                ),
            ),
            Section("Every queue", drop_empty(self._queues_table())),
            Section("How the suite was chosen", drop_empty(*self.chosen)),
        ]

    def _queues_table(self) -> Table:
        columns = [
            text("queue"), number("sequential_us", "sequential", format_=",.1f"),
            number("default_us", "default", format_=",.1f"),
            *(number(f"go_{name}_us", f"GO {name}", format_=",.1f", spare=True) for name in self.degrees),
            number("degree"), number("goldyloc_us", "GOLDYLOC", format_=",.1f"),
            number("over_default", "over default", format_="{:.2f}×"),
            number("over_sequential", "over sequential", format_="{:.2f}×"),
            number("of_oracle", "of oracle", format_=".1%"),
        ]  # fmt: skip
        rows = list(self.queue_rows)
        return Table(columns, rows, f"{self.suite.title}: {self.gpu}, times [µs]")

    def _kernels_table(self) -> Table:
        columns = [
            text("copies"), text("kernel"), text("tile"), number("waves", format_=".2f"),
            number("resident", "a unit holds"), number("busy", "units busy", format_=".0%"),
            number("hits", "cache hits", format_=".0%"), number("dram_mb", "DRAM", "MB", ".1f"),
            number("time_us", "time", "µs", ",.1f"),
        ]  # fmt: skip
        rows = list(self.kernels)
        return Table(columns, rows, "")

    def _ways_figure(self) -> Figure:
        columns = [text("queue"), text("way"), number("speed", "speed over default concurrency", "×", ".2f")]
        table = Table(columns, list(self.chosen_ways))
        marked = [text("queue"), text("other", "way"), number("speed", "speed over default concurrency", "×", ".2f")]
        marks = Table(marked, list(self.other_ways))
        return bars(
            "How fast does each queue run, in every way?", table, lane="queue", end="speed",
            color=Color("way", {"GOLDYLOC": looks.BLUE}),
            over=[Lines(marks, "speed", "other", "queue") if marks.rows else None, Level(1.0)],
        ).with_caption(
            "The longest queue of each layer. Bars: GO-kernels at the chosen degree; marks: every other way. "
            "Right of 1 is faster than all at once with kernels tuned alone."
        )  # fmt: skip

    def _degrees_figure(self) -> Figure:
        columns = [
            text("way"),
            text("kind"),
            number("speed", "over default concurrency", "×", ".3f"),
            text("said", " "),
        ]
        table = Table(columns, list(self.fixed_degrees))
        return bars(
            "How much does the choice of the degree bring?", table, lane="way", end="speed",
            color=Color("kind", {"fixed": looks.GREY, "chosen": looks.BLUE}), over=[Label("said")],
        ).with_caption("Geometric means over all queues.")  # fmt: skip

    def _changes_figure(self) -> Figure:
        columns = [
            text("what"), text("gemms", "GEMMs"), number("ratio", "GO-kernel / kernel tuned alone", "×", ".3f"),
            number("faster", "times faster", "×", ".2f"),
        ]  # fmt: skip
        table = Table(columns, list(self.count_rows))
        return scatter(
            "What do kernels for the share that they get change?", table, x="ratio", y="faster", facet="what",
        ).with_caption(
            "Kernels tuned alone cut a GEMM small, to fill the GPU; larger tiles load each operand fewer times "
            "and gain where other GEMMs fill the GPU anyway."
        )  # fmt: skip

    def _losses_figure(self) -> Figure:
        columns = [
            text("share"), number("gemm", "GEMMs, the least loss first"),
            number("loss", "longer than the best", format_=".1%"),
        ]  # fmt: skip
        table = Table(columns, list(self.sorted_losses))
        return curves(
            "What does the whole GPU's best kernel lose on a part of it?", table, x="gemm",
            y=Axis("loss", percent=True),
            color=Color("share", {"on half of the units": looks.SKY, "on a quarter of the units": looks.RED}),
        ).with_caption(
            f"Of {self.losses.changed:.0%} of the GEMMs the best tile changes on a half or a quarter of the "
            "compute units."
        )  # fmt: skip


_COUNTED = {
    "requests to the last-level cache": ("cache_hits", "cache_merged_misses", "cache_misses"),
    "misses of it": ("cache_misses",),
}
"""Counters of the engine by what they add up to."""
STUDY = GoldylocStudy
run = GoldylocStudy.run


def _change(entry: SuiteEntry, kernels: Mapping[Gemm, GoKernels]) -> KernelEffect:
    """Return the effect of the GO-kernel for the largest number of co-running copies of an entry."""
    tuned, degree = kernels[entry.product], max(entry.queued)
    runs = tuned.runs[degree]
    isolated, go = tuned.fastest_alone, tuned.best(degree)
    return KernelEffect(entry.network, entry.layer, entry.product, degree, isolated, go, runs[isolated], runs[go])


def _kernel(tile: GemmTiling, run: Timeline, units: int) -> tuple[Any, ...]:
    resident, counters = run.spans[0].resident, run.counters
    loads = sum(counters[name] for name in ("cache_hits", "cache_merged_misses", "cache_misses"))
    return (
        str(tile),
        sum(span.workgroups for span in run.spans) / (units * resident),
        resident,
        counters["compute_unit_utilization"],
        1 - counters["cache_misses"] / max(loads, 1),
        run.total_bytes / 1e6,
        drain_seconds(run) * 1e6,
    )


FIGURES = ("over default", "over sequential", "default over sequential")
_HARDWARE_QUEUES = 4
"""Number of hardware queues over which ROCm's HIP runtime spreads streams by default (GPU_MAX_HW_QUEUES)."""


def move_assumptions(at: Conditions, suite: QueueSuite) -> Sensitivity:
    """Move the machine's assumed values, its clock and its queues; raises what the simulations raise."""
    bench = at.bench()
    cases, *_ = solve(suite.longest(), bench, at.jobs)

    def figures(runs: Runs) -> Mapping[str, float]:
        gains = zip(*(case.plans.gains(runs) for case in cases), strict=True)
        return dict(zip(FIGURES, map(geometric_mean, gains), strict=True))

    dtypes = sorted({gemm.dtype for case in cases for gemm in case.judged.queue.gemms})
    tasks = chain.from_iterable(case.plans for case in cases)
    rows = perturb(tasks, _moves(bench, dtypes), figures, at.jobs)
    return Sensitivity("goldyloc", tuple(case.title for case in cases), rows, dict.fromkeys(FIGURES, ".2f"))


def _moves(bench: Bench, dtypes: Iterable[str]) -> Iterator[ValueMove]:
    yield from moves(bench.system, gemm_values(*dtypes), measured=True)
    yield option_move("clock", clock="short" if bench.options.clock == "sustained" else "sustained")
    yield ValueMove("hardware queues of default concurrency", str(_HARDWARE_QUEUES), change=_in_few_queues)


def _in_few_queues(task: Simulation) -> Simulation:
    """Return the task limited to `_HARDWARE_QUEUES` hardware queues, if it is default concurrency."""
    if task.graph.labels != DEFAULT:
        return task
    nodes = task.graph.nodes
    graph = gemm_queue(
        [node.op for node in nodes if isinstance(node.op, Gemm)],
        min(_HARDWARE_QUEUES, len(nodes)),
        [node.choice.tiling for node in nodes],
    )
    return replace(task, graph=graph)
