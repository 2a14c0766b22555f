"""Sweeps: the points as a table, the picture over the values that vary, and why others do not work."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

from weft.core.errors import InputError
from weft.core.report import Part, Report
from weft.core.report.table import Column, Table, microseconds, number, text, times_faster
from weft.sweep.questions import list_text, value_name
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Label, Lane, Words, bars, choice_map, choices, curves

if TYPE_CHECKING:
    from weft.sweep.answer import Sweep, SweepPoint

_SHOWN = {
    "bound": (text("bound"), 1),
    "mfu": (number("mfu", "MFU", "%", ".1f"), 100),
    "tokens_per_s_per_gpu": (number("tokens_per_s_per_gpu", "tokens/s per GPU", format_=",.0f"), 1),
    "peak_bytes": (number("peak_gb", "peak memory", "GB", ".1f"), 1e-9),
    "fits": (text("fits"), 1),
    "requests_per_s": (number("requests_per_s", "req/s", format_=".3g"), 1),
    "output_tokens_per_s_per_gpu": (number("out_per_gpu", "output tokens/s per GPU", format_=",.0f"), 1),
    "ttft_s.p50": (number("ttft_ms", "TTFT, p50", "ms", ",.1f"), 1e3),
    "tpot_s.p50": (number("tpot_ms", "TPOT, p50", "ms", ",.1f"), 1e3),
    "goodput": (number("goodput", "goodput", "req/s", ".3g"), 1),
}
"""Figures beside the time: their columns, and the factor to the column's unit."""
_NAMED = ("gpu", "system", "model", "overlap", "sharing", "gemm", "work")
"""Axes whose values say what they are of."""
_FEW = 12
"""Whole numbers up to which a figure shows each as a choice, without a line between them."""
_MOST_LINES = 8
"""Lines or colours that a reader tells apart; with more combinations of the other axes, a heat map is drawn."""
_MOST_ROWS = 2000
"""Combinations that a page lists and draws, evenly spread if there are more; --out table.csv has all."""
_REASONS = 5
_GOALS = {"memory": number("peak_gb", "peak memory", "GB", ".2f"), "step": number("step_s", "step time", "s", ".4g")}
_GOALS["serve"] = number("request_s", "time of a request", "s", ".4g")
_PER_UNIT = {"memory": 1e-9, "step": 1.0, "serve": 1.0}


def sweep_table(answer: Sweep) -> Table:
    """Every point: the values that vary, its time or memory, and its speedup over the first overlap or its bound."""
    return _table(answer, list(answer))


def best_table(answer: Sweep) -> Table:
    """Return the best points, best first."""
    return _table(answer, answer.summary.best)


def _table(answer: Sweep, points: Sequence[SweepPoint]) -> Table:
    goal = _goal(answer)
    shown = [name for name in _SHOWN if name in answer.columns.types and name != answer.goal]
    columns = [*(text(name) for name in answer.axes), goal, *(_SHOWN[name][0] for name in shown)]
    rows = [
        [*map(_text, point.values), _goal_value(answer, point), *(_figure(point, name) for name in shown)]
        for point in points
    ]
    if "overlap" in answer.axes:
        columns.append(times_faster("speedup"))
        rows = [[*row, point.speedup] for row, point in zip(rows, points, strict=True)]
    if answer.summary.reasons and any(point.why for point in points):
        columns.append(text("why"))
        rows = [[*row, point.why] for row, point in zip(rows, points, strict=True)]
    return Table(columns, rows, answer.title)


def _goal(answer: Sweep) -> Column:
    """The column of what is compared: a time in microseconds or seconds, or a peak of memory."""
    return _GOALS.get(answer.matrix.data["run"]) or microseconds("time", "time", 2)


def _goal_value(answer: Sweep, point: SweepPoint) -> float | None:
    if point.why:
        return None
    return float(point[answer.goal]) * _PER_UNIT.get(answer.matrix.data["run"], 1e6)


def _figure(point: SweepPoint, name: str) -> Any:
    """Return a figure of a point in the unit of its column."""
    value, factor = point.get(name), _SHOWN[name][1]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value * factor if isinstance(value, int | float) else value


def _text(value: Any) -> str:
    return str(list_text(value_name(value)))


def sweep_figure(answer: Sweep) -> Figure:
    """Time or memory over the axis of numbers with most values, a line for each combination of the others; else bars.

    With more combinations of the others than lines can be told apart: a heat map of the best over each two axes. What
    does not fit the memory of its GPUs is left out where other combinations do. Raises InputError if none works.
    """
    works = [point for point in answer if not point.why]
    if not works:
        raise InputError("no combination of this sweep works, so there is nothing to draw; its table says why")
    name, scale, unit = answer.scale or (answer.axes[0] if answer.axes else "work", [], "")
    fits = [point.get("fits") is not False for point in works]
    drawn = [at for at in range(len(works)) if fits[at] or not any(fits)]
    drawn = drawn[:: -(-len(drawn) // _MOST_ROWS)]
    points, goal, others = [works[at] for at in drawn], _goal(answer), [axis for axis in answer.axes if axis != name]
    unfit = len(works) - sum(fits)
    left = f"Left out, as they do not fit the memory: {unfit:,} of {len(works):,}." * (0 < sum(fits) < len(works))
    reached = [_goal_value(answer, point) or 0.0 for point in points]
    lines = [_point_words(answer, point, name) or "time" for point in points]
    if len(set(lines)) > _MOST_LINES:
        return _best_map(answer, points, name).with_caption(
            f"Dark is best; white is twice the least or more. {left}".rstrip()
        )
    said = [format(value, ",.1f" if goal.unit == "µs" else ",.4g") for value in reached]
    best = ["best" * (value == min(reached)) for value in reached]
    is_choice = not unit and len(set(scale)) <= _FEW and all(map(float.is_integer, scale))
    values: list[Any] = [int(scale[at]) if is_choice else scale[at] for at in drawn if scale]
    if not scale:
        place = answer.axes.index(name) if answer.axes else None
        values = [answer.title if place is None else _text(point.values[place]) for point in points]
    rows = list(zip(values, lines, reached, said, best, strict=True))
    heads = [text("series", ", ".join(others) or "time"), goal, text("said", " "), text("mark", " ")]
    lane = number("value", name, unit, "g") if scale else text("value", name)
    shown = Table([lane, *heads], sorted(rows, key=lambda row: row[0]) if scale else rows)
    title, colors = f"How does the {goal.head} change with {name}?", looks.overlap_looks(list(dict.fromkeys(lines)))
    if not scale:
        figure = bars(
            title, shown, lane=Lane("value", "series"), end=goal.key, color=Color("series", colors),
            over=[Label("said")],
        )  # fmt: skip
    elif is_choice:
        figure = choices(title, shown, x="value", y=goal.key, series="series", mark="mark", looks=colors)
    else:
        figure = curves(
            title, shown, x="value", y=Axis(goal.key, zero=False), color=Color("series", colors), over=[Words("mark")],
        )  # fmt: skip
    return figure.with_caption(left)


def _best_map(answer: Sweep, points: Sequence[SweepPoint], across: str) -> Figure:
    """The best point for every two values of two axes, first with `across` as columns and the next longest as rows."""
    goal = _goal(answer)
    lengths = {name: len({_text(point.values[place]) for point in points}) for place, name in enumerate(answer.axes)}
    longest = sorted(
        (name for name in answer.axes if lengths[name] > 1), key=lambda name: (name != across, -lengths[name])
    )
    cells = []
    for pair in permutations(longest, 2):
        places = [answer.axes.index(name) for name in pair]
        best: dict[tuple[str, ...], SweepPoint] = {}
        for point in sorted(points, key=lambda point: float(_goal_value(answer, point) or 0.0)):
            best.setdefault(tuple(_label(answer, point, place) for place in places), point)
        cells += [(*pair, *cell, _goal_value(answer, one), _point_words(answer, one)) for cell, one in best.items()]
    heads = [text("columns"), text("rows"), text("across", "column"), text("down", "row"), goal, text("best")]
    return choice_map(
        f"Which values matter? Least {goal.head} [{goal.unit}] for each pair of values", Table(heads, cells),
        pair=("columns", "rows"), cell=("across", "down"), value=goal.key,
    )  # fmt: skip


def _label(answer: Sweep, point: SweepPoint, place: int) -> str:
    axis, value = answer.axes[place], _text(point.values[place])
    return value if axis in _NAMED else f"{axis} {value}"


def _point_words(answer: Sweep, point: SweepPoint, without: str = "") -> str:
    """Return the values of a point on the axes of a sweep, but for one, in words."""
    values = zip(answer.axes, map(_text, point.values), strict=True)
    return ", ".join(value if axis in _NAMED else f"{axis} {value}" for axis, value in values if axis != without)


class SweepReport(Report["Sweep"]):
    """A sweep: how many combinations run, the best points, the picture, and why others do not work."""

    def title(self) -> str:
        """Return what was asked."""
        return self.answer.title

    def sentences(self) -> list[str]:
        """Return the best combination, and how many work."""
        whole, best, reasons, unfit = self.answer.summary
        works = whole - sum(reasons.values())
        said = f"{works:,} of {whole:,} combinations run" + f", {works - unfit:,} of them fit the memory" * (unfit > 0)
        if not best:
            return [f"{said}."]
        goal, first = _goal(self.answer), _point_words(self.answer, best[0])
        reached = f"{goal.text(_goal_value(self.answer, best[0]))} {goal.unit}"
        return [f"The least {goal.head} is {reached}{', ' * bool(first)}{first}; {said}."]

    def notes(self) -> list[str]:
        """Return why combinations do not work, the most frequent reasons first."""
        reasons = self.answer.summary.reasons
        shown = [f"{count:,} do not work: {why}" for why, count in list(reasons.items())[:_REASONS]]
        hidden = len(reasons) - _REASONS
        return [*shown, *([f"{hidden:,} more reasons are in the column why of the table"] if hidden > 0 else [])]

    def table(self) -> Table:
        """Return every point."""
        return sweep_table(self.answer)

    def figures(self) -> Sequence[Figure]:
        """Return the picture of the sweep; none if no combination works."""
        with suppress(InputError):
            return [sweep_figure(self.answer)]
        return []

    def on_terminal(self) -> list[Table]:
        """Return the best points."""
        return [best_table(self.answer)] if self.answer.summary.best else []

    def sections(self) -> list[Part]:
        """Return the picture, the best points, and all points."""
        best = [replace(table, title="The best combinations") for table in self.on_terminal()]
        every = self.tables()[0]
        rows = every.rows[:_MOST_ROWS]
        title = "Every combination" if len(rows) == len(every.rows) else f"The first {_MOST_ROWS:,} combinations"
        return [*self.figures(), *best, replace(every, rows=rows, title=title)]
