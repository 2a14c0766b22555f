"""Interactive figures, declared in Vega-Lite over the tables that they show.

Each function takes a table and the keys of its columns, and returns a `Figure`. A page draws it with tooltips, switches
in the legend and zoom; `svg` and `png` draw it still, and a notebook shows the former.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from weft.view.looks import Looks, spread
from weft.view.table import Table, number


class _Later:
    """Altair, imported when the first figure is drawn: tables do without it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("altair"), name)


alt: Any = _Later()
INK = "currentColor"
"""What is neither bar nor line takes the colour of the text around it, dark or light."""
_WIDTH = 720
_LINES = "split(datum.value, ': ')"
"""A Vega expression that writes what follows a colon on a line of its own."""
_NUMBERED = re.compile(r"\b(clip|gradient_)\d+\b")
CONFIG: Mapping[str, Any] = {
    "background": "transparent",
    "font": "system-ui, 'DejaVu Sans', Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK, "titleColor": INK, "domainColor": INK, "tickColor": INK, "gridColor": INK,
        "gridOpacity": 0.15, "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 12,
        "labelOverlap": "parity", "labelSeparation": 6,
    },
    "axisY": {"labelLimit": 220},
    "legend": {
        "labelColor": INK, "titleColor": INK, "orient": "top", "title": None, "labelLimit": 340, "labelFontSize": 12,
        "columns": 4, "symbolStrokeWidth": 2,
    },
    "title": {"color": INK, "anchor": "start", "fontSize": 13, "subtitleColor": INK},
    "header": {"labelColor": INK, "titleColor": INK},
    "text": {"color": INK, "fontSize": 11},
    "rule": {"color": INK},
    "tick": {"color": INK},
    "bar": {"cornerRadius": 1},
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A chart over `data`, the tables that it names; `title` says what it answers, `caption` what to see in it."""

    title: str
    chart: Any
    data: Mapping[str, Table]
    caption: str = ""

    def captioned(self, caption: str) -> Figure:
        """The figure with words below it."""
        return Figure(self.title, self.chart, self.data, caption)

    @property
    def spec(self) -> dict[str, Any]:
        """The Vega-Lite specification without the rows."""
        made: dict[str, Any] = self.chart.to_dict(context={"pre_transform": False})
        made.pop("config", None)
        return {**made, "config": CONFIG}

    def still(self) -> dict[str, Any]:
        """The specification with its title and rows, at the width of a printed page."""
        spec = {**self.spec, "title": self.title}
        for view in (spec, *spec.get("vconcat", ())):
            if view.get("width") == "container":
                view["width"] = _WIDTH
        return {**spec, "datasets": {name: table.records() for name, table in self.data.items()}}

    def svg(self) -> str:
        """The picture as an SVG element; the same figure gives the same text."""
        import vl_convert

        return _NUMBERED.sub(_renumbered(), vl_convert.vegalite_to_svg(self.still()))

    def png(self, scale: float = 1.0) -> bytes:
        """The picture as a PNG file on white."""
        import vl_convert

        return vl_convert.vegalite_to_png({**self.still(), "background": "white"}, scale=scale)

    def _repr_svg_(self) -> str:
        return self.svg()


def _renumbered() -> Callable[[re.Match[str]], str]:
    """The names of clips and gradients, numbered from one in each picture."""
    known: dict[str, str] = {}
    return lambda found: known.setdefault(found.group(), f"{found[1]}{len(known) + 1}")


@dataclass(frozen=True)
class Lines:
    """Reference lines or marks of a figure: rows with the key of the value and the words that name it."""

    table: Table
    value: str
    label: str
    of: str | None = None
    """The key of the group that a mark belongs to; without it, a line goes through all."""


def grouped_bars(
    title: str, table: Table, *, group: str, series: str, value: str, looks: Looks, base: float = 0.0,
    marks: Lines | None = None, label: str | None = None, percent: bool = False, level: float | None = None,
    side_by_side: bool = True,
) -> Figure:  # fmt: skip
    """Bars from `base` to a value: a block per group, a bar per series, and reference lines or marks across them.

    `label` is the column that is written at the end of each bar, `level` a place of a line. Where each group has one
    bar, series need not stand `side_by_side`.
    """
    names = list(dict.fromkeys(row[table.keys.index(series)] for row in table.rows)) if side_by_side else [""]
    row_px = 15 if len(names) > 1 else 20
    y = alt.Y(f"{group}:N", sort=None, title=None, scale=alt.Scale(paddingInner=0.25))
    beside = {"yOffset": alt.YOffset(f"{series}:N", sort=names)} if len(names) > 1 else {}
    switch = _switch(series)
    chart = alt.Chart(alt.NamedData("bars"))
    scale = alt.Scale(zero=False, domainMin=_low(table, value, base))
    axis = alt.Axis(format="%") if percent else alt.Undefined
    x = alt.X(f"{value}:Q", title=_title(table, value), scale=scale, axis=axis)
    bars = chart.mark_bar().encode(
        y, x, alt.X2(datum=base), _color(table, series, looks), _faded(switch), tooltip=_tips(table), **beside
    ).add_params(switch)  # fmt: skip
    layers = [bars, _rule(base if level is None else level)]
    data = {"bars": table}
    if label is not None:
        # Behind the bar where it is positive, else behind its foot.
        written = chart.mark_text(align="left", dx=4).transform_calculate(at=f"max(datum.{value}, {base})")
        layers.append(written.encode(y, alt.X("at:Q"), alt.Text(f"{label}:N"), _faded(switch), **beside))
    if marks is not None:
        data["marks"] = marks.table
        layers.append(_marked(marks, series, beside, row_px))
    groups = len({row[table.keys.index(group)] for row in table.rows})
    return Figure(title, _layers(layers, 30 + groups * (row_px * len(names) + 6)), data)


def _marked(marks: Lines, series: str, beside: Mapping[str, Any], size: int) -> Any:
    """Lines through all groups, ticks at bars of their series, or marks of shapes that a legend names."""
    drawn, at, tips = alt.Chart(alt.NamedData("marks")), alt.X(f"{marks.value}:Q"), _tips(marks.table)
    of_series = series in marks.table.keys
    if marks.of is None:
        colored = {"color": alt.Color(f"{series}:N")} if of_series else {}
        return drawn.mark_rule(strokeDash=[5, 3], strokeWidth=2).encode(at, tooltip=tips, **colored)
    band = alt.Y(f"{marks.of}:N", sort=None)
    if of_series:
        return drawn.mark_tick(thickness=3, size=size, color=INK).encode(at, band, tooltip=tips, **beside)
    shape = alt.Shape(f"{marks.label}:N", sort=None, legend=alt.Legend(symbolStrokeColor=INK))
    return drawn.mark_point(color=INK, size=40).encode(at, band, shape, tooltip=tips)


def stacked_bars(
    title: str, table: Table, *, lane: str, part: str, value: str, looks: Looks, end: str | None = None,
    share: bool = False, offset: str | None = None, percent: bool = False, in_order: bool = False,
) -> Figure:  # fmt: skip
    """A bar per lane that stacks its parts in the order of `looks`; `end` is what is written behind a whole bar.

    With `share`, each bar is as long as the others; `percent` writes values so. `offset` tells apart bars that belong
    to one lane. `in_order` stacks parts in the order of the rows.
    """
    order = list(looks)
    at = table.keys.index(part)
    numbered = Table(
        [*table.columns, number("order")],
        [[*row, place if in_order else order.index(row[at])] for place, row in enumerate(table.rows)],
    )
    switch = _switch(part)
    chart = alt.Chart(alt.NamedData("bars"))
    y = alt.Y(f"{lane}:N", sort=None, title=None)
    more = {"yOffset": alt.YOffset(f"{offset}:N", sort=None)} if offset else {}
    axis = alt.Axis(format="%") if share or percent else alt.Undefined
    amount = alt.X(f"{value}:Q", stack="normalize" if share else "zero", title=_title(table, value), axis=axis)
    bars = chart.mark_bar(stroke="white", strokeWidth=0.4).encode(
        y, amount, _color(table, part, looks), _faded(switch), alt.Order("order:Q"), tooltip=_tips(table), **more
    ).add_params(switch)  # fmt: skip
    layers = [bars]
    if end is not None:
        groups: list[Any] = [key for key in (lane, offset, end) if key]
        sums = chart.transform_aggregate(whole=f"sum({value})", groupby=groups)
        layers.append(sums.mark_text(align="left", dx=4).encode(y, alt.X("whole:Q"), alt.Text(f"{end}:N"), **more))
    lanes = len({tuple(row[table.keys.index(key)] for key in (lane, offset) if key) for row in table.rows})
    return Figure(title, _layers(layers, 20 + 24 * lanes), {"bars": numbered})


def spans(
    title: str, table: Table, *, lane: str, start: str, end: str, kind: str, looks: Looks, unit: str = "time [µs]",
    offset: str | None = None, words: Lines | None = None, lines: Lines | None = None, row_px: int = 30,
    zoom: Any = None, name: str = "spans",
) -> Figure:  # fmt: skip
    """Bars from start to end on one axis of time, a lane per stream or unit.

    `offset` parts a lane into rows, `words` are written at places of lanes, `lines` cross all lanes. `zoom` is a
    selection on another chart that this one follows; then every chart has a `name` of its own.
    """
    switch = _switch(kind, name)
    x = alt.X(f"{start}:Q", title=unit or None, scale=alt.Undefined if zoom is None else alt.Scale(domain=zoom))
    y = alt.Y(f"{lane}:N", sort=None, title=None)
    more = {"yOffset": alt.YOffset(f"{offset}:N", sort=None)} if offset else {}
    chart = alt.Chart(alt.NamedData(name))
    bars = chart.mark_bar(clip=True, stroke="white", strokeWidth=0.4).encode(
        y, x, alt.X2(end), _color(table, kind, looks), _faded(switch), tooltip=_tips(table), **more,
    ).add_params(*([switch, _zoom()] if zoom is None else [switch]))  # fmt: skip
    layers, data = [bars], {name: table}
    if lines is not None:
        data["lines"] = lines.table
        layers.append(
            alt.Chart(alt.NamedData("lines")).mark_rule(strokeDash=[5, 3]).encode(
                alt.X(f"{lines.value}:Q"), tooltip=_tips(lines.table)
            )
        )  # fmt: skip
    if words is not None:
        data["words"] = words.table
        at = alt.Chart(alt.NamedData("words")).mark_text(align="left", dx=4, clip=True)
        layers.append(
            at.encode(alt.Y(f"{words.of}:N", sort=None), alt.X(f"{words.value}:Q"), alt.Text(f"{words.label}:N"))
        )
    lanes = len({row[table.keys.index(lane)] for row in table.rows})
    return Figure(title, _layers(layers, 20 + row_px * lanes), data)


def areas(
    title: str, table: Table, *, looks: Looks, limit: tuple[float, str], height: int, zoom: Any, name: str
) -> Figure:
    """Columns of a table from "time_us" until "until_us" as stacked steps, below a dashed line with its name.

    The columns are those whose heads `looks` colours. `zoom` is a selection on another chart that this one follows,
    `name` tells it apart from others that do.
    """
    columns = [column for column in table.columns if column.head in looks]
    heads, keys = [column.head for column in columns], [column.key for column in columns]
    x = alt.X("time_us:Q", title=None, scale=alt.Scale(domain=zoom))
    y = alt.Y("value:Q", title=None, stack="zero", scale=alt.Scale(domainMax=(1 + 20 / height) * limit[0], nice=False))
    scale, legend = alt.Scale(domain=heads, range=[looks[h] for h in heads]), {} if len(heads) > 1 else {"legend": None}
    switch, chart, place = _switch("what", name), alt.Chart(alt.NamedData(name)), f"indexof({keys}, datum.key)"
    folded = chart.transform_fold(keys, as_=["key", "value"]).transform_calculate(what=f"{heads}[{place}]", rank=place)
    drawn = folded.mark_area(interpolate="step-after", clip=True).encode(
        x, y, alt.Color("what:N", scale=scale, **legend), _faded(switch), alt.Order("rank:Q")
    ).add_params(switch)  # fmt: skip
    # What is under the pointer: a bar per moment as high as the panel, seen only by the tooltip.
    moments = chart.mark_bar(opacity=0, clip=True, binSpacing=0).encode(x, alt.X2("until_us"), tooltip=_tips(table))
    value, words = limit
    line = _mark().mark_rule(strokeDash=[5, 3]).encode(alt.Y(datum=value))
    named = _mark().mark_text(align="right", baseline="bottom", dy=-1, text=words)
    layers = [drawn, moments, line, named.encode(alt.Y(datum=value), x=alt.value("width"))]
    return Figure(title, _layers(layers, height), {name: table})


def held_map(title: str, table: Table, looks: Looks, until: float, units: int) -> Figure:
    """Rectangles of who (`owner`) held which units from when until when, a panel per `way` below each other."""
    switch = _switch("owner")
    x = alt.X("start_us:Q", title="time [µs]", scale=alt.Scale(domain=[0, until], nice=False))
    y = alt.Y("unit:Q", title="compute unit", scale=alt.Scale(domain=[0, units], nice=False))
    panel = alt.Chart(alt.NamedData("held")).mark_rect(clip=True).encode(
        x, alt.X2("end_us"), y, alt.Y2("unit_to"), _color(table, "owner", looks), _faded(switch),
        tooltip=_tips(table),
    ).add_params(switch, _zoom())  # fmt: skip
    ways = list(dict.fromkeys(row[0] for row in table.rows))
    if len(ways) == 1:
        return Figure(title, panel.properties(width="container", height=240), {"held": table})
    # A panel for each way: a facet, whose width the page sets.
    header = alt.Header(orient="top", labelAnchor="start", labelFontWeight="bold", title=None)
    chart = panel.properties(width=_WIDTH - 80, height=150).facet(row=alt.Row("way:N", sort=ways, header=header))
    return Figure(title, chart, {"held": table})


def curves(
    title: str, table: Table, *, x: str, y: str, series: str, looks: Looks | None = None, log_x: bool = False,
    log_y: bool = False, marks: Lines | None = None, faint: Table | None = None, thin: str | None = None,
    ticks: Sequence[float] | None = None, percent: bool = False, height: int = 280, zero: bool = True,
    labels: str | None = None, level: float | None = None,
) -> Figure:  # fmt: skip
    """Lines with a dot per row, a line per series.

    `faint` holds thin lines behind them, each named by the column `thin`; `marks` are lines across (`of` None: upright
    at a place of x) or level marks at rows. `labels` is a Vega expression that writes the values of x, `level` a place
    of a level line.
    """
    colors = looks or spread(list(dict.fromkeys(row[table.keys.index(series)] for row in table.rows)))
    switch = _switch(series)
    axis: dict[str, Any] = {"values": list(ticks)} if ticks is not None else {}
    axis |= {"labelExpr": labels} if labels else {}
    scale_x = alt.Scale(type="log", base=2, nice=False) if log_x else alt.Scale(zero=False)
    scale_y = alt.Scale(type="log") if log_y else alt.Scale(zero=zero)
    at = alt.X(f"{x}:Q", title=_title(table, x), scale=scale_x, axis=alt.Axis(**axis))
    up = alt.Y(f"{y}:Q", title=_title(table, y), scale=scale_y, axis=alt.Axis(format="%") if percent else alt.Undefined)
    chart = alt.Chart(alt.NamedData("curves"))
    line = chart.mark_line(point=alt.OverlayMarkDef(filled=True, size=42), strokeWidth=2).encode(
        at, up, _color(table, series, colors), _faded(switch), tooltip=_tips(table)
    ).add_params(switch)  # fmt: skip
    layers, data = [line], {"curves": table}
    if level is not None:
        layers.append(_mark().mark_rule(opacity=0.6).encode(alt.Y(datum=level)))
    if faint is not None and thin is not None:
        data["faint"] = faint
        layers.insert(0, alt.Chart(alt.NamedData("faint")).mark_line(strokeWidth=0.7, strokeOpacity=0.35).encode(
            at, up, _color(table, series, colors), detail=f"{thin}:N"
        ))  # fmt: skip
    if marks is not None:
        data["marks"] = marks.table
        drawn = alt.Chart(alt.NamedData("marks"))
        if marks.of is None:
            upright = drawn.mark_rule(strokeDash=[3, 3]).encode(alt.X(f"{marks.value}:Q"), tooltip=_tips(marks.table))
            named = drawn.mark_text(align="left", angle=270, dx=4, dy=10, baseline="middle").encode(
                alt.X(f"{marks.value}:Q"), y=alt.value("height"), text=f"{marks.label}:N"
            )
            layers += [upright, named]
        else:
            layers.append(drawn.mark_tick(thickness=3, size=26, color=INK, orient="horizontal").encode(
                alt.X(f"{marks.of}:Q"), alt.Y(f"{marks.value}:Q"), tooltip=_tips(marks.table)
            ))  # fmt: skip
    return Figure(title, _layers(layers, height), data)


def scatter(
    title: str, table: Table, *, x: str, y: str, color: str | None = None, looks: Looks | None = None,
    log: bool = False, bands: Sequence[float] = (), cross: float | None = None, facet: str | None = None,
    height: int = 300, log_x: bool = False, percent: bool = False, shared: bool = False,
) -> Figure:  # fmt: skip
    """A dot per row; with `facet`, a panel for each of its values, on scales of its own or `shared` ones.

    `bands` are shares by which y may be off x (with `log`) or off zero; `cross` is where both are 1, marked by lines.
    """
    scale_x = alt.Scale(type="log", nice=False) if log or log_x else alt.Scale(zero=False)
    scale_y = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)
    thousands = alt.Axis(grid=False, tickCount=4, format="~s" if log_x else "")
    at = alt.X(f"{x}:Q", title=_title(table, x), scale=scale_x, axis=thousands)
    written = {"format": "%"} if percent else {"grid": False} if log else {}
    up = alt.Y(f"{y}:Q", title=_title(table, y), scale=scale_y, axis=alt.Axis(tickCount=4, **written))
    base = alt.Chart(alt.NamedData("dots")) if facet is None else alt.Chart()
    tinted = {"color": _color(table, color, looks or {})} if color else {"color": alt.value("#0072B2")}
    many = len(table.rows) > 1000
    dots = base.mark_circle(size=14 if many else 42, opacity=0.45 if many else 0.7).encode(
        at, up, tooltip=_tips(table), **tinted
    )
    layers: list[Any] = []
    for band in sorted(bands, reverse=True):
        low, high = (f"datum.{x} * {1 - band}", f"datum.{x} * {1 + band}") if log else (str(-band), str(band))
        layers.append(base.transform_calculate(low=low, high=high).mark_area(color="#888888", opacity=0.18).encode(
            at, alt.Y("low:Q"), alt.Y2("high")
        ))  # fmt: skip
    if color:
        switch = _switch(color)
        dots = dots.encode(_faded(switch)).add_params(switch)
    layers.append(dots)
    if cross is not None:
        layers += [_rule(cross), _mark().mark_rule(opacity=0.5).encode(alt.Y(datum=cross))]
    if facet is None:
        return Figure(title, _layers(layers, height), {"dots": table})
    panel = alt.layer(*layers).properties(width=190, height=170)
    panels = list(dict.fromkeys(row[table.keys.index(facet)] for row in table.rows))
    header = alt.Header(labelLimit=260, labelFontSize=11, labelExpr=_LINES)
    chart = panel.facet(
        alt.Facet(f"{facet}:N", sort=panels, title=None, header=header), data=alt.NamedData("dots"), columns=3
    )
    if not shared:
        chart = chart.resolve_scale(x="independent", y="independent")
    return Figure(title, chart, {"dots": table})


def _layers(layers: Sequence[Any], height: int) -> Any:
    return alt.layer(*layers).properties(width="container", height=height)


def _switch(key: str, name: str = "") -> Any:
    """A click in the legend shows only some series."""
    return alt.selection_point(name=f"picked_{name}" if name else "picked", fields=[key], bind="legend", toggle="true")


def _zoom() -> Any:
    """Drag to move along the axis of time; the wheel zooms while Shift or Ctrl is held: a page must scroll."""
    return alt.selection_interval(
        name="zoom", bind="scales", encodings=["x"], zoom="wheel![event.shiftKey || event.ctrlKey]"
    )


def _faded(switch: Any) -> Any:
    return alt.Opacity(condition={"param": switch.name, "value": 1}, value=0.1)


def _mark() -> Any:
    """A chart of a single mark, at places that are given as values."""
    return alt.Chart(alt.sequence(1))


def _rule(base: float) -> Any:
    return _mark().mark_rule(opacity=0.6).encode(alt.X(datum=base))


def _low(table: Table, value: str, base: float) -> float:
    """Where an axis of bars begins: at zero, or a little below the lowest bar where bars begin elsewhere."""
    if not base:
        return min(0.0, *(row[table.keys.index(value)] or 0 for row in table.rows), 0.0)
    low = min([row[table.keys.index(value)] for row in table.rows], default=base)
    return min(base - 0.02, low - 0.02)


def _color(table: Table, key: str, looks: Looks) -> Any:
    """Colours of those names that the table has, in the order of `looks`."""
    found = {row[table.keys.index(key)] for row in table.rows}
    names = [name for name in looks if name in found]
    scale = alt.Scale(domain=names, range=[looks[name] for name in names])
    return alt.Color(f"{key}:N", scale=scale, legend=alt.Undefined if len(names) > 1 else None)


def _title(table: Table, key: str) -> str:
    return next(column.title for column in table.columns if column.key == key)


def _tips(table: Table) -> list[Any]:
    """Every column of a table, as a tooltip tells it."""
    return [
        alt.Tooltip(
            column.key, type="quantitative" if column.is_number else "nominal", title=column.title,
            format=column.format if isinstance(column.format, str) and _is_d3(column.format) else alt.Undefined,
        )
        for column in table.columns
        if column.head != " "
    ]  # fmt: skip


def _is_d3(spec: str) -> bool:
    """Whether JavaScript's formats (d3) read a specification as Python does."""
    return bool(spec) and bool(re.fullmatch(r"[+]?,?(\.\d+)?[%efg]?", spec))
