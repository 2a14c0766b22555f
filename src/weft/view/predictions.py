"""Closed-form predictions: the tables that a terminal shows, and the page of a collective over sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.estimate import Estimate
from weft.estimate.answer import FloatArray
from weft.units import format_bytes, format_time
from weft.view import looks
from weft.view.figure import Figure, curves, stacked_bars
from weft.view.page import Section, write_page
from weft.view.table import Column, Shown, Table, microseconds, number, text, times_faster

if TYPE_CHECKING:
    from weft.graph import Graph
    from weft.tune.joins import Joins

_SHOWN = 40
"""Most rows of a printed table; files hold all."""
_CLOCKS = {"short": "short runs at the boost clock", "sustained": "long runs at the power limit"}
_GLYPHS = "█▓▒░"
_BAR = 20
_RATES = {"tflops": "TFLOP/s", "algbw_gbs": "algbw GB/s", "busbw_gbs": "busbw GB/s", "gbs": "GB/s"}
_WHERE = text("parts", "where the time goes", prose=True)
_PARTS = {
    "launch": ("launch", looks.GREY),
    "host": ("host", looks.DARK),
    "latency": ("latency of the steps", looks.PINK),
    "link": ("links of the node", looks.BLUE),
    "network": ("network between nodes", looks.SKY),
    "copy": ("copies on the GPU", looks.ORANGE),
}
"""The parts of a collective's time: label and colour."""
_COLLECTIVE = {
    "launch": "launch and host together are the largest share",
    "link": "link and network together are the largest share",
    "memory": "copies on the GPU are the largest share",
}
_GEMM = {
    "compute": "the matrix units set the pace, as tail too, when some of them are idle or multiply padding",
    "cache": "compute units wait for the cache more than 5 % of their time",
    "memory": "the DRAM takes longer than the compute units; the bar shows only what that adds",
    "latency": "latency, fill and split together take longer than the matrix units",
}
_KERNEL = dict.fromkeys(("compute", "cache", "memory", "latency"), "it limits the longest of the kernels")


@dataclass(frozen=True)
class Predicted:
    """Predictions for one machine: the cases as `columns`, and the achieved `rates`, by column head."""

    machine: str
    columns: Mapping[str, Any]
    prediction: Estimate
    rates: Mapping[str, FloatArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return np.size(self.prediction.seconds)

    def records(self) -> list[dict[str, Any]]:
        """Every case as an object: case, time [us], bound, rates, and parts [us]."""
        count = len(self)
        times = {"time_us": 1e6 * self.prediction.seconds, "bound": self.prediction.bound}
        parts = {f"{name}_us": 1e6 * part for name, part in self.prediction.parts.items()}
        columns = {**self.columns, **times, **self.rates, **parts}
        lists = [np.broadcast_to(np.ravel(column), count).tolist() for column in columns.values()]
        return [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]

    def shown(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The cases that a table shows, with their indices."""
        return zip(range(_SHOWN), self.records(), strict=False)


def gemm_parts(done: Sequence[Predicted]) -> list[Table | str]:
    """Tables of GEMMs, machine beside machine, and a note on rows that are left out."""

    def cells(case: Mapping[str, Any]) -> tuple[str, ...]:
        sizes = [case[name] for name in ("m", "n", "k")] + [case["batch"]] * (case["batch"] > 1)
        return " x ".join(map(str, sizes)), case["dtype"]

    title = f"GEMMs, {_CLOCKS[done[0].columns['clock']]}"
    return _parts(title, [text("gpu", "GPU"), text("shape", "M x N x K"), text("dtype")], done, cells)


def collective_parts(done: Sequence[Predicted]) -> list[Table | str]:
    """Tables of collectives, system beside system, and a note on rows that are left out."""
    return _parts(_title(done[0]), [text("system"), text("size"), text("by")], done, _size_and_by)


def operator_parts(done: Sequence[Predicted]) -> list[Table | str]:
    """An operator on each GPU."""
    case = done[0].columns
    shape = ", ".join(f"{key} {value}" for key, value in case.items() if isinstance(value, int))
    return _parts(f"{case['operator']}, {shape}, {case['dtype']}", [text("gpu", "GPU")], done, lambda case: ())


def join_table(found: Joins) -> Table:
    """Every method to join a GEMM and its collective: time, error of its class, speedup, and whether it pays."""
    rows = [
        (way.method, way.seconds * 1e6, way.error, way.speedup, way.low, way.high, way.pays if place else "")
        for place, way in enumerate(found.ways)
    ]
    columns = [
        text("method"), microseconds("time", "time", 0), number("error", "off by", format_=".0%"),
        times_faster("speedup", "speedup", "{:.2f}×"), times_faster("low", "from", "{:.2f}×"),
        times_faster("high", "to", "{:.2f}×"), text("pays", "pays?"),
    ]  # fmt: skip
    each = "" if found.form == "gemm_ar" else f", {found.gemm.m // found.ranks:,} rows on each"
    return Table(columns, rows, f"{found.form} of {found.gemm} over {found.ranks} GPUs of {found.system}{each}")


def _size_and_by(case: Mapping[str, Any]) -> tuple[str, ...]:
    return format_bytes(case["bytes"], digits=4), str(case["by"])


def _title(found: Predicted) -> str:
    return f"{found.columns['collective']} over {found.columns['ranks']} GPUs"


def _parts(title: str, columns: Sequence[Column], done: Sequence[Predicted], cells: Any) -> list[Table | str]:
    rows = [
        (found.machine, *cells(case), case["bound"], _time(found.prediction, index),
         *(case[name] for name in found.rates), _where(found.prediction, index))
        for found in done
        for index, case in found.shown()
    ]  # fmt: skip
    rates = [number(name, _RATES[name], format_=".4g") for name in done[0].rates]
    hidden = sum(max(len(found) - _SHOWN, 0) for found in done)
    more = f"{hidden} more row{'s' * (hidden != 1)}; --json FILE or --csv FILE writes them all"
    shown = [(found.prediction, index) for found in done for index, _ in found.shown()]
    table = Table([*columns, text("bound"), _TIME, *rates, _WHERE], rows, title)
    return [table, *_bounds(shown), *([more] if hidden else [])]


def _time(found: Estimate, index: int = 0) -> float:
    return float(np.ravel(found.seconds)[index])


_TIME = number("time_s", "time", format_=lambda seconds: format_time(seconds, digits=4))


def _shares(found: Estimate, index: int) -> dict[str, float]:
    """The share of each part of a case's time, the largest first."""
    parts = {name: float(np.ravel(part)[index]) / _time(found, index) for name, part in found.parts.items()}
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def _where(found: Estimate, index: int = 0) -> str:
    """Where the time of a case goes: a text bar of its largest parts, then their shares in words."""
    shown = [(name, share) for name, share in _shares(found, index).items() if share >= 0.005][: len(_GLYPHS)]
    bar = "".join(glyph * round(_BAR * share) for glyph, (_, share) in zip(_GLYPHS, shown, strict=False))
    return f"{bar[:_BAR]:<{_BAR}} {', '.join(f'{name} {share:.0%}' for name, share in shown)}"


def _bounds(shown: Iterable[tuple[Estimate, int]]) -> list[str]:
    """Explanations of bounds that are not the largest part of some case (an estimate and an index)."""
    lines: dict[str, None] = {}
    for found, index in shown:
        bound = str(np.ravel(found.bound)[index])
        meanings = _COLLECTIVE if "link" in found.parts else _GEMM if "tail" in found.parts else _KERNEL
        if bound in meanings and next(iter(_shares(found, index))) != bound:
            lines[f"bound {bound}: {meanings[bound]}"] = None
    return list(lines)


def layer_parts(title: str, graph: Graph, found: Estimate) -> list[Table | str]:
    """Table of a layer, operator by operator with shares of the time, and notes."""
    total = float(found.seconds)
    rows = [
        (name, about(graph, name), str(one.bound), _time(one), float(one.seconds) / total, _where(one))
        for name, one in found.operators.items()
    ]
    whole = ("total", "", "", total, Shown(1.0, ""), "")
    share = number("share", format_=".1%")
    table = Table([text("operator"), text("what"), text("bound"), _TIME, share, _WHERE], [*rows, whole], title)
    bounds = _bounds([(one, 0) for one in found.operators.values()])
    return [table, *bounds, *(f"note: {note}" for note in layer_notes(graph))]


def layer_notes(graph: Graph) -> list[str]:
    """What the GPUs of a layer cannot share evenly."""
    return [text for name, text in graph.labels.items() if name not in ("model", "layer")]


def about(graph: Graph, node: str) -> str:
    """A description of a layer's operator."""
    op = graph[node].op
    return f"GEMM {op}" if op.kind == "gemm" else str(op)


def layer_record(name: str, title: str, graph: Graph, found: Estimate) -> dict[str, Any]:
    """The layer on the system `name` as plain data."""
    rows = [
        {
            "name": node,
            "about": about(graph, node),
            "time_us": 1e6 * float(one.seconds),
            "bound": str(one.bound),
            **{f"{part}_us": 1e6 * float(value) for part, value in one.parts.items()},
        }
        for node, one in found.operators.items()
    ]
    notes = {"notes": layer_notes(graph)} if layer_notes(graph) else {}
    return {"system": name, "title": title, "time_us": 1e6 * float(found.seconds), "operators": rows, **notes}


def collective_report(done: Sequence[Predicted], out_dir: str | Path) -> Path:
    """Write `report.html` with time and bandwidth over size to a folder and return its path.

    Raises OutputError if the folder cannot be written to.
    """
    cases = [(one.machine, case) for one in done for case in one.records()]
    rows = [
        (name, case["bytes"] / (1 << 20), *_size_and_by(case), case["bound"], case["time_us"], case["busbw_gbs"])
        for name, case in cases
    ]
    columns = [
        text("system"), number("mib", "size of the buffer", "MiB", "g"), text("size"), text("by"), text("bound"),
        number("time_us", "time", "µs", ".4g"), number("busbw_gbs", "bus bandwidth", "GB/s", ".4g"),
    ]  # fmt: skip
    table = Table(columns, sorted(rows, key=lambda row: (row[0], row[1])))
    style: dict[str, Any] = {"x": "mib", "series": "system", "log_x": True, "labels": SIZES}
    times = curves("How long does it take?", table, y="time_us", log_y=True, **style)
    rates = curves("Which bandwidth does it reach?", table, y="busbw_gbs", **style).captioned(
        "Against the size of the whole buffer, as nccl-tests counts it. A kink is a size where the library takes "
        "another protocol or algorithm."
    )
    where, most = max(cases, key=lambda one: one[1]["busbw_gbs"])
    return write_page(
        out_dir,
        _title(done[0]),
        f"Predicted in closed form, with the protocol and algorithm that the library would choose: it reaches at most "
        f"{most['busbw_gbs']:.4g} GB/s of bus bandwidth, on {where} at {format_bytes(most['bytes'], 4)}, where "
        f"{most['bound']} takes most of the time.",
        [
            Section("Time and bandwidth", [times, rates]),
            Section("Where the time goes", [collective_time_parts(one) for one in done]),
            Section("All sizes", [table.without(["mib"])]),
        ],
        "collective-model",
    )


SIZES = "datum.value < 1 / 1024 ? round(datum.value * 1048576) + ' B' : datum.value < 1 ? format(datum.value * 1024, '.3') + ' KiB' : datum.value < 1024 ? format(datum.value, '.4') + ' MiB' : format(datum.value / 1024, '.4') + ' GiB'"  # noqa: E501
"""A Vega expression that formats an axis in mebibytes."""


def collective_time_parts(one: Predicted) -> Figure:
    """Where the time of each size goes on a system, as shares."""
    rows = [
        (format_bytes(case["bytes"], digits=3), _PARTS.get(name, (name, ""))[0], case[f"{name}_us"])
        for case in sorted(one.records(), key=lambda case: case["bytes"])
        for name in one.prediction.parts
        if case[f"{name}_us"] > 0
    ]
    colors = {**looks.spread([row[1] for row in rows]), **dict(_PARTS.values())}
    columns = [text("size"), text("part"), number("time_us", "share of the time", "%, tooltip in µs", ".4g")]
    return stacked_bars(
        f"Where does the time go, on {one.machine}?", Table(columns, rows), lane="size", part="part", value="time_us",
        looks=colors, share=True,
    ).captioned("Launch and latency where a collective is small, links where it is large.")  # fmt: skip
