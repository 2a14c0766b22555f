"""A tile search: the fastest kernels beside the library's, and what was pruned why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.core.report import Report
from weft.core.report.table import Table, microseconds, number, text
from weft.plan.tune.tiles import REASONS, search_tiles
from weft.view import looks
from weft.view.figure import Color, Figure, bars
from weft.view.words import percent

if TYPE_CHECKING:
    from weft.plan.tune.tiles import Tiles

_SHOWN = 10


def _against(over: float) -> str:
    """Return how much longer than the fastest kernel the library's choice takes."""
    if percent(abs(over)) == "0%":
        return "is as fast"
    return f"takes {percent(over)} longer" if over > 0 else f"is {percent(-over)} faster: the template lacks it"


def tile_table(answer: Tiles) -> Table:
    """Return the ten fastest kernels; of those that differ in threads alone and take the same time, one."""
    best = answer.best.seconds
    rows = [
        (
            f"{each.tiling.rows} x {each.tiling.columns}", each.tiling.step, each.tiling.stages, each.tiling.threads,
            each.tiling.splits, each.tiling.resident, each.seconds * 1e6, each.seconds / best - 1,
        )
        for each in answer.fastest(_SHOWN)
    ]  # fmt: skip
    columns = [
        text("tile"), number("step", "K step"), number("stages"), number("threads"), number("splits", "parts of K"),
        number("resident", "per compute unit"), microseconds("time", "time"), number("slower", format_=".1%"),
    ]  # fmt: skip
    return Table(columns, rows, f"Fastest kernels of {answer.gemm} on {answer.gpu.name}, without the launch")


def pruned_table(answer: Tiles) -> Table:
    """Return how many candidates each reason pruned."""
    rows = [(name, count, REASONS[name]) for name, count in answer.pruned.items() if count]
    columns = [text("reason"), number("kernels"), text("what", "what it means", prose=True)]
    return Table(columns, rows, "Pruned before timing")


class TilesReport(Report["Tiles"]):
    """The fastest kernels of a template compared with the library's, and the pruned kernels by reason."""

    def sentences(self) -> list[str]:
        """Return the answer in sentences: the best kernel, the library's, and what a search would cost."""
        answer = self.answer
        best = answer.best
        against = _against(answer.over_library)
        found = search_tiles(answer)
        lead = (
            f"Of {answer.candidates:,} kernels {len(answer.seconds):,} fit and may pay; the fastest, {best.tiling}, "
            f"takes {best.seconds * 1e6:,.1f} µs. The library's choice, {answer.library.tiling}, {against}."
        )
        search = (
            f"{answer.within(found.within)} kernels are within {percent(found.within)} of the best: random draws find "
            f"one after {found.random:,.0f} evaluations on average, annealing after {found.annealed:,.0f} in the "
            "median."
        )
        return [lead, search]

    def tables(self) -> list[Table]:
        """Return the fastest kernels, and what was pruned why."""
        return [table for table in (tile_table(self.answer), pruned_table(self.answer)) if table.rows]

    def figure(self) -> Figure:
        """Return the times of the fastest kernels and of the library's."""
        answer = self.answer
        rows = [
            (
                f"{each.tiling}, {each.tiling.stages} stages, {each.tiling.threads} threads",
                "template",
                each.seconds * 1e6,
            )
            for each in answer.fastest(_SHOWN)
        ]
        rows.append((f"library: {answer.library.tiling}", "library", answer.library.seconds * 1e6))
        columns = [text("kernel"), text("whose"), microseconds("time", "time", 2)]
        return bars(
            "Which kernel is fastest?", Table(columns, rows), lane="kernel", end="time_us",
            color=Color("whose", {"template": looks.BLUE, "library": looks.ORANGE}),
        ).with_caption(f"{answer.gemm} on {answer.gpu.title}, closed form, without the launch.")  # fmt: skip
