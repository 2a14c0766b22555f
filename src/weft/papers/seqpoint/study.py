"""The SeqPoint study: iterations that stand for an epoch, on the paper's machines and others, and on measured logs.

Published: S. Pati, S. Aga, M. D. Sinclair, N. Jayasena, "SeqPoint: Identifying Representative Iterations of
Sequence-based Neural Networks", ISPASS 2020, arXiv:2007.10459.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft import hardware
from weft.core.errors import InputError
from weft.core.files import data_folder
from weft.core.report import Part, Section, drop_empty
from weft.core.report.table import Table, number, text
from weft.papers.headline import Conditions, PaperStudy, StudyFigure, StudyOption, read_declaration
from weft.papers.sample import iterations, sample, seqpoints
from weft.papers.sample.seqpoint import Points
from weft.papers.seqpoint.epochs import Epoch, Floats, speech, translation, variants
from weft.papers.seqpoint.logs import Carried, Held, carry_over, check_intervals, read_logs
from weft.papers.seqpoint.methods import INTERVAL, ITERATIONS, SEQPOINT, Noisy, Outcome, geomean, noisy, outcomes
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, bars, curves, scatter

DECLARED = read_declaration(__file__)
_SEQPOINTS_BOUND = 0.0011
"""SeqPoint's published error of DeepSpeech2's total."""
DISTURBED, TWIN = "as4142-a100-pcie", "dss8440-a100-pcie"
"""Two systems of eight A100-PCIe: epochs of the first differ by 7 %, of the second by 0.2 %."""


@dataclass(frozen=True, eq=False)
class Studied:
    """An epoch with the times of its iterations on every machine [s], the paper's first, and its SeqPoints."""

    epoch: Epoch
    times: Mapping[str, Floats]
    points: Points
    outcomes: tuple[Outcome, ...]

    @property
    def base(self) -> Floats:
        """The times on the first machine."""
        return next(iter(self.times.values()))

    def errors(self, method: str, machines: int) -> tuple[float, float]:
        """Geometric means of the errors of totals and of speedups, of a method on the first machines."""
        mine = [one for one in self.outcomes if one.method == method and one.machine in list(self.times)[:machines]]
        speedups = (one.speedup for one in mine if one.speedup is not None)
        return geomean(one.total for one in mine), geomean(speedups)


@dataclass(frozen=True, repr=False)
class SeqPointStudy(PaperStudy):
    """Results of the study: both networks on every machine, with noise, and what measured logs say."""

    DECLARED = DECLARED
    OPTIONS = (
        StudyOption("--data", "data", "file", "DIR", "Lengths and measured logs.  [default: as 'weft validate']"),
    )

    networks: tuple[Studied, ...]
    whole: tuple[float, float]
    variants: int
    noise: tuple[Noisy, ...]
    needed: int
    speedups: tuple[Carried, ...]
    logs: tuple[Held, ...]
    disturbed: tuple[float, float] | None

    @classmethod
    def simulated(cls, at: Conditions, data: str | Path | None = None) -> dict[str, Any]:
        """Time every iteration of both epochs on every machine, redraw noise and logs.

        `data` is a folder of measurements (None: where `weft validate` looks; without any, lengths are drawn). Raises
        InputError for a folder that is named and cannot be used.
        """
        folder = _folder(data)
        batch = DECLARED.cases["batch"]
        own = variants(at.gpu)
        machines = {**own, **{name: hardware.gpu(name) for name in DECLARED.cases["others"] if name != at.gpu.name}}
        networks = tuple(_study_epoch(epoch, machines) for epoch in (speech(folder, batch), translation(folder, batch)))
        every = speech(folder, batch, whole=True)
        seconds = every.seconds(at.gpu)
        ds2 = networks[0]
        redraws = DECLARED.cases["redraws"]
        found = read_logs(folder) if folder else ()
        return {
            "networks": networks,
            "whole": seqpoints(every.lengths, seconds).savings(seconds),
            "variants": len(own),
            "noise": tuple(noisy(ds2.epoch, ds2.base, one, redraws) for one in DECLARED.cases["noise"]),
            "needed": len(sample(iterations(ds2.epoch.lengths), half_width=0.01, noise=0.01).chosen),
            "speedups": carry_over(found),
            "logs": tuple(check_intervals(one, ITERATIONS, redraws) for one in found),
            "disturbed": _widen_intervals(found, redraws),
        }

    def figures(self) -> Iterator[StudyFigure]:
        """Errors, savings, noise and intervals."""
        for name, one in zip(("ds2", "gnmt"), self.networks, strict=True):
            words = {"points": len(one.points.chosen), "machines": self.variants}
            total, faster = one.errors(SEQPOINT, self.variants)
            yield StudyFigure(f"{name}.total.error", total, words)
            yield StudyFigure(f"{name}.speedup.error", faster)
        ds2, gnmt = self.networks
        others = [one for one in self._of(ds2, SEQPOINT) if one.machine in list(ds2.times)[self.variants :]]
        if others:
            worst = max(others, key=lambda one: abs(one.total))
            yield StudyFigure("ds2.total.error.elsewhere", abs(worst.total), {"worst": worst.machine})
        serial, parallel = ds2.points.savings(ds2.base)
        yield StudyFigure("ds2.savings.parallel", parallel, {"whole": self.whole[1]})
        yield StudyFigure("ds2.savings.serial", serial, {"whole": self.whole[0]})
        serial, parallel = gnmt.points.savings(gnmt.base)
        yield StudyFigure("gnmt.savings.serial", serial)
        yield StudyFigure("gnmt.savings.parallel", parallel)
        yield StudyFigure("ds2.noise", self._bearable())
        yield StudyFigure("ds2.iterations", self.needed)
        judged = next(one for one in self.noise if one.noise == _JUDGED)
        yield StudyFigure("ds2.covered", judged.covered, {"redraws": DECLARED.cases["redraws"]})
        if self.speedups:
            worst_error = max(abs(one.error) for one in self.speedups)
            yield StudyFigure("mlperf.speedup.error", worst_error, {"pairs": len(self.speedups)}, always=True)
        if self.logs:
            least = min(self.logs, key=lambda one: one.covered)
            about = {"iterations": ITERATIONS, "worst": least.system}
            yield StudyFigure("mlperf.covered.low", least.covered, about, always=True)
            yield StudyFigure("mlperf.covered.high", max(one.covered for one in self.logs), always=True)
        if self.disturbed:
            yield StudyFigure("mlperf.disturbed", self.disturbed[0] / self.disturbed[1], always=True)

    def _of(self, network: Studied, method: str) -> list[Outcome]:
        return [one for one in network.outcomes if one.method == method]

    def _bearable(self) -> float:
        """The noise at which SeqPoint's mean error reaches its published one, between the levels that were tried."""
        levels, errors = (np.array([getattr(one, name) for one in self.noise]) for name in ("noise", "seqpoint"))
        if errors[0] >= _SEQPOINTS_BOUND:
            return 0.0
        return float(np.interp(_SEQPOINTS_BOUND, np.maximum.accumulate(errors), levels))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on how to read the figures."""
        sources = tuple(f"{one.epoch.network}'s lengths: {one.epoch.source}" for one in self.networks)
        return (
            *sources,
            "iterations are timed in closed form, kernels one after the other; the paper's body could not be read",
            "the paper's machine without an L1 is missing: closed forms keep tiles in the local data share",
            *(() if self.logs else ("no measured logs were found; --data DIR names a folder with some",)),
            *super().notes,
        )

    def own(self) -> dict[str, Any]:
        """Return every outcome, level of noise and log as plain data."""
        return {
            "epochs": [
                {
                    "network": one.epoch.network,
                    "iterations": len(one.epoch),
                    "lengths": one.epoch.source,
                    "seconds": {name: float(seconds.sum()) for name, seconds in one.times.items()},
                    "points": [
                        {"length": float(one.epoch.lengths[place]), "weight": int(weight)}
                        for place, weight in zip(one.points.chosen, one.points.weights, strict=True)
                    ],
                }
                for one in self.networks
            ],
            "outcomes": [vars(each) for one in self.networks for each in one.outcomes],
            "noise": [vars(one) for one in self.noise],
            "mlperf": {"speedups": [vars(one) for one in self.speedups], "logs": [vars(one) for one in self.logs]},
        }

    @property
    def methods(self) -> list[tuple[Any, ...]]:
        """Errors of each method: network, method, machines, geometric means of totals and speedups, and the worst."""
        rows = []
        for one in self.networks:
            for method in dict.fromkeys(each.method for each in one.outcomes):
                found = self._of(one, method)
                worst = max(abs(each.speedup) for each in found if each.speedup is not None)
                means = one.errors(method, self.variants)
                machines = len({each.machine for each in found})
                total = max(abs(each.total) for each in found)
                rows.append((one.epoch.network, method, machines, *means, total, worst))
        return rows

    @property
    def totals(self) -> Iterator[tuple[Any, ...]]:
        """Errors of totals by method and network, for a logarithmic scale: they span four orders of magnitude."""
        return ((f"{network}: {method}", network, max(error, 1e-5)) for network, method, _, error, *_ in self.methods)

    @property
    def chosen(self) -> Iterator[tuple[Any, ...]]:
        """Time against length of every iteration of each network, its SeqPoints last."""
        for one in self.networks:
            name, lengths = one.epoch.network, one.epoch.lengths
            for length, seconds in sorted(set(zip(lengths.tolist(), one.base.tolist(), strict=True))):
                yield name, length, seconds * 1e3, "others", 1
            for place, weight in zip(one.points.chosen, one.points.weights, strict=True):
                yield name, float(lengths[place]), float(one.base[place]) * 1e3, "SeqPoint", int(weight)

    @property
    def noisy_errors(self) -> Iterator[tuple[Any, ...]]:
        """Mean errors over the noise of single iterations: SeqPoint's, and of a sample with its half width."""
        names = {"seqpoint": "SeqPoint", "sample": "sample", "half_width": "sample, half of the interval"}
        return ((words, one.noise, getattr(one, name)) for name, words in names.items() for one in self.noise)

    @property
    def lead(self) -> str:
        """What was timed, and where."""
        counts = " and ".join(f"{len(one.epoch):,} iterations of {one.epoch.network}" for one in self.networks)
        return f"{counts} on {self.gpu} and {len(self.networks[0].times) - 1} other machines."

    def tables(self) -> list[Table]:
        """Return the tables of the terminal."""
        return drop_empty(self._methods_table(), self._noise_table(), self._logs_table(), self._speedups_table())

    def sections(self, watched: Any = None) -> list[Part]:
        """Return the sections of the page."""
        return [
            Section("Which iterations", drop_empty(self._lengths_figure())),
            Section("How near the total", drop_empty(self._totals_figure(), self._methods_table())),
            Section("When times are noisy", drop_empty(self._noise_figure(), self._noise_table())),
            Section("Measured iterations", drop_empty(self._logs_table(), self._speedups_table())),
        ]

    def _methods_table(self) -> Table:
        columns = [
            text("network"), text("method"), number("machines"), number("total", "error of totals", format_=".2%"),
            number("speedup", "of speedups", format_=".2%"),
            number("worst_total", "worst total, all GPUs", format_=".2%"),
            number("worst_speedup", "worst speedup", format_=".2%"),
        ]  # fmt: skip
        rows = list(self.methods)
        return Table(columns, rows, "Errors by method: geometric means on the paper's machines, the worst on all")

    def _noise_table(self) -> Table:
        columns = [
            number("noise", format_=".1%"), number("seqpoint", "SeqPoint's error", format_=".2%"),
            number("sample", "error of 12 sampled", format_=".2%"), number("covered", "interval holds", format_=".0%"),
            number("half", "half width", format_=".2%"),
        ]  # fmt: skip
        rows = [(one.noise, one.seqpoint, one.sample, one.covered, one.half_width) for one in self.noise]
        return Table(columns, rows, "DeepSpeech2 with noise: mean errors over redrawn epochs")

    def _logs_table(self) -> Table:
        columns = [
            text("network"), text("system"), number("iterations"), number("covered", "interval holds", format_=".1%"),
            number("half", "half width", format_=".2%"),
        ]  # fmt: skip
        rows = [(one.network, one.system, one.iterations, one.covered, one.half_width) for one in self.logs]
        return Table(columns, rows, "Measured iterations of MLPerf, redrawn: how often the interval holds the total")

    def _speedups_table(self) -> Table:
        columns = [
            text("before"), text("after"), number("speedup", "measured", format_=".3f"),
            number("error", "from five buckets", format_="+.2%"), number("one", "from the commonest", format_="+.1%"),
        ]  # fmt: skip
        rows = [(one.before, one.after, one.speedup, one.error, one.one_bucket) for one in self.speedups]
        return Table(columns, rows, "Speedups between MLPerf systems, from mean times of GNMT's buckets")

    def _lengths_figure(self) -> Figure:
        columns = [
            text("network"), number("length", "padded length", format_=",.0f"), number("time", "time", "ms", ",.4g"),
            text("which"), number("weight", "stands for", format_=",d"),
        ]  # fmt: skip
        table = Table(columns, list(self.chosen))
        return scatter(
            "Which iterations stand for an epoch",
            table,
            x="length",
            y="time",
            color=Color("which", {"others": looks.GREY, "SeqPoint": looks.ORANGE}),
            facet="network",
        ).with_caption("Length: frames of 10 ms for speech, tokens of the longer sentence for translation.")

    def _totals_figure(self) -> Figure:
        columns = [text("lane", " "), text("network"), number("error", "error of the total", format_=".2%")]
        table = Table(columns, list(self.totals))
        return bars(
            "How far off is the projected total?", table, lane="lane", end=Axis("error", percent=True),
            color=Color("network", looks.spread(table.distinct("network"))),
        ).with_caption("Geometric mean over the paper's machines.")  # fmt: skip

    def _noise_figure(self) -> Figure:
        columns = [
            text("series", " "), number("noise", "noise of an iteration", format_=".1%"),
            number("error", "error of the total", format_=".2%"),
        ]  # fmt: skip
        table = Table(columns, list(self.noisy_errors))
        return curves(
            "What noise does to the total", table, x="noise", y=Axis("error", percent=True), color=Color("series"),
        )  # fmt: skip


_JUDGED = 0.01


def _study_epoch(epoch: Epoch, machines: Mapping[str, hardware.Gpu]) -> Studied:
    times = {name: epoch.seconds(gpu) for name, gpu in machines.items()}
    points = seqpoints(epoch.lengths, next(iter(times.values())))
    return Studied(epoch, times, points, tuple(outcomes(epoch, times)))


def _folder(data: str | Path | None) -> Path | None:
    try:
        return data_folder(data)
    except InputError:
        if data is not None:
            raise
        return None


def _widen_intervals(logs: Any, redraws: int) -> tuple[float, float] | None:
    """Half widths of claims about another epoch, on the disturbed machine and on its twin."""
    by_name = {one.system: one for one in logs}
    if DISTURBED not in by_name or TWIN not in by_name:
        return None
    first, second = (
        check_intervals(by_name[name], ITERATIONS, redraws // 10, again=by_name[name].spread).half_width
        for name in (DISTURBED, TWIN)
    )
    return first, second


__all__ = ["INTERVAL", "STUDY", "SeqPointStudy", "Studied", "run"]
STUDY = SeqPointStudy
run = SeqPointStudy.run
