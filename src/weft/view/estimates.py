"""Closed-form times: a row per operator of a graph or case of arrays, and where the time of each goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.report import Report
from weft.core.report.table import Table, microseconds, text
from weft.view import looks
from weft.view.figure import Color, Figure, Label, stacked_bars

if TYPE_CHECKING:
    from weft.estimate import Estimate


class EstimateReport(Report["Estimate"]):
    """A closed-form time with its bound and parts."""

    def sentences(self) -> list[str]:
        """Return the time and its bound, the longest operator, or the range of the cases."""
        cases = list(_cases(self.answer))
        times = [_us(one.seconds) for _, one in cases]
        if len(cases) == 1:
            return [f"It takes {times[0]:,.1f} µs, bound by {cases[0][1].bound}."]
        name, most = max(zip((name for name, _ in cases), times, strict=True), key=lambda one: one[1])
        if self.answer.operators and not np.shape(self.answer.seconds):
            return [f"All take {_us(self.answer.seconds):,.1f} µs, of which {name} takes {most:,.1f} µs."]
        return [f"The {len(cases)} cases take {min(times):,.1f} to {most:,.1f} µs."]

    def table(self) -> Table:
        """Return a row per operator of a graph, or per case of the arrays with its index."""
        answer = self.answer
        parts = dict.fromkeys(name for _, one in _cases(answer) for name in one.parts)
        rows = [
            (case, _us(one.seconds), one.bound, one.by, *(_us(one.parts.get(name, 0.0)) for name in parts))
            for case, one in _cases(answer)
        ]
        columns = [text("case"), microseconds("time", "time", 2), text("bound"), text("by")]
        whole = f", {answer.seconds * 1e6:,.1f} µs in all" if answer.operators and not np.shape(answer.seconds) else ""
        shown = Table([*columns, *(microseconds(name, name, 2) for name in parts)], rows, f"Closed-form times{whole}")
        return shown if any(row[3] for row in rows) else shown.without(["by"])

    def figure(self) -> Figure:
        """Return where the time of each goes."""
        rows = [
            (case, name, _us(seconds), one.bound)
            for case, one in _cases(self.answer)
            for name, seconds in one.parts.items()
            if seconds > 0
        ]
        columns = [text("case"), text("part"), microseconds("time", "time", 2), text("bound")]
        return stacked_bars(
            "Where does the time go?",
            Table(columns, rows),
            lane="case",
            value="time_us",
            color=Color("part", looks.spread(list(dict.fromkeys(row[1] for row in rows)))),
            in_order=True,
            over=[Label("bound")],
        ).with_caption("Closed-form times by what they are spent on; the word behind each bar is its bound.")


def _us(seconds: Any) -> float:
    return float(seconds) * 1e6


def _cases(answer: Estimate) -> Iterator[tuple[str, Estimate]]:
    """Yield the operators of a graph by name, or every case by its index."""
    if answer.operators and not np.shape(answer.seconds):
        yield from answer.operators.items()
        return
    for place in np.ndindex(np.shape(answer.seconds)):
        yield ", ".join(map(str, place)) or "all", answer.case(place)
