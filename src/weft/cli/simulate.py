"""`weft simulate`: one sub-layer on one machine, under one overlap or several side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from weft import report
from weft.cli import show
from weft.cli.beside import (
    beside_options,
    check_strategy,
    parse_copies,
    refuse_strategy,
    simulate_beside,
)
from weft.cli.options import (
    clock_option,
    comma_list,
    dtype_option,
    examples,
    file_option,
    folder_option,
    given,
    gpu_options,
    machine,
    request_option,
    whole_numbers,
)
from weft.cli.output import write_answer
from weft.cli.show_beside import print_beside, write_beside
from weft.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from weft.overlap import ArbiterPolicy
    from weft.parallel import ShardedSubLayer
    from weft.result import Comparison, Result

_DEFAULT_MODEL, _DEFAULT_SUBLAYER = "t-nlg", "fc2"


@click.command(
    epilog=examples(
        "weft simulate --model t-nlg --sublayer fc2 --tp 8 --compare sequential,t3",
        "weft simulate --gemm 8192,8192,8192 --beside all_reduce:256MiB --ranks 4 --gpu a100-sxm-80gb",
        "weft simulate --gemm 8192,8192,8192 --beside all_gather:896MiB --overlap dma --gpu mi300x",
    )
)
@click.option(
    "--model", metavar="NAME|FILE", help=f"A model, see 'weft models list'.  [default: {_DEFAULT_MODEL}]"
)
@click.option("--sublayer", metavar="NAME", help=f"op, fc2, fc1 or ip.  [default: {_DEFAULT_SUBLAYER}]")
@click.option(
    "--gemm",
    callback=whole_numbers,
    metavar="M,N,K",
    help="A GEMM of your own instead of a model's; K is that of all GPUs together.",
)
@dtype_option("fp16", "the GEMM")
@click.option(
    "--tp", type=int, default=8, show_default=True, metavar="N", help="GPUs that share the sub-layer."
)
@click.option(
    "--overlap",
    metavar="NAME",
    help="How compute and communication overlap, see 'weft overlaps list'; with --beside also 'all'.  "
    "[default: t3-mca, with --beside streams]",
)
@click.option("--compare", callback=comma_list, metavar="A,B", help="Other overlaps to set beside it.")
@click.option(
    "--arbiter",
    metavar="NAME",
    help="Memory arbitration of every run: round-robin, compute-first or communication-first.",
)
@click.option(
    "--mode",
    type=click.Choice(["auto", "mirrored", "explicit"]),
    default="auto",
    show_default=True,
    help="One GPU stands for all, or each is simulated.",
)
@clock_option()
@beside_options
@gpu_options("t3-paper")
@request_option("512, with --beside as suits the GPU")
@file_option("--json", "json_file", "Write every run as JSON.")
@file_option(
    "--trace",
    "trace_file",
    "Write a trace of --overlap for Perfetto and HTA, one file per rank.",
)
@folder_option("Write report.html with the pictures to this folder.")
def simulate(
    model: str | None,
    sublayer: str | None,
    gemm: tuple[int, ...] | None,
    dtype: str,
    tp: int,
    overlap: str | None,
    compare: tuple[str, ...] | None,
    arbiter: str | None,
    mode: str,
    clock: str,
    beside: str | None,
    ranks: int,
    loops: tuple[int, ...] | None,
    split: str | None,
    copies: tuple[str, ...] | None,
    first: str,
    gpu: str,
    assignments: tuple[str, ...],
    request_bytes: int | None,
    json_file: Path | None,
    trace_file: Path | None,
    folder: Path | None,
) -> None:
    """Simulate one sub-layer: how long its parts take, where the time goes, what memory moves.

    --compare sets other overlaps beside it and shows speedups over 'sequential', which is simulated for them.
    --beside instead runs --gemm (what one GPU computes) and a collective in two independent streams, and shows what
    each costs the other; --overlap then says how they share the GPU.
    """
    import weft

    if beside is not None:
        _refuse_with_beside(model=model, sublayer=sublayer, compare=compare)
        strategy = check_strategy(overlap or "streams", split)
        on = machine(gpu, assignments)
        with _status() as watch:
            extra = given(arbiter=_policy(arbiter), request_bytes=request_bytes, clock=clock, watch=watch)
            options = {"ranks": ranks, "first": first, "copies": parse_copies(copies or ()), **extra}
            found = simulate_beside(gemm, dtype, beside, on, loops, strategy, split, options)
        print_beside(found)
        write_beside(found, on, json_file, trace_file, folder)
        return
    overlap = overlap or "t3-mca"
    refuse_strategy(overlap, split, copies)
    layer = _layer(model, sublayer, gemm, tp, dtype)
    _check_overlaps(overlap, compare or (), traced=trace_file is not None)
    chosen = machine(gpu, assignments)
    options = given(arbiter=_policy(arbiter), mode=mode, clock=clock, request_bytes=request_bytes)
    answer: Result | Comparison
    with _status() as watch:
        if compare is None:
            answer = result = weft.simulate(layer, chosen, overlap, watch=watch, **options)
            runs = [result.record()]
        else:
            answer = both = weft.compare(layer, chosen, (*compare, overlap), watch=watch, **options)
            result, runs = both[overlap], both.rows()
    show.print_answer(answer)
    write_answer(
        json_file,
        {"runs": runs},
        trace_file,
        result,
        folder,
        lambda to: report.run_report(answer, to, chosen),
    )


def _refuse_with_beside(**others: object) -> None:
    for name, value in others.items():
        if value is not None:
            raise InputError(f"--beside takes no --{name}; it runs --gemm and the collective alone")


def _layer(
    model: str | None, name: str | None, gemm: tuple[int, ...] | None, tp: int, dtype: str
) -> ShardedSubLayer:
    """The sub-layer that the options name; InputError if they name two, or a GEMM that lacks dimensions."""
    from weft.parallel import sublayer
    from weft.parallel.tensor import split
    from weft.workload import SubLayer

    if gemm is None:
        return sublayer(model or _DEFAULT_MODEL, name or _DEFAULT_SUBLAYER, tp=tp, dtype=dtype)
    if model is not None or name is not None:
        raise InputError("--gemm replaces --model and --sublayer; give one or the other")
    if len(gemm) != 3:
        raise InputError(f"--gemm has {len(gemm)} dimensions; write M,N,K, like 8192,4256,17024")
    return split(SubLayer.custom(*gemm, dtype), tp)


def _check_overlaps(overlap: str, compared: tuple[str, ...], traced: bool) -> None:
    from weft.overlap import Ideal
    from weft.simulation import find_overlap

    for name in compared:
        find_overlap(name)
    if isinstance(find_overlap(overlap), Ideal) and traced:
        raise InputError(
            f"'{overlap}' is computed, not simulated: it has no trace; choose another --overlap, like t3-mca"
        )


def _policy(name: str | None) -> ArbiterPolicy | None:
    from weft.overlap import POLICIES

    if name is not None and name not in POLICIES:
        raise UnknownNameError("arbiter", name, POLICIES)
    return None if name is None else POLICIES[name]


@contextmanager
def _status() -> Iterator[Callable[[int, int], None] | None]:
    """What to call with events and time during a run: a line on stderr on a terminal, else nothing."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status("simulating") as line:
        yield lambda events, now_fs: line.update(
            f"simulating: {events / 1e6:.0f} million events, {now_fs / 1e9:.0f} us"
        )
