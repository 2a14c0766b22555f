"""Pictures of independent GEMMs on one GPU: every way to run them, and what kernels for the real share change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from weft.report.plots.style import Look, Picture, grid, legend, note, picture, styled
from weft.report.plots.units import Way, units_by_way
from weft.result import Timeline

if TYPE_CHECKING:
    from weft.search.degree import Watched
    from weft.studies.goldyloc import Case as GoldylocCase
    from weft.studies.goldyloc import Change
    from weft.studies.goldyloc.shares import ShareLoss

GOLDYLOC = Look("GOLDYLOC", "#0072B2")
_MARKS = {
    "sequential": ("one after another", "#999999", "s"),
    "oracle": ("oracle", "#D55E00", "|"),
}
_DEGREES = "#222222"
_HUES = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#666666",
    "#7FB8D8", "#F2CF80", "#7FCEB9", "#EAAE7F", "#E5BCD3", "#ABD9F4", "#F7F1A0", "#B2B2B2",
)  # fmt: skip
"""One for each GEMM of a queue: the palette, and the same lighter."""
_ROW = 0.3


@styled
def ways_to_run(cases: Sequence[GoldylocCase]) -> Picture:
    """How many times faster than default concurrency each queue runs: bars GOLDYLOC, marks every other way."""
    figure = picture(10, 1.4 + _ROW * len(cases))
    ax = figure.subplots()
    for row, case in enumerate(cases):
        judged = case.judged
        ax.barh(row, case.over_default, height=0.62, color=GOLDYLOC.color, alpha=0.35)
        for name, seconds in (("sequential", judged.sequential), ("oracle", judged.oracle)):
            _, color, mark = _MARKS[name]
            ax.plot(judged.default / seconds, row, mark, color=color, markersize=11 if mark == "|" else 4)
        for degree, seconds in judged.at_degree.items():
            place = (judged.default / seconds, row)
            ax.annotate(str(degree), place, ha="center", va="center", fontsize=6.5, color=_DEGREES)
    ax.axvline(1, color="#222222", linewidth=0.8)
    ax.set_yticks(range(len(cases)), [case.title for case in cases], fontsize=7.5)
    ax.invert_yaxis()
    ax.set_ylim(len(cases) - 0.4, -0.6)
    ax.set_xlim(left=0)
    ax.set_xlabel("speed over default concurrency")
    grid(ax, "x")
    marks = [
        Line2D([], [], color=color, marker=mark, linestyle="", label=label) for label, color, mark in _MARKS.values()
    ]
    fixed = Line2D([], [], color=_DEGREES, marker="$4$", linestyle="", label="GO-kernels at a fixed degree")
    legend(figure, [GOLDYLOC], 4, [*marks, fixed])
    return figure


def held_by_gemms(queue: Watched) -> Picture:
    """Which GEMM of a queue held which compute unit when: all at once, and in the chosen batches."""
    first = [sum(queue.sizes[:number]) for number in range(len(queue.sizes))]
    ways = (
        Way("all at once, kernels tuned alone", queue.default, list(map(_owners, queue.default))),
        Way(
            f"GOLDYLOC, {_batches(queue.sizes)}",
            queue.chosen,
            list(map(_owners, queue.chosen, first)),
        ),
    )
    looks = [Look(f"{number}: {name}", _HUES[number % len(_HUES)]) for number, name in enumerate(queue.names)]
    return units_by_way(ways, looks)


def _owners(run: Timeline, first: int = 0) -> dict[str, int]:
    """Which GEMM of the queue each operator of a batch is, whose first one is number `first`."""
    return {node.name: first + number for number, node in enumerate(run.graph)}


def _batches(sizes: Sequence[int]) -> str:
    sizes = list(sizes)
    return f"{sizes[0]} together" if len(sizes) == 1 else f"batches of {', '.join(map(str, sizes))}"


@styled
def what_changes(changes: Sequence[Change]) -> Picture:
    """GO-kernels against those tuned alone: speed over loads from the cache, and over misses."""
    figure = picture(10, 3.2)
    left, right = figure.subplots(1, 2, sharey=True)
    for ax, measure, label in (
        (left, _requests, "requests to the last-level cache, GO-kernel / kernel tuned alone"),
        (right, _misses, "misses of it, GO-kernel / kernel tuned alone"),
    ):
        ratios = [measure(change.after) / max(measure(change.before), 1) for change in changes]
        ax.scatter(ratios, [change.faster for change in changes], s=22, color=GOLDYLOC.color, alpha=0.7)
        ax.axvline(1, color="#222222", linewidth=0.6)
        ax.set_xlabel(label, fontsize=8)
        grid(ax)
    left.set_ylabel("times faster")
    return figure


def _requests(run: Timeline) -> float:
    return float(sum(run.counters[name] for name in ("cache_hits", "cache_merged_misses", "cache_misses")))


def _misses(run: Timeline) -> float:
    return float(run.counters["cache_misses"])


@styled
def fixed_degrees(speeds: Sequence[tuple[str, float]]) -> Picture:
    """Geometric means over default concurrency: GO-kernels at each fixed degree, GOLDYLOC, the oracle."""
    figure = picture(10, 2.6)
    ax = figure.subplots()
    colors = ["#999999" if name.startswith("degree") else GOLDYLOC.color for name, _ in speeds]
    ax.bar([name for name, _ in speeds], [value for _, value in speeds], color=colors, width=0.6)
    for at, (_, value) in enumerate(speeds):
        note(ax, f"{value:.2f}", (at, value), (0, 2), fontsize=8)
    ax.axhline(1, color="#222222", linewidth=0.8)
    ax.set_ylabel("over default concurrency")
    grid(ax)
    return figure


@styled
def losses(rows: Sequence[ShareLoss]) -> Picture:
    """What the whole GPU's best kernel loses on a half and a quarter of the compute units, GEMM by GEMM, sorted."""
    figure = picture(10, 2.8)
    ax = figure.subplots()
    for share, name, color in ((2, "half", "#56B4E9"), (4, "a quarter", "#D55E00")):
        values = sorted(100 * row.loss for row in rows if row.share == share)
        label = f"on {name} of the units"
        ax.plot(range(1, len(values) + 1), values, "o-", markersize=3.5, color=color, label=label)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("GEMMs, the least loss first")
    ax.set_ylabel("longer than the best kernel [%]")
    ax.legend()
    grid(ax)
    return figure
