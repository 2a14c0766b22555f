"""Advice whether to fuse a GEMM with its collective, as tables and as a page: every way, and from which M it pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.core.contrast import UNRESOLVED
from weft.core.report import Part, Report, Section
from weft.core.report.table import Table, microseconds, number, text, times_faster
from weft.core.units import format_bytes
from weft.overlaps.graphs import PATTERNS
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Label, Level, Lines, bars, curves
from weft.view.words import percent, us

if TYPE_CHECKING:
    from weft.plan.tune.fuse import FuseAdvice

_TICKS = "datum.value >= 1024 ? format(datum.value / 1024, '~g') + 'k' : format(datum.value, '~g')"
_LIKE = 0.005
"""Relative difference of two times from which they count as different."""
_ALIKE = 0.02
"""Relative difference up to which two curves are drawn as one."""


def fuse_table(advice: FuseAdvice) -> Table:
    """Return every way to run both: time with its 80 % interval, speedup over serial, verdict."""
    columns = [
        text("method"), microseconds("time", "time", 0), microseconds("low", "from", 0), microseconds("high", "to", 0),
        times_faster("speedup", "speedup", "{:.2f}×"), number("saved", "saved", format_=percent),
        text("verdict"), text("needs", "hardware missing"),
    ]  # fmt: skip
    rows = []
    for one in (advice.serial, *sorted(advice.options[1:], key=lambda one: one.seconds)):
        low, high = one.error.around(one.seconds)
        times = (one.seconds * 1e6, low * 1e6, high * 1e6)
        rows.append((one.name, *times, one.speedup, 1 - 1 / one.speedup, one.verdict, "yes" * bool(one.needs)))
    each = f"{format_bytes(advice.collective.bytes, 3)} of {advice.collective.name}"
    title = f"{advice.gemm} on {advice.ranks} GPUs of {advice.system.name} ({advice.form}, {each}); from, to: 80 %"
    table = Table(columns, rows, title)
    return table if any(row[-1] for row in rows) else table.without(["needs"])


def left_out_table(advice: FuseAdvice) -> Table:
    """Return the methods that are not compared, those of one reason in one row."""
    reasons: dict[str, list[str]] = {}
    for name, why in advice.left_out.items():
        reasons.setdefault(why.replace(f" --compare {name}", " --compare NAME"), []).append(name)
    rows = [(", ".join(names), why) for why, names in reasons.items()]
    return Table([text("method"), text("why", "why it is left out", prose=True)], rows, "Not compared")


def curve_table(advice: FuseAdvice) -> Table:
    """Return the best way, its speedup and the rule of thumb for each M."""
    columns = [
        number("m", "M"), microseconds("gemm", "GEMM alone", 0), microseconds("collective", "collective alone", 0),
        microseconds("serial", "serial", 0), text("best", "fastest way"), times_faster("speedup", "speedup", "{:.2f}×"),
        times_faster("ideal", "ideal", "{:.2f}×"), text("verdict"),
    ]  # fmt: skip
    rows = []
    for one in advice.curve:
        best = one.best or one.serial
        times = (one.gemm_s * 1e6, one.collective_s * 1e6, one.serial.seconds * 1e6)
        rows.append((one.gemm.m, *times, best.name, best.speedup, 1 / (1 - one.ideal_saving), best.verdict))
    return Table(columns, rows, "The fastest way for each M")


def ways_figure(advice: FuseAdvice) -> Figure:
    """Return the time of every way, the fastest first, with its speedup."""
    ordered = sorted(advice.options, key=lambda one: one.seconds)
    rows = [
        (
            one.name,
            one.verdict or "serial",
            one.seconds * 1e6,
            f"{one.speedup:.2f}×" + ", hardware missing" * bool(one.needs),
        )
        for one in ordered
    ]
    columns = [text("method"), text("verdict"), microseconds("time", "time", 0), text("said", " ")]
    colors = {"faster": looks.GREEN, "slower": looks.RED, UNRESOLVED: looks.SKY, "serial": looks.GREY}
    return bars(
        "What takes how long?", Table(columns, rows), lane="method", end="time_us",
        color=Color("verdict", {name: color for name, color in colors.items() if name in {row[1] for row in rows}}),
        over=[Label("said")],
    ).with_caption("Every way to run both, with its speedup over serial; coloured by the verdict.")  # fmt: skip


def crossover_figure(advice: FuseAdvice) -> Figure:
    """Return the speedup over serial of the best methods over M, and what the rule of thumb allows."""
    shown = _shown(advice)
    rows = [
        (point.gemm.m, one.method, one.speedup, one.name, one.verdict)
        for point in advice.curve
        for one in point.available
        if one.method in shown
    ]
    rows += [(point.gemm.m, "ideal", 1 / (1 - point.ideal_saving), "ideal", "") for point in advice.curve]
    columns = [
        number("m", "M"), text("method"), number("speedup", "speedup over serial", "×", ".2f"), text("way"),
        text("verdict"),
    ]  # fmt: skip
    colors = {**looks.spread(shown, [looks.DARK]), "ideal": looks.DARK}
    since = advice.pays_from
    pays = Table([number("m", "M"), text("what")], [(since, f"pays from {since:,}")]) if since else None
    marks = [Lines(pays, "m", "what")] if pays else []
    return curves(
        "From which M does fusing pay?", Table(columns, rows), x=Axis("m", log=True, labels=_TICKS),
        y=Axis("speedup", zero=False), color=Color("method", colors), over=[Level(1.0), *marks],
    ).with_caption(
        "Above 1 a way is faster than the GEMM and the collective serially. Ideal: the shorter of both is hidden "
        "entirely, as the library carries it out."
    )  # fmt: skip


def _shown(advice: FuseAdvice) -> list[str]:
    """Return the methods whose curves are drawn: those that join the pair, and co-runs that differ from the others."""
    curves_of: dict[str, list[float]] = {}
    for point in advice.curve:
        for one in sorted(point.available, key=lambda one: one.chunks is not None):
            curves_of.setdefault(one.method, []).append(one.speedup)
    shown: dict[str, list[float]] = {}
    for name, gains in curves_of.items():
        if not any(np.allclose(gains, other, rtol=_ALIKE) for other in shown.values() if len(other) == len(gains)):
            shown[name] = gains
    return [*shown]


def _lead(advice: FuseAdvice) -> str:
    best = advice.best
    if best is None:
        return "Run both serially: no way to overlap them runs on this system."
    ends = f"80 % interval {best.low:.2f}x to {best.high:.2f}x"
    gain = f"{best.speedup:.2f}x the speed of running serially ({ends})"
    if best.speedup < 1 + _LIKE and best.verdict != "faster":
        return f"Run both serially: the fastest other way, {best.name}, is {gain}: {best.verdict}."
    return f"Fastest is {best.name}, {us(best.seconds, 0)} us, {gain}: {best.verdict}."


def _rule_of_thumb(advice: FuseAdvice) -> str:
    best = advice.best
    shorter = "collective" if advice.collective_s < advice.gemm_s else "GEMM"
    found = (
        f"Alone the GEMM takes {us(advice.gemm_s, 0)} us, the collective {us(advice.collective_s, 0)} us. Rule of "
        f"thumb: hiding the {shorter} saves at most min(G, C) / (G + C) = {advice.ideal_saving:.0%}"
    )
    if best is None:
        return f"{found}."
    saved = 1 - 1 / best.speedup
    if saved <= advice.ideal_saving:
        return f"{found}; {best.name} saves {max(saved, 0.0):.0%}."
    return (
        f"{found}; {best.name} saves {saved:.0%}, as it also carries the collective out faster, or without the gap "
        "between two kernels of a framework."
    )


def _surely(advice: FuseAdvice, verdict: str) -> str:
    named = [one.name for one in advice.available if one.verdict == verdict]
    return f"{verdict.capitalize()} beyond their intervals: {', '.join(named)}." if named else ""


def _future(advice: FuseAdvice) -> str:
    """Return a sentence on the fastest way that needs hardware which the system lacks."""
    needing = min((one for one in advice.options if one.needs), key=lambda one: one.seconds, default=None)
    if needing is None:
        return ""
    return f"With hardware that the system lacks: {needing.name}, {needing.speedup:.2f}x. {needing.needs}"


def _pays(advice: FuseAdvice) -> str:
    if not advice.curve:
        return ""
    low, high = advice.curve[0].gemm.m, advice.curve[-1].gemm.m
    if advice.pays_from is None:
        return f"At M {high:,}, the largest tried, no overlap is faster than running serially."
    if advice.pays_from == low:
        found = f"Overlap pays at every M from {low:,} to {high:,} as predicted"
    else:
        found = f"Overlap pays from M {advice.pays_from:,} on as predicted (tried: {low:,} to {high:,})"
    surely = advice.surely_pays_from
    return f"{found}, beyond the 80 % interval " + ("at none of them." if surely is None else f"from {surely:,} on.")


class FuseReport(Report["FuseAdvice"]):
    """Whether to fuse a GEMM with its collective."""

    explained = "concurrency"

    def title(self) -> str:
        """Return the pattern, the GEMM and the system."""
        advice = self.answer
        pair = PATTERNS[advice.form].removeprefix("a ").removeprefix("an ")
        return f"Fuse? {pair}: {advice.gemm} on {advice.ranks} GPUs of {advice.system.name}"

    def sentences(self) -> list[str]:
        """Return the fastest way with its verdict, the rule of thumb, and from which M overlap pays."""
        advice = self.answer
        said = (
            _lead(advice), _rule_of_thumb(advice), _pays(advice), _surely(advice, "faster"), _surely(advice, "slower"),
            _future(advice),
        )  # fmt: skip
        return [one for one in said if one]

    def notes(self) -> list[str]:
        """Return where the intervals come from."""
        advice = self.answer
        where = "in-sample of the software costs" if advice.seen else "held out of the software costs"
        reasons: dict[str, list[str]] = {}
        for one in advice.options:
            # "METHOD: no public row; ..." is the same reason for every method without rows.
            reasons.setdefault(one.error.why.removeprefix(f"{one.method}: "), []).append(one.method)
        said = [
            f"{', '.join(names)}: {why}" if why.startswith("no public row") else why for why, names in reasons.items()
        ]
        return [f"{advice.system.name} was {where}. 80 % intervals of times: {'; '.join(said)}."]

    def tables(self) -> list[Table]:
        """Return every way, and the fastest one for each M."""
        return [fuse_table(self.answer), *([curve_table(self.answer)] if self.answer.curve else [])]

    def on_terminal(self) -> list[Table | str]:
        """Return the tables, and the methods that are not compared."""
        return [*self.tables(), *([left_out_table(self.answer)] if self.answer.left_out else [])]

    def figures(self) -> list[Figure]:
        """Return the crossover over M, if M was varied, and the time of every way."""
        ways = [ways_figure(self.answer)]
        return [crossover_figure(self.answer), *ways] if len(self.answer.curve) > 1 else ways

    def sections(self) -> list[Part]:
        """Return the pictures, every way, and what was not compared."""
        advice, (ways, *curve) = self.answer, self.tables()
        found: list[Part] = [*self.figures(), Section("Every way to run both", [ways])]
        found += [Section("By M", curve)] if curve else []
        return [*found, *([Section("Not compared", [left_out_table(advice)], folded=True)] if advice.left_out else [])]
