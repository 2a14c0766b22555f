"""Where the time goes: phases of a sub-layer, and what workgroups did or waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from weft.report.plots.style import PHASES, WAITS, Picture, grid, handle, picture, styled
from weft.result import Comparison, Result

_KERNELS = {"gemm": "GEMM", "reduce_scatter": "RS", "all_gather": "AG"}


@styled
def sub_layer_times(comparison: Comparison) -> Picture:
    """When each overlap computes and communicates: GEMM above, RS and AG below, on one time axis [us]."""
    results = list(comparison)
    figure = picture(10, 0.9 + 0.62 * len(results))
    ax = figure.subplots()
    for y, result in enumerate(results):
        for phase, (start, end) in phases(result).items():
            look, lane = PHASES[phase], (y - 0.36 if phase == "gemm" else y)
            ax.broken_barh(
                [(start, end - start)],
                (lane, 0.34),
                facecolor=look.color,
                hatch=look.hatch,
                edgecolor="#444444",
            )
        note = f"{result.total_us:.0f} µs{_speedup(comparison, result.config.overlap)}"
        ax.annotate(note, (result.total_us, y), (5, 0), textcoords="offset points", va="center")
    ax.set_yticks(range(len(results)), [result.config.overlap for result in results])
    ax.set_ylim(len(results) - 0.5, -0.5)
    ax.set_xlim(0, max(result.total_us for result in results) * 1.14)
    ax.set_xlabel("time [µs]")
    ax.set_title("How much communication hides behind the GEMM?")
    grid(ax, "x")
    figure.legend(handles=[handle(look) for look in PHASES.values()], loc="outside lower center", ncols=3)
    return figure


def _speedup(comparison: Comparison, overlap: str) -> str:
    if overlap == "sequential" or "sequential" not in comparison.results:
        return ""
    return f", {comparison.speedup(overlap):.2f}×"


def phases(result: Result, gpu: int = 0) -> dict[str, tuple[float, float]]:
    """When GEMM, reduce-scatter and all-gather ran on a GPU, start and end [us].

    A fused reduce-scatter runs from the first byte that arrives to the last chunk's completion; an ideal's
    phases are placed as its definition says.
    """
    spans = {k.name: (k.start_fs * 1e-9, k.end_fs * 1e-9) for k in result.kernels if k.gpu == gpu}
    if not spans:
        return _ideal_phases(result)
    if "reduce_scatter" not in spans and (fused := fused_reduce_scatter(result, gpu)) is not None:
        spans["reduce_scatter"] = fused
    return {name: spans[name] for name in PHASES if name in spans}


def fused_reduce_scatter(result: Result, gpu: int = 0) -> tuple[float, float] | None:
    """From the neighbour's first byte to the last complete chunk [us]; None if nothing was fused."""
    output = [chunk for chunk in result.chunks if chunk.gpu == gpu and chunk.buffer == "output"]
    starts = [c.first_remote_fs for c in output if c.first_remote_fs is not None]
    ends = [c.complete_fs for c in output if c.complete_fs is not None]
    return (min(starts) * 1e-9, max(ends) * 1e-9) if starts and ends else None


def _ideal_phases(result: Result) -> dict[str, tuple[float, float]]:
    t = result.times
    gather = (t.total - t.all_gather) * 1e6
    return {
        "gemm": (0.0, t.gemm * 1e6),
        "reduce_scatter": (0.0, t.reduce_scatter * 1e6),
        "all_gather": (gather, t.total * 1e6),
    }


@styled
def waits(results: Result | Sequence[Result], gpu: int = 0) -> Picture:
    """What the workgroups of every kernel did or waited for, as shares of their time [%]."""
    runs = [results] if isinstance(results, Result) else list(results)
    rows = [(run, kernel) for run in runs for kernel in run.kernels if kernel.gpu == gpu]
    figure = picture(10, 1.1 + 0.36 * len(rows))
    ax = figure.subplots()
    for y, (_, kernel) in enumerate(rows):
        _wait_bar(ax, y, kernel.waits)
    ax.set_yticks(
        range(len(rows)), [f"{run.config.overlap}: {_KERNELS.get(k.name, k.name)}" for run, k in rows]
    )
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.set_xlabel("share of the workgroups' time [%]")
    ax.set_title("What do workgroups wait for?")
    figure.legend(handles=[handle(look) for look in WAITS.values()], loc="outside lower center", ncols=5)
    return figure


def _wait_bar(ax: Axes, y: int, amounts: Mapping[str, int]) -> None:
    total, left = sum(amounts.values()) or 1, 0.0
    for name, look in WAITS.items():
        share = amounts.get(name, 0) / total
        ax.barh(y, share, 0.7, left=left, color=look.color, hatch=look.hatch, edgecolor="#444444")
        if share >= 0.06:
            ax.annotate(
                f"{share:.0%}", (left + share / 2, y), ha="center", va="center", fontsize=8,
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
            )  # fmt: skip
        left += share
