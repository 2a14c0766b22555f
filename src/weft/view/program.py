"""A program in the engine, operator after operator: times beside closed forms, phases over time, memory channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.report import Part, Report, Section
from weft.core.report.table import Table, microseconds, number, text
from weft.core.units import format_time
from weft.graph import Call, Node, Streaming
from weft.simulate.result import Timeline
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, step_lines, timeline_bars
from weft.view.heat import heat_parts, heat_section
from weft.view.page import simulated_section
from weft.view.words import effort

if TYPE_CHECKING:
    from weft.estimate import Estimate

_FS_PER_US = 1e9
_LEFT_OUT = (
    "A simulator of requests has no instructions and no warps: it shows neither their mix nor their stalls, and times "
    "arithmetic by the rate of its units."
)
_BINS = 240
"""Steps of the curve of traffic over time."""


def operator_name(node: Node) -> str:
    """Return what an operator is called: by its framework, without overload, or by its kind."""
    op = node.op
    if isinstance(op, Call):
        return op.name.removeprefix("aten.").partition(".")[0]
    return op.name if isinstance(op, Streaming) else op.kind


def operator_table(run: Timeline, closed: Estimate) -> Table:
    """Return every kind of operator by its time: how many, time in the engine and in closed form, and DRAM traffic."""
    found: dict[tuple[str, str], list[float]] = {}
    for node in run.graph:
        row = found.setdefault((operator_name(node), node.phase), [0, 0.0, 0.0, 0.0])
        moved = sum(amount for (who, _), amount in run.traffic.items() if who == node.name)
        for at, value in enumerate((1, run.duration(node.name), float(closed.operators[node.name].seconds), moved)):
            row[at] += value
    rows = [
        (
            name,
            phase,
            count,
            took * 1e6,
            took / run.seconds,
            model * 1e6,
            model / took - 1 if took else None,
            moved / 1e6,
        )
        for (name, phase), (count, took, model, moved) in sorted(found.items(), key=lambda one: -one[1][1])
    ]
    columns = [
        text("operator"), text("phase"), number("count", "of them", format_=",.0f"),
        microseconds("time", "time", 1), number("share", "of the run", format_=".1%"),
        microseconds("closed", "closed form", 1), number("apart", "by it", format_="+.0%"),
        number("traffic_mb", "DRAM traffic", "MB", ",.2f"),
    ]  # fmt: skip
    return Table(columns, rows, f"{run.graph} on {run.gpu.name}, operator by operator")


def operators_over_time(run: Timeline) -> Figure:
    """Return when each kind of operator ran, coloured by its phase."""
    spent: dict[str, int] = {}
    kinds = {node.name: operator_name(node) for node in run.graph}
    phases = {node.name: node.phase or "program" for node in run.graph}
    mine = [span for span in run.spans if span.gpu == 0]
    for span in mine:
        spent[kinds[span.operator]] = spent.get(kinds[span.operator], 0) + span.end_fs - span.start_fs
    rows = [
        (kinds[one.operator], phases[one.operator], one.kernel, one.start_fs / _FS_PER_US, one.end_fs / _FS_PER_US,
         one.workgroups)
        for one in sorted(mine, key=lambda span: -spent[kinds[span.operator]])
    ]  # fmt: skip
    columns = [
        text("operator"), text("phase"), text("kernel"), microseconds("start", "from", 2), microseconds("end", "to", 2),
        number("workgroups", format_=","),
    ]  # fmt: skip
    table = Table(columns, rows)
    return timeline_bars(
        "What runs when?",
        table,
        lane="operator",
        start="start_us",
        end=Axis("end_us", title="time [µs]", domain=True),
        color=Color("phase", looks.spread(table.distinct("phase"))),
    ).with_caption("Kernels from their request to their end, in the order of the time that each kind takes.")


def traffic_over_time(run: Timeline) -> Figure | None:
    """Return what the DRAM moves over time, reads and writes; None for a run without series."""
    if run.series is None:
        return None
    series = run.series
    width = series.bin_fs * 1e-15
    rows: list[tuple[Any, ...]] = []
    for kind in ("read", "write"):
        moved = sum((np.asarray(each)[0] for (_, way), each in series.traffic.items() if way == kind), np.zeros(1))
        merged = max(1, -(-len(moved) // _BINS))
        sums = np.add.reduceat(moved, np.arange(0, len(moved), merged))
        rows += [(f"{kind}s", at * merged * width * 1e6, rate) for at, rate in enumerate(sums / merged / width / 1e9)]
    columns = [text("what"), microseconds("time", "time", 2), number("rate", "DRAM traffic", "GB/s", ",.0f")]
    return step_lines(
        "How busy is the memory?", Table(columns, rows), x=Axis("time_us", domain=[0, run.seconds * 1e6]), y="rate",
        series="what", limit=run.gpu.memory.bandwidth / 1e9, name="traffic",
    ).with_caption("Dashed: the peak of the memory.")  # fmt: skip


def program_figures(run: Timeline) -> Sequence[Figure]:
    """Return what runs when, and how busy the memory is."""
    return tuple(filter(None, (operators_over_time(run), traffic_over_time(run))))


def program_sentences(run: Timeline, closed: Estimate) -> list[str]:
    """Return the answer in sentences."""
    whole, seconds = float(closed.seconds), run.seconds
    count = f"{len(run.graph):,} operators" if len(run.graph) > 1 else "one operator"
    lead = (
        f"{run.graph} takes {format_time(seconds, digits=4)} on {run.gpu.title}: {count}, "
        f"{run.requests:,} requests, {sum(run.traffic.values()) / 1e6:,.1f} MB between the GPU and its DRAM."
    )
    return [lead, f"The closed form says {format_time(whole, digits=4)}, {whole / seconds - 1:+.0%}."]


class ProgramReport(Report[Timeline]):
    """A program in the engine, operator by operator, compared with its closed form."""

    def __init__(self, answer: Timeline, closed: Estimate) -> None:
        super().__init__(answer)
        self.closed = closed

    def title(self) -> str:
        """Return the program and the GPU."""
        return f"{self.answer.graph} in the engine, on {self.answer.gpu.name}"

    def sentences(self) -> list[str]:
        """Return the time, and that of the closed form."""
        return program_sentences(self.answer, self.closed)

    def notes(self) -> list[str]:
        """Return how much was simulated."""
        return [effort([self.answer])]

    def table(self) -> Table:
        """Return every kind of operator by its time."""
        return operator_table(self.answer, self.closed)

    def details(self) -> list[Table | str]:
        """Return the load of channels, if it was recorded."""
        return heat_parts([self.answer])

    def figures(self) -> Sequence[Figure]:
        """Return what runs when, and how busy the memory is."""
        return program_figures(self.answer)

    def sections(self) -> list[Part]:
        """Return the pictures, the load of channels, and every kind of operator."""
        operators = Section("Every kind of operator", [*self.tables(), [_LEFT_OUT]])
        return [*self.figures(), heat_section([self.answer]), operators]

    def appendix(self) -> list[Part]:
        """Return the machine."""
        return [simulated_section(self.answer)]

    def record(self) -> dict[str, Any]:
        """Return the run as plain data, with the closed form of every operator [s]."""
        run, closed = self.answer, self.closed
        operators = [
            {
                "operator": node.name,
                "kind": operator_name(node),
                "phase": node.phase,
                "module": node.module,
                "seconds": run.duration(node.name),
                "closed_form_seconds": float(closed.operators[node.name].seconds),
                "dram_bytes": sum(amount for (who, _), amount in run.traffic.items() if who == node.name),
            }
            for node in run.graph
        ]
        times = {"seconds": run.seconds, "closed_form_seconds": float(closed.seconds)}
        return {**run.to_dict(), **times, "operators": operators}
