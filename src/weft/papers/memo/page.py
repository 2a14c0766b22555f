"""Tables and pictures of the study of the memo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from weft.core.report import Part, Section
from weft.core.report.table import NONE, Table, number, text, texts, times_faster
from weft.papers.headline_table import amount
from weft.papers.memo import parallel
from weft.papers.memo.values import case
from weft.papers.page import StudyReport
from weft.papers.textbook.collectives import textbook
from weft.papers.textbook.kernels import attainable, ridge
from weft.papers.textbook.quantization import quantize, signal_to_noise
from weft.papers.textbook.replicas import zero_stages
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Label, Lines, bars, curves, dots_below, stacked_bars
from weft.view.page import machine_section

if TYPE_CHECKING:
    from weft.papers.headline import HeadlineRow
    from weft.papers.memo.study import MemoStudy
    from weft.papers.textbook.replicas import Consistency


class MemoReport(StudyReport):
    """The study of the memo: its rows stand in their sections, not in one headline."""

    answer: MemoStudy

    def sections(self) -> list[Part]:
        """Return what was computed, and the study's own sections."""
        return [f"{self.answer.lead} Functions of Weft compute them all.", *self.answer.sections()]

    def appendix(self) -> list[Part]:
        """Return the GPU of the roofline."""
        return [machine_section(self.answer.machine, self.answer.work, title="The GPU of the roofline")]


_VERDICTS = {True: "holds", False: "does not hold", None: NONE}


def sections(study: MemoStudy) -> list[Part]:
    """Slips, then the sections in the order of the study's file, and what is left out."""
    parts: list[Part] = [Section("Where the memo slips", [slip_table(study)])]
    for section, (title, says) in case("sections").items():
        if not study.rows(section):
            continue
        drawn = [PICTURES[section](study)] if section in PICTURES else []
        more = [_rule_table(study.rules)] if section == "replicas" else []
        parts.append(Section(title, [says, *drawn, _row_table(study, section), *more]))
    rows = [(one["topic"], one["why"]) for one in case("left_out")]
    return [*parts, Section("What is left out", [Table(texts(("topic", "why")), rows)])]


def _row_table(study: MemoStudy, section: str) -> Table:
    """Return the rows of a section: number given, Weft's, tolerance, whether it holds, source."""
    rows = [_cells(study, row) for row in study.rows(section)]
    heads = ("row", "verdict", "given", "Weft", "tolerance", "source of the number")
    return Table(texts(heads), rows)


def _cells(study: MemoStudy, row: HeadlineRow) -> tuple[str, ...]:
    claim, found = study.DECLARED.claims[row.id], amount(row.weft, row.unit, more=True)
    given = NONE if row.published is None else amount(row.published, row.unit)
    bar = NONE if claim.bar is None else f"± {_width(claim.bar, row.unit)}"
    return row.what, _VERDICTS[study.holds(row)], given, found, bar, claim.source or NONE


def _width(bar: float, unit: str) -> str:
    if unit in ("share", "fraction"):
        return f"{100 * bar:.3g} pp"
    return f"{bar:.3g}{'' if unit == 'ratio' else f' {unit}'}"


def slip_table(study: MemoStudy, title: str = "") -> Table:
    """Return what the memo says, what holds instead, and the row that shows it, with Weft's value."""
    rows = {row.id: row for row in study.rows()}
    cells = [
        (one["says"], one["holds"], f"{rows[one['row']].what}: {amount(rows[one['row']].weft, rows[one['row']].unit)}")
        for one in case("slips")
    ]
    return Table(texts(("the memo says", "what holds", "row that shows it")), cells, title)


def zero() -> Figure:
    """Return what a rank holds by ZeRO's stage."""
    parts = {"weights": looks.BLUE, "gradients": looks.ORANGE, "optimizer": looks.GREEN}
    rows = [
        (f"ZeRO-{one.stage}" if one.stage else "none", part, one.held[part] / 1e9, f"{one.bytes / 1e9:.3g} GB")
        for one in zero_stages(*case("zero"))
        for part in parts
    ]
    columns = [text("stage"), text("part"), number("gb", "bytes of a rank", "GB", ".3g"), text("said", " ")]
    return stacked_bars(
        "What does each stage of ZeRO leave on a GPU?", Table(columns, rows), lane="stage", value="gb",
        color=Color("part", parts), over=[Label("said")],
    ).with_caption("7.5 billion parameters, 64 replicas, mixed precision with Adam.")  # fmt: skip


def collectives() -> Figure:
    """Return the time of trees and of a ring over bytes."""
    sizes, ranks = np.geomspace(1e4, 1e8, 17), case("ranks")
    rows = [
        (size / 1e6, name, float(textbook("all_reduce", name, size, ranks, parallel.wire())) * 1e6)
        for name in ("tree", "ring")
        for size in sizes
    ]
    columns = [number("size_mb", "size", "MB", ",.4g"), text("algorithm"), number("time_us", "time", "µs", ",.4g")]
    at = Table(
        [number("size_mb", "size", "MB", ",.3g"), text("label")],
        [(parallel.collectives()["switch"], "switch point")],
    )
    return curves(
        "Trees for small, rings for large", Table(columns, rows), x=Axis("size_mb", log=True),
        y=Axis("time_us", log=True), color=Color("algorithm", {"tree": looks.GREEN, "ring": looks.BLUE}),
        over=[Lines(at, "size_mb", "label")],
    ).with_caption("All-reduce of 8 ranks, 10 µs a message and 100 GB/s, without protocols of a library.")  # fmt: skip


def roofline(study: MemoStudy) -> Figure:
    """Return the roofline of the study's GPU with the memo's operators on it."""
    gpu, dtype = study.machine, "bf16"
    spots = {
        "three element-wise, apart": study.values["roofline.apart_bytes"],
        "three element-wise, fused": study.values["roofline.fused_bytes"],
        "product of 4,096": study.values["roofline.gemm"],
    }
    rate, turn = gpu.matrix_rate(dtype), ridge(gpu, dtype)
    rows = [(name, "attainable", at, attainable(gpu, dtype, at) / 1e12, 1) for name, at in spots.items()]
    axes = [
        number("intensity", "operations for each byte", "FLOP/B", ",.3g"),
        number("tflops", "attainable rate", "TFLOP/s", ",.3g"),
    ]
    dots = Table([text("operator"), text("rate", " "), *axes, number("size", " ")], rows)
    memory = f"DRAM {gpu.memory.bandwidth / 1e12:.1f} TB/s"
    lines = [
        ("memory", 0.02, attainable(gpu, dtype, 0.02) / 1e12, "", ""),
        ("memory", 2.0, attainable(gpu, dtype, 2.0) / 1e12, memory, "left"),
        ("memory", turn, rate / 1e12, "", ""),
        ("compute", turn, rate / 1e12, "", ""),
        ("compute", 60_000.0, rate / 1e12, f"{dtype} {rate / 1e12:,.0f} TFLOP/s", "above"),
    ]
    ceilings = Table([text("ceiling"), *axes, text("label", " "), text("side", " ")], lines)
    return dots_below(
        f"Where do the memo's operators lie on {gpu.title}?", dots, ceilings, x="intensity", y="tflops",
        color=Color("operator", looks.spread(list(spots))), shape="rate", size="size",
    ).with_caption("At best: the lesser of the matrix rate and of what memory feeds.")  # fmt: skip


def quantization() -> Figure:
    """SNR over bits: in closed form, and of rounded arrays."""
    wave = np.sin(np.linspace(0, np.pi / 2, 20_001))
    ways: Mapping[str, Callable[[int], float]] = {
        "closed form": lambda bits: signal_to_noise(bits, 2**0.5),
        "rounded": lambda bits: quantize(wave, bits).snr(wave),
    }
    rows = [(bits, name, found(bits)) for name, found in ways.items() for bits in range(3, 13)]
    columns = [number("bits", "bits"), text("by"), number("snr", "SNR of a sine", "dB", ".1f")]
    return curves(
        "Every bit is worth 6 dB", Table(columns, rows), x="bits", y="snr",
        color=Color("by", {"closed form": looks.GREY, "rounded": looks.BLUE}),
    ).with_caption(
        "The closed form counts one step more to the peak than a symmetric format has, which matters for few bits."
    )  # fmt: skip


def pipelines() -> Figure:
    """Idle share of each schedule."""
    found = {words: parallel.time_schedule(*how) for words, *how in case("schedules").values()}
    rows = [(words, "idle", ran.idle_share, f"{ran.idle_share:.1%}") for words, ran in found.items()]
    columns = [text("schedule"), text("kind"), number("idle", "idle share", format_=".1%"), text("said", " ")]
    return bars(
        "How much of a step do devices idle?", Table(columns, rows), lane="schedule", end=Axis("idle", percent=True),
        color=Color("kind", {"idle": looks.BLUE}), over=[Label("said")],
    ).with_caption(
        "4 devices, 8 micro-batches, B = 2F unless said otherwise. ZB-H2's idle time lies outside its stages' spans."
    )  # fmt: skip


PICTURES: Mapping[str, Callable[[MemoStudy], Figure]] = {
    "quantization": lambda _: quantization(),
    "roofline": roofline,
    "zero": lambda _: zero(),
    "collectives": lambda _: collectives(),
    "replicas": lambda study: paces(study.rules),
    "pipelines": lambda _: pipelines(),
}
"""The picture of a section."""


def _rule_table(answer: Consistency) -> Table:
    """Return every rule: how long an update of every worker takes, and how stale the weights are."""
    rows = [
        (pace.rule, pace.step, answer.speedup(pace), "closed form" if pace.exact else "simulated", pace.mean_lag,
         max(pace.lag, default=0), pace.delay)
        for pace in answer.paces
    ]  # fmt: skip
    columns = [
        text("rule"), number("step_s", "step", "s", ".4g"), times_faster("speedup", format_=".2f"), text("by"),
        number("mean_lag", "steps ahead", format_=".1f"), number("most_lag", "at most", format_=",.0f"),
        number("delay", "updates missed", format_=".1f"),
    ]  # fmt: skip
    return Table(columns, rows, f"Updates of {answer.workers} workers, by how far they may be ahead of the slowest")


def paces(answer: Consistency) -> Figure:
    """Return the time of an update of every worker under each rule."""
    rows = [(pace.rule, "step", pace.step, f"{pace.step:.3g} s") for pace in answer.paces]
    columns = [
        text("rule"),
        text("kind"),
        number("step_s", "time of an update of every worker", "s"),
        text("said", " "),
    ]
    return bars(
        "What does waiting cost?", Table(columns, rows), lane="rule", end="step_s",
        color=Color("kind", {"step": looks.BLUE}), over=[Label("said")],
    ).with_caption("BSP waits for all workers, SSP n for those more than n steps behind, ASP for none.")  # fmt: skip
