"""`weft simulate`: a sub-layer, or a GEMM beside an independent collective, under one overlap or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft import view
from weft.cli.options import (
    clock_option,
    comma_list,
    dtype_option,
    examples,
    file_option,
    folder_option,
    gpu_options,
    parse_collective,
    parse_split,
    request_option,
    run_options,
    three_sizes,
    whole_numbers,
)  # fmt: skip
from weft.cli.output import write_answer
from weft.errors import InputError, UnknownNameError, join_or
from weft.view.terminal import print_parts

if TYPE_CHECKING:
    from weft.graph import Collective, Gemm, Graph
    from weft.hardware import Gpu, System
    from weft.options import RunOptions
    from weft.result import Comparison
    from weft.schedule import Sharing
    from weft.schedule.arbiters import ArbiterPolicy

ALL = "all"
"""What --overlap takes for every way to share a GPU side by side."""
_DEFAULT_MODEL, _DEFAULT_SUBLAYER = "t-nlg", "fc2"
_COUNTED = ("engines", "engines_per_peer", "threads")


@click.command(
    epilog=examples(
        "weft simulate --model t-nlg --sublayer fc2 --tp 8 --compare sequential,t3",
        "weft simulate --gemm 8192,8192,8192 --beside all_reduce:256MiB --ranks 4 --gpu a100-sxm-80gb",
        "weft simulate --gemm 8192,8192,8192 --beside all_gather:896MiB --overlap dma --gpu mi300x",
    )
)
@click.option("--model", metavar="NAME|FILE", help=f"A model, see 'weft models list'.  [default: {_DEFAULT_MODEL}]")
@click.option("--sublayer", metavar="NAME", help=f"op, fc2, fc1 or ip.  [default: {_DEFAULT_SUBLAYER}]")
@click.option(
    "--gemm",
    callback=whole_numbers,
    metavar="M,N,K",
    help="A GEMM of your own instead of a model's; K is that of all GPUs together.",
)
@dtype_option("fp16", "the GEMM")
@click.option("--tp", type=int, default=8, show_default=True, metavar="N", help="GPUs that share the sub-layer.")
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
@click.option(
    "--beside",
    metavar="COLLECTIVE:SIZE",
    help="Run --gemm in a loop beside a loop of this collective, which does not depend on it, like "
    "all_reduce:256MiB; SIZE is that of the whole buffer.",
)
@click.option("--ranks", type=int, default=8, show_default=True, metavar="N", help="GPUs of --beside.")
@click.option(
    "--loops",
    callback=whole_numbers,
    metavar="G[,C]",
    help="GEMMs and collectives of --beside.  [default: 4, and as many collectives as last as long]",
)
@click.option(
    "--split",
    metavar="GEMM-COLL",
    help="Compute units of the GEMM and those set apart, for the partitioned overlaps of --beside, like "
    "272-32.  [default: as many as the collective can use, or 8 beside DMA engines]",
)
@click.option(
    "--copies",
    callback=comma_list,
    metavar="A,B=N",
    help="How DMA engines copy where they move the data of --beside: prelaunched, broadcast (all_gather), "
    "swap (all_to_all), engines=N, engines_per_peer=N, threads=N.",
)
@click.option(
    "--first",
    type=click.Choice(["collective", "gemm"]),
    help="Which loop of --beside the host launches first.  [default: the collective where it has priority, "
    "else the GEMM]",
)
@gpu_options("t3-paper", changed="the GPU, its node or its library")
@request_option("512, with --beside as suits the GPU")
@file_option("--json", "json_file", "Write every run as JSON.")
@file_option("--trace", "trace_file", "Write a trace of --overlap for Perfetto and HTA, one file per rank.")
@folder_option("Write report.html with the pictures to this folder.")
@run_options
def simulate(
    beside: str | None,
    arbiter: str | None,
    json_file: Path | None,
    trace_file: Path | None,
    folder: Path | None,
    options: RunOptions,
    **work: Any,
) -> None:
    """Simulate one sub-layer: how long its parts take, where the time goes, what memory moves.

    --compare sets other overlaps beside it and shows speedups over 'sequential', which is simulated for them.
    --beside instead runs --gemm (what one GPU computes) and a collective in two independent streams, and shows what
    each costs the other; --overlap then says how they share the GPU.
    """
    from weft.view import corun, run

    with _status() as progress:
        made = replace(options, arbiter=_policy(arbiter), progress=progress)
        if beside is None:
            answer = _sub_layer(made, traced=trace_file is not None, **work)
        else:
            answer = _beside(made, beside, **work)
    write: tuple[Any, Any, Any] = (
        (run.run_parts, run.run_record, view.run_report)
        if beside is None
        else (corun.corun_parts, corun.corun_record, view.corun_report)
    )
    parts, record, page = write
    print_parts(parts(answer))
    shown = answer[(work["overlap"] or "t3-mca") if beside is None else answer.best]
    write_answer(json_file, record(answer), trace_file, shown, folder, lambda to: page(answer, to))


def _sub_layer(
    options: RunOptions, *, traced: bool, model: str | None, sublayer: str | None, gemm: tuple[int, ...] | None,
    tp: int,
    dtype: str, overlap: str | None, compare: tuple[str, ...] | None, split: str | None, copies: tuple[str, ...] | None,
    gpu: str, assignments: tuple[str, ...], **_beside: Any,
) -> Comparison:  # fmt: skip
    """A sub-layer under --overlap, beside the baseline and those of --compare if there are any."""
    import weft
    from weft.result import Comparison

    chosen = overlap or "t3-mca"
    _check_overlap(chosen, compare or (), split, copies, traced)
    layer = _layer(model, sublayer, gemm, tp, dtype)
    on = _machine(gpu, assignments, tp)
    if compare is None:
        return Comparison({chosen: weft.simulate(layer, on, chosen, options)})
    return weft.compare(layer, on, (*compare, chosen), options)


def _machine(gpu: str, assignments: tuple[str, ...], ranks: int) -> System:
    """`ranks` GPUs with the values that --set changes, also of their nodes; InputError for what cannot be."""
    from weft import hardware

    return hardware.system(hardware.gpu(gpu), gpus=ranks).replace(dict(map(hardware.parse_assignment, assignments)))


def _layer(model: str | None, name: str | None, gemm: tuple[int, ...] | None, tp: int, dtype: str) -> Graph:
    """The sub-layer that the options name; InputError if they name two, or a GEMM that lacks dimensions."""
    from weft.models import SubLayer
    from weft.parallel import split, sublayer

    if gemm is None:
        return sublayer(model or _DEFAULT_MODEL, name or _DEFAULT_SUBLAYER, tp=tp, dtype=dtype)
    if model is not None or name is not None:
        raise InputError("--gemm replaces --model and --sublayer; give one or the other")
    return split(SubLayer.custom(*three_sizes(gemm), dtype), tp)


def _check_overlap(
    overlap: str, compared: tuple[str, ...], split: str | None, copies: tuple[str, ...] | None, traced: bool
) -> None:
    """Raise InputError for an overlap that a sub-layer has no use for, or an option of one that shares a GPU."""
    from weft.schedule import SHARING, Ideal, find_pass

    if overlap in (*SHARING, ALL):
        raise InputError(
            f"overlap '{overlap}' shares a GPU between kernels that do not depend on each other, but those of a "
            f"sub-layer do; give --gemm M,N,K --beside all_gather:896MiB --overlap {overlap}"
        )
    for given, what in (
        (split, f"--split {split} shares compute units with"),
        (copies, "--copies says how to move the data of"),
    ):
        if given is not None:
            raise InputError(f"{what} --beside, which is missing; add it or leave it out")
    for name in compared:
        find_pass(name)
    if isinstance(find_pass(overlap), Ideal) and traced:
        raise InputError(
            f"'{overlap}' is computed, not simulated: it has no trace; choose another --overlap, like t3-mca"
        )


def _beside(
    options: RunOptions, beside: str, *, model: str | None, sublayer: str | None, compare: tuple[str, ...] | None,
    gemm: tuple[int, ...] | None, dtype: str, tp: int, ranks: int, loops: tuple[int, ...] | None, overlap: str | None,
    split: str | None, copies: tuple[str, ...] | None, first: Any, gpu: str, assignments: tuple[str, ...],
) -> Comparison:  # fmt: skip
    """The loops of --gemm and --beside under --overlap; InputError for what the options leave open or cannot mean."""
    import weft
    from weft.graph import Collective, Gemm

    for name, value in (("model", model), ("sublayer", sublayer), ("compare", compare)):
        if value is not None:
            raise InputError(f"--beside takes no --{name}; it runs --gemm and the collective alone")
    _check_counts(loops, ranks)
    on = _machine(gpu, assignments, ranks)
    passes = _sharing(overlap or "streams", split, copies or (), first, on.gpu)
    if gemm is None:
        raise InputError("--beside needs the GEMM of one GPU: give --gemm M,N,K, like 8192,8192,8192")
    shape = Gemm(*three_sizes(gemm), dtype)
    moved = Collective(*parse_collective(beside), ranks, dtype)
    graph = _loops(shape, moved, loops or (4,), on, passes[0], options)
    return weft.compare(graph, on, passes, options)


def _loops(
    gemm: Gemm, moved: Collective, loops: tuple[int, ...], on: System, overlap: Sharing, options: RunOptions
) -> Graph:
    import weft

    if len(loops) == 2:
        return weft.concurrent(gemm, moved, *loops)
    return weft.balanced(gemm, moved, on, overlap, options, *loops)


def _check_counts(loops: tuple[int, ...] | None, ranks: int) -> None:
    if ranks < 2:
        raise InputError(f"--ranks is {ranks}; a collective needs at least 2 GPUs, like --ranks 8")
    if loops is not None and len(loops) > 2:
        raise InputError(f"--loops has {len(loops)} numbers; write GEMMs,collectives, like 8,20")
    if loops is not None and min(loops) < 1:
        raise InputError(f"--loops has {min(loops)} in it; each loop runs at least once, like --loops 8,20")


def _sharing(name: str, split: str | None, copies: tuple[str, ...], first: Any, on: Gpu) -> list[Sharing]:
    """The ways to share a GPU that --overlap names, with what --split, --copies and --first say of them."""
    from weft.schedule import PASSES, SHARING, find_pass

    if name in PASSES and name not in SHARING:
        raise InputError(
            f"overlap '{name}' joins a GEMM with the collective of its own output, but those of --beside do not depend "
            f"on each other; choose {join_or((*SHARING, ALL))}"
        )
    chosen = list(SHARING.values()) if name == ALL else [SHARING[find_pass(name).name]]
    if split is not None and not any(one.partition for one in chosen):
        parting = [one.name for one in SHARING.values() if one.partition]
        raise InputError(f"--split {split} needs an overlap that sets compute units apart: {join_or(parting)}")
    units = None if split is None else parse_split(split, on)
    options = tuple(map(_copy_option, copies))
    several = len(chosen) > 1
    return [
        replace(
            one,
            first=first,
            units=units if one.partition and not (several and one.driver == "dma") else None,
            copies=options if not several or one.driver == "dma" else (),
        )
        for one in chosen
    ]


def _copy_option(text: str) -> tuple[str, int | bool]:
    """An option of DMA engines in "prelaunched" or "engines=2"; InputError for a number too many or too few."""
    name, equals, number = (part.strip() for part in text.partition("="))
    counted = name in _COUNTED
    if counted and not number.isdecimal():
        raise InputError(f"--copies {name} needs a whole number; write it like {name}=2")
    if equals and not counted:
        raise InputError(f"--copies {text}: only engines, engines_per_peer and threads take a number")
    return name, int(number) if counted else True


def _policy(name: str | None) -> ArbiterPolicy | None:
    from weft.schedule.arbiters import POLICIES

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
