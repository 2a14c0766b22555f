"""One run on a time axis: stages of kernels, chunks on their way, DMA engines at work."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes

from weft.errors import InputError
from weft.report.plots.style import PHASES, Look, Picture, case_label, grid, handle, picture, styled
from weft.result import ChunkSpan, Result

Bars = list[tuple[float, float]]

LOCAL = Look("written by this GPU", "#0072B2")
ARRIVING = Look("arriving from the neighbour", "#E69F00", "////")
LEAVING = Look("sent on by DMA", "#009E73", "....")
_BUFFERS = {"output": "RS chunk", "received": "RS chunk", "result": "RS result", "gathered": "AG chunk"}


@styled
def timeline(result: Result, gpu: int = 0) -> Picture:
    """When stages ran, chunks were written, arrived and left, and DMA engines were busy on a GPU [us].

    Raises InputError for an ideal, which has no events.
    """
    if not result.kernels:
        raise InputError(
            f"'{result.config.overlap}' has no timeline: it is an ideal; draw a simulated overlap instead"
        )
    chunks = [chunk for chunk in result.chunks if chunk.gpu == gpu]
    engines = sorted({dma.engine for dma in result.dmas if dma.gpu == gpu})
    kernels = [kernel for kernel in result.kernels if kernel.gpu == gpu]
    # Many chunks get thin rows: the staircase is what matters, and a page should hold it.
    chunk_rows = max(min(len(chunks), 0.45 * len(chunks) + 9), 1)
    heights = [0.5 + 1.6 * len(kernels), chunk_rows, max(len(engines), 0.01)]
    figure = picture(10, 1.5 + 0.19 * sum(heights))
    axes = figure.subplots(3 if engines else 2, 1, sharex=True, height_ratios=heights[: 3 if engines else 2])
    _stages(axes[0], result, gpu)
    _chunks(axes[1], chunks)
    if engines:
        _engines(axes[2], result, gpu, engines)
    axes[0].set_title(
        f"What happens when under {result.config.overlap}? ({case_label(result.config)}, GPU {gpu})"
    )
    axes[-1].set_xlabel("time [µs]")
    axes[-1].set_xlim(0, result.total_us)
    looks = [LOCAL, ARRIVING, *([LEAVING] if engines else [])]
    figure.legend(
        handles=[*map(handle, looks), *axes[1].get_legend_handles_labels()[0]],
        loc="outside lower center",
        ncols=4,
    )
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


def _stages(ax: Axes, result: Result, gpu: int) -> None:
    """Stages of a kernel overlap a little: alternating half rows and shades keep them apart."""
    names = [kernel.name for kernel in result.kernels if kernel.gpu == gpu]
    for row, name in enumerate(names):
        look = PHASES.get(name, Look(name, "#999999"))
        stages = [s for s in result.stages if s.gpu == gpu and s.kernel == name]
        for stage in stages:
            start, end = stage.start_fs * 1e-9, stage.end_fs * 1e-9
            low, height = (
                (row - 0.42 + 0.42 * (stage.index % 2), 0.42) if len(stages) > 1 else (row - 0.36, 0.72)
            )
            ax.broken_barh(
                [(start, end - start)],
                (low, height),
                facecolor=look.color,
                hatch=look.hatch,
                edgecolor="white",
            )
            if 1 < len(stages) <= 24 and end - start > result.total_us / 60:
                ax.text(
                    (start + end) / 2, low + height / 2, str(stage.index), ha="center", va="center",
                    fontsize=6.5, color="white", clip_on=True,
                )  # fmt: skip
    ax.set_yticks(range(len(names)), [PHASES[n].label.split(" (")[0] if n in PHASES else n for n in names])
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.set_ylabel("stages")
    grid(ax, "x")


def _chunks(ax: Axes, chunks: list[ChunkSpan]) -> None:
    for row, chunk in enumerate(chunks):
        lanes = (
            (LOCAL, chunk.first_local_fs, chunk.last_local_fs),
            (ARRIVING, chunk.first_remote_fs, chunk.last_remote_fs),
            (LEAVING, chunk.first_sent_fs, chunk.last_sent_fs),
        )
        for lane, (look, start, end) in enumerate(lanes):
            if start is not None and end is not None:
                ax.broken_barh(
                    [(start * 1e-9, (end - start) * 1e-9)], (row - 0.42 + 0.28 * lane, 0.28),
                    facecolor=look.color, hatch=look.hatch, edgecolor="#444444", linewidth=0.3,
                )  # fmt: skip
    done = [
        (chunk.complete_fs * 1e-9, row) for row, chunk in enumerate(chunks) if chunk.complete_fs is not None
    ]
    if done:
        size = 4 if len(chunks) < 20 else 2.5
        ax.plot(*zip(*done, strict=True), "kD", markersize=size, label="complete", linestyle="none")
    rows = range(0, len(chunks), -(-len(chunks) // 20) if chunks else 1)
    ax.set_yticks(rows, [_chunk_label(chunks[row]) for row in rows])
    ax.set_ylim(len(chunks) - 0.45, -0.55)
    ax.tick_params(axis="y", labelsize=7)
    ax.set_ylabel("chunks")
    grid(ax, "x")


def _chunk_label(chunk: ChunkSpan) -> str:
    return f"{_BUFFERS.get(chunk.buffer, chunk.buffer)} {chunk.position}"


def _engines(ax: Axes, result: Result, gpu: int, engines: list[int]) -> None:
    gap = result.total_us / 500
    for row, engine in enumerate(engines):
        spans = (
            (d.start_fs * 1e-9, d.end_fs * 1e-9) for d in result.dmas if d.gpu == gpu and d.engine == engine
        )
        ax.broken_barh(merged(spans, gap), (row - 0.4, 0.8), facecolor=LEAVING.color, linewidth=0)
    ax.set_yticks(range(len(engines)), [f"engine {engine}" for engine in engines])
    ax.tick_params(axis="y", labelsize=7)
    ax.set_ylim(len(engines) - 0.45, -0.55)
    ax.set_ylabel("DMA")
    grid(ax, "x")
