"""Steps and layers on machines of the future: shares of communication as maps and curves, and what methods change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weft.report import Report
from weft.report.table import Table, number, text
from weft.view import looks
from weft.view.figure import Figure, bars, curves, heat_map, scatter, stacked_bars
from weft.view.plans import plan_title
from weft.view.shares import COLORS, label, ordered
from weft.view.words import percent, sentence

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.plan.scale import Scaled, Scaling
    from weft.studies.comp_vs_comm import Layer
    from weft.validation.projection import Projection

_NARROW = 0.02
"""Difference of a speedup from 1 below which a method changes nothing."""


# -- of a user's model


def machine_words(point: Scaled) -> str:
    """The machine of a point in words."""
    if point.compute == point.network == point.memory == 1:
        return "today"
    kept = "" if point.memory == point.compute else f", memory {point.memory:g}x"
    return f"compute {point.compute:g}x, network {point.network:g}x{kept}"


def scaling_table(answer: Scaling) -> Table:
    """Every machine and method: the step, its MFU, exposed and hidden communication, and the speedup with its range."""
    rows = []
    for points in answer.machines():
        for point in points:
            _, least, most = answer.share(point)
            value, low, high = answer.speedup(point, points[0])
            rows.append((
                machine_words(point), point.method, point.step.seconds, point.step.mfu, point.exposed,
                f"{least:.0%} to {most:.0%}", point.hidden, value, f"{low:.2f} to {high:.2f}",
            ))  # fmt: skip
    columns = [
        text("machine"), text("method", "overlap of TP"), number("step_s", "step", "s", ".3g"),
        number("mfu", "MFU", format_=".1%"), number("exposed", format_=".1%"), text("exposed_range", "range"),
        number("hidden", format_=".1%"),
        number("speedup", format_="{:.2f}×"), text("speedup_range", "range of it"),
    ]  # fmt: skip
    return Table(columns, rows, plan_title(answer.first.model, answer.first.system, answer.first.plan))


def scaling_verdict(answer: Scaling) -> list[str]:
    """The answer in sentences: communication on the first and the last machine, and what methods are worth there."""
    machines = list(answer.machines())
    first, last = machines[0], machines[-1]
    said = [
        f"Communication exposes {percent(first[0].exposed)} of a step {_on(first[0])}"
        + (f", {percent(last[0].exposed)} {_on(last[0])}" if len(machines) > 1 else "")
        + f" ({first[0].method}); {_range(answer, last[0])}."
    ]
    said += [_worth(answer, point, last[0]) for point in last[1:]]
    return said


def _on(point: Scaled) -> str:
    words = machine_words(point)
    return "today" if words == "today" else f"with {words}"


def _range(answer: Scaling, point: Scaled) -> str:
    _, low, high = answer.share(point)
    return f"{percent(low)} to {percent(high)} if times are as far off as measured ones are"


def _worth(answer: Scaling, point: Scaled, base: Scaled) -> str:
    value, low, high = answer.speedup(point, base)
    if high < 1 + _NARROW and low > 1 - _NARROW:
        return f"{point.method} changes nothing there."
    word = "faster" if value >= 1 else "as fast"
    return f"{point.method} makes the step {value:.2f} times {word} there ({low:.2f} to {high:.2f})."


def scaling_figure(answer: Scaling) -> Figure:
    """Where each step goes, machine by machine, as shares."""
    rows = []
    for point in answer.points:
        parts = point.step.parts
        lane = f"{point.compute:g}x, {point.network:g}x: {point.method}"
        rows += [(lane, label(name), parts[name] / point.step.seconds) for name in ordered(parts)]
    columns = [
        text("lane", "machine"),
        text("part"),
        number("share", "share of the step", format_=".1%"),
    ]
    colors = {label(name): color for name, color in COLORS.items()}
    table = Table(columns, rows)
    return stacked_bars(
        "Where the step goes", table, lane="lane", part="part", value="share", looks=_used(colors, table), percent=True
    ).captioned("Machines by their rates of computing and of links, as multiples of today's.")


def _used(colors: Mapping[str, str], table: Table) -> dict[str, str]:
    names = table.distinct("part")
    known = {name: color for name, color in colors.items() if name in names}
    return {**known, **looks.spread([name for name in names if name not in colors])}


def scaling_map(answer: Scaling) -> Figure:
    """The exposed share over compute and network, a panel for each method."""
    rows = [(point.method, point.compute, point.network, point.exposed) for point in answer.points]
    columns = [
        text("method"),
        number("compute", "rate of computing, times today's"),
        number("network", "rate of links"),
        number("exposed", "exposed share", format_=".1%"),
    ]
    table = Table(columns, rows)
    return heat_map(
        "Share of the step in which computing waits for communication", table, x="compute", y="network",
        value="exposed", facet="method", most=max(0.5, *table.column("exposed")),
    )  # fmt: skip


class ScalingReport(Report["Scaling"]):
    """A step on machines of the future, and what methods change there."""

    explained = "comp-vs-comm"

    def sentences(self) -> list[str]:
        """Communication on the first and the last machine, and what methods are worth there."""
        return scaling_verdict(self.answer)

    def notes(self) -> list[str]:
        """Known errors and assumptions."""
        return [sentence(note.rstrip(".")) for note in (*self.answer.errors, *self.answer.notes)]

    def tables(self) -> list[Table]:
        """Every machine and method."""
        return [scaling_table(self.answer)]

    def figures(self) -> list[Figure]:
        """Exposed shares as a map, and where each step goes."""
        return [scaling_map(self.answer), scaling_figure(self.answer)]

    def gpu(self) -> Gpu:
        """The GPU of today."""
        return self.answer.first.system.gpu


# -- of the study


def share_curves(layers: Sequence[Layer]) -> Figure:
    """The share over the rate of computing, a line for each model at its largest degree, of one sequence."""
    least = min(one.scenario.batch for one in layers)
    degree: dict[str, int] = {}
    for one in layers:
        degree[one.scenario.model] = max(one.scenario.tp, degree.get(one.scenario.model, 0))
    rows = [
        (one.scenario.label, one.scenario.compute, one.share)
        for one in layers
        if one.scenario.batch == least and one.scenario.tp == degree[one.scenario.model]
    ]
    columns = [
        text("label", "model"),
        number("compute", "compute over today's, links as today", format_="g"),
        number("share", "share of communication", format_=".0%"),
    ]
    factors = sorted({row[1] for row in rows})
    return curves(
        "Share of a layer in which computing waits for communication", Table(columns, rows), x="compute", y="share",
        series="label", log_x=True, percent=True, ticks=factors,
    ).captioned("One sequence per micro-batch, forward and backward pass, nothing hidden.")  # fmt: skip


def share_map(layers: Sequence[Layer]) -> Figure:
    """The share over degrees and machines, a panel for each model, at the models' own lengths and one sequence."""
    least = min(one.scenario.batch for one in layers)
    length = {one.scenario.model: one.scenario.sequence for one in layers if one.scenario.own}
    rows = [
        (
            f"{one.scenario.model} ({one.scenario.hidden:,} hidden)",
            one.scenario.compute,
            one.scenario.tp,
            one.share,
            "yes" if one.scenario.own else "no",
        )
        for one in sorted(layers, key=lambda one: one.scenario.hidden)
        if one.scenario.batch == least and one.scenario.sequence == length[one.scenario.model]
    ]
    columns = [
        text("model"),
        number("compute", "rate of computing, times today's"),
        number("tp", "GPUs per layer"),
        number("share", "share of communication", format_=".0%"),
        text("own", "its own degree"),
    ]
    return heat_map(
        "Share of communication by model, degree and machine", Table(columns, rows), x="compute", y="tp", value="share",
        facet="model",
    )  # fmt: skip


def closed_figure(layers: Sequence[Layer]) -> Figure:
    """The closed form's share beside the clock's, a dot for each scenario."""
    rows = [
        (f"compute {one.scenario.compute:g}x", one.scenario.label, one.scenario.batch, one.closed, one.share)
        for one in layers
    ]
    columns = [text("machine"), text("label", "model"), number("batch"), number("closed", "closed form", format_=".0%"),
               number("share", "operator by operator", format_=".0%")]  # fmt: skip
    return scatter(
        "Share of communication: the model alone, by the data sheet's rates, and operator by operator",
        Table(columns, rows), x="closed", y="share", facet="machine", percent=True,
    ).captioned(
        "The closed form, 1 / (1 + edge x link rate / peak FLOP/s), knows neither achieved rates nor operators that "
        "move data; it orders scenarios roughly, and overstates the share."
    )  # fmt: skip


def projection_figure(found: Mapping[str, Sequence[Projection]]) -> Figure:
    """Projected over measured time of every row that a baseline has not seen."""
    rows = [
        (f"{kind}: {one.unseen.machine}", ours * 1e6, theirs * 1e6, ours / theirs)
        for kind, each in found.items() for one in each
        for ours, theirs in zip(one.seconds.tolist(), one.unseen.measured.tolist(), strict=True)
    ]  # fmt: skip
    columns = [text("subject"), number("projected", "projected", "µs", ".4g"),
               number("measured", "measured", "µs", ".4g"),
               number("ratio", "projected / measured", format_=".3f")]  # fmt: skip
    return scatter(
        "Operators projected from one baseline, on rows that it has not seen", Table(columns, rows), x="measured",
        y="projected", facet="subject", log=True, log_x=True, bands=(0.3, 0.1),
    ).captioned("Bands: 10 % and 30 % off.")  # fmt: skip


def change_figure(found: Mapping[str, Sequence[Layer]], words: Mapping[str, str]) -> Figure:
    """The share under each method, a bar per model and machine, of one sequence."""
    least = min(one.scenario.batch for each in found.values() for one in each)
    ends = {one.scenario.compute for one in found["t3-mca"]} if "t3-mca" in found else None
    rows = [
        (one.scenario.label, words[method], f"compute {one.scenario.compute:g}x", 0.0, one.share)
        for method, each in found.items() for one in each
        if one.scenario.batch == least and (ends is None or one.scenario.compute == max(ends))
    ]  # fmt: skip
    columns = [text("label", "model"), text("method"), text("machine"), number("start", " "),
               number("share", "share of communication", format_=".0%")]  # fmt: skip
    table = Table(columns, rows)
    return bars(
        "What is left exposed on the fastest machine", table, lane="label", offset="method", kind="method",
        start="start", end="share", looks=looks.spread(table.distinct("method")), percent=True,
    )  # fmt: skip
