"""Pictures of the CU-split study: slowdowns against compute units, and the speedups of every sub-layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.ticker import FuncFormatter, PercentFormatter

from weft.graph import Graph
from weft.report.plots.style import Look, Picture, case_of, grid, group_labels, legend, picture, styled

GEMM, RING = Look("GEMM", "#0072B2"), Look("all-reduce", "#D55E00")
_IDEAL = Look("", "#999999")
_COLORS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#0072B2")
_HATCHES = ("////", "....", "xxxx", "----")
_LEGEND_COLUMNS = 3


@styled
def slowdowns(
    curve: Mapping[int, tuple[float, float]],
    spread: Mapping[int, Sequence[tuple[float, float]]],
    published: Mapping[int, tuple[float | None, float | None]],
) -> Picture:
    """How much longer the GEMM and the all-reduce take against the units that the all-reduce has.

    `curve` are means, `spread` those of every sub-layer, `published` the paper's where there are any: GEMM, all-reduce.
    """
    figure = picture(10, 3.8)
    ax = figure.subplots()
    units = sorted(curve)
    for side, look in enumerate((GEMM, RING)):
        for thin in zip(*(spread[u] for u in units), strict=True):
            ax.plot(units, [pair[side] for pair in thin], color=look.color, linewidth=0.6, alpha=0.3)
        marker = "os"[side]
        ax.plot(
            units, [curve[u][side] for u in units], marker=marker, color=look.color, linewidth=2.2, label=look.label
        )  # fmt: skip
        known = {u: value for u, pair in published.items() if (value := pair[side]) is not None}
        ax.scatter(
            list(known), list(known.values()), marker="_", s=260, linewidth=2.4, color="black", zorder=4,
            label="published mean" if side and known else None,
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_xticks(units)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    ax.set_ylim(0, max(0.5, *(1.15 * max(pair) for pair in curve.values())))
    ax.set_xlabel("compute units of the all-reduce; the GEMM has the rest")
    ax.set_ylabel("longer than on all units")
    ax.set_title("What do the GEMM and the all-reduce lose on their share of the compute units?")
    ax.legend()
    grid(ax)
    return figure


@styled
def speedups(graphs: Sequence[Graph], series: Mapping[str, Sequence[float]]) -> Picture:
    """The speedup of every sub-layer over serial execution, a bar per series.

    The first series is the ideal; then every split has two, by the times of each alone and with both at once.
    """
    figure = picture(10, 3.8)
    ax = figure.subplots()
    width = 0.84 / len(series)
    looks = [_look(index, name) for index, name in enumerate(series)]
    for index, (look, values) in enumerate(zip(looks, series.values(), strict=True)):
        at = [place - 0.42 + (index + 0.5) * width for place in range(len(graphs))]
        ax.bar(at, values, width, color=look.color, hatch=look.hatch, edgecolor="#444444")
    ax.axhline(1, color="black", linewidth=0.8)
    group_labels(ax, list(map(case_of, graphs)))
    ax.set_ylabel("speedup over serial execution")
    ax.set_title("What can overlap gain in each sub-layer?")
    grid(ax)
    legend(figure, looks, _LEGEND_COLUMNS)
    return figure


def _look(index: int, name: str) -> Look:
    """A colour for each split, hatched where both run at once; after seven of them colours repeat."""
    if index == 0:
        return _IDEAL._replace(label=name)
    split, at_once = divmod(index - 1, 2)
    return Look(
        name,
        _COLORS[split % len(_COLORS)],
        _HATCHES[split // len(_COLORS) % len(_HATCHES)] if at_once else "",
    )
