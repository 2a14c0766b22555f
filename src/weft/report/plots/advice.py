"""Why a GEMM and a collective should share a GPU in one way: what each way takes, and what compute units buy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from weft.report.plots.corun import COLLECTIVE, GEMM
from weft.report.plots.style import STRATEGIES, Look, Picture, grid, legend, note, picture, stack, styled
from weft.units import format_bytes

if TYPE_CHECKING:
    from weft.search.advice import Advice, Option

_BOTH = Look("both", "#4D4D4D")
_LINES = (("partition", "o", "-"), ("dma-partition", "s", "--"))
_LEVELS = ("streams", "priority", "dma")
_MIB = 1 << 20


@styled
def ways_to_share(advice: Advice) -> Picture:
    """When only the GEMM, both, or only the collective ran under every way that was simulated [us]."""
    alone = advice.alone
    rows = [("one after the other", alone.gemm_s, 0.0, 0.0, alone.collective_s)]
    rows += [(advice.name_of(one), *_stretches(one)) for one in sorted(advice.simulated, key=advice.speedup_of)]
    shorter = min(alone.gemm_s, alone.collective_s)
    rows.append(("ideal", 0.0, shorter, alone.gemm_s - shorter, alone.collective_s - shorter))
    figure = picture(10, 1.1 + 0.34 * len(rows))
    ax = figure.subplots()
    looks = {0: GEMM, 1: _BOTH, 2: GEMM, 3: COLLECTIVE}
    stack(ax, [dict(enumerate(seconds * 1e6 for seconds in widths)) for _, *widths in rows], looks)
    for at, (_, *widths) in enumerate(rows):
        whole = sum(widths)
        note(ax, f"{alone.serial_s / whole:.2f}x", (whole * 1e6, at), fontsize=8)
    ax.set_yticks(range(len(rows)), [name for name, *_ in rows])
    ax.margins(x=0.08)
    ax.set_xlabel("time [µs]")
    ax.set_title("What runs when?")
    legend(figure, (GEMM._replace(label="GEMM only"), _BOTH, COLLECTIVE._replace(label="collective only")))
    return figure


def _stretches(option: Option) -> tuple[float, float, float, float]:
    """How long the GEMM ran before the collective had a unit, then both, then what was left of either."""
    run = option.run
    assert run is not None
    gemm, collective = run.end("gemm"), run.end(run.graph.collectives[0].name)
    waited = run.waits(run.graph.collectives[0].name).get("dispatch", 0.0)
    first_end = min(gemm, collective)
    before = min(waited, first_end)
    left = gemm - collective
    return before, first_end - before, max(0.0, left), max(0.0, -left)


@styled
def gain_against_units(advice: Advice) -> Picture:
    """The speedup against the compute units set apart: as the tables expect it, and as simulated (marks)."""
    figure = picture(10, 3.6)
    ax = figure.subplots()
    for strategy, mark, line in _LINES:
        color = STRATEGIES[strategy].color
        found = [one for one in advice.options if one.strategy == strategy and one.units is not None]
        if found:
            units = [one.units or 0 for one in found]
            expected = [advice.alone.serial_s / one.forecast_s for one in found]
            label = f"{strategy}, expected"
            ax.plot(units, expected, line, color=color, marker=mark, fillstyle="none", label=label)
            done = [(one.units, advice.speedup_of(one)) for one in found if one.run is not None]
            if done:
                ax.plot(*zip(*done, strict=True), mark, color=color, label=f"{strategy}, simulated")
    ax.axhline(advice.alone.ideal, color="#000000", linewidth=0.8, label="ideal")
    for strategy in _LEVELS:
        for one in (one for one in advice.options if one.strategy == strategy):
            ax.axhline(
                advice.speedup_of(one), color=STRATEGIES[strategy].color, linewidth=2.4, linestyle=(0, (1.5, 1.5)),
                label=strategy,
            )  # fmt: skip
    splits = sorted({one.units for one in advice.options if one.units is not None})
    ax.set_xscale("log", base=2)
    ax.set_xticks(splits, [str(units) for units in splits])
    ax.minorticks_off()
    ax.set_xlabel(f"{advice.units_word} set apart")
    ax.set_ylabel("speedup over one after the other")
    ax.set_title(f"How many {advice.units_word} should the collective have?")
    grid(ax)
    figure.legend(loc="outside right upper")
    return figure


@styled
def collective_times(advice: Advice) -> Picture:
    """The collective alone against its size: by the library's kernel, by few compute units, by DMA engines [us]."""
    table = advice.tables.collective(advice.collective.name)
    figure = picture(10, 3.4)
    ax = figure.subplots()
    word = advice.units_word
    lines = [(f"library, {table.library_units} {word}", table.library, STRATEGIES["priority"].color, "o-")]
    shown = sorted({min(table.units), advice.most_apart})
    looks = zip(shown, ("#0072B2", STRATEGIES["partition"].color), ("v-", "^-"), strict=False)
    lines += [(f"{units} {word}", table.units[units], color, style) for units, color, style in looks]
    if table.dma:
        lines.append(("DMA engines", table.dma, STRATEGIES["dma"].color, "s--"))
    for label, seconds, color, style in lines:
        ax.plot([size / _MIB for size in table.bytes], [s * 1e6 for s in seconds], style, color=color, label=label)
    outside = advice.collective.bytes < table.bytes[0] or advice.collective.bytes > table.bytes[-1]
    _mark(ax, advice.collective.bytes, "this one, not in the tables" if outside else "this one")
    if advice.crossover is not None and advice.crossover > table.bytes[0]:
        _mark(ax, advice.crossover, "DMA as fast")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks([size / _MIB for size in table.bytes], [format_bytes(size, 4) for size in table.bytes])
    ax.minorticks_off()
    ax.set_xlabel("size of the whole buffer")
    ax.set_ylabel(f"{advice.collective.name} alone [µs]")
    ax.set_title(f"What does the {advice.collective.name} take alone?")
    grid(ax)
    figure.legend(loc="outside right upper")
    return figure


def _mark(ax: Axes, size: int, words: str) -> None:
    """A vertical line at a size, named at its foot."""
    ax.axvline(size / _MIB, color="#444444", linewidth=0.8, linestyle=":")
    ax.annotate(
        words, (size / _MIB, 0.02), (3, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
        rotation=90, fontsize=8, va="bottom", bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )  # fmt: skip
