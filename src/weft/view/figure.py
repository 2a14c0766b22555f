"""Interactive figures, declared in Vega-Lite over the tables that they show.

Each function takes a table and the keys of its columns, and returns a `Figure`. A page draws it with tooltips, a
clickable legend and zoom; `svg` and `png` draw it statically, for pages without a script, print, and notebooks.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from textwrap import wrap
from typing import Any, TypeVar

from weft.core.errors import OutputError
from weft.core.files import to_json
from weft.core.report.table import Column, Table, number
from weft.view.looks import BLUE, GREY, Looks, spread


class _Later:
    """Altair, imported when the first figure is drawn: tables do not need it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("altair"), name)


alt: Any = _Later()
INK = "currentColor"
"""The colour of everything but bars and lines: that of the surrounding text, dark or light."""
_ON_PALE = "#111111"
"""The colour of words in cells that are pale on dark pages, too."""
_WIDTH = 720
_LETTER = 6.6
"""Mean width of a letter in a figure [px]."""
_LINES = "split(datum.value, ': ')"
"""A Vega expression that breaks a label after a colon."""
_LONG_NAME = 22
"""Characters of a lane's name above which it takes several lines, and of a line that is not broken at a colon."""
_NOT_NEGATIVE = "datum.value < 0 ? '' : datum.label"
"""A Vega expression that leaves out labels below zero."""
_NUMBERED = re.compile(r"\b(clip|gradient_)\d+\b")
_PLACES = re.compile(r' (?:d|transform|[xy]\d?)="[^"]*"')
_LONG = re.compile(r"-?\d+\.\d{2,}(?:e-\d+)?")
_UNSEEN = re.compile(
    r'<(path|line|text)\b[^>]* opacity="0"[^>]*?(/>|>[^<]*</\1>)'
    r'|(?<=[\w"]) (?:role|aria-[a-z]+|class|pointer-events)="[^"]*"|(?<=") (?:\w+-)?(?:opacity|width)="1"(?=[ />])'
)
"""What a static picture need not hold: invisible targets of tooltips, attributes for scripts, and defaults."""
CONFIG: Mapping[str, Any] = {
    "aria": False,  # a page describes the figure as a whole
    "background": "transparent",
    "font": "system-ui, 'DejaVu Sans', Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK, "titleColor": INK, "domainColor": INK, "tickColor": INK, "gridColor": INK,
        "gridOpacity": 0.15, "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 12,
        "labelOverlap": "parity", "labelSeparation": 6,
    },
    "axisX": {"tickCount": 9},
    "axisY": {"labelLimit": 300},
    "legend": {
        "labelColor": INK, "titleColor": INK, "orient": "top", "title": None, "labelLimit": 340, "labelFontSize": 12,
        "columns": 4, "symbolStrokeWidth": 2,
    },
    "title": {"color": INK, "anchor": "start", "fontSize": 13, "subtitleColor": INK},
    "header": {"labelColor": INK, "titleColor": INK},
    "text": {"color": INK, "fontSize": 11},
    "rule": {"color": INK},
    "tick": {"color": INK},
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A chart over `data`, the tables that it names; `title` says what it answers, `caption` what it shows."""

    title: str
    chart: Any
    data: Mapping[str, Table]
    caption: str = ""

    def with_caption(self, caption: str) -> Figure:
        """Return the figure with another caption."""
        return Figure(self.title, self.chart, self.data, caption)

    @property
    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification without the rows."""
        checks = alt.utils.schemapi.DEBUG_MODE
        made: dict[str, Any] = self.chart.to_dict(validate=checks, context={"pre_transform": False})
        made.pop("config", None)
        return {**made, "config": CONFIG}

    def still(self, titled: bool = True) -> dict[str, Any]:
        """Return the static specification with rows and, if `titled`, the title, at the width of a printed page."""
        spec = {**self.spec, **({"title": self.title} if titled else {})}
        _widen(spec)
        return {**spec, "datasets": {name: table.records() for name, table in self.data.items()}}

    def svg(self, name: str = "") -> str:
        """Return the picture as an SVG element; the same figure always gives the same text.

        In a page, which writes the title itself, ids start with the `name` of the figure.
        """
        drawn = _NUMBERED.sub(_renumber_ids(name), _drawing().vegalite_to_svg(self.still(titled=not name)))
        return _PLACES.sub(lambda place: _LONG.sub(_round_coordinate, place[0]), _UNSEEN.sub("", drawn))

    def png(self, scale: float = 1.0) -> bytes:
        """Return the picture as a PNG file on white."""
        png: bytes = _drawing().vegalite_to_png({**self.still(), "background": "white"}, scale=scale)
        return png

    def _repr_svg_(self) -> str:
        """Return the picture for a notebook."""
        return self.svg()


def _widen(view: dict[str, Any]) -> None:
    """Give a view that is as wide as its page, and those stacked in one, the width of a printed page."""
    for each in view.get("vconcat", ()):
        _widen(each)
        if "vconcat" not in each:
            each["width"] = _WIDTH
    if view.get("width") == "container":
        view["width"] = _WIDTH


def _drawing() -> Any:
    """Return the library that renders a specification without a browser, imported when the first picture is drawn.

    Raises OutputError where its JavaScript engine would end the process, because it cannot reserve its addresses.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if resource.RLIM_INFINITY != limit < ADDRESSES:
        raise OutputError(
            f"pictures take addresses for {ADDRESSES >> 30} GiB, of which little is memory, but the limit is "
            f"{limit >> 30} GiB; raise it by ulimit -v, or leave out the page"
        )
    return import_module("vl_convert")


ADDRESSES = 105 << 30
"""Address space with which pictures are drawn [bytes]: vl-convert's V8 ends a process of 64 GB, and runs in 113 GB."""


def _renumber_ids(name: str) -> Callable[[re.Match[str]], str]:
    """Renumber ids of clips and gradients from one in each picture, so that equal figures give equal text."""
    known: dict[str, str] = {}
    return lambda found: known.setdefault(found.group(), f"{name}{found[1]}{len(known) + 1}")


def _round_coordinate(found: re.Match[str]) -> str:
    """Return a coordinate to a tenth of a pixel."""
    return f"{float(found[0]):.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Axis:
    """An axis over the column `key`: its title (by default the column's), its scale, and what is written on it.

    `zero` includes zero (None: as suits the mark). `domain` is the range, a selection on another chart that this axis
    follows, or True for an axis that can be dragged. `ticks` are the values that are labelled, `labels` a Vega
    expression that formats them; `short` writes thousands as "k".
    """

    key: str
    title: str = ""
    percent: bool = False
    log: bool = False
    short: bool = False
    zero: bool | None = None
    domain: Any = None
    labels: str = ""
    ticks: Sequence[float] | None = None


@dataclass(frozen=True)
class Lane:
    """Lanes by the column `key`, each divided into rows of `px` pixels by the column `offset`."""

    key: str
    offset: str = ""
    px: int = 0


@dataclass(frozen=True)
class Color:
    """Colours of the names in the column `key`, by default the palette's; `named` shows a legend of one name, too."""

    key: str
    looks: Looks | None = None
    named: bool = False


@dataclass(frozen=True)
class Lines:
    """Reference lines or marks of a figure: rows, the key of their value, and their label."""

    table: Table
    value: str
    label: str
    of: str | None = None
    """The key of the group that a mark belongs to; without it, a line crosses all groups."""


@dataclass(frozen=True)
class Label:
    """The column whose words are written after each bar, or `inside` of it."""

    key: str
    inside: bool = False


@dataclass(frozen=True)
class Words:
    """The column that has words at the rows that stand out, above a ring if `ringed`, and is empty elsewhere."""

    key: str
    ringed: bool = True


@dataclass(frozen=True)
class Level:
    """A line across the figure at a value."""

    value: float


@dataclass(frozen=True)
class Faint:
    """Thin lines in the background, each named by the first column."""

    table: Table


@dataclass(frozen=True)
class Dots:
    """Dots in the background."""

    table: Table


Over = Lines | Label | Words | Level | Faint | Dots
"""What is drawn over a figure's marks, or behind them."""
Kind = TypeVar("Kind")


def _find_mark(over: Sequence[Over | None], kind: type[Kind]) -> Kind | None:
    return next((one for one in over if isinstance(one, kind)), None)


def _of(axis: str | Axis) -> Axis:
    return axis if isinstance(axis, Axis) else Axis(axis)


def bars(
    title: str, table: Table, *, lane: str | Lane, end: str | Axis, color: Color, start: float = 0.0,
    over: Sequence[Over | None] = (),
) -> Figure:  # fmt: skip
    """Horizontal bars in lanes from `start` to the column `end`; a `Level` stands at the start without another one."""
    level = _find_mark(over, Level) or Level(start)
    return _bars(title, table, lane, start, _of(end), color, [*over, level], "bars")


def timeline_bars(
    title: str, table: Table, *, lane: str | Lane, start: str, end: str | Axis, color: Color,
    over: Sequence[Over | None] = (), name: str = "bars",
) -> Figure:  # fmt: skip
    """Horizontal bars in lanes from the column `start` to the column `end`, such as what runs when.

    The `name` distinguishes the figure's table from those of others beside it.
    """
    return _bars(title, table, lane, start, _of(end), color, over, name)


def _bars(
    title: str, table: Table, lane: str | Lane, start: str | float, end: Axis, color: Color,
    over: Sequence[Over | None], name: str,
) -> Figure:  # fmt: skip
    lane = lane if isinstance(lane, Lane) else Lane(lane)
    marks, level, offset, domain = _find_mark(over, Lines), _find_mark(over, Level), lane.offset, end.domain
    labels = {one.inside: one.key for one in over if isinstance(one, Label)}
    label, names = labels.get(False, ""), table.distinct(lane.key)
    broken = _broken(names)
    lines = max(map(len, broken.values()), default=1)
    y = alt.Y(f"{lane.key}:N", sort=None, title=None, scale=alt.Scale(paddingInner=0.25), axis=_axis_of_lines(broken))
    rows = table.distinct(offset) if offset else [""]
    beside = {"yOffset": alt.YOffset(f"{offset}:N", sort=rows)} if len(rows) > 1 else {}
    base = start if isinstance(start, float) else None
    scale = alt.Undefined if base is None and not label else _scale(table, start, end.key, label, marks)
    if domain is not None and domain is not True:
        scale = alt.Scale(domain=domain, nice=False)
    head = (end.title or _title(table, end.key)).strip() or None
    x = alt.X(f"{end.key}:Q", title=head, scale=scale, axis=_axis(end.percent))
    switch = _switch(color.key, "" if name == "bars" else name)
    since = alt.X2(start) if base is None else alt.X2(datum=base)
    params = [switch, _zoom()] if domain is True else [switch]
    drawn = _over(name).mark_bar(clip=domain is not None)
    layers = [_pick_series(drawn, table, params, y, x, since, _color(table, color), **beside)]
    data = {name: table}
    row_px = 16 if len(rows) > 1 else 14 * lines if lines > 1 else 20
    if level is not None:
        layers.append(_line(x=level.value))
    if marks is not None:
        data["marks"] = marks.table
        layers += _mark_lines(marks, offset, beside, row_px)
    if label:
        # Right of the bar's end, or of its start if the value is negative.
        written = _over(name).mark_text(align="left", dx=4)
        written = written.transform_calculate(
            at=f"datum.{end.key}" if base is None else f"max(datum.{end.key}, {base})"
        )
        layers.append(written.encode(y, alt.X("at:Q"), alt.Text(f"{label}:N"), _fade_series(switch), **beside))
    if labels.get(True):
        written = _over(name).mark_text(color="white", clip=True)
        written = written.transform_calculate(middle=f"(datum.{start} + datum.{end.key}) / 2")
        layers.append(written.encode(y, alt.X("middle:Q"), alt.Text(f"{labels[True]}:N"), **beside))
    height = 26 + len(names) * (lane.px or row_px * len(rows) + 6)
    return Figure(title, _layers(layers, height), data)


def _broken(names: Sequence[str]) -> dict[str, list[str]]:
    """The lines of names where one is long: after a colon if all have one, else those of the long ones at words."""
    if max(map(len, names), default=0) <= _LONG_NAME:
        return {}
    if all(": " in name for name in names):
        return {name: name.split(": ") for name in names}
    return {name: wrap(name, _LONG_NAME, break_long_words=False) for name in names if len(name) > _LONG_NAME}


def _axis_of_lines(broken: Mapping[str, list[str]]) -> Any:
    """Return an axis whose labels take several lines, in the middle of their lanes."""
    if not broken:
        return alt.Undefined
    of_name = f"({to_json(broken)})[datum.value]"
    raised = [
        {"test": f"isArray({of_name}) && length({of_name}) === {count}", "value": -6 * (count - 1)}
        for count in {len(lines) for lines in broken.values()} - {1}
    ]
    above = {"labelOffset": {"value": 0, "condition": raised}} if raised else {}
    return alt.Axis(labelExpr=f"{of_name} || datum.label", **above)


def _mark_lines(marks: Lines, series: str, beside: Mapping[str, Any], size: int) -> list[Any]:
    """Named lines across all groups, ticks at bars of their series, or marks of shapes that a legend names."""
    drawn, at, tips = _over("marks"), alt.X(f"{marks.value}:Q"), _tips(marks.table)
    of_series = series in marks.table.keys
    if marks.of is None:
        colored = {"color": alt.Color(f"{series}:N")} if of_series else {}
        lines = [drawn.mark_rule(strokeDash=[5, 3], strokeWidth=2).encode(at, tooltip=tips, **colored)]
        for row, name in enumerate([] if of_series else marks.table.column(marks.label)):
            words = drawn.transform_filter(alt.datum[marks.label] == name)
            words = words.mark_text(align="right", dx=4, dy=-6 - 12 * row, text=name)
            lines.append(words.encode(at, y=alt.value(0)))
        return lines
    band = alt.Y(f"{marks.of}:N", sort=None)
    if of_series:
        return [drawn.mark_tick(thickness=3, size=size, color=INK).encode(at, band, tooltip=tips, **beside)]
    scale = alt.Scale(domain=marks.table.distinct(marks.label))
    shape = alt.Shape(f"{marks.label}:N", scale=scale, legend=alt.Legend(symbolStrokeColor=INK))
    return [drawn.mark_point(color=INK, size=40).encode(at, band, shape, tooltip=tips)]


def stacked_bars(
    title: str, table: Table, *, lane: str | Lane, value: str | Axis, color: Color, share: bool = False,
    in_order: bool = False, over: Sequence[Over | None] = (),
) -> Figure:  # fmt: skip
    """A bar per lane and row that stacks its parts, named by the colours, in their order, or `in_order` of the rows.

    With `share`, every bar has the same length. A `Label` stands behind the last part.
    """
    axis, lane = _of(value), lane if isinstance(lane, Lane) else Lane(lane)
    order, value_at, part_at = list(color.looks or ()), table.keys.index(axis.key), table.keys.index(color.key)
    label = _find_mark(over, Label)
    stacks: dict[Any, list[list[Any]]] = {}
    keys = zip(table.column(lane.key), table.column(lane.offset or lane.key), strict=True)
    for stack, row in zip(keys, table.rows, strict=True):
        stacks.setdefault(stack, []).append([*row])
    placed = []
    for rows in stacks.values():
        rows.sort(key=lambda row: 0 if in_order else order.index(row[part_at]))
        whole, reached = sum(row[value_at] for row in rows) if share else 1.0, 0.0
        for row in rows:
            if label and row is not rows[-1]:
                row[table.keys.index(label.key)] = ""
            placed.append([*row, reached, reached := float(f"{reached + row[value_at] / whole:.9g}")])
    columns = [*table.columns, number("stack_from", " "), number("stack_to", " ")]
    end = Axis("stack_to", _title(table, axis.key), percent=share or axis.percent)
    named = replace(color, named=True)
    return timeline_bars(title, Table(columns, placed), lane=lane, start="stack_from", end=end, color=named, over=over)


def areas(
    title: str, table: Table, *, x: Axis, until: str = "until_us", looks: Looks, limit: tuple[float, str], height: int,
    name: str,
) -> Figure:  # fmt: skip
    """Columns of a table as stacked steps from the column `x` to the column `until`, below a dashed line with its name.

    The columns are those whose heads `looks` colours; `name` distinguishes the figure from others beside it.
    """
    at = alt.X(f"{x.key}:Q", title=x.title or None, scale=alt.Scale(domain=x.domain))
    y = alt.Y("value:Q", title=None, stack="zero", scale=alt.Scale(domainMax=(1 + 20 / height) * limit[0], nice=False))
    switch, folded = (
        _switch("what", name),
        _fold_columns(table, looks, name).mark_area(interpolate="step-after", clip=True),
    )
    drawn = folded.encode(at, y, _series(table, looks), _fade_series(switch), alt.Order("rank:Q")).add_params(switch)
    value, words = limit
    named = alt.Chart(alt.sequence(1)).mark_text(align="right", baseline="bottom", dy=-1, text=words)
    named = named.encode(alt.Y(datum=value), x=alt.value("width"))
    return Figure(
        title, _layers([drawn, _moments(table, at, name, until), _line(y=value), named], height), {name: table}
    )


def levels(
    title: str, table: Table, *, looks: Looks, most: float, height: int, window: Sequence[float], ticks: Table,
    name: str,
) -> Figure:  # fmt: skip
    """Columns of a table from "time_us" until "until_us" as bars from zero, the later ones in front, above ticks.

    The columns are those whose heads `looks` colours; `ticks` has their times. `most` and `window` are the largest
    value and the range of the axis of time; `name` distinguishes the figure from others beside it.
    """
    x = alt.X("time_us:Q", title=None, scale=alt.Scale(domain=window), axis=alt.Axis(labels=False, ticks=False))
    low = -most * 14 / height  # room for the ticks
    scale = alt.Scale(domain=[low, most], nice=False)
    y = alt.Y("value:Q", title=None, stack=None, scale=scale, axis=alt.Axis(tickCount=4, labelExpr=_NOT_NEGATIVE))
    switch, ends = _switch("what", name), (alt.X2("until_us"), alt.Y2(datum=0))
    drawn = _fold_columns(table, looks, name).mark_bar(clip=True, binSpacing=0)
    drawn = drawn.encode(x, y, _series(table, looks), _fade_series(switch), *ends, alt.Order("rank:Q")).add_params(
        switch
    )
    rug = _over(f"{name}_ticks").mark_tick(clip=True, size=9, thickness=1, opacity=0.6, color=INK)
    rug = rug.encode(x, y=alt.value(height - 6), tooltip=_tips(ticks))
    layers = [drawn, _moments(table, x, name), rug]
    return Figure(title, _layers(layers, height), {name: table, f"{name}_ticks": ticks})


def _fold_columns(table: Table, looks: Looks, name: str) -> Any:
    """Return a chart over the columns that `looks` colours, a row for each: "what" it shows, its "value" and "rank"."""
    columns = [column for column in table.columns if column.head in looks]
    heads, keys = [column.head for column in columns], [column.key for column in columns]
    if not columns:
        raise ValueError(f"no column of '{name}' is headed {' or '.join(map(repr, looks))}; give one such a head")
    place = f"indexof({keys}, datum.key)"
    folded = _over(name).transform_fold(keys, as_=["key", "value"])
    return folded.transform_calculate(what=f"{heads}[{place}]", rank=place)


def _series(table: Table, looks: Looks) -> Any:
    """Return the colours of the columns that `looks` colours, with a legend if there are several."""
    heads = [column.head for column in table.columns if column.head in looks]
    scale = alt.Scale(domain=heads, range=[looks[head] for head in heads])
    return alt.Color("what:N", scale=scale, legend=alt.Undefined if len(heads) > 1 else None)


def _moments(table: Table, x: Any, name: str, until: str = "until_us") -> Any:
    """Invisible full-height bars, one per time step, as targets for the tooltip."""
    bar = _over(name).mark_bar(opacity=0, clip=True, binSpacing=0)
    return bar.encode(x, alt.X2(until), tooltip=_tips(table))


def held_map(title: str, table: Table, looks: Looks, until: float, units: int, unit: str = "compute unit") -> Figure:
    """Rectangles of which `owner` held which units from when until when; one panel per `way`, stacked."""
    places = _places(until, units, unit, "time [µs]")
    params = [_switch("owner"), _zoom()]
    panel = _pick_series(
        _over("held").mark_rect(clip=True), table, params, *places, _color(table, Color("owner", looks))
    )
    ways = table.distinct("way")
    if len(ways) == 1:
        return Figure(title, panel.properties(width="container", height=240), {"held": table})
    # One facet per way; the page sets its width.
    header = alt.Header(orient="top", labelAnchor="start", labelFontWeight="bold", title=None)
    chart = panel.properties(width=_WIDTH - 80, height=150).facet(row=alt.Row("way:N", sort=ways, header=header))
    return Figure(title, chart, {"held": table})


def load_map(
    title: str, table: Table, shares: Looks, until: float, units: int, unit: str, across: str = "time [µs]"
) -> Figure:
    """Rectangles coloured by one of the `shares`, columns of the table with their names; in a page one picks which."""
    names = list(shares)
    bound = alt.binding_select(options=names, labels=[shares[name] for name in names], name="colour ")
    picked = alt.param(name="colour", bind=bound, value=names[0])
    scale = alt.Scale(domainMin=0, scheme="viridis")
    color = alt.Color("share:Q", scale=scale, legend=alt.Legend(format=".0%", title=None))
    chart = _over("load").mark_rect(clip=True).transform_calculate(share="datum[colour]")
    chart = chart.encode(*_places(until, units, unit, across), color, tooltip=_tips(table)).add_params(picked, _zoom())
    return Figure(title, chart.properties(width="container", height=260), {"load": table})


def _places(until: float, units: int, unit: str, across: str) -> tuple[Any, ...]:
    """Return the sides of rectangles: from "start_us" to "end_us", and from "unit" to "unit_to"."""
    x = alt.X("start_us:Q", title=across, scale=alt.Scale(domain=[0, until], nice=False))
    y = alt.Y("unit:Q", title=unit, scale=alt.Scale(domain=[0, units], nice=False))
    return x, alt.X2("end_us"), y, alt.Y2("unit_to")


def heat_map(title: str, table: Table, *, x: str, y: str, value: str, facet: str, most: float = 1.0) -> Figure:
    """Cells coloured and labelled by a share from 0 to `most`, in a panel for each value of `facet`."""
    across = alt.X(f"{x}:O", title=_title(table, x), sort=_sort(table, x), axis=alt.Axis(labelAngle=0))
    down = alt.Y(f"{y}:O", title=_title(table, y), sort=_sort(table, y))
    scale = alt.Scale(domain=[0, most], scheme=alt.SchemeParams("blues", extent=[0.05, 0.6]), clamp=True)
    color, text = alt.Color(f"{value}:Q", scale=scale, legend=None), alt.Text(f"{value}:Q", format=".0%")
    cells = alt.Chart().mark_rect().encode(across, down, color, tooltip=_tips(table))
    words = alt.Chart().mark_text(fontSize=13, color=_ON_PALE).encode(across, down, text, tooltip=_tips(table))
    panels = alt.Facet(f"{facet}:N", sort=table.distinct(facet), title=None)
    chart = alt.layer(cells, words).properties(width=_WIDTH // 2 - 60, height=alt.Step(36))
    chart = chart.facet(panels, data=alt.NamedData("cells"), columns=2)
    return Figure(title, chart, {"cells": table})


def choice_map(title: str, table: Table, *, pair: tuple[str, str], cell: tuple[str, str], value: str) -> Figure:
    """Return the least value for every two choices, dark where it is low; in a page one picks which two.

    The columns `pair` name the two choices, `cell` their values at the axes. Cells above twice the least are white.
    """
    least = min(table.column(value))
    shown = _over("cells")
    for name, key, first in zip(("columns", "rows"), pair, (0, 1), strict=True):
        names = table.distinct(key)
        bound = alt.binding_select(options=names, name=f"{name} ")
        picked = alt.param(name=name, bind=bound, value=table.column(key)[0] if table.rows else names[first])
        shown = shown.add_params(picked).transform_filter(f"datum.{key} === {name}")
    axes = []
    for channel, key, side in zip((alt.X, alt.Y), cell, ("top", "left"), strict=True):
        axis, order = alt.Axis(labelAngle=0, orient=side), sorted(table.distinct(key), key=_by_number)
        axes.append(channel(f"{key}:N", title=None, sort=order, axis=axis))
    scale = alt.Scale(domain=[2 * least, least], scheme=alt.SchemeParams("blues", extent=[0.05, 0.6]), clamp=True)
    cells = shown.mark_rect().encode(*axes, alt.Color(f"{value}:Q", scale=scale, legend=None), tooltip=_tips(table))
    words = shown.mark_text(fontSize=12, color=_ON_PALE).encode(*axes, text=alt.Text(f"{value}:Q", format=".3~g"))
    return Figure(title, alt.layer(cells, words).properties(width="container", height=240), {"cells": table})


def _by_number(name: str) -> list[str | int]:
    """Return a key that sorts "TP 8" before "TP 16"."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def curves(
    title: str, table: Table, *, x: str | Axis, y: str | Axis, color: Color, steps: bool = False,
    over: Sequence[Over | None] = (),
) -> Figure:  # fmt: skip
    """Lines, or with `steps` stairs, with a dot per row, a line per colour.

    `Lines` over them are vertical at an x value, or horizontal marks at rows.
    """
    across, up_axis = _of(x), _of(y)
    colors = _color(table, color)
    axis: dict[str, Any] = {"labelExpr": across.labels} if across.labels else {}
    if across.ticks is not None:
        axis["values"] = list(across.ticks)
    scale_x = alt.Scale(type="log", base=2, nice=False) if across.log else alt.Scale(zero=bool(across.zero))
    scale_y = alt.Scale(type="log") if up_axis.log else alt.Scale(zero=up_axis.zero is not False)
    at = alt.X(f"{across.key}:Q", title=_title(table, across.key), scale=scale_x, axis=alt.Axis(**axis))
    up_title = _title(table, up_axis.key)
    up = alt.Y(f"{up_axis.key}:Q", title=up_title, scale=scale_y, axis=_axis(up_axis.percent, up_axis.log))
    look = {"interpolate": "step-after"} if steps else {}
    line = _over("curves").mark_line(point=alt.OverlayMarkDef(filled=True, size=42), strokeWidth=2, **look)
    layers, data = [_pick_series(line, table, [_switch(color.key)], at, up, colors)], {"curves": table}
    if (level := _find_mark(over, Level)) is not None:
        layers.append(_line(y=level.value))
    if (faint := _find_mark(over, Faint)) is not None:
        data["faint"] = faint.table
        thin = _over("faint").mark_line(strokeWidth=0.7, strokeOpacity=0.35)
        layers.insert(0, thin.encode(at, up, colors, detail=f"{faint.table.keys[0]}:N"))
    if (dots := _find_mark(over, Dots)) is not None:
        data["dots"] = dots.table
        few = len(dots.table.rows) < 40
        behind = _over("dots").mark_circle(size=60 if few else 20, opacity=0.9 if few else 0.4, color=GREY)
        layers.insert(0, behind.encode(at, up, tooltip=_tips(dots.table)))
    if (marks := _find_mark(over, Lines)) is not None:
        data["marks"] = marks.table
        layers += _marked_curves(marks)
    if (words := _find_mark(over, Words)) is not None and any(table.column(words.key)):
        marked = _over("curves").transform_filter(f"datum.{words.key}").encode(at, up)
        beside = marked.mark_text(align="left", dx=8, dy=-5, fontWeight="bold").encode(text=f"{words.key}:N")
        layers += _ring_dots(marked, words.key) if words.ringed else [beside]
    return Figure(title, _layers(layers, 280), data)


def choices(title: str, table: Table, *, x: str, y: str, series: str, mark: str, looks: Looks) -> Figure:
    """Dots over the values of a choice, side by side where several share one; rows without a value are level lines.

    The column `mark` has words at the rows that stand out, and is empty elsewhere.
    """
    chosen = Table(table.columns, [row for row in table.rows if row[table.keys.index(x)] is not None])
    over, own = _over("choices"), f"isValid(datum.{x})"
    at = alt.X(
        f"{x}:O",
        title=_title(table, x),
        sort=sorted(chosen.distinct(x)),
        axis=alt.Axis(labelAngle=0),
        scale=alt.Scale(padding=0.3),
    )
    beside = alt.XOffset(f"{series}:N", scale=alt.Scale(domain=chosen.distinct(series)))
    up = alt.Y(f"{y}:Q", title=_title(table, y), scale=alt.Scale(zero=False))
    color, switch = _color(table, Color(series, looks)), _switch(series)
    lines = over.transform_filter(f"!{own}").mark_rule(strokeWidth=2, strokeDash=[6, 3])
    dots = over.transform_filter(own).mark_circle(size=90)
    marked = over.transform_filter(f"{own} && datum.{mark}").encode(at, up, beside)
    level = over.transform_filter(f"!{own} && datum.{mark}").mark_text(align="right", baseline="bottom", dy=-3)
    layers = [
        _pick_series(lines, table, [switch], up, color),
        dots.encode(at, up, color, beside, _fade_series(switch), tooltip=_tips(table)),
        *(_ring_dots(marked, mark) if any(chosen.column(mark)) else []),
        level.encode(up, x=alt.value("width"), text=f"{mark}:N"),
    ]
    return Figure(title, _layers(layers, 280), {"choices": table})


def _ring_dots(marked: Any, mark: str) -> list[Any]:
    """Rings around the dots of a chart, with the words of the column `mark` above."""
    ring = marked.mark_point(size=240, color=INK, strokeWidth=2)
    return [ring, marked.mark_text(dy=-16, fontWeight="bold").encode(text=f"{mark}:N")]


def step_lines(
    title: str, table: Table, *, x: Axis, y: str | Axis, series: str, limit: float | None = None, height: int = 150,
    name: str = "steps",
) -> Figure:  # fmt: skip
    """Lines that keep their value until the next row, one per series; `limit` is a dashed line."""
    up_axis, colors = _of(y), _color(table, Color(series))
    at = alt.X(f"{x.key}:Q", title=_title(table, x.key), scale=alt.Scale(domain=x.domain, nice=False))
    up_title, up_scale = _title(table, up_axis.key), alt.Scale(zero=True)
    up = alt.Y(f"{up_axis.key}:Q", title=up_title, scale=up_scale, axis=_axis(up_axis.percent))
    line = _over(name).mark_line(interpolate="step-after", strokeWidth=2, clip=True)
    layers = [_pick_series(line, table, [_switch(series, name)], at, up, colors)]
    if limit is not None:
        rule = alt.Chart(alt.sequence(1)).mark_rule(strokeDash=[5, 3], strokeWidth=2)
        layers.append(rule.encode(alt.Y(datum=limit)))
    return Figure(title, _layers(layers, height), {name: table})


def stack_figures(
    title: str, figures: Sequence[Figure], caption: str = "", *, titled: bool = False, strip: Figure | None = None
) -> Figure:
    """Figures one below the other, each with its own colours and, if `titled`, its title; `strip` is above them all."""
    charts = [
        one.chart.properties(width=_WIDTH, **({"title": alt.Title(one.title, fontSize=12)} if titled else {}))
        for one in figures
    ]
    chart = alt.vconcat(*charts).resolve_scale(color="independent")
    if strip is not None:
        chart = alt.vconcat(strip.chart, chart).resolve_scale(color="independent")
    tables = {name: table for one in (*figures, *([strip] if strip else [])) for name, table in one.data.items()}
    return Figure(title, chart, tables, caption)


def _marked_curves(marks: Lines) -> list[Any]:
    """Vertical lines with labels, or horizontal marks at rows."""
    drawn, tips = _over("marks"), _tips(marks.table)
    value = f"{marks.value}:Q"
    if marks.of is not None:
        level = drawn.mark_tick(thickness=3, size=26, color=INK, orient="horizontal")
        return [level.encode(alt.X(f"{marks.of}:Q"), alt.Y(value), tooltip=tips)]
    named = drawn.mark_text(align="left", angle=270, dx=4, dy=10, baseline="middle")
    return [
        drawn.mark_rule(strokeDash=[3, 3]).encode(alt.X(value), tooltip=tips),
        named.encode(alt.X(value), y=alt.value("height"), text=f"{marks.label}:N"),
    ]


def scatter(
    title: str, table: Table, *, x: str | Axis, y: str | Axis, facet: str, color: Color | None = None,
    bands: Sequence[float] = (), cross: float | None = None,
) -> Figure:  # fmt: skip
    """Return a dot per row, in a panel for each value of `facet`; panels share their scales if `cross` is given.

    `bands` are the relative deviations of y from x (on two logarithmic axes) or from zero that are shaded; lines mark
    `cross`, where x and y are both 1.
    """
    across, up_axis = _of(x), _of(y)
    log = up_axis.log
    scale_x, scale_y = (
        alt.Scale(type="log", nice=False) if axis.log else alt.Scale(zero=False) for axis in (across, up_axis)
    )
    thousands = alt.Axis(grid=False, tickCount=4, **({"format": "~s"} if across.short else {}))
    written = {"format": "%"} if up_axis.percent else {"grid": False} if log else {}
    at = alt.X(f"{across.key}:Q", title=_title(table, across.key), scale=scale_x, axis=thousands)
    up_title = _title(table, up_axis.key)
    up = alt.Y(f"{up_axis.key}:Q", title=up_title, scale=scale_y, axis=alt.Axis(tickCount=4, **written))
    layers: list[Any] = []
    for band in sorted(bands, reverse=True):
        low, high = (
            (f"datum.{across.key} * {1 - band}", f"datum.{across.key} * {1 + band}") if log else (str(-band), str(band))
        )
        area = alt.Chart().transform_calculate(low=low, high=high).mark_area(color="#888888", opacity=0.18)
        layers.append(area.encode(at, alt.Y("low:Q"), alt.Y2("high")))
    many = len(table.rows) > 1000
    dots = alt.Chart().mark_circle(size=14 if many else 42, opacity=0.45 if many else 0.7, color=BLUE)
    if color:
        layers.append(_pick_series(dots, table, [_switch(color.key)], at, up, _color(table, color)))
    else:
        layers.append(dots.encode(at, up, tooltip=_tips(table)))
    if cross is not None:
        layers += [_line(x=cross), _line(y=cross)]
    header = alt.Header(labelLimit=260, labelFontSize=11, labelExpr=_LINES)
    panels = alt.Facet(f"{facet}:N", sort=table.distinct(facet), title=None, header=header)
    chart = alt.layer(*layers).properties(width=190, height=170)
    chart = chart.facet(panels, data=alt.NamedData("dots"), columns=3)
    if cross is None:
        chart = chart.resolve_scale(x="independent", y="independent")
    return Figure(title, chart, {"dots": table})


def dots_below(
    title: str, table: Table, ceilings: Table, *, x: str, y: str, color: Color, shape: str, size: str
) -> Figure:
    """Return a dot per row below ceilings, on two logarithmic axes, its area by the column `size`, its form by `shape`.

    `ceilings` has the columns `x` and `y`, "ceiling" (a line each), and "label": words to the "side" of a point,
    "left", "right" or "above" it, or none.
    """
    up_to, down_to = 1.8 * max(ceilings.column(y)), 0.7 * min(*ceilings.column(y), *table.column(y))
    across = alt.Scale(type="log", nice=False, domain=[min(ceilings.column(x)), max(ceilings.column(x))])
    at = alt.X(f"{x}:Q", title=_title(table, x), scale=across, axis=alt.Axis(tickCount=5, format="~g", grid=False))
    upward = alt.Scale(type="log", nice=False, domain=[down_to, up_to])
    up = alt.Y(f"{y}:Q", title=_title(table, y), axis=_axis(False, True), scale=upward)
    over = _over("ceilings")
    line = over.mark_line(color=INK, strokeWidth=1.5, strokeOpacity=0.7, clip=True).encode(at, up, detail="ceiling:N")
    sides = {"left": ("right", -8, 0), "right": ("left", 8, 0), "above": ("right", -2, -9)}
    words = [
        over.transform_filter(alt.datum.side == side)
        .mark_text(align=align, dx=dx, dy=dy, baseline="middle")
        .encode(at, up, text="label:N")
        for side, (align, dx, dy) in sides.items()
    ]
    scale = alt.Scale(domain=table.distinct(shape), range=["circle", "triangle-up"])
    forms = alt.Shape(f"{shape}:N", legend=alt.Legend(orient="bottom", symbolFillColor=INK), scale=scale)
    sizes = alt.Size(f"{size}:Q", legend=None, scale=alt.Scale(range=[30, 420]))
    dots = _over("dots").mark_point(filled=True, stroke=INK, strokeWidth=0.5, clip=True)
    dots = _pick_series(dots, table, [_switch(color.key)], at, up, _color(table, color), forms, sizes)
    return Figure(title, _layers([line, *words, dots], 340), {"dots": table, "ceilings": ceilings})


def _layers(layers: Sequence[Any], height: int) -> Any:
    return alt.layer(*layers).properties(width="container", height=height)


def _over(name: str) -> Any:
    """Return a chart over the table of that name."""
    return alt.Chart(alt.NamedData(name))


def _axis(percent: bool, log: bool = False) -> Any:
    """Return an axis with percentages or, if logarithmic, with few labels."""
    return alt.Axis(format="%") if percent else alt.Axis(tickCount=4, format=",") if log else alt.Undefined


def _switch(key: str, name: str = "") -> Any:
    """Return a selection: clicking the legend shows only some series."""
    return alt.selection_point(name=f"picked_{name}" if name else "picked", fields=[key], bind="legend", toggle="true")


def _zoom() -> Any:
    """Dragging moves along the time axis; the wheel zooms only with Shift or Ctrl, so that the page can scroll."""
    return alt.selection_interval(
        name="zoom", bind="scales", encodings=["x"], zoom="wheel![event.shiftKey || event.ctrlKey]"
    )


def _pick_series(mark: Any, table: Table, params: Sequence[Any], *channels: Any, **more: Any) -> Any:
    """A mark with channels and tooltips; series that the first of the parameters, a switch, leaves out are faint."""
    return mark.encode(*channels, _fade_series(params[0]), tooltip=_tips(table), **more).add_params(*params)


def _fade_series(switch: Any) -> Any:
    return alt.Opacity(condition={"param": switch.name, "value": 1}, value=0.1)


def _line(**place: float) -> Any:
    """Return a line across the chart at a value of `x` or `y`."""
    at = [getattr(alt, axis.upper())(datum=value) for axis, value in place.items()]
    return alt.Chart(alt.sequence(1)).mark_rule(opacity=0.6).encode(*at)


def _low(values: Sequence[float], base: float) -> float:
    """Return where an axis of bars begins: at zero, or slightly below the lowest bar if bars begin elsewhere."""
    low = min(values, default=base)
    return min(base - 0.02, low - 0.02) if base else min(0.0, low)


def _scale(table: Table, start: str | float, end: str, label: str, marks: Lines | None) -> Any:
    """The scale of bars from a column or value `start`, long enough for marks, and words behind bars at any width."""
    base = 0.0 if isinstance(start, str) else start
    sides = [*table.column(end), *(table.column(start) if isinstance(start, str) else ())]
    values = [value for value in sides if value is not None]
    low = _low(values, base)
    words = map(len, map(str, table.column(label))) if label else ()
    reach: dict[int, float] = {}
    for length, value in zip(words, table.column(end), strict=False):
        if length and value is not None:
            reach[length] = max(reach.get(length, low), value, base)
    if not reach:
        return alt.Scale(zero=False, domainMin=low)
    room = [
        f"{high - low:.7g} * width / max(width * 0.4, width - {_LETTER * length + 8:.0f})"
        for length, high in reach.items()
    ]
    longest = max([base, *values, *(marks.table.column(marks.value) if marks else ())])
    most = alt.expr(f"{low:.7g} + max({longest - low:.7g}, {', '.join(room)})")
    return alt.Scale(zero=False, domainMin=low, domainMax=most, nice=False)


def _color(table: Table, color: Color) -> Any:
    """Colours of the names that occur in the table, in their order; one name has a legend only if it is `named`."""
    found = table.distinct(color.key)
    colors = spread(found) if color.looks is None else color.looks
    names = [name for name in colors if name in found]
    scale = alt.Scale(domain=names, range=[colors[name] for name in names])
    return alt.Color(f"{color.key}:N", scale=scale, legend=alt.Undefined if color.named or len(names) > 1 else None)


def _sort(table: Table, key: str) -> Any:
    """Return the order of a column's values on an axis: numbers ascending, names in the order of the rows."""
    is_number = next(column.is_number for column in table.columns if column.key == key)
    return "ascending" if is_number else table.distinct(key)


def _title(table: Table, key: str) -> str:
    return next(column.title for column in table.columns if column.key == key)


def _tips(table: Table) -> list[Any]:
    """Return every column of a table, formatted for a tooltip."""
    return [_tip(column) for column in table.columns if column.head != " "]


def _tip(column: Column) -> Any:
    kind = "quantitative" if column.is_number else "nominal"
    written = column.format if isinstance(column.format, str) and _is_d3(column.format) else alt.Undefined
    return alt.Tooltip(column.key, type=kind, title=column.title, format=written)


def _is_d3(spec: str) -> bool:
    """Return whether d3 (JavaScript) interprets a format specification as Python does."""
    return bool(spec) and bool(re.fullmatch(r"[+]?,?(\.\d+)?[%efg]?", spec))
