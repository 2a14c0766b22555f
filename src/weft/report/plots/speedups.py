"""Speedup of every overlap, sub-layer by sub-layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from weft.report.plots.style import (
    Look,
    Picture,
    grid,
    group_labels,
    handle,
    overlap_look,
    picture,
    styled,
    sublayer_label,
)
from weft.result import Comparison

_ROOM = 0.84
_PER_ROW = 16
_WHITE = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
_DASHES = (0, (5, 2))


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
    names = [name for name in cases[0].results if name != "sequential"]
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
    figure.legend(
        handles=[*map(handle, looks), *(lines if published else [])], loc="outside lower center", ncols=6
    )
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
            ax.annotate(
                f"{means[name]:.2f}", (x[0], max(means[name], 1)), (0, 3), textcoords="offset points",
                ha="center", va="bottom", fontsize=7, bbox=_WHITE, zorder=4,
            )  # fmt: skip
    places = [*range(len(cases)), *([middle] if means else [])]
    labels = [sublayer_label(case.baseline.config.sublayer) for case in cases]
    ax.set_xticks(places, labels + (["geometric mean"] if means else []))
    group_labels(ax, cases)
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
                value,
                color=overlap_look(name).color,
                linestyle=_DASHES,
                linewidth=1.3,
                zorder=3,
                path_effects=[withStroke(linewidth=3, foreground="white")],
            )
            ax.annotate(
                f"{name} {value:.2f}", (1, value), (4, 0), xycoords=("axes fraction", "data"),
                textcoords="offset points", va="center", fontsize=7, annotation_clip=False,
            )  # fmt: skip
