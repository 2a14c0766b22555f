"""What every search of deployments shows, whatever the workload: the best or the front, and infeasible plans."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from weft.core.report import Part, Section, SystemReport
from weft.core.report.table import Table, number, text
from weft.plan.answer import PlanAnswer
from weft.view.figure import Axis, Color, Dots, Figure, Words, curves

A = TypeVar("A", bound=PlanAnswer[Any])
_REASONS = 5
"""Most frequent reasons that a terminal shows."""


class PlanReport(SystemReport[A]):
    """What a search found: its plans, their Pareto front, how to start the best one, and infeasible plans."""

    @abstractmethod
    def front(self) -> Figure:
        """Return the Pareto front among all plans."""

    def start(self) -> list[str]:
        """Return how to start the best plan."""
        return [text.rstrip("\n") for text in self.answer.launch_files.values()]

    def tables(self) -> list[Table]:
        """Return the plans, and the infeasible ones with the reason."""
        return [self.table(), infeasible_table(self.answer)]

    def on_terminal(self) -> list[Table | str]:
        """Return the plans, the most frequent reasons of infeasible ones, and how to start the best."""
        plans, out = self.tables()
        reasons = Table(out.columns, out.rows[:_REASONS], out.title)
        return [plans, *([reasons] if out.rows else []), *self.start()]

    def figures(self) -> Sequence[Figure]:
        """Return the Pareto front, if any plan is on it."""
        return [self.front()] if self.answer.front else []

    def sections(self) -> list[Part]:
        """Return how to start the best plan, the plans and their front, what is the workload's own, and infeasible
        plans.
        """
        plans, out = self.tables()
        return [
            Section("How to start it", self.start()),
            Section("The plans", [plans, *self.beside_plans()]),
            Section("The Pareto front", self.figures()[: bool(self.answer.front)]),
            *self.own_sections(),
            Section("Infeasible plans", [out] if self.answer.rejected else []),
        ]

    def beside_plans(self) -> list[Part]:
        """Return what stands below the table of plans."""
        return []

    @abstractmethod
    def own_sections(self) -> list[Part]:
        """Return what only this workload shows."""


def infeasible_table(answer: PlanAnswer[Any]) -> Table:
    """Return why plans are left out, most frequent first."""
    rows = [(reason, count, count / answer.searched) for reason, count in answer.rejected.items()]
    columns = [text("reason"), number("plans"), number("share", "of all", format_=".1%")]
    return Table(columns, rows, f"Infeasible plans, of {answer.searched:,}")


def front_figure(
    title: str, line: Table, dots: Table, caption: str, *, x: str, y: str, series: str, steps: bool = False
) -> Figure:
    """Return the plans of the front as a line among all others as dots; the best is marked."""
    figure = curves(
        title, line, x=x, y=Axis(y, zero=False), color=Color(series), steps=steps, over=[Dots(dots), Words("mark")],
    )  # fmt: skip
    return figure.with_caption(caption)
