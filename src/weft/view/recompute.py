"""What to compute again under a memory budget: the verdict, the policies, and their peak over step time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.report import SystemReport
from weft.core.report.table import Table, number, text
from weft.view import looks
from weft.view.figure import Axis, Color, Dots, Figure, Level, Words, curves
from weft.view.plans import plan_title
from weft.view.shares import seconds

if TYPE_CHECKING:
    from weft.plan.recompute import Policy, Recomputation


def verdict(answer: Recomputation) -> str:
    """Return what to compute again, what that costs, and what full recomputation would, in a sentence."""
    room, base, best = f"{answer.budget / 1e9:.1f} GB", answer.base, answer.chosen
    if best is None:
        least = min((*answer.policies, *answer.named), key=lambda one: one.peak)
        return (
            f"Recomputation alone does not reach {room}: with {least.words} the peak is {least.peak / 1e9:.1f} GB; "
            "shard more (--zero), cut more (--tp, --pp), or offload."
        )
    if best is base:
        return f"No recomputation needed: the peak is {base.peak / 1e9:.1f} GB of {room}."
    full = next(one for one in answer.named if one.recompute == "full")
    return (
        f"Recompute {best.words}: the peak falls from {base.peak / 1e9:.1f} to {best.peak / 1e9:.1f} GB of {room}, "
        f"and the step takes {_more(best, base)}; full recomputation takes {_more(full, base)}."
    )


def _more(one: Policy, base: Policy) -> str:
    return f"{seconds(one.seconds)} (+{one.seconds / base.seconds - 1:.1%})"


class RecomputationReport(SystemReport["Recomputation"]):
    """Recomputation of a plan, compared with other policies."""

    explained = "recompute"

    def title(self) -> str:
        """Return the model, the machine and the plan."""
        return f"Recomputation for {plan_title(self.answer.model, self.answer.system, self.answer.plan)}"

    def sentences(self) -> list[str]:
        """Return what to compute again, and what that costs."""
        return [verdict(self.answer)]

    def table(self) -> Table:
        """Return every policy: bytes kept of a micro-batch, peak, step time, and whether it fits."""
        answer = self.answer
        rows = [
            (one.saved / 1e9, one.peak / 1e9, one.seconds, one.seconds / answer.base.seconds - 1,
             "yes" if one.peak <= answer.budget else "no", one.words)
            for one in (*answer.named, *answer.policies)
        ]  # fmt: skip
        columns = [
            number("saved_gb", "saved", "GB", ",.2f"), number("peak_gb", "peak", "GB", ",.1f"),
            number("step_s", "step", "s", ",.3f"), number("added", "added time", format_="+.1%"), text("fits"),
            text("recompute", "recomputed", prose=True),
        ]  # fmt: skip
        return Table(columns, rows, f"Recomputation for a peak of {answer.budget / 1e9:.1f} GB")

    def figure(self) -> Figure:
        """Peak over step time: the sets of operators, and the policies of frameworks."""
        answer = self.answer
        chosen = sorted((answer.base, *answer.policies), key=lambda one: one.seconds)
        best = next((one for one in chosen if one.peak <= answer.budget), None)
        columns = [
            number("step_s", "step", "s", ",.3f"), number("peak_gb", "peak", "GB", ",.1f"), text("kind", " "),
            text("recompute", "recomputed"), text("mark", " "),
        ]  # fmt: skip
        sets, named = (
            Table(
                columns,
                [(one.seconds, one.peak / 1e9, kind, one.words, "fastest that fits" * (one is best)) for one in listed],
            )
            for kind, listed in (("operators chosen", chosen), ("policies of frameworks", answer.named))
        )
        figure = curves(
            "Peak memory against step time", sets, x="step_s", y=Axis("peak_gb", zero=False),
            color=Color("kind", {"operators chosen": looks.BLUE}),
            over=[Dots(named), Level(answer.budget / 1e9), Words("mark")],
        )  # fmt: skip
        return figure.with_caption(
            "Each dot is a set of operators that run again in the backward pass, grey ones the policies of frameworks; "
            "the level line is the budget."
        )
