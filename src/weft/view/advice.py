"""Advice as tables, and as a page: what to do, the gain, its uncertainty, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.units import format_bytes
from weft.view import looks
from weft.view.figure import Figure, Lines, curves, stacked_bars
from weft.view.page import Section, machine_section, write_page
from weft.view.predictions import SIZES
from weft.view.table import Table, microseconds, number, text, texts, times_faster
from weft.view.words import percent

if TYPE_CHECKING:
    from weft.tune.advice import Advice, Option

_MIB = 1 << 20
_RUNNING: looks.Looks = {"GEMM only": looks.BLUE, "both": looks.DARK, "collective only": looks.ORANGE}


def option_table(advice: Advice) -> Table:
    """Every way to share, the best first: forecast of the tables, simulation, and gain."""
    columns = [
        text("way", "way to share"), number("apart", f"{advice.gpu.units_word} apart"), number("channels"),
        microseconds("expected", "expected", 0), microseconds("simulated", "simulated", 0),
        times_faster("speedup", "speedup", "{:.2f}×"),
        number("share_of_ideal", "of the ideal", format_=percent), microseconds("gemm_end", "GEMM ends", 0),
        microseconds("collective_end", "collective ends", 0),
    ]  # fmt: skip
    title = (
        f"GEMM {advice.gemm} beside {advice.collective.name} of {format_bytes(advice.collective.bytes, 4)} "
        f"on each of {advice.tables.ranks} x {advice.gpu.name}"
    )
    return Table(columns, [_option(advice, one) for one in advice.ranked], title)


def _option(advice: Advice, option: Option) -> tuple[Any, ...]:
    run = option.run
    expected = option.forecast_s * 1e6 if advice.is_forecast(option) else None
    times: list[float | None] = [None, None, None]
    if run is not None:
        times = [end * 1e6 for end in (run.makespan, run.end("gemm"), run.end(advice.collective.name))]
    found = (option.strategy, option.units, option.channels, expected, times[0])
    return *found, advice.speedup_of(option), advice.share_of(option), *times[1:]


def knob_table(advice: Advice) -> Table:
    """Settings for the best way, with their sources."""
    return Table(texts(("what", "says")), [tuple(knob) for knob in advice.knobs], "What to set")


def doubt_table(advice: Advice) -> Table:
    """The range of the best way's speedup under each uncertainty."""
    columns = [text("why", "reason to doubt"), *(times_faster(end, end, "{:.2f}×") for end in ("low", "high"))]
    return Table(columns, [(one.why, one.low, one.high) for one in advice.felt], "How sure that is")


def advice_report(advice: Advice, out_dir: str | Path) -> Path:
    """Write `report.html` with the advice to a folder and return its path; OutputError if that cannot be done."""
    gpu, moved = advice.gpu, advice.collective
    gemm = str(advice.gemm).replace(" x ", " × ")
    expected = "Expected is what the machine's slowdown tables say; simulated is request by request."
    if any(advice.share_of(one) > 1 for one in advice.options):
        expected += (
            f" More than 100 % of the ideal: the ideal hides the {moved.name} as the library's compute units carry it "
            "out, and these ways carry it out faster."
        )
    sure = (
        "The speedup of the best way if one thing were as bad, or as good, as it may be. The range above joins them as "
        "the root of their squares: typical, no bound."
    )
    first, *more = advice.sentences
    return write_page(
        out_dir,
        f"{moved.name} of {format_bytes(moved.bytes, 4)} beside a GEMM on {gpu.name}",
        first,
        [
            more,
            f"GEMM of {gemm} on each GPU; the collective does not depend on it. Sizes are those of the whole buffer.",
            Section("What to set", [knob_table(advice)]),
            Section("Why", [ways_to_share(advice), gain_against_units(advice), collective_times(advice)]),
            Section("Every way to share", [expected, option_table(advice)]),
            Section("How sure this is", [sure, doubt_table(advice)]),
            machine_section(gpu),
        ],
        "concurrency",
    )


def ways_to_share(advice: Advice) -> Figure:
    """When only the GEMM, both, or only the collective ran under every way that was simulated."""
    alone = advice.alone
    shorter = min(alone.gemm_s, alone.collective_s)
    ways = [("one after the other", (alone.gemm_s, 0.0, 0.0, alone.collective_s))]
    ways += [(advice.name_of(one), _stretches(one)) for one in sorted(advice.simulated, key=advice.speedup_of)]
    ways.append(("ideal", (0.0, shorter, alone.gemm_s - shorter, alone.collective_s - shorter)))
    kinds = ("GEMM only", "both", "GEMM only", "collective only")
    rows = [
        (name, kind, seconds * 1e6, f"{alone.serial_s / sum(widths):.2f}×")
        for name, widths in ways
        for kind, seconds in zip(kinds, widths, strict=True)
        if seconds > 0
    ]
    columns = [text("way"), text("runs", "what ran"), microseconds("time", "time"), text("said", " ")]
    return stacked_bars(
        "What runs for how long?", Table(columns, rows), lane="way", part="runs", value="time_us", looks=_RUNNING,
        label="said", in_order=True,
    ).captioned("Every way that was simulated, the best last but for the ideal, with its speedup.")  # fmt: skip


def _stretches(option: Option) -> tuple[float, float, float, float]:
    """How long the GEMM ran before the collective had a unit, then both, then the rest of one of them [s]."""
    run = option.run
    assert run is not None
    gemm, collective = run.end("gemm"), run.end(run.graph.collectives[0].name)
    waited = run.waits(run.graph.collectives[0].name).get("dispatch", 0.0)
    first_end = min(gemm, collective)
    before = min(waited, first_end)
    left = gemm - collective
    return before, first_end - before, max(0.0, left), max(0.0, -left)


def gain_against_units(advice: Advice) -> Figure:
    """The speedup over the compute units set apart: as the tables forecast it, and as simulated."""
    word = advice.gpu.units_word
    splits = sorted({one.units for one in advice.options if one.units is not None})
    rows = []
    for one in advice.options:
        expected = advice.alone.serial_s / one.forecast_s
        if one.units is None:  # a level line: it sets no units apart
            rows += [(one.strategy, units, advice.speedup_of(one)) for units in (splits[:1] + splits[-1:])]
        else:
            rows += [(f"{one.strategy}, expected", one.units, expected)] if advice.is_forecast(one) else []
            rows += [(f"{one.strategy}, simulated", one.units, advice.speedup_of(one))] if one.run is not None else []
    rows += [("ideal", units, advice.alone.ideal) for units in splits[:1] + splits[-1:]]
    columns = [
        text("way"), number("units", f"{word} set apart"), number("speedup", "over one after the other", "×", ".2f"),
    ]  # fmt: skip
    colors = {
        **looks.spread([row[0] for row in rows]), **looks.STRATEGIES, "ideal": looks.DARK,
        "partition, expected": "#A8D3F0", "dma-partition, expected": "#F0A878", "partition, simulated": looks.BLUE,
        "dma-partition, simulated": looks.RED,
    }  # fmt: skip
    return curves(
        f"How many {word} should the collective have?", Table(columns, rows), x="units", y="speedup", series="way",
        looks=colors, log_x=True, ticks=splits, zero=False,
    ).captioned(
        f"The speedup against the {word} set apart, expected and as simulated. Level lines set none apart."
    )  # fmt: skip


def collective_times(advice: Advice) -> Figure:
    """The collective alone over its size: by the library's kernel, on few compute units, by DMA engines."""
    table, word = advice.tables.collective(advice.collective.name), advice.gpu.units_word
    lines = {f"library, {table.library_units} {word}": table.library}
    lines |= {f"{units} {word}": table.units[units] for units in sorted({min(table.units), advice.most_apart})}
    lines |= {"DMA engines": table.dma} if table.dma else {}
    rows = [
        (name, size / _MIB, format_bytes(size, 4), s * 1e6)
        for name, seconds in lines.items()
        for size, s in zip(table.bytes, seconds, strict=True)
    ]
    columns = [text("driver", "by"), number("mib", "size of the whole buffer", "MiB", ".4g"), text("size"),
               number("time_us", f"{advice.collective.name} alone", "µs", ",.4g")]  # fmt: skip
    size = advice.collective.bytes
    outside = size < table.bytes[0] or size > table.bytes[-1]
    marks = [(size / _MIB, "this one, not in the tables" if outside else "this one")]
    if advice.crossover is not None and advice.crossover > table.bytes[0]:
        marks.append((advice.crossover / _MIB, "DMA as fast"))
    later = "." if advice.why_no_dma else ", DMA engines start small ones later."
    return curves(
        f"What does the {advice.collective.name} take alone?", Table(columns, rows), x="mib", y="time_us",
        series="driver", log_x=True, log_y=True, labels=SIZES,
        marks=Lines(Table([number("mib", "size", "MiB", ".4g"), text("what")], marks), "mib", "what"),
    ).captioned(f"The collective alone: few compute units move large buffers slower{later}")  # fmt: skip
