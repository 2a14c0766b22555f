"""DRAM traffic: over time, and in all, by what caused it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from weft.errors import InputError
from weft.report.plots.style import (
    CAUSES,
    Look,
    Picture,
    case_of,
    cause_look,
    grid,
    group_labels,
    legend,
    note,
    picture,
    stack,
    styled,
)  # fmt: skip
from weft.result import Comparison, Timeline
from weft.result.timeline import Cause

_BINS_SHOWN = 420
Window = tuple[float, float]
Floats = npt.NDArray[np.float64]


@styled
def traffic_over_time(results: Timeline | Sequence[Timeline], zoom: Window | None = None, gpu: int = 0) -> Picture:
    """DRAM traffic by cause over time, one panel per run on the same axes [GB/s over us].

    `zoom` (start and end [us]) adds a second row that shows that window bin by bin; the first row averages
    bins so that a whole run fits. A dashed line is the memory's peak. Raises InputError for an ideal.
    """
    runs = [results] if isinstance(results, Timeline) else list(results)
    _require_series(runs)
    windows = [None, zoom] if zoom else [None]
    figure = picture(10, 0.9 + 2.5 * len(windows))
    grid_of_axes = figure.subplots(len(windows), len(runs), squeeze=False, sharex="row", sharey=True)
    for row, window in zip(grid_of_axes, windows, strict=True):
        for ax, run in zip(row, runs, strict=True):
            _areas(ax, run, window, gpu)
            _peak(ax, run.gpu.memory.bandwidth / 1e9)
            if window is None:
                ax.set_title(_run_title(run, alone=len(runs) == 1))
                if zoom is not None:
                    ax.axvspan(*zoom, color="black", alpha=0.08, linewidth=0)
            else:
                ax.set_title(f"zoom: {window[0]:.0f} to {window[1]:.0f} µs", fontweight="normal")
            ax.set_xlabel("time [µs]")
        row[0].set_ylabel("DRAM traffic [GB/s]")
    if len(runs) > 1:
        question = "Does communication burst into the GEMM's traffic, and is there room for both?"
        figure.suptitle(question, x=0.005, ha="left")
    grid_of_axes[0][0].set_xlim(0, max(run.seconds for run in runs) * 1e6)
    grid_of_axes[0][0].set_ylim(0, 1.12 * max(run.gpu.memory.bandwidth for run in runs) / 1e9)
    legend(figure, _present(runs).values(), 6)
    return figure


@styled
def traffic_by_cause(
    comparisons: Comparison | Mapping[object, Comparison] | Iterable[Comparison],
    overlaps: Sequence[str] | None = None,
) -> Picture:
    """DRAM traffic in all, stacked by cause: one sub-layer in MB, several as a share of their sequential run.

    `overlaps` stand side by side; by default sequential and t3-mca, or all simulated ones of one comparison.
    """
    if isinstance(comparisons, Comparison):
        return _one_sub_layer(comparisons, overlaps or [run.overlap for run in comparisons if not run.parts])
    cases = list(comparisons.values() if isinstance(comparisons, Mapping) else comparisons)
    return _many_sub_layers(cases, overlaps or ("sequential", "t3-mca"))


def busiest_stages(run: Timeline, count: int = 3, gpu: int = 0) -> Window | None:
    """The window of `count` GEMM stages with the most reduce-scatter traffic [us]; None without any."""
    kernels = {span.kernel for span in run.spans if span.operator == "gemm"}
    stages = [stage for stage in run.stages if stage.kernel in kernels and stage.gpu == gpu]
    if not stages or run.series is None:
        return None
    scattered = [cause for cause in run.series.traffic if cause[0] == "reduce_scatter"]
    communication = sum((_rate(run, cause, gpu) for cause in scattered), np.zeros(1))
    starts = [stage.start_fs * 1e-9 for stage in stages] + [max(stage.end_fs for stage in stages) * 1e-9]
    windows = [(starts[i], starts[min(i + count, len(stages))]) for i in range(max(len(stages) - count + 1, 1))]
    bin_us = run.series.bin_fs * 1e-9

    def rate_in(window: Window) -> float:
        first = int(window[0] / bin_us)
        return float(communication[first : max(int(window[1] / bin_us), first + 1)].mean())

    best = max(windows, key=rate_in)
    return best if rate_in(best) else None


def _require_series(runs: Sequence[Timeline]) -> None:
    for run in runs:
        if run.series is None:
            raise InputError(
                f"'{run.overlap}' has no traffic over time: it is an ideal, put together from other runs; "
                "draw a simulated overlap instead"
            )


def _present(runs: Sequence[Timeline]) -> dict[Cause, Look]:
    """The causes that are wide enough to be seen in a bar, half a percent of all traffic, those of CAUSES first."""
    names = dict.fromkeys((*CAUSES, *(cause for run in runs for cause in run.traffic)))
    seen = [c for c in names if any(run.traffic.get(c, 0) > run.total_bytes / 200 for run in runs)]
    return {cause: cause_look(cause) for cause in seen}


def _rate(run: Timeline, cause: Cause, gpu: int) -> Floats:
    assert run.series is not None
    return run.series.rate(cause, gpu) / 1e9


def _areas(ax: Axes, run: Timeline, window: Window | None, gpu: int) -> None:
    """Stacked steps: exact at the bin edges, whatever the zoom."""
    assert run.series is not None
    bin_us = run.series.bin_fs * 1e-9
    bins = run.series.link.shape[1]
    first, last = (0, bins) if window is None else (int(window[0] / bin_us), int(np.ceil(window[1] / bin_us)))
    together = -(-(last - first) // _BINS_SHOWN)
    base: Floats | None = None
    for cause in dict.fromkeys((*CAUSES, *run.series.traffic)):
        if cause not in run.series.traffic:
            continue
        look, rate = cause_look(cause), _averaged(_rate(run, cause, gpu)[first:last], together)
        if not rate.any():
            continue
        edges = (first + np.arange(len(rate) + 1) * together) * bin_us
        lower = np.zeros_like(rate) if base is None else base
        upper = lower + rate
        ax.fill_between(
            edges, np.append(lower, lower[-1]), np.append(upper, upper[-1]), step="post",
            facecolor=look.color, hatch=look.hatch, edgecolor="#444444", linewidth=0,
        )  # fmt: skip
        base = upper
    if window is not None:
        ax.set_xlim(*window)
    grid(ax)


def _averaged(rate: Floats, together: int) -> Floats:
    padded = np.append(rate, np.zeros(-len(rate) % together))
    return np.asarray(padded.reshape(-1, together).mean(axis=1))


def _peak(ax: Axes, peak: float) -> None:
    ax.axhline(peak, color="black", linestyle="--", linewidth=1)
    edge = ("axes fraction", "data")
    note(ax, f"peak {peak:.0f} GB/s", (1, peak), (-2, 2), xycoords=edge, ha="right", va="bottom", fontsize=8)


def _run_title(run: Timeline, alone: bool) -> str:
    question = ": what uses DRAM, when?" if alone else ":"
    gemm = f" GEMM {run.duration('gemm') * 1e6:.0f} µs," if run.duration("gemm") else ""
    return f"{run.overlap}{question}{gemm} all {run.seconds * 1e6:.0f} µs"


def _one_sub_layer(case: Comparison, overlaps: Sequence[str]) -> Picture:
    runs = [case[overlap] for overlap in overlaps]
    figure = picture(10, 0.9 + 0.5 * len(runs))
    ax = figure.subplots()
    looks = _present(runs)
    rows = [{cause: run.traffic.get(cause, 0) / 1e6 for cause in looks} for run in runs]
    stack(ax, rows, looks)
    for y, (run, row) in enumerate(zip(runs, rows, strict=True)):
        more = run.total_bytes / case.baseline.total_bytes - 1
        change = f" ({more:+.0%})" if run is not case.baseline else ""
        note(ax, f"{sum(row.values()):.0f} MB{change}", (sum(row.values()), y))
    ax.set_yticks(range(len(runs)), overlaps)
    ax.margins(x=0.16)
    ax.set_xlabel("DRAM traffic of one GPU [MB]")
    ax.set_title("Which traffic does each overlap cause?")
    legend(figure, looks.values(), 7)
    return figure


def _many_sub_layers(cases: Sequence[Comparison], overlaps: Sequence[str]) -> Picture:
    rows = [cases[at : at + 16] for at in range(0, len(cases), 16)]
    figure = picture(10, 0.8 + 3.1 * len(rows))
    axes = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
    looks = _present([case[overlap] for case in cases for overlap in overlaps])
    for ax, row in zip(axes, rows, strict=True):
        _share_bars(ax, row, overlaps, looks)
    axes[0].set_title(f"Where is DRAM traffic saved? For each sub-layer, left to right: {', '.join(overlaps)}")
    legend(figure, looks.values(), 6)
    return figure


def _share_bars(ax: Axes, cases: Sequence[Comparison], overlaps: Sequence[str], looks: Mapping[Cause, Look]) -> None:
    width = 0.84 / len(overlaps)
    for i, overlap in enumerate(overlaps):
        at = np.arange(len(cases)) - 0.42 + (i + 0.5) * width
        bottom = np.zeros(len(cases))
        for cause, look in looks.items():
            share = np.array([c[overlap].traffic.get(cause, 0) / c.baseline.total_bytes for c in cases])
            style: Any = {"color": look.color, "hatch": look.hatch, "edgecolor": "#444444"}
            ax.bar(at, share, width * 0.94, bottom=bottom, **style)
            bottom += share
        if overlap != "sequential":
            for x, top in zip(at, bottom, strict=True):
                note(ax, f"{top - 1:+.0%}", (x, top), (0, 2), fontsize=7.5)
    group_labels(ax, [case_of(case.baseline.graph) for case in cases])
    ax.set_ylabel("DRAM traffic\n[% of sequential]")
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.margins(x=0.01, y=0.08)
    grid(ax)
