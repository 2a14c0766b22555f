"""`weft replay`: T3's collectives on real numbers, in the order in which the simulated memory performed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

import weft
from weft.cli.cases import layer_of_experts, routed_graph
from weft.cli.options import examples, option, refuse_given, run_options
from weft.cli.output import Outputs, file_option, pass_outputs
from weft.cli.progress import simulation_status
from weft.cli.values import OVERLAP, SHAPE, Value
from weft.core.errors import InputError
from weft.core.files import write_json
from weft.core.options import RunOptions
from weft.core.report.table import Table, number, text
from weft.graph.collective import Form
from weft.graph.routing import loads_of
from weft.hardware import Gpu, System, slower
from weft.models import SubLayer, parallel
from weft.overlaps import OVERLAPS
from weft.overlaps.arbiters import POLICIES
from weft.simulate.gathered import GatherReplay
from weft.simulate.replay import ROUNDED, Replay
from weft.simulate.routed_replay import ExpertReplay

_SLOWER = 0.5
"""The clock of --slow by that of the others."""


@click.command(
    epilog=examples(
        "weft replay t3 --tp 8",
        "weft replay t3-mca --tp 4 --dtype bf16 --slow 2",
        "weft replay t3-all-gather --tp 8",
        "weft replay flux --form ag_gemm --tp 4 --slow 2",
        "weft replay t3-all-to-all --experts 256x512x256,top2/8 --tp 4 --expert-load power:1.1",
    )
)
@click.argument("overlap", type=OVERLAP, default="t3")
@option("--tp", "GPUs.", click.IntRange(2, 16), default=8, metavar="N")
@option(
    "--gemm",
    "The GEMM; K is that of all GPUs together, with ag_gemm N.",
    SHAPE,
    default="1024,512,2048",
)
@option(
    "--form",
    "The all-reduce of the GEMM's output behind it (gemm_ar), or the all-gather of its rows before it (ag_gemm).  "
    "[default: what the overlap is for]",
    click.Choice(["gemm_ar", "ag_gemm"]),
)
@option(
    "--experts",
    "In place of --gemm an MoE layer on --tp GPUs, as of 'weft simulate moe'.",
    Value("TOKENSxHIDDENxFFN,topK/EXPERTS", layer_of_experts),
)
@option(
    "--expert-load",
    "Tokens by expert of --experts: even, power:1.1, or a number for each.",
    Value("LOADS", loads_of),
)
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
    form: Form | None,
    experts: Mapping[str, int] | None,
    expert_load: float | tuple[float, ...] | None,
    dtype: str,
    seed: int,
    slow: int | None,
    gpu: Gpu,
    changes: Mapping[str, str],
    options: RunOptions,
) -> None:
    """Perform T3's collectives on random numbers: every update of every tile, in the order of the simulated memory.

    Every GPU's memory adds tiles in the format of the output and rounds each time. The command says what that costs
    beside sums in fp32, and what would change if tiles went straight to their owner, in whatever order they come. Of an
    all-gather before a GEMM, each tile multiplies the rows that its GPU has when it begins. Of --experts, tokens go to
    their experts and come back, under t3-all-to-all or deepep.
    """
    machine, operands = gpu.replace(changes), "fp16" if dtype == "fp16" else "bf16"
    if experts is None and expert_load is not None:
        raise InputError("--expert-load is that of experts; give --experts, like 256x512x256,top2/8, too")
    if experts is not None:
        refuse_given("with --experts", "gemm", "form")
        graph = routed_graph(experts, tp, expert_load or (), operands)
    elif (form or _form_of(overlap)) == "ag_gemm":
        shared = parallel.share_of("ag_gemm", weft.Gemm(*gemm, operands), tp)
        graph = parallel.dependent("ag_gemm", shared, tp)
    else:
        graph = parallel.split(SubLayer.custom(*gemm, operands), tp)
    with simulation_status() as watch:
        watched = replace(options, progress=watch)
        done = weft.replay(graph, _system(machine, tp, slow), overlap, watched, dtype=dtype, seed=seed)
    shown: list[Table | str]
    if isinstance(done, GatherReplay):
        shown = [_gather_words(done)]
    else:
        shown = [_expert_words(done)] if isinstance(done, ExpertReplay) else [_replay_words(done), _table(done)]
    outputs.show(shown, lambda file: write_json(file, done.to_dict()))


def _system(gpu: Gpu, gpus: int, slow: int | None) -> System:
    """Return the GPUs; one GPU may run at half the clock. Raises InputError for a rank that does not exist."""
    if slow is None:
        return weft.system(gpu, gpus=gpus)
    if slow >= gpus:
        raise InputError(f"--slow is {slow}, but there are GPUs 0 to {gpus - 1}; name one of these")
    return weft.system(gpu, gpus=gpus).with_variants({slow: slower(gpu, _SLOWER)})


def _form_of(overlap: str) -> Form:
    """Return the form that an overlap joins, an all-reduce behind the GEMM if it joins that, too."""
    forms = OVERLAPS[overlap].forms if overlap in OVERLAPS else ()
    return "ag_gemm" if forms == ("ag_gemm",) else "gemm_ar"


def _gather_words(done: GatherReplay) -> str:
    return (
        f"{done.tiles:,} tiles on {len(done.products)} GPUs under {done.run.overlap}, {done.pieces:,} pieces of rows "
        f"gathered: no tile began before its rows were there, and {done.same:.0%} of the elements have the bits of a "
        f"GEMM whose operand is all there (rms error {done.error:.3g}, of {done.dtype})."
    )


def _expert_words(done: ExpertReplay) -> str:
    return (
        f"{done.answers:,} answers of experts to {done.result[..., 0].size:,} tokens on {len(done.result)} GPUs under "
        f"{done.run.overlap}: no tile began before its tokens were there, and every token has the answers of all of "
        f"its experts, once each. Their {done.dtype} sums have an rms error of {done.error:.3g}, sums in fp32 that are "
        f"rounded once {done.fp32:.3g}."
    )


def _replay_words(done: Replay) -> str:
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
