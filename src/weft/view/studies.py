"""Figures of the studies: published values beside Weft's, and the curves that explain them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from weft.graph import Graph
from weft.report.table import Table, number, text
from weft.result import Span, Timeline
from weft.result.metrics import CLASSES
from weft.units import format_bytes
from weft.view import looks
from weft.view.figure import Figure, Lines, bars, curves, scatter
from weft.view.predictions import SIZES
from weft.view.units import Way, units_by_way
from weft.view.words import case_label, percent

if TYPE_CHECKING:
    from weft.studies.c3 import Case
    from weft.studies.goldyloc import Case as Queue
    from weft.studies.goldyloc import Change
    from weft.studies.goldyloc.shares import ShareLoss
    from weft.tune.queues import Watched

_MIB = 1 << 20


# -- C3 and ConCCL


def strategy_shares(cases: Sequence[Case], published: Mapping[str, float] | None = None) -> Figure:
    """Mean share of the ideal speedup of each strategy, over all scenarios and by class; `published` as marks."""
    groups = {"all scenarios": list(cases)}
    groups |= {words: [case for case in cases if case.kind == kind] for kind, words in CLASSES.items()}
    means = [
        (f"{words} ({len(members)})", name, fmean(case.share(name) for case in members))
        for words, members in groups.items()
        for name in _strategies(cases)
        if members
    ]
    marks = [(means[0][0], name, value) for name, value in (published or {}).items() if name in _strategies(cases)]
    share = number("share", "share of the ideal speedup", format_=".1%")
    table = Table([text("class"), text("strategy"), share, text("said", " ")], [(*m, percent(m[2])) for m in means])
    known = Table([text("class"), text("strategy"), number("share", "published mean", format_=".0%")], marks)
    return bars(
        "How much of what overlap could save does each strategy save?", table, lane="class", offset="strategy",
        kind="strategy", end="share", looks=looks.STRATEGIES, label="said", percent=True,
        marks=Lines(known, "share", "strategy", "class") if marks else None,
    )  # fmt: skip


def _strategies(cases: Sequence[Case]) -> list[str]:
    return [name for name in looks.STRATEGIES if name in cases[0].strategies]


def strategy_slowdowns(cases: Sequence[Case]) -> Figure:
    """Every scenario: slowdowns of the GEMM and the collective under each strategy, relative to alone."""
    rows = [
        (name, str(case.scenario.title), CLASSES[case.kind], case.gemm_slowdown(name), case.collective_slowdown(name))
        for name in _strategies(cases)
        for case in cases
    ]
    columns = [
        text("strategy"), text("scenario"), text("class"), number("gemm", "GEMM over alone", "×", ".2f"),
        number("collective", "collective over alone", "×", ".2f"),
    ]  # fmt: skip
    return scatter(
        "What does each strategy cost the GEMM and the collective?", Table(columns, rows), x="gemm", y="collective",
        color="class", looks=looks.spread(list(CLASSES.values())), facet="strategy", cross=1.0,
    )  # fmt: skip


def gemm_against_units(slowdown: Mapping[str, Mapping[int, float]], boundness: Mapping[str, str | None]) -> Figure:
    """A GEMM's time over compute units lost: means by bound, and each GEMM as a thin line."""
    colors = {"compute-bound": looks.BLUE, "memory-bound": looks.RED}
    curve_of: dict[str, dict[str, Mapping[int, float]]] = {bound: {} for bound in colors}
    for name, curve in slowdown.items():
        curve_of["memory-bound" if boundness[name] == "memory" else "compute-bound"][name] = curve
    means, thin = [], []
    for bound, members in curve_of.items():
        thin += [(name, bound, lost, value) for name, curve in members.items() for lost, value in curve.items()]
        lost_units = next(iter(members.values()), ())
        means += [(bound, lost, fmean(curve[lost] for curve in members.values())) for lost in lost_units]
    axes = [number("lost", "compute units lost"), number("slower", "time over that on all", "×", ".3f")]
    return curves(
        "What does a GEMM lose?", Table([text("bound", "means of GEMMs"), *axes], means), x="lost", y="slower",
        series="bound", looks=colors, faint=Table([text("gemm", "GEMM"), text("bound"), *axes], thin), zero=False,
    )  # fmt: skip


def bandwidth_against_units(bandwidth: Mapping[str, Mapping[int, float]]) -> Figure:
    """A collective's bandwidth over the compute units that it is given, as a share of its best."""
    rows = [
        (f"{name}, best {max(curve.values()) / 1e9:,.0f} GB/s", units, value / max(curve.values()))
        for name, curve in bandwidth.items()
        for units, value in curve.items()
    ]
    columns = [
        text("collective"), number("units", "compute units given"),
        number("share", "share of its best bandwidth", format_=".1%"),
    ]  # fmt: skip
    return curves(
        "How many compute units does a collective need?", Table(columns, rows), x="units", y="share",
        series="collective", log_x=True, percent=True, ticks=sorted({row[1] for row in rows}),
    )  # fmt: skip


def drivers(cu_s: Mapping[str, Mapping[int, float]], dma_s: Mapping[str, Mapping[int, float]]) -> Figure:
    """Time of collectives by DMA engines relative to compute units, over size."""
    rows = [
        (name, size / _MIB, format_bytes(size, 3), time / cu_s[name][size])
        for name, curve in dma_s.items()
        for size, time in curve.items()
    ]
    columns = [
        text("collective"), number("mib", "size of the whole buffer", "MiB", ".4g"), text("size"),
        number("ratio", "DMA engines over compute units", "×", ".2f"),
    ]  # fmt: skip
    return curves(
        "From which size on are DMA engines the faster driver?", Table(columns, rows), x="mib", y="ratio",
        series="collective", log_x=True, log_y=True, labels=SIZES, level=1.0,
    )  # fmt: skip


# -- compute units split


def split_slowdowns(
    curve: Mapping[int, tuple[float, float]],
    spread: Mapping[int, Sequence[tuple[float, float]]],
    published: Mapping[int, tuple[float | None, float | None]],
) -> Figure:
    """Slowdowns of the GEMM and the all-reduce over the units of the all-reduce.

    `curve` holds means, `spread` the values of every sub-layer, `published` the paper's, if any: GEMM, all-reduce.
    """
    colors = {"GEMM": looks.BLUE, "all-reduce": looks.RED}
    axes = [
        number("units", "compute units of the all-reduce; the GEMM has the rest"),
        number("longer", "longer than on all units", format_=".1%"),
    ]
    means, thin, known = [], [], []
    for at, side in enumerate(colors):
        means += [(side, units, curve[units][at]) for units in sorted(curve)]
        thin += [
            (f"{side} {n}", side, units, pair[at]) for units in sorted(curve) for n, pair in enumerate(spread[units])
        ]
        known += [(side, units, pair[at]) for units, pair in published.items() if pair[at] is not None]
    return curves(
        "What do the GEMM and the all-reduce lose on their share of the compute units?",
        Table([text("side", "mean of"), *axes], means), x="units", y="longer", series="side",
        looks=colors, log_x=True, percent=True, ticks=sorted(curve),
        faint=Table([text("layer", "sub-layer"), text("side"), *axes], thin),
        marks=Lines(Table([text("side", "published mean of"), *axes], known), "longer", "side", "units"),
    )  # fmt: skip


def split_speedups(graphs: Sequence[Graph], series: Mapping[str, Sequence[float]]) -> Figure:
    """The speedup of every sub-layer over serial execution, a bar per series, the first of which is the ideal."""
    rows = [(case_label(graph), name, values[at]) for at, graph in enumerate(graphs) for name, values in series.items()]
    columns = [text("layer", "sub-layer"), text("series", "what"), number("speedup", "speedup over serial", "×", ".3f")]
    first, *others = series
    return bars(
        "What can overlap gain in each sub-layer?", Table(columns, rows), lane="layer", offset="series", kind="series",
        end="speedup", looks={first: looks.GREY, **looks.spread(others)}, start=1.0,
    )  # fmt: skip


# -- GOLDYLOC


def ways_to_run(cases: Sequence[Queue]) -> Figure:
    """Speedup of each queue over default concurrency: bars for GOLDYLOC, marks for every other way."""
    chosen = [(case.title, "GOLDYLOC", case.over_default) for case in cases]
    marks = []
    for case in cases:
        ways = {"one after another": case.judged.sequential, "oracle": case.judged.oracle}
        ways |= {f"GO-kernels, always {degree}": seconds for degree, seconds in case.judged.at_degree.items()}
        marks += [(case.title, way, case.judged.default / seconds) for way, seconds in ways.items()]
    speed = number("speed", "speed over default concurrency", "×", ".2f")
    return bars(
        "How fast does each queue run, in every way?", Table([text("queue"), text("way"), speed], chosen), lane="queue",
        kind="way", end="speed", looks={"GOLDYLOC": looks.BLUE}, level=1.0,
        marks=Lines(Table([text("queue"), text("other", "way"), speed], marks), "speed", "other", "queue"),
    )  # fmt: skip


def held_by_gemms(queue: Watched) -> Figure:
    """Which GEMM of a queue held which compute unit over time: all at once, and in the chosen batches."""
    sizes = queue.sizes
    first = [sum(sizes[:at]) for at in range(len(sizes))]
    batches = f"{sizes[0]} together" if len(sizes) == 1 else f"batches of {', '.join(map(str, sizes))}"
    ways = (
        Way("all at once, kernels tuned alone", queue.default, list(map(_owners, queue.default))),
        Way(f"GOLDYLOC, {batches}", queue.chosen, list(map(_owners, queue.chosen, first))),
    )
    names = [f"{at}: {name}" for at, name in enumerate(queue.names)]
    return units_by_way(ways, looks.spread(names)).captioned(
        f"{queue.title}: which GEMM held which compute unit when. A line per unit, shared by all workgroups that it "
        "holds at a time. Older GEMMs are served first, and the next one takes what they leave."
    )


def _owners(run: Timeline, first: int = 0) -> Callable[[Span], int]:
    """The index in the queue of each kernel of a batch that begins at index `first`."""
    numbers = {node.name: first + at for at, node in enumerate(run.graph)}
    return lambda kernel: numbers[kernel.operator]


def what_changes(changes: Sequence[Change]) -> Figure:
    """GO-kernels relative to isolated ones: speed over cache loads, and over cache misses."""
    counted = {
        "requests to the last-level cache": ("cache_hits", "cache_merged_misses", "cache_misses"),
        "misses of it": ("cache_misses",),
    }
    rows = []
    for what, names in counted.items():
        for one in changes:
            before, after = (sum(run.counters[name] for name in names) for run in (one.before, one.after))
            rows.append((what, f"{one.degree} of {one.gemm}", after / max(before, 1), one.faster))
    columns = [
        text("what"), text("gemms", "GEMMs"), number("ratio", "GO-kernel / kernel tuned alone", "×", ".3f"),
        number("faster", "times faster", "×", ".2f"),
    ]  # fmt: skip
    return scatter(
        "What do kernels for the share that they get change?", Table(columns, rows), x="ratio", y="faster", facet="what"
    )


def fixed_degrees(speeds: Sequence[tuple[str, float]]) -> Figure:
    """Geometric means over default concurrency: GO-kernels at each fixed degree, GOLDYLOC, the oracle."""
    colors = {"fixed": looks.GREY, "chosen": looks.BLUE}
    rows = [(name, "fixed" if name.startswith("degree") else "chosen", v, f"{v:.2f}") for name, v in speeds]
    columns = [text("way"), text("kind"), number("speed", "over default concurrency", "×", ".3f"), text("said", " ")]
    return bars(
        "How much does the choice of the degree bring?", Table(columns, rows), lane="way", kind="kind", end="speed",
        looks=colors, label="said",
    )  # fmt: skip


def losses(rows: Sequence[ShareLoss]) -> Figure:
    """Loss of the whole GPU's best kernel on a half and a quarter of the compute units, per GEMM, sorted."""
    found = [
        (f"on {name} of the units", at, loss)
        for share, name in ((2, "half"), (4, "a quarter"))
        for at, loss in enumerate(sorted(row.loss for row in rows if row.share == share), 1)
    ]
    columns = [
        text("share"), number("gemm", "GEMMs, the least loss first"),
        number("loss", "longer than the best", format_=".1%"),
    ]  # fmt: skip
    return curves(
        "What does the whole GPU's best kernel lose on a part of it?", Table(columns, found), x="gemm", y="loss",
        series="share", looks={"on half of the units": looks.SKY, "on a quarter of the units": looks.RED}, percent=True,
    )  # fmt: skip
