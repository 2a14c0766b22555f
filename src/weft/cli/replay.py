"""`weft replay`: T3's reduce-scatter on real numbers, in the order in which the simulated memory performed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

import weft
from weft import parallel
from weft.cli.options import examples, option, run_options
from weft.cli.output import Outputs, file_option, pass_outputs
from weft.cli.progress import simulation_status
from weft.cli.values import OVERLAP, SHAPE
from weft.errors import InputError
from weft.files import write_json
from weft.hardware import Gpu, System
from weft.models import SubLayer
from weft.options import RunOptions
from weft.report.table import Table, number, text
from weft.run.replay import ROUNDED, Replay
from weft.schedule.arbiters import POLICIES

_SLOWER = 0.5
"""The clock of --slow by that of the others."""


@click.command(epilog=examples("weft replay t3 --tp 8", "weft replay t3-mca --tp 4 --dtype bf16 --slow 2"))
@click.argument("overlap", type=OVERLAP, default="t3")
@option("--tp", "GPUs.", click.IntRange(2, 16), default=8, metavar="N")
@option("--gemm", "The GEMM; K is that of all GPUs together.", SHAPE, default="1024,512,2048")
@option("--dtype", "Format of the sums.", click.Choice([*ROUNDED]), default="fp16")
@option("--seed", "Of the random operands.", click.IntRange(0), default=0)
@option("--arbiter", f"Memory arbitration: {', '.join(POLICIES)}.", metavar="NAME")
@option("--slow", "Number of a GPU that runs at half the clock.", click.IntRange(0), metavar="GPU")
@run_options("t3-paper", requests=None)
@file_option("--json", "Write counts and errors as JSON.")
@pass_outputs
def replay(
    outputs: Outputs,
    /,
    overlap: str,
    tp: int,
    gemm: tuple[int, int, int],
    dtype: str,
    seed: int,
    slow: int | None,
    gpu: Gpu,
    changes: Mapping[str, str],
    options: RunOptions,
) -> None:
    """Perform T3's reduce-scatter on random numbers: every update of every tile, in the order of the simulated memory.

    Every GPU's memory adds tiles in the format of the output and rounds each time. The command says what that costs
    beside sums in fp32, and what would change if tiles went straight to their owner, in whatever order they come.
    """
    machine = gpu.replace(changes)
    graph = parallel.split(SubLayer.custom(*gemm, "fp16" if dtype == "fp16" else "bf16"), tp)
    with simulation_status() as watch:
        watched = replace(options, progress=watch)
        done = weft.replay(graph, _system(machine, tp, slow), overlap, watched, dtype=dtype, seed=seed)
    outputs.show([_told(done), _table(done)], lambda file: write_json(file, done.to_dict()))


def _system(gpu: Gpu, gpus: int, slow: int | None) -> System:
    """The GPUs, of which one may run at half the clock; InputError for one that is not there."""
    if slow is None:
        return weft.system(gpu, gpus=gpus)
    if slow >= gpus:
        raise InputError(f"--slow is {slow}, but there are GPUs 0 to {gpus - 1}; name one of these")
    clock = f"{gpu.compute.clock * _SLOWER:.0f} Hz"
    return System(gpu=gpu, gpus=gpus, variants={slow: gpu.replace({"compute.clock": clock})})


def _told(done: Replay) -> str:
    worse = done.errors.near_memory / done.errors.fp32
    return (
        f"{done.updates:,} updates of tiles on {len(done.partials)} GPUs under {done.run.overlap}: "
        f"{done.errors.same_as_ring:.0%} of the elements have the bits of a ring by the book; near-memory {done.dtype} "
        f"sums err {worse:.2f} times as much as fp32 sums."
    )


def _table(done: Replay) -> Table:
    found, dtype = done.errors, done.dtype
    rows: list[tuple[Any, ...]] = [
        (f"near memory, {dtype} at every update, in the logged order", found.near_memory, 1.0),
        ("a ring by the book", found.near_memory if found.same_as_ring == 1 else None, found.same_as_ring),
        ("straight to the owner, by arrival", found.by_arrival, found.same_by_arrival),
        (f"fp32, rounded once to {dtype}", found.fp32, None),
    ]
    columns = [
        text("sums"), number("error", "rms error of the sum", format_=".3g"),
        number("same", "same bits as near memory", format_=".1%"),
    ]  # fmt: skip
    return Table(columns, rows, f"{done.run.graph} on {done.run.gpu.name}")
