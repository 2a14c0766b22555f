"""`weft simulate --beside`: a GEMM loop and an independent loop of collectives on the same GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from weft.cli.options import whole_numbers
from weft.cli.output import write_atomically
from weft.cli.tables import print_table
from weft.errors import InputError

if TYPE_CHECKING:
    from weft.hardware import Gpu
    from weft.result.concurrent import Concurrency, LoopTimes

F = TypeVar("F", bound=Callable[..., Any])


def beside_options(command: F) -> F:
    """Add --beside and what goes with it."""
    options = (
        click.option(
            "--beside",
            metavar="COLLECTIVE:SIZE",
            help="Run --gemm in a loop beside a loop of this collective, which does not depend on it, like "
            "all_reduce:256MiB; SIZE is that of the whole buffer.",
        ),
        click.option(
            "--ranks", type=int, default=8, show_default=True, metavar="N", help="GPUs of --beside."
        ),
        click.option(
            "--loops",
            callback=whole_numbers,
            metavar="G[,C]",
            help="GEMMs and collectives of --beside.  [default: 4, and as many collectives as last as long]",
        ),
        click.option(
            "--split",
            metavar="GEMM-COLL",
            help="Compute units of the GEMM and those set apart, for the partitioned overlaps of --beside, like "
            "272-32.  [default: as many as the collective can use, or 8 beside DMA engines]",
        ),
        click.option(
            "--first",
            type=click.Choice(["collective", "gemm"]),
            default="collective",
            show_default=True,
            help="Which loop of --beside the host launches first.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def simulate_beside(
    gemm: tuple[int, ...] | None,
    dtype: str,
    text: str,
    gpu: Gpu,
    loops: tuple[int, ...] | None,
    split: str | None,
    options: dict[str, Any],
) -> Concurrency:
    """Simulate what the options of --beside say; InputError for what they leave open or cannot mean."""
    from weft.simulation import beside
    from weft.workload import Gemm

    if gemm is None or len(gemm) != 3:
        raise InputError("--beside needs the GEMM of one GPU: give --gemm M,N,K, like 8192,8192,8192")
    if loops is not None and len(loops) > 2:
        raise InputError(f"--loops has {len(loops)} numbers; write GEMMs,collectives, like 8,20")
    name, bytes_ = parse_collective(text)
    counts: dict[str, Any] = dict(zip(("gemms", "collectives"), loops or (), strict=False))
    units = None if split is None else parse_split(split, gpu)
    return beside(Gemm(*gemm, dtype), name, bytes_, gpu, units=units, **counts, **options)


def check_strategy(name: str) -> str:
    """The name of a strategy; InputError for an overlap of a sub-layer, which --beside has none of."""
    from weft.overlap import OVERLAPS, find_strategy

    if name in OVERLAPS:
        raise InputError(
            f"overlap '{name}' joins a GEMM with the collective of its own output, but those of --beside do not depend "
            "on each other; choose streams, priority, partition, priority-partition, dma or dma-partition"
        )
    return find_strategy(name).name


def refuse_strategy(name: str) -> None:
    """Raise InputError for a strategy where there is nothing independent to run beside the GEMM."""
    from weft.overlap import STRATEGIES

    if name in STRATEGIES:
        raise InputError(
            f"overlap '{name}' shares a GPU between kernels that do not depend on each other, but those of a sub-layer "
            f"do; give --gemm M,N,K --beside all_gather:896MiB --overlap {name}"
        )


def parse_split(text: str, gpu: Gpu) -> int:
    """The compute units set apart in "272-32"; InputError unless both sides add up to those of the GPU."""
    from weft.overlap.strategies import apart_of

    gemm, dash, apart = (part.strip() for part in text.partition("-"))
    if not (dash and gemm.isdecimal() and apart.isdecimal()):
        raise InputError(
            f"'{text}' is no split; write the compute units of the GEMM and those set apart, like 272-32"
        )
    return apart_of(int(gemm), int(apart), gpu)


def parse_collective(text: str) -> tuple[str, int]:
    """The name and the size [bytes] in "all_reduce:256MiB"; InputError if either is missing."""
    from weft import units

    name, colon, size = text.partition(":")
    if not (name and colon and size):
        raise InputError(f"'{text}' is no collective with its size; write it like all_reduce:256MiB")
    return name.strip(), int(units.parse(size, units.Dimension.BYTES))


def print_concurrency(answer: Concurrency) -> None:
    """Print both loops' times and slowdowns, what they waited for, and the traffic."""
    from weft.cli import show

    c = answer.run.config
    changed = "".join(f", {change}" for change in c.changed)
    driver = _DRIVERS[answer.strategy.driver]
    title = (
        f"GEMM {c.m} x {c.n} x {c.k} {c.dtype} beside {answer.collective.name} ({driver}) on each of "
        f"{answer.ranks} x {answer.gpu}{changed}"
    )
    columns = ["loop", "count", "alone us", "beside us", "slowdown", "while both run", "ends at us"]
    rows = [_row(loop) for loop in (answer.gemm, answer.collective)]
    print_table(title, columns, rows, numbers=columns[1:])
    if answer.choice is not None and answer.differs:
        taken = _ALGORITHMS.get(answer.choice.algorithm, answer.choice.algorithm)
        alone = f"{answer.choice.seconds * 1e6:.1f} us alone, in closed form"
        click.echo(f"simulated as a ring; the library would take {taken} ({alone})")
    _print_waits(answer)
    _print_whole(answer)
    show.print_traffic([answer.run])
    runs = (answer.gemm_alone, answer.collective_alone, answer.run)
    events, wall = sum(run.events for run in runs), sum(run.wall_s for run in runs)
    click.echo(f"{events / 1e6:.1f} million events in {wall:.1f} s; requests of {c.request_bytes} B")


_DRIVERS = {"cu": "by compute units", "dma": "by DMA engines"}
_ALGORITHMS = {
    "tree": "a tree",
    "nvls": "the switch's reduction (nvls)",
    "nvls_tree": "the switch's reduction and a tree (nvls_tree)",
    "direct": "all pairs (direct)",
}


def _row(loop: LoopTimes) -> list[str]:
    times = (f"{t * 1e6:.1f}" for t in (loop.alone, loop.concurrent))
    slowdowns = (f"{loop.slowdown:.3f}x", f"{loop.slowdown_both:.3f}x")
    return [loop.name, str(loop.count), *times, *slowdowns, f"{loop.end * 1e6:.1f}"]


def _print_waits(answer: Concurrency) -> None:
    from weft.result.concurrent import REASONS

    columns = ["what", "GEMM alone", "GEMM beside", "collective alone", "collective beside"]
    sides = [waits for loop in (answer.gemm, answer.collective) for waits in (loop.waits_alone, loop.waits)]
    rows = [
        [words, *(f"{side[reason] * 1e6:.1f}" if reason in side else "-" for side in sides)]
        for reason, words in REASONS.items()
    ]
    title = "What a workgroup of one GEMM, or of one collective, did or waited for [us]"
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


def write_concurrency(
    answer: Concurrency, gpu: Gpu, json_file: Path | None, trace_file: Path | None, folder: Path | None
) -> None:
    """Write the answer as JSON, the concurrent run as a trace and as a page with its timeline."""
    if json_file is not None:
        write_atomically(json_file, json.dumps({"runs": [answer.record()]}, indent=1) + "\n")
        click.echo(f"figures: {json_file}")
    if trace_file is not None:
        from weft.report.trace import write_trace

        for path in write_trace(answer.run, trace_file):
            click.echo(f"trace:   {path}")
    if folder is not None:
        from weft.report import concurrency_report

        click.echo(f"report:  {concurrency_report(answer, folder, gpu)}")
