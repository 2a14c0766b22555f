"""Samples of iterations: the estimate in words, what to measure, and length against time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.core.report import Report
from weft.core.report.table import Table, number, text
from weft.view import looks
from weft.view.figure import Color, Figure, scatter
from weft.view.words import percent

if TYPE_CHECKING:
    from weft.papers.sample.sampled import Sample

_SAVES = 1.05
"""Factor below which nothing worth the word is saved."""
_SHOWN = 2000
"""Most iterations of a picture."""


def _digits(answer: Sample) -> str:
    """Return the format of lengths: whole numbers, or digits of a small quantity such as seconds of speech."""
    return ",.0f" if answer.log.lengths.max() >= 100 else ".3g"


def _sample_table(answer: Sample) -> Table:
    """Return the iterations to measure, or measured: place, length, and how many iterations each stands for."""
    machines = list(answer.log.times)
    rows = [
        (one["iteration"], one["length"], one["stratum"] + 1, one["weight"], *(one[name] for name in machines))
        for one in answer.representatives()
    ]
    columns = [
        number("iteration", format_="d"), number("length", format_=_digits(answer)), number("stratum", format_="d"),
        number("weight", "stands for", format_=".4g"), *(number(name, name, "s", ".4g") for name in machines),
    ]  # fmt: skip
    return Table(columns, rows, f"{len(rows)} of {len(answer.log):,} iterations of {answer.log.title or 'the log'}")


def _methods_table(answer: Sample) -> Table:
    """Return what SeqPoint and single choices project for the first machine, beside the estimate."""
    data = answer.to_dict()
    rows = [
        (name, len(one["chosen"]), one["estimate"], one["error"], one["savings"]["in_turn"], one["savings"]["at_once"])
        for name, one in data["others"].items()
    ]
    if rows and answer.total:
        machine = next(iter(answer.totals))
        error = answer.total.value / (answer.real(machine) or np.nan) - 1
        own = f"{answer.total.method}, with interval"
        rows.insert(0, (own, len(answer.chosen), answer.total.value, error, *answer.savings))
    columns = [
        text("method"), number("iterations", format_="d"), number("total_s", "total", "s", ".5g"),
        number("error", "off by", format_="+.2%"), number("in_turn", "saves, in turn", format_="{:.0f}×"),
        number("at_once", "saves, at once", format_="{:.0f}×"),
    ]  # fmt: skip
    return Table(columns, rows, "Methods on the first machine, of which all iterations are known")


def _sample_figure(answer: Sample) -> Figure:
    """Time against length of measured iterations on every machine, the chosen ones marked; else strata by length."""
    log = answer.log
    places = np.union1d(np.linspace(0, len(log) - 1, min(_SHOWN, len(log))).astype(int), answer.chosen)
    chosen = np.isin(places, answer.chosen)
    panels = log.times or {"stratum": np.asarray(answer.strata + 1.0, np.float64)}
    rows = [
        (name, float(log.lengths[at]), float(values[at]), "chosen" if taken else "others")
        for name, values in panels.items()
        for at, taken in sorted(zip(places.tolist(), chosen.tolist(), strict=True), key=lambda one: one[1])
        if np.isfinite(values[at])
    ]
    columns = [
        text("machine"), number("length", format_=_digits(answer)),
        number("time", "time", "s", ".3g") if log.times else number("time", "stratum", format_="d"), text("which"),
    ]  # fmt: skip
    colors = {"others": looks.GREY, "chosen": looks.ORANGE}
    return scatter(
        "Which iterations stand for all", Table(columns, rows), x="length", y="time", color=Color("which", colors),
        facet="machine",
    )  # fmt: skip


class SampleReport(Report["Sample"]):
    """The estimate or what to measure, the iterations, and other methods."""

    def title(self) -> str:
        """Return what was asked."""
        return "Representative iterations"

    def sentences(self) -> list[str]:
        """The answer in sentences: the total with its interval, or what to measure; and what measuring it saves."""
        answer = self.answer
        serial, parallel = answer.savings
        count, of = len(answer.chosen), len(answer.log) * answer.log.step
        saved = f"{serial:.1f} times less than the epoch if they run in turn, {parallel:.1f} times if at once"
        saved = saved.replace(".0 times", " times") if serial >= _SAVES else "nearly as long as the epoch"
        if answer.total is None:
            return [
                f"Measure {count} of {of:,} iterations, {saved}.",
                (
                    f"If times of one length vary by {percent(answer.noise)}, the total will be known to "
                    f"±{answer.expected:.1%}; add their times to the log as a column time_s, and ask again."
                ),
            ]
        said = []
        first = next(iter(answer.totals))
        for name, found in answer.totals.items():
            real = answer.real(name)
            beside = f"; measured: {real:.5g} s, {found.value / real - 1:+.2%} off" if real else ""
            said.append(
                f"{name}: {found.value:.5g} s, with 95 % confidence {found.low:.5g} to {found.high:.5g} "
                f"(±{found.half_width:.2%}), from {count} of {of:,} iterations{beside}."
            )
        said += [
            f"{name} is {ratio.value:.4g} times as fast as {first} ({ratio.low:.4g} to {ratio.high:.4g})."
            for name, ratio in answer.speedups.items()
        ]
        return [*said, f"These iterations are {saved}."]

    def notes(self) -> list[str]:
        """Return what the interval assumes, and warnings."""
        return list(self.answer.notes)

    def tables(self) -> list[Table]:
        """Return the iterations, and other methods where all times are known."""
        methods = _methods_table(self.answer)
        return [_sample_table(self.answer), *([methods] if methods.rows else [])]

    def figure(self) -> Figure:
        """Length against time."""
        return _sample_figure(self.answer)
