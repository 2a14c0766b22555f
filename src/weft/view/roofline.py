"""A model's operators on a GPU's roofline: the verdict, the table, and the picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.core.report import SystemReport
from weft.core.report.table import Table, microseconds, number, text
from weft.estimate.errors import gemm_error
from weft.view.figure import Color, Figure, dots_below
from weft.view.plans import plan_title
from weft.view.shares import COLORS, label, order_parts
from weft.view.words import percent, sentence

if TYPE_CHECKING:
    from weft.step.result.roofline import Roofline, RooflineOp

_TERA = 1e12


def _time(operators: list[RooflineOp]) -> float:
    return sum(op.seconds for op in operators)


def _share(answer: Roofline, operators: list[RooflineOp]) -> float | None:
    """Return the time at the peaks over the time taken."""
    least = sum(op.flops / answer.peak(op) for op in operators)
    return least / _time(operators) if operators else None


def _ceilings(answer: Roofline, shown: list[RooflineOp]) -> Table:
    """Return the points of each ceiling, over all intensities and ridges, and where its words are."""
    spots = [op.intensity for op in shown] + [answer.ridge(name) for name in answer.peaks]
    low, high = min(spots) / 2, max(spots) * 3
    columns = [
        text("ceiling"), number("intensity", "intensity", "FLOP/B"), number("tflops", " ", "TFLOP/s"),
        text("label", " "), text("side", " "),
    ]  # fmt: skip
    return Table(columns, list(_points(answer, low, high)))


def _points(answer: Roofline, low: float, high: float) -> Iterator[tuple[str, float, float, str, str]]:
    most, least = max(answer.peaks.values()), min(answer.peaks.values())
    between = most**0.4 * least**0.6  # where nothing lies beside the slanted ceilings
    steepest = max(roof.value for roof in answer.roofs if roof.slanted)
    for roof in answer.roofs:
        words = (
            f"{roof.name} {roof.value / _TERA:,.{1 if roof.slanted else 0}f} {'TB/s' if roof.slanted else 'TFLOP/s'}"
        )
        if roof.slanted:
            yield roof.name, low, roof.at(low) / _TERA, "", ""
            side = "left" if roof.value == steepest else "right"
            yield roof.name, between / roof.value, between / _TERA, words, side
            yield roof.name, most / roof.value, most / _TERA, "", ""
        else:
            yield roof.name, roof.value / steepest, roof.value / _TERA, "", ""
            yield roof.name, high, roof.value / _TERA, words, "above"


class RooflineReport(SystemReport["Roofline"]):
    """A model's operators on a GPU's roofline."""

    def title(self) -> str:
        """Return the model, the machine and the plan."""
        return f"Roofline: {plan_title(self.answer.model, self.answer.system, self.answer.plan)}"

    def sentences(self) -> list[str]:
        """Return what computing bounds, what memory bounds, and how near both come to the ceilings."""
        answer, gpu = self.answer, self.answer.system.gpu
        right = [op for op in answer.operators if not answer.left_of_ridge(op)]
        left = [op for op in answer.operators if answer.left_of_ridge(op)]
        ridges = [(name, answer.ridge(name)) for name in answer.peaks]
        turns = ", ".join(f"{ridge:,.0f} FLOP/B in {name}" for name, ridge in ridges[:-1])
        lead = (
            f"{len(right)} of {len(answer.operators)} operators lie right of the ridge of {gpu.title} ({turns}) and "
            f"take {percent(_time(right) / answer.seconds)} of the time, at {percent(_share(answer, right))} of their "
            "peaks."
        )
        if not left:
            return [lead]
        rate = sum(op.bytes for op in left) / _time(left)
        rest = (
            f"The other {len(left)} are left of it: {percent(_time(left) / answer.seconds)} of the time, at "
            f"{rate / _TERA:.2f} of the DRAM's {answer.memory_rate / _TERA:.2f} TB/s."
        )
        return [lead, rest]

    def notes(self) -> list[str]:
        """Return what the times rest on, and last the error of the class of the longest GEMM."""
        gemms = [op.seconds for op in self.answer.operators if op.kind == "gemm"]
        gpu = self.answer.system.gpu
        sure = [f"expected error: {gemm_error(gpu.name, max(gemms)).why}"] if gemms and gpu.vendor != "none" else []
        return [*(f"note: {sentence(note)}" for note in self.answer.notes), *sure]

    def table(self) -> Table:
        """Return every operator: its work, its intensity, the rate that it attains, and its bound."""
        answer = self.answer
        several = len({op.part for op in answer.operators}) > 1
        rows = [
            (
                f"{op.part}: {op.name}" if several else op.name,
                op.direction,
                label(op.kind),
                op.flops / 1e9,
                op.bytes / 1e6,
                op.intensity,
                op.seconds * 1e6,
                op.rate / _TERA,
                answer.attained_share(op) or None,
                op.bound,
            )
            for op in answer.operators
        ]
        columns = [
            text("operator"), text("pass"), text("kind", spare=True), number("gflop", "work", "GFLOP", ",.2f"),
            number("megabytes", "data", "MB", ",.1f"), number("intensity", "intensity", "FLOP/B", ",.1f"),
            microseconds("time", "time"), number("tflops", "rate", "TFLOP/s", ",.1f"),
            number("attained", "of the roof", format_=".0%"), text("bound"),
        ]  # fmt: skip
        return Table(columns, rows, f"Operators of a layer: {plan_title(answer.model, answer.system, answer.plan)}")

    def figure(self) -> Figure:
        """Return every operator with FLOPs below the ceilings, on logarithmic axes."""
        answer = self.answer
        shown = [op for op in answer.operators if op.flops]
        kinds = {label(name): COLORS.get(name, "#666666") for name in order_parts({op.kind: 0.0 for op in shown})}
        columns = [
            text("operator"), text("pass"), text("kind"), number("intensity", "intensity", "FLOP/B", ",.1f"),
            number("tflops", "attained rate", "TFLOP/s", ",.2f"), microseconds("time", "time"),
            number("attained", "of the roof", format_=".0%"), text("bound"),
        ]  # fmt: skip
        rows = [
            (
                op.name, op.direction, label(op.kind), op.intensity, op.rate / _TERA, op.seconds * 1e6,
                answer.attained_share(op), op.bound,
            )
            for op in shown
        ]  # fmt: skip
        ridges = "; ".join(f"{name} {answer.ridge(name):,.0f} FLOP/B" for name in answer.peaks)
        return dots_below(
            "What bounds each operator?", Table(columns, rows), _ceilings(answer, shown), x="intensity", y="tflops",
            color=Color("kind", kinds), shape="pass", size="time_us",
        ).with_caption(
            f"Larger dots take longer. Ridges, from DRAM: {ridges}. Dots above the DRAM's line find operands in caches."
        )  # fmt: skip
