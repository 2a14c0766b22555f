"""Pictures of the C3 study: shares of the ideal, every scenario, and the curves behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, PercentFormatter

from weft.report.plots.style import STRATEGIES, Picture, grid, legend, note, picture, styled
from weft.report.tables import percent
from weft.result.metrics import CLASSES
from weft.units import format_bytes

if TYPE_CHECKING:
    from weft.studies.c3 import Case

_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_MARKERS = {"G-long": "^", "GC-equal": "o", "C-long": "v"}


@styled
def shares(cases: Sequence[Case], published: Mapping[str, float] | None = None) -> Picture:
    """Mean share of the ideal speedup of each strategy, over all scenarios and by class; `published` as lines."""
    figure = picture(10, 3.8)
    ax = figure.subplots()
    by_class = {kind: [case for case in cases if case.kind == kind] for kind in CLASSES}
    groups = {"all": list(cases)} | {kind: members for kind, members in by_class.items() if members}
    names = [name for name in STRATEGIES if name in cases[0].strategies]
    width = 0.84 / len(names)
    for place, (kind, members) in enumerate(groups.items()):
        for index, name in enumerate(names):
            look, at = STRATEGIES[name], place - 0.42 + (index + 0.5) * width
            value = fmean(case.share(name) for case in members)
            ax.bar(at, value, width, color=look.color, hatch=look.hatch, edgecolor="#444444")
            note(ax, percent(value), (at, max(value, 0)), (0, 2), fontsize=7)
            if kind == "all" and published and name in published:
                ends = (at - width / 2, at + width / 2)
                ax.plot(ends, (published[name],) * 2, color="black", linewidth=2.2, zorder=4)
    labels = [f"{CLASSES.get(kind, 'all scenarios')}\n({len(members)})" for kind, members in groups.items()]
    ax.set_xticks(range(len(groups)), labels)
    ax.axhline(1, color="black", linewidth=0.8, linestyle=(0, (5, 2)))
    ax.axhline(0, color="black", linewidth=0.8)
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.set_ylabel("share of the ideal speedup [%]")
    ax.set_title("How much of what overlap could save does each strategy save?")
    grid(ax)
    line = Line2D([], [], color="black", linewidth=2.2, label="published mean")
    legend(figure, [STRATEGIES[name] for name in names], 7, [line] if published else ())
    return figure


@styled
def slowdowns(cases: Sequence[Case]) -> Picture:
    """Every scenario: how much longer the GEMM and the collective took under each strategy than alone."""
    names = [name for name in STRATEGIES if name in cases[0].strategies]
    figure = picture(10, 5.6)
    axes = figure.subplots(2, -(-len(names) // 2), sharex=True, sharey=True, squeeze=False).ravel()
    for ax, name in zip(axes, names, strict=False):
        for color, (kind, words) in zip(_LINES, CLASSES.items(), strict=False):
            members = [case for case in cases if case.kind == kind]
            ax.scatter(
                [case.gemm_slowdown(name) for case in members],
                [case.collective_slowdown(name) for case in members],
                s=24,
                marker=_MARKERS[kind],
                color=color,
                label=words,
                alpha=0.85,
            )
        ax.axvline(1, color="#888888", linewidth=0.7)
        ax.axhline(1, color="#888888", linewidth=0.7)
        ax.set_title(name)
        grid(ax)
    for ax in axes[len(names) :]:
        ax.set_axis_off()
    figure.supxlabel("time until the GEMM ends, over its time alone", fontsize=9)
    figure.supylabel("time until the collective ends, over its time alone", fontsize=9)
    axes[0].legend(fontsize=7)
    return figure


@styled
def compute_unit_curves(
    slowdown: Mapping[str, Mapping[int, float]],
    boundness: Mapping[str, str | None],
    bandwidth: Mapping[str, Mapping[int, float]],
) -> Picture:
    """A GEMM's time against compute units lost, and a collective's bandwidth against those given."""
    figure = picture(10, 4)
    left, right = figure.subplots(1, 2)
    for name, curve in slowdown.items():
        color = "#D55E00" if boundness[name] == "memory" else "#0072B2"
        left.plot(list(curve), list(curve.values()), color=color, linewidth=0.7, alpha=0.35)
    for bound, color, style in (("compute", "#0072B2", "-"), ("memory", "#D55E00", "--")):
        members = [curve for name, curve in slowdown.items() if boundness[name] == bound]
        if members:
            means = {lost: fmean(curve[lost] for curve in members) for lost in members[0]}
            left.plot(
                list(means), list(means.values()), style, color=color, linewidth=2.4, marker="o", markersize=4,
                label=f"{bound}-bound, mean of {len(members)}",
            )  # fmt: skip
    left.set_xlabel("compute units lost")
    left.set_ylabel("time over that on all")
    left.set_title("What does a GEMM lose?")
    left.legend()
    for index, (name, curve) in enumerate(bandwidth.items()):
        best = max(curve.values())
        right.plot(
            list(curve), [value / best for value in curve.values()], marker="os"[index % 2], color=_LINES[index],
            label=f"{name}, best {best / 1e9:,.0f} GB/s",
        )  # fmt: skip
    right.set_xscale("log", base=2)
    right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    right.yaxis.set_major_formatter(PercentFormatter(1))
    right.set_ylim(0, 1.05)
    right.set_xlabel("compute units given")
    right.set_ylabel("share of its best bandwidth [%]")
    right.set_title("How many does a collective need?")
    right.legend()
    for ax in (left, right):
        grid(ax)
    return figure


@styled
def drivers(cu_s: Mapping[str, Mapping[int, float]], dma_s: Mapping[str, Mapping[int, float]]) -> Picture:
    """Time of collectives by DMA engines over that by compute units, against size."""
    figure = picture(10, 3.6)
    ax = figure.subplots()
    for index, (name, curve) in enumerate(dma_s.items()):
        ratios = [time / cu_s[name][size] for size, time in curve.items()]
        ax.plot(list(curve), ratios, marker="os"[index % 2], color=_LINES[index], label=name)
    ax.axhline(1, color="black", linewidth=0.8)
    _sizes(ax)
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    ax.set_ylabel("DMA engines over compute units")
    ax.set_title("From which size on are DMA engines the faster driver?")
    ax.legend()
    grid(ax)
    return figure


def _sizes(ax: Axes) -> None:
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value, 3)))
    ax.set_xlabel("size of the whole buffer")
