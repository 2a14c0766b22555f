"""A GEMM beside a collective on the terminal and in files: slowdowns, waits, traffic; strategies side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft import report
from weft.cli.output import write_answer
from weft.cli.tables import print_table

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.result import Result
    from weft.result.concurrent import Concurrency, LoopTimes, Strategies

_DRIVERS = {"cu": "by compute units", "dma": "by DMA engines"}
_ALGORITHMS = {
    "ring": "a ring",
    "pairwise": "sends and receives of each pair",
    "tree": "a tree",
    "nvls": "the switch's reduction (nvls)",
    "nvls_tree": "the switch's reduction and a tree (nvls_tree)",
    "direct": "all pairs (direct)",
}


def print_beside(answer: Concurrency | Strategies) -> None:
    """Print what one strategy costs both loops, or all of them side by side."""
    from weft.result.concurrent import Concurrency

    if isinstance(answer, Concurrency):
        _print_one(answer)
    else:
        _print_all(answer)


def _print_one(answer: Concurrency) -> None:
    columns = [
        "loop",
        "count",
        "alone us",
        "beside us",
        "slowdown",
        "while both run",
        "ends at us",
        "CUs held",
    ]
    units = answer.units["gemm"], answer.units["collective"]
    rows = [
        [*_row(loop), str(held)] for loop, held in zip((answer.gemm, answer.collective), units, strict=True)
    ]
    print_table(f"{_problem(answer)} ({_how(answer)})", columns, rows, numbers=columns[1:])
    click.echo(f"GEMM: {answer.grid}")
    _print_choice(answer)
    _print_waits(answer)
    _print_whole(answer)
    _print_traffic(answer)
    _print_effort([answer.gemm_alone, answer.collective_alone, answer.run])


def _problem(answer: Concurrency) -> str:
    c = answer.run.config
    changed = "".join(f", {change}" for change in c.changed)
    return (
        f"GEMM {c.m} x {c.n} x {c.k} {c.dtype} beside {answer.collective.name} on each of "
        f"{answer.ranks} x {answer.gpu}{changed}"
    )


def _how(answer: Concurrency) -> str:
    apart = "" if answer.apart is None else f", {answer.apart} compute units apart"
    driver = _DRIVERS[answer.strategy.driver] + "".join(
        f", {name}" if value is True else f", {name} = {value}" for name, value in answer.copies.items()
    )
    return f"{answer.strategy.name}: {driver}{apart}, {answer.first} first"


def _row(loop: LoopTimes) -> list[str]:
    times = (f"{t * 1e6:.1f}" for t in (loop.alone, loop.concurrent))
    slowdowns = (f"{loop.slowdown:.3f}x", f"{loop.slowdown_both:.3f}x")
    return [loop.name, str(loop.count), *times, *slowdowns, f"{loop.end * 1e6:.1f}"]


def _print_choice(answer: Concurrency) -> None:
    if answer.choice is not None and answer.differs:
        taken = _ALGORITHMS.get(answer.choice.algorithm, answer.choice.algorithm)
        simulated = _ALGORITHMS.get(answer.algorithm, answer.algorithm)
        alone = f"{answer.choice.seconds * 1e6:.1f} us alone, in closed form"
        click.echo(f"simulated as {simulated}; the library would take {taken} ({alone})")


def _print_waits(answer: Concurrency) -> None:
    from weft.result.concurrent import REASONS

    columns = ["what", "GEMM alone", "GEMM beside", "collective alone", "collective beside"]
    sides = [waits for loop in (answer.gemm, answer.collective) for waits in (loop.waits_alone, loop.waits)]
    rows = [
        [words, *(f"{side[reason] * 1e6:.1f}" if reason in side else "-" for side in sides)]
        for reason, words in REASONS.items()
        if any(reason in side for side in sides)
    ]
    title = "What a workgroup's place did or waited for in one GEMM, or one collective, wave after wave [us]"
    print_table(title, columns, rows, numbers=columns[1:])


def _print_whole(answer: Concurrency) -> None:
    rows = [
        ["both, side by side", f"{answer.makespan * 1e6:.1f}"],
        ["both, one after the other", f"{answer.serial * 1e6:.1f}"],
        ["speedup", f"{answer.speedup:.3f}x"],
        ["ideal speedup (neither slows the other)", f"{answer.ideal_speedup:.3f}x"],
        ["share of the ideal", f"{answer.share_of_ideal:.0%}"],
    ]
    print_table("The whole", ["what", "us"], rows, numbers=["us"])
    if answer.strategy.driver == "dma":
        alone = f"{answer.library_alone * 1e6:.1f} us"
        click.echo(f"one after the other and ideal: with the collective by compute units, {alone} alone")


def _print_traffic(answer: Concurrency) -> None:
    """What passed caches, DRAM and link: both loops alone, their sum, and side by side."""
    columns = ["what", "GEMM alone", "collective alone", "both alone", "side by side"]
    rows = [
        [words, *(f"{amount:,.2f}" if amount else "-" for amount in (one, other, one + other, both))]
        for words, (one, other, both) in answer.traffic().items()
    ]
    title = "What passed, of one GPU [MB = 10^6 bytes; RS: reduce-scatter, AG: all-gather]"
    print_table(title, columns, rows, numbers=columns[1:])


def _print_effort(runs: list[Result]) -> None:
    events, wall = sum(run.events for run in runs), sum(run.wall_s for run in runs)
    click.echo(
        f"{events / 1e6:.1f} million events in {wall:.1f} s; requests of {runs[0].config.request_bytes} B"
    )


def _print_all(found: Strategies) -> None:
    columns = [
        "overlap",
        "first",
        "CUs apart",
        "GEMM slowdown",
        "collective slowdown",
        "us",
        "speedup",
        "share of ideal",
        "longer by",
    ]
    answers = list(found.answers.values())
    one = answers[0]
    title = f"{_problem(one)}, {one.gemm.count} and {one.collective.count} in a row"
    rows = [_strategy_row(answer) for answer in answers]
    print_table(title, columns, rows, numbers=columns[2:-1])
    _print_grids(answers)
    _print_choice(one)
    for driver in dict.fromkeys(answer.strategy.driver for answer in answers):
        alone = next(answer for answer in answers if answer.strategy.driver == driver).collective.alone
        click.echo(f"one {one.collective.name} alone {_DRIVERS[driver]}: {alone * 1e6:.1f} us")
    serial, ideal = one.serial * 1e6, one.serial / one.ideal_speedup * 1e6
    click.echo(
        f"one GEMM alone: {one.gemm.alone * 1e6:.1f} us; all in a row: {serial:.1f} us, ideal: {ideal:.1f} us"
    )
    for reason in dict.fromkeys(found.refused.values()):
        names = ", ".join(name for name, why in found.refused.items() if why == reason)
        click.echo(f"left out: {names}: {reason}")
    best = found.best
    click.echo(f"least time: {best.strategy.name}, {best.speedup:.3f}x over one after the other")
    loops = {id(run): run for a in answers for run in (a.gemm_alone, a.collective_alone)}
    _print_effort([*loops.values(), *(answer.run for answer in answers)])


def _print_grids(answers: list[Concurrency]) -> None:
    """How the GEMM's tiles fill the GPU, once for each number of compute units that it may use."""
    for said in dict.fromkeys(str(answer.grid) for answer in answers if answer.apart is not None):
        click.echo(f"GEMM: {said}")


def _strategy_row(answer: Concurrency) -> list[str]:
    return [
        answer.strategy.name,
        answer.first,
        "-" if answer.apart is None else str(answer.apart),
        f"{answer.gemm.slowdown:.3f}x",
        f"{answer.collective.slowdown:.3f}x",
        f"{answer.makespan * 1e6:.1f}",
        f"{answer.speedup:.3f}x",
        f"{answer.share_of_ideal:.0%}",
        answer.causes,
    ]


def write_beside(
    answer: Concurrency | Strategies,
    gpu: Gpu,
    json_file: Path | None,
    trace_file: Path | None,
    folder: Path | None,
) -> None:
    """Write the answer as JSON, the concurrent run (the best one's) as a trace, and as a page with its pictures."""
    from weft.result.concurrent import Concurrency

    single = isinstance(answer, Concurrency)
    record = {"runs": [answer.record()]} if single else answer.record()
    shown = answer if isinstance(answer, Concurrency) else answer.best
    write_answer(
        json_file,
        record,
        trace_file,
        shown.run,
        folder,
        lambda to: report.concurrency_report(answer, to, gpu),
    )
