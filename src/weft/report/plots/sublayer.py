"""A sub-layer: when its parts run and what they wait for, stage by stage, and how much faster overlaps are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import PercentFormatter

from weft.errors import InputError
from weft.report.plots.style import (
    PHASES,
    WAITS,
    Look,
    Picture,
    bar,
    case_of,
    grid,
    group_labels,
    legend,
    note,
    overlap_look,
    picture,
    stack,
    styled,
)  # fmt: skip
from weft.report.tables import case_label
from weft.result import ChunkSpan, Comparison, Span, Timeline

Bars = list[tuple[float, float]]

LOCAL = Look("written by this GPU", "#0072B2")
ARRIVING = Look("arriving from the neighbour", "#E69F00", "////")
LEAVING = Look("sent on by DMA", "#009E73", "....")
_BUFFERS = {"output": "RS chunk", "received": "RS chunk", "result": "RS result", "gathered": "AG chunk"}
_KERNELS = {"gemm": "GEMM", "reduce_scatter": "RS", "all_gather": "AG"}
_ROOM = 0.84
_PER_ROW = 16
_WHITE = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
_DASHES = (0, (5, 2))
_US = 1e-9
"""Microseconds of a femtosecond."""


@styled
def sub_layer_times(comparison: Comparison) -> Picture:
    """When each overlap computes and communicates: GEMM above, RS and AG below, on one time axis [us]."""
    runs = list(comparison)
    figure = picture(10, 0.9 + 0.62 * len(runs))
    ax = figure.subplots()
    for y, run in enumerate(runs):
        for phase, (start, end) in phases(run).items():
            bar(ax, y - 0.19 if phase == "gemm" else y + 0.17, start, end - start, PHASES[phase], 0.34)
        faster = f", {comparison.speedup(run.overlap):.2f}×" if run is not comparison.baseline else ""
        note(ax, f"{run.seconds * 1e6:.0f} µs{faster}", (run.seconds * 1e6, y), (5, 0))
    ax.set_yticks(range(len(runs)), [run.overlap for run in runs])
    ax.set_ylim(len(runs) - 0.5, -0.5)
    ax.set_xlim(0, max(run.seconds for run in runs) * 1.14e6)
    ax.set_xlabel("time [µs]")
    ax.set_title("How much communication hides behind the GEMM?")
    grid(ax, "x")
    legend(figure, PHASES.values())
    return figure


def phases(run: Timeline, gpu: int = 0) -> dict[str, tuple[float, float]]:
    """When GEMM, reduce-scatter and all-gather ran on a GPU, start and end [us].

    A fused reduce-scatter runs from the first byte that arrives to the last chunk's completion; an ideal's
    phases are placed as its graph says.
    """
    if not run.spans:
        placed = run.graph.critical_path(run.durations)
        return {name: (placed[name][0] * 1e6, placed[name][1] * 1e6) for name in PHASES if name in placed}
    spans: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(span.operator for span in run.spans):
        own = [span for span in run.spans if span.operator == name and span.gpu == gpu]
        spans[name] = min(s.start_fs for s in own) * _US, max(s.end_fs for s in own) * _US
    output = [chunk for chunk in run.chunks if chunk.gpu == gpu and chunk.buffer == "output"]
    starts = [c.first_remote_fs for c in output if c.first_remote_fs is not None]
    ends = [c.complete_fs for c in output if c.complete_fs is not None]
    if starts and ends and "reduce_scatter" not in spans:
        spans["reduce_scatter"] = min(starts) * _US, max(ends) * _US
    return {name: spans[name] for name in PHASES if name in spans}


@styled
def waits(runs: Timeline | Sequence[Timeline], gpu: int = 0) -> Picture:
    """What the workgroups of every kernel did or waited for, as shares of their time [%]."""
    several = [runs] if isinstance(runs, Timeline) else list(runs)
    rows = [(run, span) for run in several for span in run.spans if span.gpu == gpu]
    shares = [{name: span.waits.get(name, 0) / (sum(span.waits.values()) or 1) for name in WAITS} for _, span in rows]
    figure = picture(10, 1.1 + 0.36 * len(rows))
    ax = figure.subplots()
    stack(ax, shares, WAITS)
    for y, amounts in enumerate(shares):
        left = 0.0
        for share in amounts.values():
            if share >= 0.06:
                ax.annotate(
                    f"{share:.0%}", (left + share / 2, y), ha="center", va="center", fontsize=8,
                    bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
                )  # fmt: skip
            left += share
    ax.grid(visible=False)
    ax.set_yticks(range(len(rows)), [f"{run.overlap}: {_KERNELS.get(span.kernel, span.kernel)}" for run, span in rows])
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.set_xlabel("share of the workgroups' time [%]")
    ax.set_title("What do workgroups wait for?")
    legend(figure, WAITS.values(), 5)
    return figure


@styled
def timeline(run: Timeline, gpu: int = 0) -> Picture:
    """When stages ran, chunks were written, arrived and left, and DMA engines were busy on a GPU [us].

    Raises InputError for an ideal, which has no events.
    """
    if not run.spans:
        raise InputError(f"'{run.overlap}' has no timeline: it is an ideal; draw a simulated overlap instead")
    chunks = [chunk for chunk in run.chunks if chunk.gpu == gpu]
    engines = sorted({dma.engine for dma in run.dmas if dma.gpu == gpu})
    spans = [span for span in run.spans if span.gpu == gpu]
    # Many chunks get thin rows: the staircase is what matters, and a page should hold it.
    chunk_rows = max(min(len(chunks), 0.45 * len(chunks) + 9), 1)
    heights = [0.5 + 1.6 * len(spans), chunk_rows, *([len(engines)] if engines else [])]
    figure = picture(10, 1.5 + 0.19 * sum(heights))
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    _stages(axes[0], run, spans)
    _chunks(axes[1], chunks)
    if engines:
        _engines(axes[2], run, gpu, engines)
    axes[0].set_title(f"What happens when under {run.overlap}? ({case_label(run.graph)}, GPU {gpu})")
    axes[-1].set_xlabel("time [µs]")
    axes[-1].set_xlim(0, run.seconds * 1e6)
    looks = [LOCAL, ARRIVING, *([LEAVING] if engines else [])]
    legend(figure, looks, more=axes[1].get_legend_handles_labels()[0])
    return figure


def merged(spans: Iterable[tuple[float, float]], gap: float) -> Bars:
    """Start and width of bars that cover (start, end) spans, those closer than `gap` drawn as one."""
    bars: list[list[float]] = []
    for start, end in sorted(spans):
        if bars and start - bars[-1][1] < gap:
            bars[-1][1] = max(bars[-1][1], end)
        else:
            bars.append([start, end])
    return [(start, end - start) for start, end in bars]


def _stages(ax: Axes, run: Timeline, spans: Sequence[Span]) -> None:
    """Stages of a kernel overlap a little: alternating half rows and shades keep them apart."""
    for row, span in enumerate(spans):
        look = PHASES.get(span.operator, Look(span.kernel, "#999999"))
        stages = [s for s in run.stages if s.gpu == span.gpu and s.kernel == span.kernel]
        for stage in stages:
            start, width = stage.start_fs * _US, (stage.end_fs - stage.start_fs) * _US
            middle, height = (row - 0.21 + 0.42 * (stage.index % 2), 0.42) if len(stages) > 1 else (row, 0.72)
            bar(ax, middle, start, width, look, height, edgecolor="white")
            if 1 < len(stages) <= 24 and width > run.seconds * 1e6 / 60:
                ax.text(
                    start + width / 2, middle, str(stage.index), ha="center", va="center", fontsize=6.5,
                    color="white", clip_on=True,
                )  # fmt: skip
    ax.set_yticks(range(len(spans)), [_named(span) for span in spans])
    ax.set_ylim(len(spans) - 0.45, -0.55)
    ax.set_ylabel("stages")
    grid(ax, "x")


def _named(span: Span) -> str:
    return PHASES[span.operator].label.split(" (")[0] if span.kernel in PHASES else span.kernel


def _chunks(ax: Axes, chunks: list[ChunkSpan]) -> None:
    for row, chunk in enumerate(chunks):
        lanes = (
            (LOCAL, chunk.first_local_fs, chunk.last_local_fs),
            (ARRIVING, chunk.first_remote_fs, chunk.last_remote_fs),
            (LEAVING, chunk.first_sent_fs, chunk.last_sent_fs),
        )
        for lane, (look, start, end) in enumerate(lanes):
            if start is not None and end is not None:
                middle = row - 0.28 + 0.28 * lane
                bar(ax, middle, start * _US, (end - start) * _US, look, 0.28, linewidth=0.3)
    done = [(chunk.complete_fs * _US, row) for row, chunk in enumerate(chunks) if chunk.complete_fs is not None]
    if done:
        size = 4 if len(chunks) < 20 else 2.5
        ax.plot(*zip(*done, strict=True), "kD", markersize=size, label="complete", linestyle="none")
    rows = range(0, len(chunks), -(-len(chunks) // 20) if chunks else 1)
    names = (_BUFFERS.get(chunks[row].buffer, chunks[row].buffer) for row in rows)
    ax.set_yticks(rows, [f"{name} {chunks[row].position}" for name, row in zip(names, rows, strict=True)])
    ax.set_ylim(len(chunks) - 0.45, -0.55)
    ax.tick_params(axis="y", labelsize=7)
    ax.set_ylabel("chunks")
    grid(ax, "x")


def _engines(ax: Axes, run: Timeline, gpu: int, engines: list[int]) -> None:
    gap = run.seconds * 1e6 / 500
    for row, engine in enumerate(engines):
        spans = ((d.start_fs * _US, d.end_fs * _US) for d in run.dmas if d.gpu == gpu and d.engine == engine)
        ax.broken_barh(merged(spans, gap), (row - 0.4, 0.8), facecolor=LEAVING.color, linewidth=0)
    ax.set_yticks(range(len(engines)), [f"engine {engine}" for engine in engines])
    ax.tick_params(axis="y", labelsize=7)
    ax.set_ylim(len(engines) - 0.45, -0.55)
    ax.set_ylabel("DMA")
    grid(ax, "x")


@styled
def speedups(
    comparisons: Mapping[object, Comparison] | Iterable[Comparison],
    published: Mapping[str, float] | None = None,
    title: str = "How much faster than sequential is each overlap?",
) -> Picture:
    """Bars of speedup over sequential for every sub-layer, with each overlap's geometric mean beside them.

    `published` gives geometric means to mark as lines, by overlap. The first comparison says which overlaps.
    """
    cases = list(comparisons.values() if isinstance(comparisons, Mapping) else comparisons)
    names = [name for name in cases[0].timelines if name != "sequential"]
    rows = [cases[at : at + _PER_ROW] for at in range(0, len(cases), _PER_ROW)]
    figure = picture(10, 0.7 + 2.9 * len(rows))
    axes = figure.subplots(len(rows), 1, squeeze=False, sharey=True)[:, 0]
    means = {name: geometric_mean([case.speedup(name) for case in cases]) for name in names}
    for ax, row in zip(axes, rows, strict=True):
        _bars(ax, row, names, means if row is rows[-1] else {})
        _published_lines(ax, published or {}, names)
    axes[0].set_title(title)
    looks = [overlap_look(name, i) for i, name in enumerate(names)]
    lines = [Line2D([], [], color="#444444", linestyle=_DASHES, label="published geometric mean")]
    legend(figure, looks, 6, lines if published else ())
    return figure


def _bars(ax: Axes, cases: list[Comparison], names: list[str], means: Mapping[str, float]) -> None:
    """A group of bars per sub-layer; the group of means is wider, so that its values can be written on it."""
    room = min(max(3 * len(cases) / _PER_ROW, 1.0), 3.0)
    middle = len(cases) - 0.2 + room / 2
    for i, name in enumerate(names):
        look = overlap_look(name, i)
        _row_of_bars(ax, look, [case.speedup(name) for case in cases], range(len(cases)), i, len(names), 1.0)
        if means:
            x = _row_of_bars(ax, look, [means[name]], [middle], i, len(names), room)
            place = (x[0], max(means[name], 1))
            note(ax, f"{means[name]:.2f}", place, (0, 3), va="bottom", fontsize=7, bbox=_WHITE, zorder=4)
    group_labels(ax, [case_of(case.baseline.graph) for case in cases], {"geometric mean": middle} if means else {})
    ax.axhline(1, color="black", linewidth=0.8)
    ax.set_ylabel("speedup over sequential [×]")
    low = min([case.speedup(name) for case in cases for name in names], default=1)
    ax.set_ylim(min(0.98, low - 0.05), None)
    ax.margins(x=0.01, y=0.16)
    grid(ax)


def _row_of_bars(
    ax: Axes, look: Look, values: Sequence[float], groups: Iterable[float], index: int, of: int, room: float
) -> list[float]:
    width = _ROOM * room / of
    places = [group - _ROOM * room / 2 + (index + 0.5) * width for group in groups]
    gains = [value - 1 for value in values]
    ax.bar(places, gains, width, bottom=1, color=look.color, hatch=look.hatch, edgecolor="#444444")
    return places


def _published_lines(ax: Axes, published: Mapping[str, float], names: list[str]) -> None:
    for name in names:
        if name in published:
            value = published[name]
            ax.axhline(
                value, color=overlap_look(name).color, linestyle=_DASHES, linewidth=1.3, zorder=3,
                path_effects=[withStroke(linewidth=3, foreground="white")],
            )  # fmt: skip
            edge = ("axes fraction", "data")
            note(ax, f"{name} {value:.2f}", (1, value), xycoords=edge, fontsize=7, annotation_clip=False)
