"""The split of compute units: a GEMM co-run with a ring all-reduce, each on its own units, on the T3 machine.

Published: S. Pati et al., "T3", ASPLOS 2024, arXiv:2401.16677, which motivates T3 by it. The paper does not say which
sub-layers its figures are means of; here they are all 16 of its main study, and the geometric mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import Any

from weft.core.errors import InputError
from weft.core.report import Part, Section, drop_empty
from weft.core.report.table import Table, number, text
from weft.graph import Collective, Gemm, Graph
from weft.hardware import Gpu
from weft.kernels.compute_units import split_units
from weft.papers.headline import DEGREES, MODELS, Conditions, PaperStudy, StudyFigure, StudyOption, read_declaration
from weft.papers.page import as_sentences
from weft.papers.t3 import MAIN, MAIN_CASES, select
from weft.simulate.result import Timeline
from weft.simulate.single import simulate
from weft.sweep.simulations import Bench, Runs, Simulation
from weft.sweep.tasks import Progress
from weft.view import looks
from weft.view.figure import Axis, Color, Faint, Figure, Lane, Lines, bars, curves
from weft.view.units import ShownRun, units_by_way
from weft.view.words import case_label

DECLARED = read_declaration(__file__)
_IN_FLIGHT = 16 * 1024
"""What a workgroup of the all-reduce has in flight [bytes], half of it where it adds: 256 threads x 4 x 16 B.

RCCL unrolls by 4, and by 2 where it adds, on MI200 (ROCm/rccl src/device/common_kernel.h, reduceCopy).
"""


@dataclass(frozen=True)
class SplitCase:
    """Isolated times of a sub-layer's GEMM and all-reduce by the all-reduce's units (0: each has all) [s].

    `both` holds the ends of both when co-running, by the same key [s].
    """

    graph: Graph
    gemm_s: Mapping[int, float]
    ring_s: Mapping[int, float]
    both: Mapping[int, tuple[float, float]]

    @property
    def serial(self) -> float:
        """One after the other, each on all units [s]."""
        return self.gemm_s[0] + self.ring_s[0]

    def gemm_slowdown(self, apart: int) -> float:
        """Slowdown of the GEMM with `apart` fewer units."""
        return self.gemm_s[apart] / self.gemm_s[0] - 1

    def ring_slowdown(self, apart: int) -> float:
        """Slowdown of the all-reduce on `apart` units."""
        return self.ring_s[apart] / self.ring_s[0] - 1

    def speedup(self, apart: int) -> float:
        """Potential speedup over serial execution from isolated times, each on its own units (0: on all)."""
        return self.serial / max(self.gemm_s[apart], self.ring_s[apart])

    def simulated(self, apart: int) -> float:
        """Speedup when both co-run, sharing memory and cache as well."""
        return self.serial / max(self.both[apart])

    def record(self) -> dict[str, Any]:
        """Return the case as plain data."""
        return {
            "model": self.graph.labels["model"],
            "tp": self.graph.ranks,
            "sublayer": self.graph.labels["sublayer"],
            "gemm": asdict(_operators(self.graph)[0]),
            "gemm_us": {str(k): v * 1e6 for k, v in sorted(self.gemm_s.items())},
            "all_reduce_us": {str(k): v * 1e6 for k, v in sorted(self.ring_s.items())},
            "together_us": {str(k): [end * 1e6 for end in v] for k, v in sorted(self.both.items())},
            "ideal_speedup": self.speedup(0),
            "speedup": {str(k): self.speedup(k) for k in sorted(self.both)},
            "simulated_speedup": {str(k): self.simulated(k) for k in sorted(self.both)},
        }


Rated = Callable[[SplitCase, int], float]
_MEASURES: Mapping[str, Rated] = {
    "ar_slowdown": SplitCase.ring_slowdown,
    "gemm_slowdown": SplitCase.gemm_slowdown,
    "speedup": SplitCase.speedup,
    "simulated": SplitCase.simulated,
}
"""The figures of a split, by the suffix of their ids."""
_SIDES: Mapping[str, Rated] = {"GEMM": SplitCase.gemm_slowdown, "all-reduce": SplitCase.ring_slowdown}
"""The slowdowns that are drawn over compute units."""


def mean(cases: Sequence[SplitCase], figure: Rated, apart: int, unit: str = "fraction") -> float:
    """Return the geometric mean of a figure over cases; for a "fraction" f, that of 1 + f, minus 1."""
    base = 1 if unit == "fraction" else 0
    return geometric_mean([base + figure(case, apart) for case in cases]) - base


@dataclass(frozen=True, repr=False)
class CuSplitStudy(PaperStudy):
    """Results of the study; `splits` and `curve` count the units of the all-reduce."""

    DECLARED = DECLARED
    OPTIONS = (
        StudyOption(
            "--split",
            "splits",
            "splits",
            "72-8,64-16",
            "The GEMM's compute units and the all-reduce's, together all of the GPU's.  [default: 8 and 16 apart]",
        ),
        MODELS,
        DEGREES,
        StudyOption(
            "--in-flight",
            "in_flight",
            "size",
            "SIZE",
            "What a workgroup of the all-reduce has in flight, half of it where it adds.  [default: 16 KiB]",
        ),
    )

    cases: tuple[SplitCase, ...]
    splits: tuple[int, ...]
    curve: tuple[int, ...]
    in_flight: int

    @classmethod
    def simulated(
        cls,
        at: Conditions,
        models: Iterable[str] | None = None,
        tps: Iterable[int] | None = None,
        splits: Sequence[int] | None = None,
        in_flight: int = _IN_FLIGHT,
    ) -> dict[str, Any]:
        """Simulate the study's sub-layers, or those of some models and degrees.

        `splits` are the units of the all-reduce (None: 8 and 16). `in_flight` is what a workgroup of the all-reduce
        keeps in flight, half of it where it adds [bytes].

        Raises InputError for a split that leaves one side without units, and what `weft.papers.t3.select` raises.
        """
        apart = _splits(splits, at.gpu)
        curve = tuple(sorted({u for u in (*DECLARED.cases["curve"], *apart) if u < at.gpu.compute.compute_units}))
        chosen = select(list(MAIN) if models is None else models, tps)
        cases = {
            graph: _tasks(graph, at.bench(graph.ranks), apart, curve, in_flight)
            for graph in chosen
            if graph in MAIN_CASES
        }
        if not cases:
            raise InputError(f"the CU-split study has the models {', '.join(MAIN)} at TP 8 and 16; choose one of these")
        found = at.jobs.run(task for case in cases.values() for each in case.values() for task in each.values())
        read = tuple(_case(graph, tasks, found) for graph, tasks in cases.items())
        return {"cases": read, "splits": apart, "curve": curve, "in_flight": in_flight}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how to read the figures."""
        which = f"{len(self.cases)} of the 16" if len(self.cases) < len(MAIN_CASES) else "all 16"
        means = f"which sub-layers its figures are means of: here {which} of its main study, geometric means"
        return (self.unlike or f"the paper does not state {means}",)

    def name(self, apart: int) -> str:
        """Return a split as users write it: the GEMM's units, then the all-reduce's."""
        return f"{self.machine.compute.compute_units - apart}-{apart}"

    def id(self, apart: int) -> str:
        """Return the prefix of the ids of a split's claims."""
        return f"cu_split.{self.name(apart).replace('-', '_')}"

    def watch(self, progress: Progress | None = None) -> tuple[str, dict[int, Timeline]]:
        """Return the sub-layer with the largest ideal, simulated again under every split with full timelines."""
        graph = max(self.cases, key=lambda case: case.speedup(0)).graph
        tasks = {apart: _together(graph, self.bench(graph.ranks), apart, self.in_flight) for apart in self.splits}
        return str(graph), {
            apart: simulate(task.graph, task.system, task.overlap, task.options) for apart, task in tasks.items()
        }

    def figures(self) -> Iterator[StudyFigure]:
        """Means over the sub-layers for every simulated split, and for the ideal."""
        for apart in self.splits:
            words = {"ring": apart, "gemm": self.machine.compute.compute_units - apart}
            for measure, figure in _MEASURES.items():
                like = f"cu_split.split.{measure}"
                value = mean(self.cases, figure, apart, DECLARED.claims[like].unit)
                yield StudyFigure(f"{self.id(apart)}.{measure}", value, words, like=like)
        yield StudyFigure("cu_split.ideal.speedup", mean(self.cases, SplitCase.speedup, 0, "ratio"))

    def own(self) -> dict[str, Any]:
        """Splits, curve and every case as plain data."""
        return {
            "splits": [self.name(apart) for apart in self.splits],
            "in_flight_bytes": self.in_flight,
            "curve": [
                {"units": units, "all_reduce_slowdown": ring, "gemm_slowdown": gemm}
                for units, (gemm, ring) in self._curve().items()
            ],
            "cases": [case.record() for case in self.cases],
        }

    @property
    def columns(self) -> list[str]:
        """Heads of the table's speedups: the ideal, and every split by times alone and of both at once."""
        return ["ideal", *(f"{self.name(apart)}{what}" for apart in self.splits for what in ("", ", at once"))]

    @property
    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Every sub-layer and split: isolated times [us], and speedups from isolated times and when co-running."""
        for case in self.cases:
            labels = case.graph.labels
            speedups = (v for apart in self.splits for v in (case.speedup(apart), case.simulated(apart)))
            alone = case.gemm_s[0] * 1e6, case.ring_s[0] * 1e6, case.speedup(0)
            yield labels["model"], case.graph.ranks, labels["sublayer"], *alone, *speedups

    @property
    def lead(self) -> str:
        """What was simulated, and on which machine."""
        return f"{len(self.cases)} sub-layers on {self.gpu}, each beside a ring all-reduce of its output's size."

    @property
    def summary(self) -> list[str]:
        """The speedups."""
        rows = self.headline()
        return as_sentences(rows, [row.id for row in rows if row.unit == "ratio"])

    @property
    def work(self) -> str:
        """How the all-reduce was simulated."""
        return f"A workgroup of the all-reduce has {self.in_flight // 1024} KiB in flight, half of it where it adds."

    @property
    def mean_slowdowns(self) -> Iterator[tuple[Any, ...]]:
        """Mean slowdowns of the GEMM and the all-reduce over the units of the all-reduce."""
        curve = self._curve()
        return ((side, units, curve[units][at]) for at, side in enumerate(_SIDES) for units in sorted(curve))

    @property
    def each_slowdown(self) -> Iterator[tuple[Any, ...]]:
        """Slowdowns of every sub-layer."""
        for side, slowdown in _SIDES.items():
            for units in self.curve:
                for place, case in enumerate(self.cases):
                    yield f"{side} {place}", side, units, slowdown(case, units)

    @property
    def published_slowdowns(self) -> Iterator[tuple[Any, ...]]:
        """The published slowdowns of splits."""
        known = {row.id: row.published for row in self.headline() if isinstance(row.published, float)}
        for side, measure in zip(_SIDES, ("gemm_slowdown", "ar_slowdown"), strict=True):
            for apart in self.splits:
                if (value := known.get(f"{self.id(apart)}.{measure}")) is not None:
                    yield side, apart, value

    def _curve(self) -> dict[int, tuple[float, float]]:
        """Return the mean slowdowns of the GEMM and the all-reduce by the units of the all-reduce."""
        gemm, ring = _SIDES.values()
        return {u: (mean(self.cases, gemm, u), mean(self.cases, ring, u)) for u in self.curve}

    @property
    def speedups(self) -> Iterator[tuple[Any, ...]]:
        """The speedup of every sub-layer over serial execution: the ideal, and every split alone and at once."""
        series = {"ideal, nothing shared": [c.speedup(0) for c in self.cases]}
        for apart in self.splits:
            series[f"{self._words(apart)}, each alone"] = [c.speedup(apart) for c in self.cases]
            series[f"{self._words(apart)}, both at once"] = [c.simulated(apart) for c in self.cases]
        for at, case in enumerate(self.cases):
            yield from ((case_label(case.graph), name, values[at]) for name, values in series.items())

    def _words(self, apart: int) -> str:
        return f"GEMM on {self.machine.compute.compute_units - apart} CUs, all-reduce on {apart}"

    def units_figure(self, watched: tuple[str, Mapping[int, Timeline]]) -> Figure:
        """Return which operator held which compute unit under every split."""
        name, runs = watched
        ways = [
            ShownRun(self._words(apart), [run], [lambda kernel: kernel.operator == "all_reduce"])
            for apart, run in runs.items()
        ]
        return units_by_way(ways, {"GEMM": looks.BLUE, "all-reduce": looks.ORANGE}).with_caption(
            f"{name}, both at once: who held which compute unit when. What one leaves at its end stays "
            "idle: the masks hold for the other.",
        )

    def tables(self) -> list[Table]:
        """Return the tables of the terminal."""
        return drop_empty(self._sublayers_table())

    def sections(self, watched: Any = None) -> list[Part]:
        """Return the sections of the page."""
        return [
            Section("What compute units are worth to either", drop_empty(self._slowdowns_figure())),
            Section("What overlap could gain, and what it gains", drop_empty(self._speedups_figure())),
            Section("Who held which compute unit", [] if watched is None else [self.units_figure(watched)]),
            Section("Speedup of every sub-layer over serial execution", drop_empty(self._sublayers_table())),
        ]

    def _sublayers_table(self) -> Table:
        columns = [
            text("model"), text("tp", "TP"), text("layer"), number("gemm_us", "GEMM", "µs", ",.0f"),
            number("ar_us", "AR", "µs", ",.0f"), *(number(name, format_=".2f") for name in self.columns),
        ]  # fmt: skip
        rows = list(self.rows)
        return Table(
            columns, rows, f"Sub-layers on {self.where}: times alone, and speedups by times alone and of both at once"
        )

    def _slowdowns_figure(self) -> Figure:
        columns = [
            text("side", "mean of"), number("units", "compute units of the all-reduce; the GEMM has the rest"),
            number("longer", "longer than on all units", format_=".1%"),
        ]  # fmt: skip
        table = Table(columns, list(self.mean_slowdowns))
        marked = [
            text("side", "published mean of"),
            number("units", "compute units of the all-reduce; the GEMM has the rest"),
            number("longer", "longer than on all units", format_=".1%"),
        ]  # fmt: skip
        marks = Table(marked, list(self.published_slowdowns))
        thin = [
            text("layer", "sub-layer"), text("side"),
            number("units", "compute units of the all-reduce; the GEMM has the rest"),
            number("longer", "longer than on all units", format_=".1%"),
        ]  # fmt: skip
        faint = Table(thin, list(self.each_slowdown))
        return curves(
            "What do the GEMM and the all-reduce lose on their share of the compute units?", table,
            x=Axis("units", log=True, ticks=sorted(table.distinct("units"))), y=Axis("longer", percent=True),
            color=Color("side", {"GEMM": looks.BLUE, "all-reduce": looks.RED}),
            over=[Lines(marks, "longer", "side", "units") if marks.rows else None, Faint(faint)],
        ).with_caption(
            "Thin lines are single sub-layers. A few workgroups have too little in flight to fill the link; once "
            "they do, every further unit only costs the GEMM."
        )  # fmt: skip

    def _speedups_figure(self) -> Figure:
        columns = [
            text("layer", "sub-layer"),
            text("series", "what"),
            number("speedup", "speedup over serial", "×", ".3f"),
        ]
        table = Table(columns, list(self.speedups))
        first, *others = table.distinct("series")
        return bars(
            "What can overlap gain in each sub-layer?", table, lane=Lane("layer", "series"), end="speedup",
            color=Color("series", {first: looks.GREY, **looks.spread(others)}), start=1.0,
        ).with_caption(
            "By the times of each alone, nothing but compute units is shared; at once, memory and cache are too."
        )  # fmt: skip


STUDY = CuSplitStudy
run = CuSplitStudy.run


def _splits(wanted: Sequence[int] | None, gpu: Gpu) -> tuple[int, ...]:
    if wanted is not None:
        for apart in wanted:
            split_units(gpu, apart)
        return tuple(dict.fromkeys(wanted))
    fitting = tuple(apart for apart in DECLARED.cases["splits"] if apart < gpu.compute.compute_units)
    if not fitting:
        raise InputError(f"{gpu.name} has {gpu.compute.compute_units} compute units; give splits of your own")
    return fitting


def _operators(graph: Graph) -> tuple[Gemm, Collective]:
    """Return the GEMM of a sub-layer and the all-reduce of its output."""
    gemm, moved = graph["gemm"].op, graph["all_reduce"].op
    assert isinstance(gemm, Gemm)
    assert isinstance(moved, Collective)
    return gemm, moved


def _together(graph: Graph, bench: Bench, apart: int, in_flight: int) -> Simulation:
    """Return the co-run, the all-reduce launched first and on `apart` units."""
    return bench.together(*_operators(graph), "partition", apart, first="collective", in_flight=in_flight)


def _tasks(
    graph: Graph, bench: Bench, splits: Sequence[int], curve: Sequence[int], in_flight: int
) -> dict[str, dict[int, Simulation]]:
    """The runs of one sub-layer, by the fields of its case and the units of the all-reduce (0: each alone on all)."""
    gemm, moved = _operators(graph)
    return {
        "gemm_s": {apart: bench.gemm(gemm, apart) for apart in (0, *curve)},
        "ring_s": {apart: bench.collective(moved, apart or None, in_flight) for apart in (0, *curve)},
        "both": {apart: _together(graph, bench, apart, in_flight) for apart in splits},
    }


def _case(graph: Graph, tasks: Mapping[str, Mapping[int, Simulation]], runs: Runs) -> SplitCase:
    alone = {name: {apart: runs[task].makespan for apart, task in tasks[name].items()} for name in ("gemm_s", "ring_s")}
    both = {apart: runs[task] for apart, task in tasks["both"].items()}
    return SplitCase(graph, **alone, both={at: (run.end("gemm"), run.end("all_reduce")) for at, run in both.items()})
