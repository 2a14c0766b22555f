"""A GEMM beside a collective: the tables of one strategy or several, and the page with pictures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from weft.report import plots
from weft.report.page import Figure, Part, Section, simulated_section, write_page
from weft.report.run import counter_table
from weft.report.tables import Table, changed, effort, percent, us
from weft.result import Comparison, CoRun
from weft.result.corun import LoopTimes
from weft.result.timeline import REASONS

_DRIVERS = {"cu": "by compute units", "dma": "by DMA engines"}
_ALGORITHMS = {
    "ring": "a ring",
    "pairwise": "sends and receives of each pair",
    "tree": "a tree",
    "nvls": "the switch's reduction (nvls)",
    "nvls_tree": "the switch's reduction and a tree (nvls_tree)",
    "direct": "all pairs (direct)",
}
_PASSED = "What passed, of one GPU [MB = 10^6 bytes; RS: reduce-scatter, AG: all-gather]"


def corun_parts(answer: Comparison) -> list[Table | str]:
    """What a terminal shows of a GEMM beside a collective: all of one strategy, or several side by side."""
    answers = _all(answer)
    one = answers[0]
    if _is_single(answer):
        return [loop_table(one), f"GEMM: {one.grid}", *_instead(one), wait_table(one), whole_table(one), *_driven(one),
                traffic_table(one), effort([one.gemm_alone, one.collective_alone, one.run])]  # fmt: skip
    best, loops = answer.corun(answer.best), {id(run): run for run in answer.alone.values()}
    serial, ideal = one.serial * 1e6, one.serial / one.ideal_speedup * 1e6
    return [
        strategy_table(answers),
        *(f"GEMM: {grid}" for grid in _grids(answers)),
        *_instead(one),
        *(f"one {one.name} alone {_DRIVERS[driver]}: {time}" for driver, time in _times_alone(answers)),
        f"one GEMM alone: {us(one.gemm.alone)} us; all in a row: {serial:,.1f} us, ideal: {ideal:,.1f} us",
        *_refused(answer),
        f"least time: {answer.best}, {best.speedup:.3f}x over one after the other",
        effort([*loops.values(), *answer]),
    ]


def _is_single(answer: Comparison) -> bool:
    return len(answer) == 1 and not answer.refused


def _all(answer: Comparison) -> list[CoRun]:
    return [answer.corun(name) for name in answer.timelines]


def _times_alone(answers: Iterable[CoRun]) -> list[tuple[str, str]]:
    found = {one.driver: f"{us(one.collective.alone)} us" for one in reversed(list(answers))}
    return sorted(found.items())


def _refused(answer: Comparison) -> list[str]:
    """The strategies that cannot be, with the reason, alike ones together."""
    names: dict[str, list[str]] = {}
    for name, reason in answer.refused.items():
        names.setdefault(reason, []).append(name)
    return [f"left out: {', '.join(alike)}: {reason}" for reason, alike in names.items()]


def _grids(answers: Iterable[CoRun]) -> list[str]:
    """How the GEMM's tiles fill the GPU, once for each number of compute units that it may use."""
    return list(dict.fromkeys(str(one.grid) for one in answers if one.apart is not None))


def _problem(answer: CoRun) -> str:
    run = answer.run
    return f"GEMM {run.gemm} beside {answer.name} on each of {run.graph.ranks} x {run.gpu.name}{changed(run.gpu)}"


def _shared(answer: CoRun) -> str:
    """Who drives the collective, with which options, what is set apart, and what is launched first."""
    apart = "" if answer.apart is None else f", {answer.apart} compute units apart"
    options = (f", {name}" if value is True else f", {name} = {value}" for name, value in answer.copies.items())
    return f"{_DRIVERS[answer.driver]}{''.join(options)}{apart}, {answer.first} first"


def _instead(answer: CoRun) -> list[str]:
    """What the library would take, where that is not what was simulated."""
    if answer.choice is None or not answer.differs:
        return []
    taken, simulated = (_ALGORITHMS.get(name, name) for name in (answer.choice.algorithm, answer.algorithm))
    alone = f"{us(answer.choice.seconds)} us alone, in closed form"
    return [f"simulated as {simulated}; the library would take {taken} ({alone})"]


def _driven(answer: CoRun) -> list[str]:
    if answer.driver != "dma":
        return []
    alone = us(answer.library_alone.period(answer.name))
    return [f"one after the other and ideal: with the collective by compute units, {alone} us alone"]


def loop_table(answer: CoRun) -> Table:
    """Both loops: how long one takes alone and beside the other, and on how many compute units."""
    heads = (
        "loop", "count", "alone [µs]", "beside [µs]", "slowdown", "while both run", "ends at [µs]", "CUs held",
    )  # fmt: skip
    rows = [_loop(loop, answer.run.held[loop.name]) for loop in (answer.gemm, answer.collective)]
    return Table(heads, rows, title=f"{_problem(answer)} ({answer.run.overlap}: {_shared(answer)})")


def _loop(loop: LoopTimes, held: int) -> tuple[str, ...]:
    slowdowns = (f"{loop.slowdown:.3f}×", f"{loop.slowdown_both:.3f}×")
    return (
        loop.name,
        str(loop.count),
        us(loop.alone),
        us(loop.concurrent),
        *slowdowns,
        us(loop.end),
        str(held),
    )


def wait_table(answer: CoRun) -> Table:
    """What a workgroup's place did or waited for, alone and beside the other."""
    sides = [waits for loop in (answer.gemm, answer.collective) for waits in (loop.waits_alone, loop.waits)]
    rows = [
        (words, *(us(side[reason]) if reason in side else "–" for side in sides))
        for reason, words in REASONS.items()
        if any(reason in side for side in sides)
    ]
    title = "What a workgroup's place did or waited for in one GEMM, or one collective, wave after wave [µs]"
    heads = ("what", "GEMM alone", "GEMM beside", "collective alone", "collective beside")
    return Table(heads, rows, title=title)


def whole_table(answer: CoRun) -> Table:
    """Both loops side by side against one after the other."""
    ideal, share = answer.serial / answer.ideal_speedup, percent(answer.share_of_ideal)
    rows = [
        ("both, one after the other", us(answer.serial), "1.000×", "0%"),
        ("both, side by side", us(answer.makespan), f"{answer.speedup:.3f}×", share),
        ("ideal: neither slows the other", us(ideal), f"{answer.ideal_speedup:.3f}×", "100%"),
    ]
    return Table(("what", "time [µs]", "speedup", "share of the ideal"), rows, title="The whole")


def traffic_table(answer: CoRun) -> Table:
    """What passed caches, DRAM and link: both loops alone, their sum, and side by side."""
    rows = [
        (words, *(f"{amount:,.2f}" if amount else "–" for amount in (one, other, one + other, both)))
        for words, (one, other, both) in answer.traffic().items()
    ]
    heads = ("what", "GEMM alone", "collective alone", "both alone", "side by side")
    return Table(heads, rows, title=_PASSED)


def strategy_table(answers: list[CoRun]) -> Table:
    """Every strategy by row: slowdowns, makespan, share of the ideal, what was waited for."""
    heads = (
        "overlap", "first", "CUs apart", "GEMM slowdown", "collective slowdown", "both [µs]", "speedup",
        "share of ideal", "longer by",
    )  # fmt: skip
    rows = [
        (
            one.run.overlap,
            one.first,
            "–" if one.apart is None else str(one.apart),
            f"{one.gemm.slowdown:.3f}×",
            f"{one.collective.slowdown:.3f}×",
            us(one.makespan),
            f"{one.speedup:.3f}×",
            percent(one.share_of_ideal),
            one.causes,
        )
        for one in answers
    ]
    first = answers[0]
    title = f"{_problem(first)}, {first.gemm.count} and {first.collective.count} in a row"
    return Table(heads, rows, text_columns=2, title=title, prose=1)


def corun_record(answer: Comparison) -> dict[str, object]:
    """The answers as plain data for JSON."""
    runs: dict[str, object] = {"runs": [one.record() for one in _all(answer)]}
    return runs if _is_single(answer) else {"best": answer.best, **runs, "refused": dict(answer.refused)}


def corun_report(answer: Comparison, out_dir: str | Path) -> Path:
    """Write `report.html` on what a GEMM and a collective cost each other to a folder and return its path.

    Of several strategies the page compares all and shows the runs of the first and of the best one. Raises OutputError
    if the folder cannot be written to.
    """
    answers = _all(answer)
    one, single = answers[0], _is_single(answer)
    shown = [one] if answer.best == one.run.overlap else [one, answer.corun(answer.best)]
    overview: list[Part] = [loop_table(one), whole_table(one)] if single else [strategy_table(answers), _SLOWER]
    pass_ = one.strategy
    how = f"{pass_.title}: {pass_.summary}; {_shared(one)}" if single else "Strategies side by side"
    grids = [str(one.grid)] if single else _grids(answers)
    passed = [part for each in shown for part in (f"{each.strategy.title}:", traffic_table(each))]
    return write_page(
        out_dir,
        f"GEMM beside {one.name}, {one.run.graph.ranks} GPUs, on {one.run.gpu.name}",
        f"{one.run.gemm} on each GPU. {how}.".replace(" x ", " × "),
        [
            *overview,
            *(f"GEMM: {grid}.".replace(" x ", " × ") for grid in grids),
            *(f"{reason[0].upper()}{reason[1:]}." for reason in _refused(answer)),
            Section("Pictures", _figures(answer, shown)),
            Section("What passed, of one GPU", [_JOINED, *passed]),
            Section("What the blocks counted", [_COUNTED, counter_table([each.run for each in shown])]),
            simulated_section(one.run),
        ],
        ("A GEMM and a collective on one GPU", "concurrency"),
    )


_SLOWER = "A slowdown is how many times longer one takes than alone; the speedup is over both one after the other."
_JOINED = "RS: reduce-scatter, AG: all-gather [MB]. A load of data that another load is bringing joins it."
_COUNTED = "All iterations of both loops, on one GPU."


def _figures(answer: Comparison, shown: list[CoRun]) -> list[Figure]:
    until = max(one.makespan for one in shown)
    figures = [figure for one in shown for figure in _run_figures(one, until)]
    if _is_single(answer):
        return figures
    compared = Figure(
        plots.strategies(answer),
        "When the GEMMs and the collectives had ended under each strategy. One after the other takes until the dotted "
        "line, with the collective on compute units; the dashed one is the ideal, in which neither slows the other.",
    )
    return [compared, *figures]


def _run_figures(answer: CoRun, until: float) -> list[Figure]:
    """The pictures of one run, with a time axis until then [s]."""
    figures = [
        Figure(
            plots.held_units(answer, until),
            "Who held which compute unit when. Above, both streams: a kernel that is launched while the other has "
            "workgroups to place waits for compute units. Below, a line per compute unit; kernels of a loop take turns "
            "in two shades, white is idle.",
        ),
        Figure(
            plots.channel_owners(answer, until),
            "Whose bytes passed when: what the DRAM of one GPU moved for whom, its peak dotted, and what its link "
            "carried.",
        ),
    ]
    if answer.gemm.waits:
        waited = (
            "Where the time of a place for one workgroup went, on average over the iterations of a loop. Waves of "
            "workgroups in one place add up: a GEMM that needs a wave more on fewer compute units computes longer."
        )
        figures.append(Figure(plots.stream_waits(answer), waited))
    return figures
