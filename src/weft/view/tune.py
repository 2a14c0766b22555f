"""A tuned list of independent GEMMs: degree and kernel of every line, and a page with compute units over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.core.report import Part, Report, Section
from weft.core.report.table import Shown, Table, microseconds, number, text, times_faster
from weft.view import looks
from weft.view.figure import Color, Figure, Label, Lane, bars
from weft.view.units import ShownRun, units_by_way

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.plan.tune.lists import Gain, Tuned, TunedList
    from weft.plan.tune.queues import WatchedQueue
    from weft.simulate.result import Span, Timeline


def tuned_table(tuned: TunedList) -> Table:
    """Return every line: how many to run together, with which kernel, and the gain."""
    columns = [
        text("gemm", "GEMM"), text("kernel"), text("alone", "kernel alone"), number("count"), number("together"),
        microseconds("time", "time"), number("over_default", "over all at once"),
        number("over_sequential", "over one by one"),
    ]  # fmt: skip
    title = f"Independent GEMMs on {tuned.gpu.name}: how many together, and with which tile"
    return Table(columns, list(map(_row, tuned.rows)), title)


def _row(row: Tuned) -> tuple[Any, ...]:
    kernel, alone, gemm = row.kernel, row.kernels.fastest_alone, row.wanted.gemm
    named = "" if row.wanted.name == f"{gemm.m}x{gemm.n}x{gemm.k}" else f"{row.wanted.name}: "
    kernels = f"{named}{gemm}", str(kernel), "the same" if kernel == alone else str(alone)
    time = row.judged.at_degree[row.degree] * 1e6
    return *kernels, row.wanted.count, row.degree, time, _gain(row.over_default), _gain(row.over_sequential)


def _gain(gain: Gain) -> Shown:
    return Shown(gain.value, f"{gain.value:.2f}× ({gain.low:.2f} to {gain.high:.2f})")


class TuningReport(Report["TunedList"]):
    """Degree and kernel of every line, its gain, and compute units over time."""

    explained = "goldyloc"

    def title(self) -> str:
        """Return what was asked."""
        return f"Independent GEMMs on {self.answer.gpu.name}: how many together, and with which kernels?"

    def sentences(self) -> list[str]:
        """Return the line that gains most."""
        best = max(self.answer.rows, key=lambda row: row.over_default.value)
        said = (
            f"Of {len(self.answer.rows)} lines {best.wanted.name} gains most, {best.over_default.value:.2f} times over "
            f"all at once, {best.degree} together, because kernels and degree suit the share of the GPU that each GEMM "
            "gets."
        )
        return [said]

    def notes(self) -> list[str]:
        """Return what the gains are over, and what their ranges say."""
        said = (
            "For each line: how many of its GEMMs to run at once, and with which kernel; compute units at the "
            f"{self.answer.clock} clock. All at once and one by one use the kernel that is fastest alone. Ranges: "
            "uncertain values of the machine at either end."
        )
        return [said]

    def table(self) -> Table:
        """Return a row per line."""
        return tuned_table(self.answer)

    def figure(self) -> Figure:
        """Return what tuning gains over all at once and one by one, with its range."""
        rows = [
            (row.wanted.name, way, gain.value, f"{gain.value:.2f}× ({gain.low:.2f} to {gain.high:.2f})")
            for row in self.answer.rows
            for way, gain in (("all at once", row.over_default), ("one by one", row.over_sequential))
        ]
        columns = [text("gemm", "GEMM"), text("way", "over"), times_faster("gain", "times faster"), text("said", " ")]
        return bars(
            "What does tuning gain?", Table(columns, rows), lane=Lane("gemm", "way"), end="gain", start=1.0,
            color=Color("way", {"all at once": looks.BLUE, "one by one": looks.ORANGE}), over=[Label("said")],
        )  # fmt: skip

    def sections(self) -> list[Part]:
        """Return the GEMMs, and the compute units over time of the GEMMs that gain most (simulated again)."""
        watched = list(map(held_by_gemms, self.answer.watch()))
        return [*self.figures(), *self.tables(), Section("Compute unit by compute unit", watched)]

    def gpu(self) -> Gpu:
        """Return the GPU."""
        return self.answer.gpu


def held_by_gemms(queue: WatchedQueue) -> Figure:
    """Return which GEMM of a queue held which compute unit over time: all at once, and in the chosen batches."""
    sizes = queue.sizes
    first = [sum(sizes[:at]) for at in range(len(sizes))]
    batches = f"{sizes[0]} together" if len(sizes) == 1 else f"batches of {', '.join(map(str, sizes))}"
    ways = (
        ShownRun("all at once, kernels tuned alone", queue.default, list(map(_owners, queue.default))),
        ShownRun(f"GOLDYLOC, {batches}", queue.chosen, list(map(_owners, queue.chosen, first))),
    )
    names = [f"{at}: {name}" for at, name in enumerate(queue.names)]
    return units_by_way(ways, looks.spread(names)).with_caption(
        f"{queue.title}: which GEMM held which compute unit when. A line per unit, shared by all workgroups that it "
        "holds at a time. Older GEMMs are served first, and the next one takes what they leave."
    )


def _owners(run: Timeline, first: int = 0) -> Callable[[Span], int]:
    """Return the index in the queue of each kernel of a batch that begins at index `first`."""
    numbers = {node.name: first + at for at, node in enumerate(run.graph)}
    return lambda kernel: numbers[kernel.operator]
