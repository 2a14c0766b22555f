"""The table, figure, page and notebook view of each kind of result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.errors import InputError
from weft.result import Comparison, Timeline
from weft.schedule import SHARING
from weft.view import (
    advice,
    corun,
    graph_step,
    inference,
    looks,
    memory,
    planner,
    recompute,
    recorded,
    rewrite,
    roofline,
    run,
    runs,
    sample,
    scale,
    schedules,
    step,
    tiles,
    validation,
)  # fmt: skip
from weft.view.error_tables import errors_table
from weft.view.explorer import timeline
from weft.view.figure import Figure, Lines, bars, curves, stacked_bars
from weft.view.page import write_page
from weft.view.table import Table, microseconds, number, text, texts, times_faster
from weft.view.terminal import table_text
from weft.view.tune import tuned_table
from weft.view.words import headline_table

if TYPE_CHECKING:
    from weft.answer import Answer
    from weft.estimate import Estimate
    from weft.studies.headline import PaperStudy
    from weft.sweep.grid import Sweep
    from weft.tune.lists import TunedList
    from weft.tune.perturb import Sensitivity
    from weft.validation import Validation

_ROWS_SHOWN = 40
"""Most rows of a table in a notebook."""


class How(NamedTuple):
    """How results of one kind are shown.

    Without a `page` function the page holds the table and the figure; `also` are tables that a notebook shows below the
    first.
    """

    table: Callable[[Any], Table]
    figure: Callable[[Any], Figure]
    page: Callable[[Any, Path], Path] | None = None
    also: Callable[[Any], Sequence[Table]] = lambda _: ()


def table(answer: Answer) -> Table:
    """The table of a result."""
    return HOW[answer.kind].table(answer)


def figure(answer: Answer) -> Figure:
    """The figure of a result; InputError for one with nothing to draw."""
    return HOW[answer.kind].figure(answer)


def page(answer: Answer) -> str:
    """The page of a result, as HTML."""
    with TemporaryDirectory() as folder:
        written = (HOW[answer.kind].page or _plain_page)(answer, Path(folder))
        return written.read_text(encoding="utf-8")


def _plain_page(answer: Answer, folder: Path) -> Path:
    shown = table(answer)
    return write_page(folder, shown.title, f"{len(shown.rows)} rows.", [figure(answer), shown])


def words(answer: Answer) -> str:
    """The first rows of a result's table, as text."""
    shown = table(answer)
    hidden = len(shown.rows) - _ROWS_SHOWN
    more = f"\n{hidden} more rows; to_pandas() holds them all" if hidden > 0 else ""
    return table_text(replace(shown, rows=shown.rows[:_ROWS_SHOWN])) + more


def html(answer: Answer) -> str:
    """The first rows of a result's tables, as HTML for a notebook."""
    return "".join(map(_table_html, (table(answer), *HOW[answer.kind].also(answer))))


def _table_html(shown: Table) -> str:
    heads = _row("th", shown, shown.heads)
    body = "".join(_row("td", shown, cells) for cells in shown.cells()[:_ROWS_SHOWN])
    hidden = len(shown.rows) - _ROWS_SHOWN
    more = f"<p>{hidden} more rows; to_pandas() holds them all</p>" if hidden > 0 else ""
    caption = f'<caption style="text-align: left">{escape(shown.title)}</caption>'
    style = "font-variant-numeric: tabular-nums"
    return f'<table style="{style}">{caption}<thead>{heads}</thead><tbody>{body}</tbody></table>{more}'


def _row(tag: str, shown: Table, cells: list[str]) -> str:
    sides = ("right" if column.is_number else "left" for column in shown.columns)
    written = (
        f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(written)}</tr>"


# -- runs


def _one(answer: Timeline) -> Comparison:
    return Comparison({answer.overlap: answer})


def _timeline_figure(answer: Timeline) -> Figure:
    """Every kernel over time; for an ideal, which was not simulated, its compute and communication phases."""
    return run.sub_layer_times(_one(answer)) if answer.parts else timeline(answer)


def _is_shared(answer: Comparison) -> bool:
    return answer.baseline.overlap in SHARING and bool(answer.alone)


def _comparison_table(answer: Comparison) -> Table:
    if _is_shared(answer):
        return corun.strategy_table([answer.corun(name) for name in answer.timelines])
    return run.time_table(answer)


def _comparison_figure(answer: Comparison) -> Figure:
    return corun.strategies(answer) if _is_shared(answer) else run.sub_layer_times(answer)


def _comparison_page(answer: Comparison, folder: Path) -> Path:
    return (corun.corun_report if _is_shared(answer) else run.run_report)(answer, folder)


# -- closed forms


def _estimate_table(answer: Estimate) -> Table:
    """A row per operator of a graph, or per case of the arrays with its index."""
    parts = dict.fromkeys(name for _, one in _cases(answer) for name in one.parts)
    rows = [
        (case, _us(one.seconds), one.bound, one.by, *(_us(one.parts.get(name, 0.0)) for name in parts))
        for case, one in _cases(answer)
    ]
    columns = [text("case"), microseconds("time", "time", 2), text("bound"), text("by")]
    whole = f", {answer.seconds * 1e6:,.1f} µs in all" if answer.operators and not np.shape(answer.seconds) else ""
    shown = Table([*columns, *(microseconds(name, name, 2) for name in parts)], rows, f"Closed-form times{whole}")
    return shown if any(row[3] for row in rows) else shown.without(["by"])


def _text(value: Any) -> str:
    """An axis value in words."""
    return value if isinstance(value, str) else str(getattr(value, "name", None) or value)


def _series(axis: str, value: Any) -> str:
    """An axis value in a legend; a bare number gets its axis' name."""
    return f"{axis} {value}" if isinstance(value, int | float) else _text(value)


def _us(seconds: Any) -> float:
    return float(seconds) * 1e6


def _cases(answer: Estimate) -> Iterator[tuple[str, Estimate]]:
    """The operators of a graph by name, or every case by its index."""
    if answer.operators and not np.shape(answer.seconds):
        yield from answer.operators.items()
        return
    for place in np.ndindex(np.shape(answer.seconds)):
        yield ", ".join(map(str, place)) or "all", answer.case(place)


def _estimate_figure(answer: Estimate) -> Figure:
    rows = [
        (case, name, _us(seconds), one.bound)
        for case, one in _cases(answer)
        for name, seconds in one.parts.items()
        if seconds > 0
    ]
    columns = [text("case"), text("part"), microseconds("time", "time", 2), text("bound")]
    return stacked_bars(
        "Where does the time go?", Table(columns, rows), lane="case", part="part", value="time_us", in_order=True,
        looks=looks.spread(list(dict.fromkeys(row[1] for row in rows))), label="bound",
    ).captioned("Closed-form times by what they are spent on; the word behind each bar is its bound.")  # fmt: skip


# -- sweeps


def _sweep_table(answer: Sweep) -> Table:
    """A row per combination: its values, its time, and its speedup over the first overlap, or its bound."""
    first = answer.points[0]
    title = run.with_hypothetical(answer.title, (p.answer for p in answer if isinstance(p.answer, Timeline)))
    columns = [*map(text, answer.axes), microseconds("time", "time", 2)]
    rows = [[*map(_text, point.values), _us(point.seconds)] for point in answer]
    if isinstance(first.answer, Timeline) and first.speedup is None:
        return Table(columns, rows, title)
    last = [point.speedup if isinstance(point.answer, Timeline) else point.answer.bound for point in answer]
    column = times_faster("speedup") if isinstance(first.answer, Timeline) else text("bound")
    return Table([*columns, column], [[*row, end] for row, end in zip(rows, last, strict=True)], title)


def _sweep_figure(answer: Sweep) -> Figure:
    """Time over the last numeric axis, a line per combination of the others; bars if no axis is numeric."""
    name, numbers, unit = answer.scale or (answer.axes[0], [], "")
    at = answer.axes.index(name)
    others = ", ".join(axis for axis in answer.axes if axis != name)
    rows = [
        (
            numbers[place] if numbers else _text(point.values[at]),
            ", ".join(_series(answer.axes[i], value) for i, value in enumerate(point.values) if i != at) or "time",
            _us(point.seconds),
            f"{_us(point.seconds):,.1f}",
        )
        for place, point in enumerate(answer)
    ]
    colors = looks.overlap_looks(list(dict.fromkeys(row[1] for row in rows)))
    more = [text("series", others or "time"), microseconds("time", "time"), text("said", " ")]
    if numbers:
        shown = Table([number("value", name, unit, "g"), *more], sorted(rows, key=lambda row: row[0]))
        return curves(
            "How does the time change?", shown, x="value", y="time_us", series="series", looks=colors
        ).captioned(answer.title)
    shown = Table([text("value", name), *more], rows)
    title = "Which one takes how long?"
    return bars(
        title, shown, lane="value", offset="series", kind="series", end="time_us", label="said", looks=colors
    ).captioned(answer.title)


def _sweep_page(answer: Sweep, folder: Path) -> Path:
    shown, best = _sweep_table(answer), answer.best
    values = ", ".join(_series(name, value) for name, value in zip(answer.axes, best.values, strict=True))
    lead = f"The shortest of {len(answer)} times is {_us(best.seconds):,.1f} µs: {values}."
    return write_page(folder, shown.title or "Sweep", lead, [_sweep_figure(answer), replace(shown, title="")])


# -- choices, models and papers


def _tuning_figure(answer: TunedList) -> Figure:
    rows = [
        (row.wanted.name, way, gain.value, f"{gain.value:.2f}× ({gain.low:.2f} to {gain.high:.2f})")
        for row in answer.rows
        for way, gain in (("all at once", row.over_default), ("one by one", row.over_sequential))
    ]
    columns = [text("gemm", "GEMM"), text("way", "over"), times_faster("gain", "times faster"), text("said", " ")]
    return bars(
        "What does tuning gain?", Table(columns, rows), lane="gemm", offset="way", kind="way", end="gain", start=1.0,
        looks={"all at once": looks.BLUE, "one by one": looks.ORANGE}, label="said",
    )  # fmt: skip


def _sensitivity_table(answer: Sensitivity) -> Table:
    heads, rows = answer.table()
    return Table(texts(heads), rows, f"{answer.study}: what the figures become at either end of each range")


def _sensitivity_figure(answer: Sensitivity) -> Figure:
    """The first figure at both ends of each range, around its unmoved value."""
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
        f"What do uncertain values do to {name}?", Table(columns, rows), lane="what", offset="end",
        kind="end", end="figure", looks={"low": looks.SKY, "high": looks.RED}, start=chosen.figures[name], label="said",
    )  # fmt: skip


def _validation_figure(answer: Validation) -> Figure:
    """Predicted over measured time of the first kind of rows."""
    kind, clouds = next(iter(answer.clouds().items()))
    return next(validation.figures(kind, clouds))


def _study_table(answer: PaperStudy) -> Table:
    return headline_table(answer.headline(), answer.title)


def _study_figure(answer: PaperStudy) -> Figure:
    """Weft's ratios of the headline, with the published ones as marks."""
    ratios = [row for row in answer.headline() if row.unit == "ratio"]
    if not ratios:
        raise InputError(
            f"the study {answer.DECLARED.name} has no ratio to draw; save('study.html') shows what it found"
        )
    rows = [(row.id, row.what, "Weft", row.weft) for row in ratios]
    ends = [(row, row.published if isinstance(row.published, tuple) else (row.published,)) for row in ratios]
    marks = [(row.id, "published", end) for row, published in ends for end in published if end is not None]
    figures = [text("figure"), text("what"), text("whose"), times_faster("ratio", "ratio")]
    lines = Table([text("figure"), text("mark", " "), times_faster("ratio", "published")], marks)
    return bars(
        answer.title, Table(figures, rows), lane="figure", kind="whose", end="ratio", looks={"Weft": looks.BLUE},
        start=1.0, marks=Lines(lines, "ratio", "mark", "figure") if marks else None,
    )  # fmt: skip


HOW: Mapping[str, How] = {
    "timeline": How(
        lambda answer: run.time_table(_one(answer)), _timeline_figure, run.run_report,
        lambda answer: [run.traffic_table([answer])],
    ),
    "comparison": How(_comparison_table, _comparison_figure, _comparison_page),
    "estimate": How(_estimate_table, _estimate_figure),
    "sweep": How(_sweep_table, _sweep_figure, _sweep_page),
    "advice": How(advice.option_table, advice.ways_to_share, advice.advice_report),
    "tuning": How(tuned_table, _tuning_figure),
    "sensitivity": How(_sensitivity_table, _sensitivity_figure),
    "validation": How(
        lambda answer: errors_table(answer.to_dict()["groups"], "Errors of the models"), _validation_figure,
        validation.validation_report,
    ),
    "step": How(
        step.waterfall_table, step.waterfall, step.step_page, lambda answer: [step.communication_table(answer)]
    ),
    "memory": How(memory.holder_table, memory.holders, memory.memory_page),
    "recomputation": How(recompute.policy_table, recompute.policy_figure, recompute.recompute_page),
    "sample": How(sample.sample_table, sample.sample_figure, sample.sample_page),
    "runs": How(runs.runs_table, runs.runs_figure, runs.runs_page),
    "scaling": How(scale.scaling_table, scale.scaling_map, scale.scaling_page),
    "schedule": How(schedules.schedule_table, schedules.schedule_figure, schedules.schedule_page),
    "rewriting": How(rewrite.step_table, rewrite.sides, rewrite.rewriting_page, lambda one: [rewrite.cost_table(one)]),
    "graph step": How(graph_step.share_table, graph_step.shares, graph_step.graph_step_page),
    "trace": How(recorded.group_table, recorded.timeline, recorded.trace_page),
    "trace comparison": How(recorded.compared_table, recorded.losses, recorded.comparison_page),
    "roofline": How(roofline.operator_table, roofline.dots, roofline.roofline_page),
    "tiles": How(tiles.tile_table, tiles.fastest, None, lambda answer: [tiles.pruned_table(answer)]),
    "plans": How(
        planner.plan_table, planner.front, planner.plan_page, lambda answer: [planner.rejected_table(answer)]
    ),
    "inference": How(inference.part_table, inference.shares, inference.inference_page),
    "study": How(_study_table, _study_figure, lambda study, folder: study.page(folder)),
}  # fmt: skip
"""How results are shown, by the `kind` of their class."""
