"""What figures become when assumed values of a machine move to the ends of their ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.report import Report
from weft.core.report.table import Table, number, text, texts
from weft.view import looks
from weft.view.figure import Color, Figure, Label, Lane, bars

if TYPE_CHECKING:
    from weft.plan.tune.perturb import Sensitivity


class SensitivityReport(Report["Sensitivity"]):
    """What figures become when assumed values are moved to the ends of their ranges."""

    def __init__(self, answer: Sensitivity, title: str = "") -> None:
        super().__init__(answer)
        self.head = title or f"{answer.study}: what the figures become at either end of each range"

    def sentences(self) -> list[str]:
        """Return how far the first figure moves, and by which value most."""
        name, how = next(iter(self.answer.formats.items()))
        chosen, *moved = self.answer.rows
        base = chosen.figures[name]
        if not moved:
            return [f"{name} is {format(base, how)}; no value was moved."]
        most = max(moved, key=lambda row: abs(row.figures[name] - base))
        low, high = (format(end([base, *(row.figures[name] for row in moved)]), how) for end in (min, max))
        end = f"{format(most.figures[name], how)} at {most.setting}"
        return [f"{name} is {format(base, how)}, {low} to {high} at the ends; {most.what} moves it most, to {end}."]

    def table(self) -> Table:
        """Return a row per value: its range and the figures at both ends."""
        heads, rows = self.answer.table()
        return Table(texts(heads), rows, self.head)

    def figure(self) -> Figure:
        """Return the first figure at both ends of each range, around its unmoved value."""
        answer = self.answer
        name, how = next(iter(answer.formats.items()))
        chosen, *moved = answer.rows
        ends: dict[str, int] = {}
        rows = []
        for row in moved:
            end = ("low", "high")[min(ends.setdefault(row.what, 0), 1)]
            ends[row.what] += 1
            rows.append((row.what, end, row.figures[name], f"{row.setting}: {format(row.figures[name], how)}"))
        columns = [text("what", "value"), text("end"), number("figure", name, format_=how), text("said", " ")]
        return bars(
            f"What do uncertain values do to {name}?", Table(columns, rows), lane=Lane("what", "end"), end="figure",
            color=Color("end", {"low": looks.SKY, "high": looks.RED}), start=chosen.figures[name], over=[Label("said")],
        )  # fmt: skip
