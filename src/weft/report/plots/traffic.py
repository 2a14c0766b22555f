"""DRAM traffic: over time, and in all, by what caused it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from weft.errors import InputError
from weft.report.plots.style import (
    CAUSES,
    Picture,
    cause_look,
    grid,
    group_labels,
    handle,
    picture,
    styled,
    sublayer_label,
)
from weft.result import Comparison, Result

_BINS_SHOWN = 420
Window = tuple[float, float]
Floats = npt.NDArray[np.float64]


@styled
def traffic_over_time(
    results: Result | Sequence[Result],
    zoom: Window | None = None,
    gpu: int = 0,
) -> Picture:
    """DRAM traffic by cause over time, one panel per run on the same axes [GB/s over us].

    `zoom` (start and end [us]) adds a second row that shows that window bin by bin; the first row averages
    bins so that a whole run fits. A dashed line is the memory's peak. Raises InputError for an ideal.
    """
    runs = [results] if isinstance(results, Result) else list(results)
    _require_series(runs)
    windows = [None, zoom] if zoom else [None]
    figure = picture(10, 0.9 + 2.5 * len(windows))
    grid_of_axes = figure.subplots(len(windows), len(runs), squeeze=False, sharex="row", sharey=True)
    for row, window in zip(grid_of_axes, windows, strict=True):
        for ax, run in zip(row, runs, strict=True):
            _areas(ax, run, window, gpu)
            _peak(ax, run.config.dram_bytes_per_s)
            if window is None:
                ax.set_title(_run_title(run, alone=len(runs) == 1))
                _shade(ax, zoom)
            else:
                ax.set_title(f"zoom: {window[0]:.0f} to {window[1]:.0f} µs", fontweight="normal")
            ax.set_xlabel("time [µs]")
        row[0].set_ylabel("DRAM traffic [GB/s]")
    if len(runs) > 1:
        figure.suptitle(
            "Does communication burst into the GEMM's traffic, and is there room for both?",
            x=0.005,
            ha="left",
        )
    grid_of_axes[0][0].set_xlim(0, max(run.total_us for run in runs))
    grid_of_axes[0][0].set_ylim(0, 1.12 * max(run.config.dram_bytes_per_s for run in runs) / 1e9)
    present = [name for name in CAUSES if any(_matters(run, name) for run in runs)]
    figure.legend(
        handles=[handle(cause_look(name, runs[0].config.lone_collective)) for name in present],
        loc="outside lower center",
        ncols=min(len(present), 6),
    )
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
        return _one_sub_layer(comparisons, overlaps or [r.config.overlap for r in comparisons if not r.parts])
    cases = list(comparisons.values() if isinstance(comparisons, Mapping) else comparisons)
    return _many_sub_layers(cases, overlaps or ("sequential", "t3-mca"))


def busiest_stages(result: Result, count: int = 3, gpu: int = 0) -> Window | None:
    """The window of `count` GEMM stages with the most reduce-scatter traffic [us]; None without any."""
    stages = [stage for stage in result.stages if stage.kernel == "gemm" and stage.gpu == gpu]
    if not stages or result.series is None:
        return None
    communication = sum(
        (_traffic(result, name, gpu) for name in CAUSES if name.startswith("rs_")), np.zeros(1)
    )
    starts = [stage.start_fs * 1e-9 for stage in stages] + [max(stage.end_fs for stage in stages) * 1e-9]
    windows = [
        (starts[i], starts[min(i + count, len(stages))]) for i in range(max(len(stages) - count + 1, 1))
    ]
    bin_us = result.series.bin_fs * 1e-9

    def rate_in(window: Window) -> float:
        first = int(window[0] / bin_us)
        return float(communication[first : max(int(window[1] / bin_us), first + 1)].mean())

    best = max(windows, key=rate_in)
    return best if rate_in(best) else None


def _require_series(runs: Sequence[Result]) -> None:
    for run in runs:
        if run.series is None:
            raise InputError(
                f"'{run.config.overlap}' has no traffic over time: it is an ideal, put together from other "
                f"runs; draw a simulated overlap instead"
            )


def _traffic(run: Result, cause: str, gpu: int) -> Floats:
    assert run.series is not None
    if cause not in run.series.traffic:
        return np.zeros(run.series.link.shape[1])
    return run.series.rate(cause, gpu) / 1e9


def _areas(ax: Axes, run: Result, window: Window | None, gpu: int) -> None:
    """Stacked steps: exact at the bin edges, whatever the zoom."""
    assert run.series is not None
    bin_us = run.series.bin_fs * 1e-9
    bins = run.series.link.shape[1]
    first, last = (0, bins) if window is None else (int(window[0] / bin_us), int(np.ceil(window[1] / bin_us)))
    together = -(-(last - first) // _BINS_SHOWN)
    base: Floats | None = None
    for name, look in CAUSES.items():
        rate = _averaged(_traffic(run, name, gpu)[first:last], together)
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


def _peak(ax: Axes, peak_bytes_per_s: float) -> None:
    peak = peak_bytes_per_s / 1e9
    ax.axhline(peak, color="black", linestyle="--", linewidth=1)
    ax.annotate(
        f"peak {peak:.0f} GB/s", (1, peak), (-2, 2), xycoords=("axes fraction", "data"), ha="right",
        va="bottom", textcoords="offset points", fontsize=8,
    )  # fmt: skip


def _shade(ax: Axes, window: Window | None) -> None:
    if window is not None:
        ax.axvspan(*window, color="black", alpha=0.08, linewidth=0)


def _run_title(run: Result, alone: bool) -> str:
    question = ": what uses DRAM, when?" if alone else ":"
    return f"{run.config.overlap}{question} GEMM {run.times.gemm * 1e6:.0f} µs, all {run.total_us:.0f} µs"


def _one_sub_layer(case: Comparison, overlaps: Sequence[str]) -> Picture:
    figure = picture(10, 0.9 + 0.5 * len(overlaps))
    ax = figure.subplots()
    present = [name for name in CAUSES if any(_matters(case[o], name) for o in overlaps)]
    for y, overlap in enumerate(overlaps):
        left = 0.0
        for name in present:
            look, width = cause_look(name), case[overlap].bytes.get(name, 0) / 1e6
            ax.barh(y, width, 0.66, left=left, color=look.color, hatch=look.hatch, edgecolor="#444444")
            left += width
        note = f"{left:.0f} MB{_change(case, overlap)}"
        ax.annotate(note, (left, y), (4, 0), textcoords="offset points", va="center")
    ax.set_yticks(range(len(overlaps)), overlaps)
    ax.invert_yaxis()
    ax.margins(x=0.16)
    ax.set_xlabel("DRAM traffic of one GPU [MB]")
    ax.set_title("Which traffic does each overlap cause?")
    grid(ax, "x")
    figure.legend(handles=[handle(cause_look(n)) for n in present], loc="outside lower center", ncols=7)
    return figure


def _matters(result: Result, cause: str) -> bool:
    """Whether a cause is wide enough to be seen in a bar: half a percent of all traffic."""
    return result.bytes.get(cause, 0) > result.total_bytes / 200


def _change(case: Comparison, overlap: str) -> str:
    if overlap == "sequential" or "sequential" not in case.results:
        return ""
    return f" ({case[overlap].total_bytes / case.baseline.total_bytes - 1:+.0%})"


def _many_sub_layers(cases: Sequence[Comparison], overlaps: Sequence[str]) -> Picture:
    rows = [cases[at : at + 16] for at in range(0, len(cases), 16)]
    figure = picture(10, 0.8 + 3.1 * len(rows))
    axes = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
    present = [n for n in CAUSES if any(_matters(case[o], n) for case in cases for o in overlaps)]
    for ax, row in zip(axes, rows, strict=True):
        _share_bars(ax, row, overlaps, present)
    axes[0].set_title(
        f"Where is DRAM traffic saved? For each sub-layer, left to right: {', '.join(overlaps)}"
    )
    figure.legend(
        handles=[handle(cause_look(n)) for n in present],
        loc="outside lower center",
        ncols=min(len(present), 6),
    )
    return figure


def _share_bars(
    ax: Axes, cases: Sequence[Comparison], overlaps: Sequence[str], causes: Sequence[str]
) -> None:
    width = 0.84 / len(overlaps)
    for i, overlap in enumerate(overlaps):
        at = np.arange(len(cases)) - 0.42 + (i + 0.5) * width
        bottom = np.zeros(len(cases))
        for name in causes:
            look = cause_look(name)
            share = np.array([c[overlap].bytes.get(name, 0) / c.baseline.total_bytes for c in cases])
            ax.bar(
                at,
                share,
                width * 0.94,
                bottom=bottom,
                color=look.color,
                hatch=look.hatch,
                edgecolor="#444444",
            )
            bottom += share
        if overlap != "sequential":
            for x, top in zip(at, bottom, strict=True):
                ax.annotate(
                    f"{top - 1:+.0%}", (x, top), (0, 2), textcoords="offset points", ha="center", fontsize=7.5
                )
    ax.set_xticks(range(len(cases)), [sublayer_label(case.baseline.config.sublayer) for case in cases])
    group_labels(ax, cases)
    ax.set_ylabel("DRAM traffic\n[% of sequential]")
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.margins(x=0.01, y=0.08)
    grid(ax)
