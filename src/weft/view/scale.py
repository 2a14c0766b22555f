"""Steps and layers on machines of the future: shares of communication as maps and curves, and what methods change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.report import SystemReport
from weft.core.report.table import Table, number, text
from weft.view.figure import Figure, heat_map
from weft.view.plans import plan_title
from weft.view.shares import waterfall
from weft.view.words import percent, sentence

if TYPE_CHECKING:
    from weft.plan.scale import Scaled, Scaling

_NARROW = 0.02
"""Difference of a speedup from 1 below which a method changes nothing."""


def machine_words(point: Scaled) -> str:
    """Return the machine of a point in words."""
    if point.compute == point.network == point.memory == 1:
        return "today"
    kept = "" if point.memory == point.compute else f", memory {point.memory:g}x"
    return f"compute {point.compute:g}x, network {point.network:g}x{kept}"


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
    """Return where each step goes, machine by machine, as shares."""
    lanes = {
        f"compute {point.compute:g}x, network {point.network:g}x: {point.method}": point.step.parts
        for point in answer.points
    }
    return waterfall("Where the step goes", lanes).with_caption(
        "Machines by their rates of computing and of links, as multiples of today's."
    )


def scaling_map(answer: Scaling) -> Figure:
    """Return the exposed share over compute and network, a panel for each method."""
    rows = [(point.method, point.compute, point.network, point.exposed) for point in answer.points]
    columns = [
        text("method"),
        number("compute", "rate of computing, × today's"),
        number("network", "links, × today's"),
        number("exposed", "exposed share", format_=".1%"),
    ]
    table = Table(columns, rows)
    return heat_map(
        "Share of the step in which computing waits for communication", table, x="compute", y="network",
        value="exposed", facet="method", most=max(0.5, *table.column("exposed")),
    )  # fmt: skip


class ScalingReport(SystemReport["Scaling"]):
    """A step on machines of the future, and what methods change there."""

    explained = "comp-vs-comm"

    def sentences(self) -> list[str]:
        """Communication on the first and the last machine, and what methods are worth there."""
        answer = self.answer
        machines = list(answer.machines())
        first, last = machines[0], machines[-1]
        said = [
            f"Communication exposes {percent(first[0].exposed)} of a step {_on(first[0])}"
            + (f", {percent(last[0].exposed)} {_on(last[0])}" if len(machines) > 1 else "")
            + f" ({first[0].method}); {_range(answer, last[0])}."
        ]
        said += [_worth(answer, point, last[0]) for point in last[1:]]
        return said

    def notes(self) -> list[str]:
        """Known errors and assumptions."""
        return [sentence(note.rstrip(".")) for note in (*self.answer.errors, *self.answer.notes)]

    def table(self) -> Table:
        """Every machine and method: the step, its MFU, exposed and hidden communication, the speedup with its range."""
        answer = self.answer
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

    def figures(self) -> list[Figure]:
        """Exposed shares as a map, and where each step goes."""
        return [scaling_map(self.answer), scaling_figure(self.answer)]
