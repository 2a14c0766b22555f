"""Closed-form predictions: the tables that a terminal shows, and the page of a collective over sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.report import Part, Report, Section
from weft.core.report.table import Column, Shown, Table, number, text
from weft.core.units import format_bytes, format_time
from weft.estimate import Estimate
from weft.estimate.answer import FloatArray
from weft.estimate.errors import (
    attention_error,
    collective_error,
    exchange_error,
    fused_attention_error,
    gemm_error,
    operator_errors,
    scan_error,
    served_error,
    unknown_error,
)
from weft.hardware import system
from weft.kernels.library.served import library
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, curves, stacked_bars

if TYPE_CHECKING:
    from weft.graph import Graph
    from weft.hardware import Gpu

_SHOWN = 40
"""Most rows of a printed table; files hold all."""
_CLOCKS = {"short": "short runs at the boost clock", "sustained": "long runs at the power limit"}
_GLYPHS = "█▓▒░"
_BAR = 20
_ERRORS = 3
"""Most classes of errors that a report names."""
_OFF = "expected error: "
_HALF_BY_SWITCH = (
    "{} by nvls: no class of errors, as libraries choose rings; 12% on one public rate, an all-gather of 1 GiB"
)
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
        """Return every case as an object: case, time [us], bound, rates, and parts [us]."""
        count = len(self)
        times = {"time_us": 1e6 * self.prediction.seconds, "bound": self.prediction.bound}
        parts = {f"{name}_us": 1e6 * part for name, part in self.prediction.parts.items()}
        columns = {**self.columns, **times, **self.rates, **parts}
        lists = [np.broadcast_to(np.ravel(column), count).tolist() for column in columns.values()]
        return [dict(zip(columns, values, strict=True)) for values in zip(*lists, strict=True)]

    def shown(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Return the cases that a table shows, with their indices."""
        return zip(range(_SHOWN), self.records(), strict=False)


@dataclass(frozen=True)
class Predictions:
    """Closed-form times of the same cases on one machine or several."""

    by_machine: Sequence[Predicted]

    @property
    def first(self) -> Predicted:
        """The predictions of the first machine."""
        return self.by_machine[0]

    def records(self) -> list[dict[str, Any]]:
        """Return every case of every machine as an object."""
        return [row for one in self.by_machine for row in one.records()]

    def to_dict(self) -> dict[str, Any]:
        """Return every case as plain data."""
        return {"predictions": self.records()}


class PredictionReport(Report[Predictions]):
    """Closed-form times, machine beside machine: time, bound, rates, and where the time goes."""

    @property
    def columns(self) -> Sequence[Column]:
        """The columns that name a case, the machine's first."""
        return [text("gpu", "GPU")]

    def cells(self, case: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what names a case, besides its machine."""
        return ()

    def error(self, machine: str, case: Mapping[str, Any]) -> str:
        """Return the mean error of the class of a case, in words; empty where none is known."""
        return ""

    def sentences(self) -> list[str]:
        """Return the time and the bound of a single case, or the range of times."""
        cases = [(one.machine, case) for one in self.answer.by_machine for case in one.records()]
        (place, best), (_, worst) = (end(cases, key=lambda one: one[1]["time_us"]) for end in (min, max))
        least, most = (format_time(case["time_us"] * 1e-6, digits=4) for case in (best, worst))
        if len(cases) == 1:
            return [f"It takes {least} on {place}, limited by {best['bound']}."]
        if len(cases) == len(self.answer.by_machine):
            return [
                f"{place} is fastest of {len(cases)}: {least}, limited by {best['bound']}; the slowest takes {most}."
            ]
        return [f"The {len(cases):,} cases take {least} to {most}."]

    def notes(self) -> list[str]:
        """Bounds in words, rows that are left out, and the errors of the classes."""
        done = self.answer.by_machine
        hidden = sum(max(len(found) - _SHOWN, 0) for found in done)
        more = f"{hidden} more row{'s' * (hidden != 1)}; --json FILE or --csv FILE writes them all"
        shown = [(found.prediction, index) for found in done for index, _ in found.shown()]
        errors = dict.fromkeys(self.error(found.machine, case) for found in done for _, case in found.shown())
        known = [f"{_OFF}{error}" for error in list(filter(None, errors))[:_ERRORS]]
        return [*_bounds(shown), *([more] if hidden else []), *known]

    def table(self) -> Table:
        """Return a row per case and machine, at most as many as a terminal can show."""
        done = self.answer.by_machine
        rows = [
            (
                found.machine,
                *self.cells(case),
                case["bound"],
                _time(found.prediction, index),
                *(case[name] for name in found.rates),
                _where(found.prediction, index),
            )
            for found in done
            for index, case in found.shown()
        ]
        rates = [number(name, _RATES[name], format_=".4g") for name in done[0].rates]
        return Table([*self.columns, text("bound"), _TIME, *rates, _WHERE], rows, self.title())

    def rows(self) -> list[dict[str, Any]]:
        """Return every case, also those that the table leaves out."""
        return self.answer.records()


class GemmReport(PredictionReport):
    """Closed-form times of GEMMs."""

    columns = (text("gpu", "GPU"), text("shape", "M x N x K"), text("dtype"))

    def title(self) -> str:
        """Return the state of the clock, and the compute units of a mask."""
        columns = self.answer.first.columns
        on = f" on {columns['compute_units']} compute units" if "compute_units" in columns else ""
        return f"GEMMs{on}, {_CLOCKS[columns['clock']]}"

    def cells(self, case: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the shape and the data type."""
        sizes = [case[name] for name in ("m", "n", "k")] + [case["batch"]] * (case["batch"] > 1)
        return " x ".join(map(str, sizes)), case["dtype"]

    def error(self, machine: str, case: Mapping[str, Any]) -> str:
        """Return the 80 % interval of GEMMs of that time on the GPU."""
        if "library" in case:
            what = "-".join(filter(None, (library("gemm", case["library"]).name, case["dtype"], case["weights"])))
            return served_error("gemm_lowbit", what, _gpu(machine)).why
        return gemm_error(machine, case["time_us"] * 1e-6).why


class OperatorReport(PredictionReport):
    """Closed-form times of an operator."""

    @property
    def columns(self) -> Sequence[Column]:
        """The GPU, and the library of inference where one was named."""
        return [text("gpu", "GPU"), *([text("library")] if self._by_library else [])]

    @property
    def _by_library(self) -> bool:
        return "library" in self.answer.first.columns

    def cells(self, case: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the library."""
        return (case["library"],) if self._by_library else ()

    def title(self) -> str:
        """Return the operator with its dimensions."""
        case = self.answer.first.columns
        shape = ", ".join(f"{key} {value}" for key, value in case.items() if isinstance(value, int))
        return f"{case['operator']}, {shape}, {case['dtype']}"

    def error(self, machine: str, case: Mapping[str, Any]) -> str:
        """Return what is known of the errors of such operators, or of attention by a library."""
        if self._by_library and "query" not in case:
            return served_error("small_operators", case["operator"], _gpu(machine)).why
        if self._by_library:
            return attention_error(case["library"], case["query"], case["keys"], _gpu(machine)).why
        if case["operator"] == "attention_fused":
            return "" if (gpu := system(machine).gpu).vendor == "none" else fused_attention_error(gpu).why
        if case["operator"].startswith("scan_"):
            return scan_error().why
        return unknown_error(case["operator"])


class CollectiveReport(PredictionReport):
    """Closed-form times of a collective over sizes, `by` what moves its data, in words."""

    explained = "collective-model"
    columns = (text("system"), text("size"), text("by"))

    def __init__(
        self,
        answer: Predictions,
        by: str | None = None,
        beside: Sequence[str] = (),
    ) -> None:
        super().__init__(answer)
        self.by, self.beside = by or "the protocol and algorithm that the library would choose", beside

    def title(self) -> str:
        """Return the collective and its ranks."""
        found = self.answer.first
        return f"{found.columns['collective']} over {found.columns['ranks']} GPUs"

    def cells(self, case: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the size, and the algorithm and protocol."""
        return format_bytes(case["bytes"], digits=4), str(case["by"])

    def error(self, machine: str, case: Mapping[str, Any]) -> str:
        """Return the 80 % interval of the collective at that size on the system's GPU."""
        gpu = system(machine).gpu
        if str(case["by"]).endswith("-shot") and "library" in case:
            return served_error("all_reduce", f"{case['library']}-{case['called']}", gpu.name).why
        if case["by"] == "nvls" and case["collective"] != "all_reduce":
            return _HALF_BY_SWITCH.format(case["collective"])
        if gpu.vendor == "none":
            return ""
        return collective_error(gpu.name, case["collective"], case["bytes"], case["nodes"]).why

    def sentences(self) -> list[str]:
        """Return the time of a single size, or the range of times, and the most bandwidth that is reached."""
        cases = [(one.machine, case) for one in self.answer.by_machine for case in one.records()]
        where, most = max(cases, key=lambda one: one[1]["busbw_gbs"])
        reached = (
            f"It reaches at most {most['busbw_gbs']:.4g} GB/s of bus bandwidth, on {where} at "
            f"{format_bytes(most['bytes'], 4)}, where {most['bound']} takes most of the time."
        )
        how = f"Predicted in closed form, with {self.by}."
        return [*self.beside, *super().sentences(), *([reached] if len(cases) > 1 else []), how]

    def figures(self) -> Sequence[Figure]:
        """Return time and bandwidth over size, and where the time goes on each system."""
        rows = [
            (
                one.machine,
                case["bytes"] / (1 << 20),
                *self.cells(case),
                case["bound"],
                case["time_us"],
                case["busbw_gbs"],
            )
            for one in self.answer.by_machine
            for case in one.records()
        ]
        columns = [text("system"), number("mib", "size of the buffer", "MiB", "g"), text("size"), text("by")]
        columns += [text("bound"), number("time_us", "time", "µs", ".4g")]
        columns += [number("busbw_gbs", "bus bandwidth", "GB/s", ".4g")]
        table = Table(columns, sorted(rows, key=lambda row: (row[0], row[1])))
        across, color = Axis("mib", log=True, labels=SIZES), Color("system")
        times = curves("How long does it take?", table, x=across, y=Axis("time_us", log=True), color=color)
        rates = curves("Which bandwidth does it reach?", table, x=across, y="busbw_gbs", color=color).with_caption(
            "Against the size of the whole buffer, as nccl-tests counts it. A kink is a size where the library takes "
            "another protocol or algorithm."
        )
        return [times, rates, *map(collective_time_parts, self.answer.by_machine)]

    def sections(self) -> list[Part]:
        """Return the curves, where the time goes, and all sizes."""
        times, rates, *parts = self.figures()
        return [
            Section("Time and bandwidth", [times, rates]),
            Section("Where the time goes", parts),
            Section("All sizes", [times.data["curves"].without(["mib"])]),
        ]


class ExchangeReport(PredictionReport):
    """Closed-form times of one dispatch or combine, by libraries and systems."""

    columns = (text("system"), text("library"), text("copies", "copies of a token"), text("moved", "links, network"))

    def title(self) -> str:
        """Return the exchange and its ranks."""
        case = self.answer.first.columns
        return (
            f"{case['operation']} of {case['tokens']:,} tokens x {case['hidden']:,}, top {case['top_k']} of "
            f"{case['experts']}, over {case['ep']} GPUs"
        )

    def cells(self, case: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the library, copies of a token, and bytes of each rank by level."""
        sizes = [format_bytes(case[name], digits=3) for name in ("link_bytes", "network_bytes")]
        return case["library"], f"{case['copies']:.3g}", ", ".join(sizes)

    def error(self, machine: str, case: Mapping[str, Any]) -> str:
        """Return the mean error of exchanges by the library."""
        return exchange_error(case["library"]).why

    def sentences(self) -> list[str]:
        """Return how long one exchange takes with each library."""
        cases = [case for one in self.answer.by_machine for case in one.records()]
        found = []
        for case in cases:
            units = f", on {case['compute_units']:.0f} compute units" if case["compute_units"] else ""
            found.append(
                f"One {case['operation']} takes {format_time(case['time_us'] * 1e-6, digits=3)} with {case['library']} "
                f"on {case['system']}{units}, limited by {case['bound']}."
            )
        return found


class ExpertsReport(PredictionReport):
    """Closed-form times of a layer's experts on one GPU, by libraries, beside even loads."""

    columns = (text("gpu", "GPU"), text("library"), text("rows"), text("even", "with even loads"))

    def title(self) -> str:
        """Return the experts, their format and the GPUs that share them."""
        case = self.answer.first.columns
        gpus = "one GPU" if case["ep"] == 1 else f"each of {case['ep']} GPUs"
        return (
            f"Experts of {case['hidden']:,} x {case['ffn']:,} in {case['dtype']}: {case['tokens']:,} tokens on {gpus}, "
            f"top {case['top_k']} of {case['experts']}"
        )

    def cells(self, case: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the library, rows of the GPU with the most, and the time if all had as many."""
        return case["library"], f"{case['rows']:,}", format_time(case["even_us"] * 1e-6, digits=3)

    def error(self, machine: str, case: Mapping[str, Any]) -> str:
        """Return the 80 % interval of experts by the library and format."""
        return served_error("experts", f"{case['library']}-{case['dtype']}", _gpu(machine)).why

    def sentences(self) -> list[str]:
        """Return how long the experts take with each library, and what uneven loads cost."""
        found = []
        for case in self.answer.records():
            first = f"The experts take {format_time(case['time_us'] * 1e-6, digits=3)} with {case['library']} on "
            found.append(f"{first}{case['gpu']}, limited by {case['bound']}.")
            if case["imbalance"] > 1:
                found.append(
                    f"The busiest expert has {case['imbalance']:.2g}x the mean load, which costs "
                    f"{case['time_us'] / case['even_us'] - 1:.0%} over even loads."
                )
        return found


def _time(found: Estimate, index: int = 0) -> float:
    return float(np.ravel(found.seconds)[index])


_TIME = number("time_s", "time", format_=lambda seconds: format_time(seconds, digits=4))


def _shares(found: Estimate, index: int) -> dict[str, float]:
    """Return the share of each part of a case's time, the largest first."""
    parts = {name: float(np.ravel(part)[index]) / _time(found, index) for name, part in found.parts.items()}
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def _where(found: Estimate, index: int = 0) -> str:
    """Return where the time of a case goes: a text bar of its largest parts, then their shares in words."""
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


def layer_sentence(name: str, found: Estimate) -> str:
    """Return how long a layer takes on a system, and which of its operators longest."""
    longest, most = max(found.operators.items(), key=lambda one: float(one[1].seconds))
    share = float(most.seconds) / float(found.seconds)
    return (
        f"A layer takes {format_time(float(found.seconds), digits=4)} on {name}; {longest} takes {share:.0%} of it, "
        f"limited by {most.bound}."
    )


def layer_parts(title: str, graph: Graph, found: Estimate, gpu: Gpu) -> list[Table | str]:
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
    errors = operator_errors(((graph[name].op, float(one.seconds)) for name, one in found.operators.items()), gpu)
    return [table, *bounds, *(f"note: {note}" for note in layer_notes(graph)), *(f"{_OFF}{why}" for why in errors)]


def layer_notes(graph: Graph) -> list[str]:
    """Return what the GPUs of a layer cannot share evenly."""
    return [text for name, text in graph.labels.items() if name not in ("model", "layer")]


def about(graph: Graph, node: str) -> str:
    """Return a description of a layer's operator."""
    op = graph[node].op
    return f"GEMM {op}" if op.kind == "gemm" else str(op)


def layer_record(name: str, title: str, graph: Graph, found: Estimate) -> dict[str, Any]:
    """Return the layer on the system `name` as plain data."""
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


SIZES = "datum.value < 1 / 1024 ? round(datum.value * 1048576) + ' B' : datum.value < 1 ? format(datum.value * 1024, '.3') + ' KiB' : datum.value < 1024 ? format(datum.value, '.4') + ' MiB' : format(datum.value / 1024, '.4') + ' GiB'"  # noqa: E501
"""A Vega expression that formats an axis in mebibytes."""


def collective_time_parts(one: Predicted) -> Figure:
    """Return where the time of each size goes on a system, as shares."""
    rows = [
        (format_bytes(case["bytes"], digits=3), _PARTS.get(name, (name, ""))[0], case[f"{name}_us"])
        for case in sorted(one.records(), key=lambda case: case["bytes"])
        for name in one.prediction.parts
        if case[f"{name}_us"] > 0
    ]
    colors = {**looks.spread([row[1] for row in rows]), **dict(_PARTS.values())}
    columns = [text("size"), text("part"), number("time_us", "share of the time", "%, tooltip in µs", ".4g")]
    return stacked_bars(
        f"Where does the time go, on {one.machine}?", Table(columns, rows), lane="size", value="time_us",
        color=Color("part", colors), share=True,
    ).with_caption("Launch and latency where a collective is small, links where it is large.")  # fmt: skip


def _gpu(machine: str) -> str:
    """Return the name of the GPU of a machine, or of a GPU."""
    return system(machine).gpu.name
