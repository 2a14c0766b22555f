"""Advice as tables, and as a page: what to do, the gain, its uncertainty, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.core.report import Part, Report, Section
from weft.core.report.table import Table, microseconds, number, text, texts, times_faster
from weft.core.units import format_bytes
from weft.plan.tune.advice import ALIKE, NOTED, label
from weft.plan.tune.heuristics import TIE
from weft.sweep.simulations import by_dma
from weft.view import looks
from weft.view.figure import Axis, Color, Figure, Label, Lines, choices, curves, stacked_bars
from weft.view.predictions import SIZES
from weft.view.words import percent

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.plan.tune.advice import Advice, SharingOption

_MIB = 1 << 20
_RUNNING: looks.Looks = {"GEMM only": looks.BLUE, "both": looks.DARK, "collective only": looks.ORANGE}


def option_table(advice: Advice) -> Table:
    """Return every way to share, the best first: forecast of the tables, simulation, and gain."""
    columns = [
        text("way", "strategy"), number("apart", f"reserved {advice.gpu.units_word}"), number("channels"),
        microseconds("expected", "expected", 0), microseconds("simulated", "simulated", 0),
        times_faster("speedup", "speedup", "{:.2f}×"),
        number("share_of_ideal", "of the ideal", format_=percent), microseconds("gemm_end", "GEMM ends", 0),
        microseconds("collective_end", "collective ends", 0),
    ]  # fmt: skip
    title = (
        f"GEMM {advice.gemm} concurrent with {advice.collective.name} of {format_bytes(advice.collective.bytes, 4)} "
        f"on each of {advice.tables.ranks} x {advice.gpu.name}"
    )
    return Table(columns, [_option(advice, one) for one in advice.ranked], title)


def _option(advice: Advice, option: SharingOption) -> tuple[Any, ...]:
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
    """Return the range of the best way's speedup under each uncertainty."""
    columns = [text("why", "uncertainty"), *(times_faster(end, end, "{:.2f}×") for end in ("low", "high"))]
    return Table(columns, [(one.why, one.low, one.high) for one in advice.felt], "Uncertainty of the speedup")


def ways_to_share(advice: Advice) -> Figure:
    """Return when only the GEMM, both, or only the collective ran under every way that was simulated."""
    alone = advice.alone
    shorter = min(alone.gemm_s, alone.collective_s)
    ways = [("serial", (alone.gemm_s, 0.0, 0.0, alone.collective_s))]
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
        "What runs for how long?", Table(columns, rows), lane="way", value="time_us", color=Color("runs", _RUNNING),
        in_order=True, over=[Label("said")],
    ).with_caption("Every way that was simulated, the best last but for the ideal, with its speedup.")  # fmt: skip


def _stretches(option: SharingOption) -> tuple[float, float, float, float]:
    """Return how long the GEMM ran before the collective had a unit, then both, then the rest of one of them [s]."""
    run = option.run
    assert run is not None
    gemm, collective = run.end("gemm"), run.end(run.graph.collectives[0].name)
    waited = run.waits(run.graph.collectives[0].name).get("dispatch", 0.0)
    first_end = min(gemm, collective)
    before = min(waited, first_end)
    left = gemm - collective
    return before, first_end - before, max(0.0, left), max(0.0, -left)


def gain_against_units(advice: Advice) -> Figure:
    """The speedup over the compute units reserved: as the tables forecast it, and as simulated; the best marked."""
    word = advice.gpu.units_word
    marks = {id(_best_on_units(advice)): f"best on {word}", id(advice.best): f"best: {advice.best.strategy}"}
    rows: list[tuple[Any, ...]] = []
    for one in advice.options:
        if one.units is not None and advice.is_forecast(one):
            rows.append((f"{one.strategy}, expected", one.units, advice.alone.serial_s / one.forecast_s, ""))
        if one.units is None or one.run is not None:
            way = one.strategy if one.units is None else f"{one.strategy}, simulated"
            rows.append((way, one.units, advice.speedup_of(one), marks.get(id(one), "")))
    rows.append(("ideal", None, advice.alone.ideal, ""))
    columns = [
        text("way"), number("units", f"reserved {word}"), number("speedup", "speedup over serial", "×", ".2f"),
        text("mark", " "),
    ]  # fmt: skip
    colors = {
        **looks.spread([row[0] for row in rows]), **looks.STRATEGIES, "ideal": looks.DARK,
        "partition, expected": "#A8D3F0", "dma-partition, expected": "#F0A878", "partition, simulated": looks.BLUE,
        "dma-partition, simulated": looks.RED,
    }  # fmt: skip
    return choices(
        f"How many {word} should the collective have?",
        Table(columns, rows),
        x="units",
        y="speedup",
        series="way",
        mark="mark",
        looks=colors,
    ).with_caption(f"Speedup by reserved {word}, expected and simulated. Level lines are strategies that reserve none.")


def _best_on_units(advice: Advice) -> SharingOption | None:
    """Return the best simulated way without DMA engines, if the best of all needs them."""
    others = [one for one in advice.simulated if not by_dma(one.strategy)]
    return max(others, key=advice.speedup_of) if by_dma(advice.best.strategy) and others else None


def collective_times(advice: Advice) -> Figure:
    """Return the collective alone over its size: by the library's kernel, on few compute units, by DMA engines."""
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
        f"What does the {advice.collective.name} take alone?", Table(columns, rows),
        x=Axis("mib", log=True, labels=SIZES), y=Axis("time_us", log=True), color=Color("driver"),
        over=[Lines(Table([number("mib", "size", "MiB", ".4g"), text("what")], marks), "mib", "what")],
    ).with_caption(f"The collective alone: few compute units move large buffers slower{later}")  # fmt: skip


def _with_channels(advice: Advice, option: SharingOption) -> str:
    """Return the name of a simulated way to share, with its channels where compute units drive the collective."""
    name, channels = advice.name_of(option), option.channels
    return f"{name} ({channels} channels)" if channels and not by_dma(option.strategy) else name


def _take(advice: Advice) -> str:
    if advice.speedup < 1:
        return f"Run serially: the best co-run strategy is {1 / advice.speedup - 1:.0%} slower."
    others = ", ".join(advice.name_of(one) for one in advice.alike)
    return (
        f"Use {_with_channels(advice, advice.best)}: {advice.speedup:.2f}x over running serially, typically "
        f"{advice.low:.2f}x to {advice.high:.2f}x; the ideal is {advice.alone.ideal:.2f}x."
        + (f" Within {ALIKE:.0%} of it: {others}." if others else "")
    )


def _mask_alone(advice: Advice) -> str:
    """Return a sentence on the best partition with a mask alone, if that takes longer than with fewer channels."""
    if advice.masked is None or advice.channels is not None:
        return ""
    units, both = advice.most_apart, advice.masked
    return (
        f"A mask of {units} {advice.gpu.units_word} needs fewer channels, too: the library's {both.channels} run on "
        f"it in {both.rounds} rounds, and the partition reaches {advice.alone.speedup(both.makespan):.2f}x only."
    )


def _channel_sentence(advice: Advice) -> str:
    """Return a sentence on the channels asked for, and on the best mask that does not hold them at once."""
    if advice.channels is None:
        return ""
    own, word = advice.tables.collective(advice.collective.name).library_units, advice.gpu.units_word
    found = f"Every way on {word} has {advice.channels} channels, as asked; the library's own number is {own}."
    if advice.masked is None:
        return found
    return f"{found} On {advice.most_apart} {word} they run in {advice.masked.rounds} rounds."


def _faster_alone(advice: Advice) -> str:
    """A sentence if part of the gain is no overlap: the collective alone is faster than by the library's kernel."""
    table, best = advice.tables.collective(advice.collective.name), advice.best
    copied = by_dma(best.strategy)
    column = table.dma if copied else table.units.get(best.units or 0) if advice.channels is None else ()
    if not column:
        return ""
    library = table.seconds(table.library, advice.collective.bytes)
    faster = library / table.seconds(column, advice.collective.bytes) - 1
    if faster < NOTED:
        return ""
    who = "DMA engines" if copied else f"{best.units} workgroups"
    return (
        f"{who} alone are {faster:.0%} faster than the library's {table.library_units} workgroups: this part of "
        "the gain is no overlap, and counts above the ideal."
    )


def _library(advice: Advice) -> str:
    if advice.library is None:
        return ""
    return (
        f"A ring is simulated; the library would take {advice.library.name} ({advice.library.seconds * 1e6:.0f} us "
        "alone, in closed form)."
    )


def _tiles(advice: Advice) -> str:
    """A sentence if taking the fewest units off the GEMM costs a wave: real libraries might choose another tile."""
    profile, fewest = advice.tables.profile(advice.gemm), advice.tables.splits[0]
    here, less = profile.waves(0), profile.waves(fewest)
    if here == less:
        return ""
    return (
        f"The GEMM's {profile.tiles} tiles run in {here} {'wave' if here == 1 else 'waves'} on all "
        f"{advice.gpu.units_word}, in {less} with {fewest} fewer; a library that is limited to fewer may choose "
        "another tile, which is not tried."
    )


def _choice_words(advice: Advice) -> str:
    if advice.channels is not None:
        return "The tables know the library's own number of channels only, and choose nothing here."
    chosen = label(advice.choice.strategy, advice.choice.units, advice.gpu.units_word)
    if chosen == advice.name_of(advice.best):
        return "The tables alone choose the same."
    if advice.loss < TIE:
        return f"The tables alone choose {chosen}, which is as good."
    return f"The tables alone choose {chosen}, which takes {advice.loss:.1%} longer than the best simulated."


def _without_dma(advice: Advice) -> str:
    """Return the advice without DMA engines if they are best, and whether their uncertainty can reverse it."""
    other = _best_on_units(advice)
    if other is None:
        return ""
    instead = f"Without DMA engines use {_with_channels(advice, other)}: {advice.speedup_of(other):.2f}x."
    doubts = [d for d in advice.doubts if d.copies and d.low < advice.speedup_of(other)]
    if not doubts:
        return instead
    worst = min(doubts, key=lambda doubt: doubt.low)
    return f"{instead} That may be the better way: {worst.why} may make {advice.best.strategy} {worst.low:.2f}x."


def _dma_pays(advice: Advice) -> str:
    sizes = advice.tables.collective(advice.collective.name).bytes
    alone = f"DMA engines alone are as fast as compute units alone {_since(advice.crossover, sizes)}"
    best = by_dma(advice.best.strategy)
    if best != (advice.pays is not None and advice.collective.bytes >= advice.pays):
        # Simulation contradicts the tables at this size, or the sizes that pay are no interval.
        here = "are" if best else "are not"
        return f"{alone}; concurrent with this GEMM it depends on the size, and at this size they {here} best."
    return f"{alone}; concurrent with this GEMM they are the best strategy {_since(advice.pays, sizes)}."


def _since(size: int | None, sizes: tuple[int, ...]) -> str:
    """From which size of the tables on, in words."""
    if size is None:
        return f"at no size up to {sizes[-1] / _MIB:.0f} MiB"
    least = ", the least in the tables" if size <= 1.1 * sizes[0] else ""
    return f"from {size / _MIB:.0f} MiB on{least}"


class AdviceReport(Report["Advice"]):
    """Advice on sharing a GPU: the strategy to use, its settings, all strategies, and the uncertainty."""

    explained = "concurrency"

    def title(self) -> str:
        """Return the collective, the GEMM and the GPU."""
        moved = self.answer.collective
        return f"{moved.name} of {format_bytes(moved.bytes, 4)} concurrent with a GEMM on {self.answer.gpu.name}"

    def sentences(self) -> list[str]:
        """The advice in words: what to use, isolated times, accuracy of the tables, and where DMA engines pay."""
        advice = self.answer
        gemm_us, collective_us = (seconds * 1e6 for seconds in advice.alone)
        times = f"Alone the GEMM takes {gemm_us:.0f} us, the collective {collective_us:.0f} us."
        others = (_channel_sentence, _mask_alone, _faster_alone, _library, _tiles, _choice_words, _without_dma)
        return [
            _take(advice),
            times,
            *filter(None, (say(advice) for say in others)),
            advice.why_no_dma or _dma_pays(advice),
        ]

    def tables(self) -> list[Table]:
        """Return every way to share, what to set, and the uncertainties."""
        return [option_table(self.answer), knob_table(self.answer), doubt_table(self.answer)]

    def figures(self) -> list[Figure]:
        """Return what runs for how long, the gain over compute units reserved, and the collective alone."""
        return [ways_to_share(self.answer), gain_against_units(self.answer), collective_times(self.answer)]

    def sections(self) -> list[Part]:
        """Return what to set, why, every way to share, and how sure this is."""
        advice, (ways, knobs, doubts) = self.answer, self.tables()
        expected = "Expected is what the machine's slowdown tables say; simulated is request by request."
        if any(advice.share_of(one) > 1 for one in advice.options):
            expected += (
                f" More than 100 % of the ideal: the ideal hides the {advice.collective.name} as the library's compute "
                "units carry it out, and these ways carry it out faster."
            )
        sure = (
            "The speedup of the best way if one thing were as bad, or as good, as it may be. The range above joins "
            "them as the root of their squares: typical, no bound."
        )
        gemm = str(advice.gemm).replace(" x ", " × ")
        return [
            f"GEMM of {gemm} on each GPU; the collective does not depend on it. Sizes are those of the whole buffer.",
            Section("What to set", [knobs]),
            Section("Why", self.figures()),
            Section("All strategies", [expected, ways]),
            Section("Uncertainty", [sure, doubts]),
        ]

    def gpu(self) -> Gpu:
        """Return the GPU."""
        return self.answer.gpu
