"""A GEMM concurrent with a collective: the tables of one strategy or several, and the page with figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from weft.core.report import Part, Report, Section
from weft.core.report.table import Column, Table, key_of, microseconds, number, text, times_faster
from weft.estimate.errors import collective_error, contention_error, gemm_error
from weft.graph import Collective, Driver
from weft.simulate.result import Comparison, CoRun
from weft.simulate.result.timeline import REASONS
from weft.view import looks
from weft.view.explorer import timeline, waits_table
from weft.view.figure import Color, Figure, Label, Lane, Lines, bars, stacked_bars
from weft.view.heat import heat_section
from weft.view.interference import interference_section
from weft.view.page import simulated_section
from weft.view.run import RunReport, counter_table, left_out, recorded_parts, unchanged_sentence
from weft.view.units import ShownRun, units_by_way
from weft.view.words import changed_values, effort, percent, us

GEMM, COLLECTIVE = "GEMM", "collective"
SIDES: looks.Looks = {GEMM: looks.BLUE, COLLECTIVE: looks.ORANGE}
_DRIVERS = {Driver.CU: "by compute units", Driver.DMA: "by DMA engines"}
_ALGORITHMS = {
    "ring": "a ring",
    "pairwise": "sends and receives of each pair",
    "tree": "a tree",
    "nvls": "the switch's reduction (nvls)",
    "nvls_tree": "the switch's reduction and a tree (nvls_tree)",
    "direct": "all pairs (direct)",
}
_PASSED = "Traffic of one GPU [MB = 10^6 bytes; RS: reduce-scatter, AG: all-gather]"


class CoRunReport(Report[Comparison]):
    """A GEMM co-run with a collective: under one strategy, or several side by side with the runs of the best."""

    explained = "concurrency"

    @property
    def all(self) -> list[CoRun]:
        """The co-run of every strategy."""
        return _all(self.answer)

    @property
    def first(self) -> CoRun:
        """The co-run that the others are compared with."""
        return self.all[0]

    @property
    def best(self) -> CoRun:
        """The co-run with the least time."""
        return self.answer.corun(self.answer.best)

    @property
    def shown(self) -> list[CoRun]:
        """The co-runs whose runs the page shows: the first and the best one."""
        first, best = self.first, self.best
        return [first] if best.run.overlap == first.run.overlap else [first, best]

    def title(self) -> str:
        """Return the collective and the GPUs."""
        run = self.first.run
        return f"GEMM concurrent with {self.first.name}, {run.graph.ranks} GPUs, on {run.gpu.name}"

    def sentences(self) -> list[str]:
        """Return what is gained, what it costs both, and why more than the ideal is gained."""
        best = self.best
        why = f" ({best.causes})" if best.causes else ""
        gain = f"{best.speedup:.2f}x over running serially, {percent(best.share_of_ideal)} of the ideal"
        many = f"Best of {len(self.answer)} strategies: {self.answer.best},"
        who = "Co-run:" if _is_single(self.answer) else many
        slowed = f"slowdown {best.gemm.slowdown:.2f}x of the GEMM, {best.collective.slowdown:.2f}x of the collective"
        return [
            f"{who} {gain}; {slowed}{why}.",
            *unchanged_sentence(self.answer),
            *(f"{said}." for said in above_ideal([best])),
        ]

    def notes(self) -> list[str]:
        """Grids, warnings, times alone, refused strategies, effort, and last the typical errors."""
        answers, first, best = self.all, self.first, self.best
        loops = {id(run): run for run in self.answer.alone.values()}
        if _is_single(self.answer):
            made = [first.gemm_alone, first.collective_alone, first.run]
            about = [f"GEMM: {first.grid}", *_warnings(answers), *_instead(first), *_driven(first)]
            return [*about, effort(made), *typical_errors(first)]
        alone = {each.driver: us(each.collective.alone) for each in reversed(answers)}
        serial, ideal = first.serial * 1e6, first.serial / first.ideal_speedup * 1e6
        return [
            *_grids(answers),
            *_warnings(answers),
            *_instead(first),
            *(f"one {first.name} alone {_DRIVERS[driver]}: {time} us" for driver, time in sorted(alone.items())),
            f"one GEMM alone: {us(first.gemm.alone)} us; all in a row: {serial:,.1f} us, ideal: {ideal:,.1f} us",
            *left_out(self.answer),
            f"least time: {self.answer.best}, {best.speedup:.3f}x over serial",
            *above_ideal(one for one in answers if one.run is not best.run),
            effort([*loops.values(), *self.answer]),
            *typical_errors(best),
        ]

    def tables(self) -> list[Table]:
        """Return both loops and the whole under one strategy, or a row per strategy."""
        if _is_single(self.answer):
            return [loop_table(self.first), whole_table(self.first)]
        return [strategy_table(self.all)]

    def on_terminal(self) -> Sequence[Table | str]:
        """Return the tables, traffic under a single strategy, and what was recorded on request."""
        runs = list(self.answer)
        single = [traffic_table(self.first)] if _is_single(self.answer) else []
        return [*self.tables(), *single, *recorded_parts(runs)]

    def details(self) -> list[Table | str]:
        """Return what workgroups waited for under a single strategy."""
        return [wait_table(self.first)] if _is_single(self.answer) else []

    def figure(self) -> Figure:
        """Return when GEMMs and collectives ended under each strategy."""
        return strategies(self.answer)

    def sections(self) -> list[Part]:
        """Return the page: the strategies, then what happens when, compute units, waits, traffic, and counters."""
        one, shown, single = self.first, self.shown, _is_single(self.answer)
        until, runs = max(each.makespan for each in shown), {each.run.overlap: each.run for each in shown}
        how = (
            f"{one.strategy.title}: {one.strategy.summary}; {_sharing_words(one)}"
            if single
            else "Strategies side by side"
        )
        return [
            f"{one.run.gemm} on each GPU. {how}.".replace(" x ", " × "),
            *self.tables(),
            *([] if single else self.figures()),
            Section("What happens when", [timeline(runs), waits_table(runs)]),
            Section("Who held which compute unit", [held_units(each, until) for each in shown]),
            Section("What workgroups wait for", [stream_waits(each) for each in shown if each.gemm.waits]),
            Section("Traffic of one GPU", [_JOINED, *(_of_strategy(traffic_table(each), each) for each in shown)]),
            interference_section([each.run for each in shown]),
            heat_section([each.run for each in shown]),
            Section("Hardware counters", [_COUNTED, counter_table([each.run for each in shown])], folded=True),
        ]

    def record(self) -> dict[str, Any]:
        """Return every co-run as plain data, with the errors of its classes."""
        made = self.answer.to_dict()
        errors = [error_classes(one) for one in self.all]
        runs = [{**run, "errors": error} for run, error in zip(made["runs"], errors, strict=True)]
        return {**made, "runs": runs}

    def appendix(self) -> list[Part]:
        """Return the machine."""
        return [simulated_section(self.first.run)]


def comparison_report(answer: Comparison) -> Report[Comparison]:
    """Return the report of runs of a graph, or of independent streams that share a GPU."""
    return CoRunReport(answer) if answer.is_shared else RunReport(answer)


def _is_single(answer: Comparison) -> bool:
    return len(answer) == 1 and not answer.refused


def _all(answer: Comparison) -> list[CoRun]:
    return [answer.corun(name) for name in answer.timelines]


def _grids(answers: Iterable[CoRun]) -> list[str]:
    """Return how the GEMM's tiles fill the GPU, for each number of compute units available to it."""
    return list(dict.fromkeys(f"GEMM: {one.grid}" for one in answers if one.apart is not None))


def _warnings(answers: Iterable[CoRun]) -> list[str]:
    """Return where a mask makes the collective's workgroups wait for each other."""
    return list(dict.fromkeys(one.warning for one in answers if one.warning))


def _problem(answer: CoRun) -> str:
    run = answer.run
    return (
        f"GEMM {run.gemm} concurrent with {answer.name} on each of {run.graph.ranks} x "
        f"{run.gpu.name}{changed_values(run.gpu)}"
    )


def _sharing_words(answer: CoRun) -> str:
    """The driver of the collective with its options, the compute units reserved, and which loop is launched first."""
    apart = "" if answer.apart is None else f", {answer.apart} reserved compute unit{'s' * (answer.apart != 1)}"
    options = (f", {name}" if value is True else f", {name} = {value}" for name, value in answer.copies.items())
    return f"{_DRIVERS[answer.driver]}{''.join(options)}{apart}, {answer.first} first"


def _instead(answer: CoRun) -> list[str]:
    """Return the algorithm that the library would use, if it is not the simulated one."""
    if answer.choice is None or not answer.differs:
        return []
    taken, simulated = (_ALGORITHMS.get(name, name) for name in (answer.choice.algorithm, answer.algorithm))
    alone = f"{us(answer.choice.seconds)} us alone, in closed form"
    return [f"simulated as {simulated}; the library would take {taken} ({alone})"]


def _driven(answer: CoRun) -> list[str]:
    if answer.driver is not Driver.DMA:
        return []
    alone = us(answer.library_alone.period(answer.name))
    return [f"serial and ideal: with the collective by compute units, {alone} us alone"]


def above_ideal(answers: Iterable[CoRun]) -> list[str]:
    """Return why strategies exceed the ideal: their collective alone is faster than the one that the ideal assumes."""
    return [
        f"{one.run.overlap} exceeds the ideal because the ideal runs the collective by compute units "
        f"({us(one.library_alone.period(one.name))} us alone), and {_DRIVERS[one.driver]} it takes "
        f"{us(one.collective.alone)} us alone"
        for one in answers
        if one.share_of_ideal > 1
    ]


def typical_errors(answer: CoRun) -> list[str]:
    """The mean errors of the classes of GEMM, collective and sharing, in words; nothing for a GPU that no one sells."""
    found = error_classes(answer)
    return [f"typical errors: {'; '.join(found.values())}"] if found else []


def error_classes(answer: CoRun) -> dict[str, str]:
    """Return the class of error of the GEMM, of the collective and of their sharing, in words."""
    gpu, moved = answer.run.gpu, answer.run.graph.collectives[0].op
    if gpu.vendor == "none" or not isinstance(moved, Collective):
        return {}
    return {
        "gemm": gemm_error(gpu.name, answer.gemm.alone).why,
        "collective": collective_error(gpu.name, moved.name, moved.bytes, answer.run.system.nodes).why,
        "sharing": contention_error(gpu, answer.run.overlap).why,
    }


def _slower(key: str, head: str) -> Column:
    return times_faster(key, head, "{:.3f}×")


def loop_table(answer: CoRun) -> Table:
    """Return both loops: time per iteration alone and co-running, and available compute units."""
    columns = [
        text("loop"), number("count"), microseconds("alone", "alone"), microseconds("concurrent", "concurrent"),
        _slower("slowdown", "slowdown"), _slower("slowdown_both", "while both run"), microseconds("end", "ends at"),
        number("allowed", f"{answer.run.gpu.units_word} it may use"),
    ]  # fmt: skip
    units = answer.grid.units if answer.apart is None else answer.apart
    rows = [
        (loop.name, loop.count, loop.alone * 1e6, loop.concurrent * 1e6, loop.slowdown, loop.slowdown_both,
         loop.end * 1e6, allowed)
        for loop, allowed in (
            (answer.gemm, answer.grid.given), (answer.collective, None if answer.driver is Driver.DMA else units)
        )
    ]  # fmt: skip
    return Table(columns, rows, f"{_problem(answer)} ({answer.run.overlap}: {_sharing_words(answer)})")


def wait_table(answer: CoRun) -> Table:
    """Activity and waits of a workgroup slot, alone and co-running."""
    sides = [waits for loop in (answer.gemm, answer.collective) for waits in (loop.waits_alone, loop.waits)]
    rows = [
        (words, *(side[reason] * 1e6 if reason in side else None for side in sides))
        for reason, words in REASONS.items()
        if any(reason in side for side in sides)
    ]
    title = "What a workgroup's place did or waited for in one GEMM, or one collective, wave after wave [µs]"
    heads = ("GEMM alone", "GEMM concurrent", "collective alone", "collective concurrent")
    return Table([text("what"), *(number(f"{key_of(h)}_us", h, format_=",.1f") for h in heads)], rows, title)


def whole_table(answer: CoRun) -> Table:
    """Return both loops concurrent against serial."""
    ideal = answer.serial / answer.ideal_speedup
    rows = [
        ("both, serial", answer.serial * 1e6, 1.0, 0.0),
        ("both, concurrent", answer.makespan * 1e6, answer.speedup, answer.share_of_ideal),
        ("ideal: neither slows the other", ideal * 1e6, answer.ideal_speedup, 1.0),
    ]
    share = number("share_of_ideal", "share of the ideal", format_=percent)
    return Table([text("what"), microseconds("time", "time"), _slower("speedup", "speedup"), share], rows, "The whole")


def traffic_table(answer: CoRun) -> Table:
    """Traffic of caches, DRAM and link: both loops alone, their sum, and side by side."""
    rows = [
        (words, *(amount or None for amount in (one, other, one + other, both)))
        for words, (one, other, both) in answer.traffic().items()
    ]
    heads = ("GEMM alone", "collective alone", "both alone", "concurrent")
    return Table([text("what"), *(number(f"{key_of(h)}_mb", h, format_=",.2f") for h in heads)], rows, _PASSED)


def strategy_table(answers: Sequence[CoRun]) -> Table:
    """Return a row per strategy: slowdowns, makespan, share of the ideal, main causes."""
    first = answers[0]
    apart = number("apart", f"reserved {first.run.gpu.units_word}")
    columns = [
        text("overlap"), text("first"), apart, _slower("gemm_slowdown", "GEMM slowdown"),
        _slower("collective_slowdown", "collective slowdown"), microseconds("both", "both"),
        _slower("speedup", "speedup"), number("share_of_ideal", "share of ideal", format_=percent),
        text("causes", "longer by", prose=True),
    ]  # fmt: skip
    rows = [
        (one.run.overlap, one.first, one.apart, one.gemm.slowdown, one.collective.slowdown, one.makespan * 1e6,
         one.speedup, one.share_of_ideal, one.causes)
        for one in answers
    ]  # fmt: skip
    return Table(columns, rows, f"{_problem(first)}, {first.gemm.count} and {first.collective.count} in a row")


def _of_strategy(table: Table, answer: CoRun) -> Table:
    return replace(table, title=f"{answer.run.overlap}: {table.title[:1].lower()}{table.title[1:]}")


_JOINED = "RS: reduce-scatter, AG: all-gather [MB]. A load of data that another load is bringing joins it."
_COUNTED = "All iterations of both loops, on one GPU."


def held_units(answer: CoRun, until: float | None = None) -> Figure:
    """Return which operator held which compute unit of one GPU over time [us], a line per unit.

    The time axis ends at `until` [s], so that several runs can be compared, or else with the run.
    """
    # Successive kernels of a loop alternate between two shades.
    way = ShownRun(
        answer.run.overlap, [answer.run], [lambda one: 2 * (one.operator == answer.name) + one.iteration % 2]
    )
    turns = (GEMM, f"every second {GEMM}", answer.name, f"every second {answer.name}")
    colors = dict(zip(turns, (looks.BLUE, "#5FA3CF", looks.ORANGE, "#F3C766"), strict=True))
    ends = ", ".join(
        f"the {what} ends at {us(loop.end, 0)} µs ({loop.end / loop.alone / loop.count:.2f} × its time alone)"
        for what, loop in (("GEMM", answer.gemm), ("collective", answer.collective))
    )
    caption = f"{answer.run.overlap}: {ends}; {percent(answer.share_of_ideal)} of the ideal."
    return units_by_way([way], colors, until).with_caption(caption)


def stream_waits(answer: CoRun) -> Figure:
    """Activity and waits of a workgroup of one GEMM and of one collective, alone and co-running."""
    rows = [
        (f"{name}, {how}", REASONS[reason], spent * 1e6)
        for name, loop in ((GEMM, answer.gemm), (answer.name, answer.collective))
        for how, waits in (("alone", loop.waits_alone), ("concurrent", loop.waits))
        for reason, spent in waits.items()
        if spent > 1e-3 * sum(waits.values())
    ]
    table = Table([text("side"), text("what"), microseconds("time", "time of a workgroup's place")], rows)
    return stacked_bars(
        f"Where the time of a place for one workgroup goes ({answer.run.overlap})", table, lane="side", value="time_us",
        color=Color("what", {REASONS[reason]: color for reason, color in looks.PLACE.items()}),
    ).with_caption(
        "On average over the iterations of a loop. Waves of workgroups in one place add up: a GEMM that needs a wave "
        "more on fewer compute units computes longer."
    )  # fmt: skip


def strategies(found: Comparison) -> Figure:
    """Return when GEMMs and collectives ended under each strategy, beside serial execution and the ideal."""
    one = found.corun()
    rows = []
    for answer in _all(found):
        for side, loop in ((GEMM, answer.gemm), (COLLECTIVE, answer.collective)):
            said = f"{answer.speedup:.2f}× ({percent(answer.share_of_ideal)})"
            rows.append((answer.run.overlap, side, loop.end * 1e6, said if loop.end == answer.makespan else ""))
    columns = [text("overlap"), text("side", "what"), microseconds("end", "ended"), text("said", " ")]
    ideal = ("ideal: neither slows the other", one.serial / one.ideal_speedup * 1e6)
    lines = Table([text("line"), microseconds("end", "time")], [("serial", one.serial * 1e6), ideal])
    return bars(
        f"{one.gemm.count} × GEMM concurrent with {one.collective.count} × {one.name}", Table(columns, rows),
        lane=Lane("overlap", "side"), end="end_us", color=Color("side", SIDES),
        over=[Label("said"), Lines(lines, "end_us", "line")],
    ).with_caption(
        "When the GEMMs and the collectives had ended under each strategy, with the speedup and, in brackets, its "
        "share of the ideal. Dashed: the ideal, in which neither slows the other, and serial, the "
        "collective on compute units."
    )  # fmt: skip
