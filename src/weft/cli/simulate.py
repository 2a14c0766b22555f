"""`weft simulate`: a sub-layer, or a GEMM beside an independent collective, under one overlap or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from weft.cli.options import (
    beside_options,
    clock_option,
    dtype_option,
    examples,
    gpu_options,
    option,
    refuse_given,
    request_option,
    run_options,
)
from weft.cli.output import Outputs, file_option, folder_option, pass_outputs
from weft.cli.progress import simulation_status
from weft.cli.values import MODEL_NAME, OVERLAP, OVERLAPS, SPLIT, Value, names, numbers
from weft.errors import InputError, join_or
from weft.files import write_json

if TYPE_CHECKING:
    from weft.graph import Graph
    from weft.hardware import Gpu, System
    from weft.options import RunOptions
    from weft.result import Comparison
    from weft.schedule import Sharing

ALL = "all"
"""What --overlap takes for every way to share a GPU side by side."""
_DEFAULT_MODEL, _DEFAULT_SUBLAYER = "t-nlg", "fc2"
_DEFAULT_OVERLAP, _DEFAULT_SHARING = "t3-mca", "streams"
_COUNTED = ("engines", "engines_per_peer", "threads")
_OF_A_SUBLAYER = ("model", "sublayer", "tp", "compare")
_OF_BESIDE = ("ranks", "loops", "split", "copies", "first")
"""Options that only a sub-layer, or only --beside, has a use for."""


def _loops(text: str) -> tuple[int, ...]:
    """GEMMs and collectives in "8,20", or GEMMs alone in "8"; InputError for other numbers."""
    loops = numbers(text)
    if len(loops) > 2:
        raise InputError(f"--loops has {len(loops)} numbers; write GEMMs,collectives, like 8,20")
    if min(loops) < 1:
        raise InputError(f"--loops has {min(loops)} in it; each loop runs at least once, like --loops 8,20")
    return loops


def _copies(text: str) -> tuple[tuple[str, int | bool], ...]:
    """The options of DMA engines in "prelaunched,engines=2"; InputError for one given twice."""
    options = tuple(map(_copy_option, names(text)))
    if len(dict(options)) < len(options):
        raise InputError(f"--copies {text} gives an option twice; give each once")
    return options


def _copy_option(text: str) -> tuple[str, int | bool]:
    """An option of DMA engines in "prelaunched" or "engines=2"; InputError for a missing or an unexpected number."""
    name, equals, number = (part.strip() for part in text.partition("="))
    counted = name in _COUNTED
    if counted and not number.isdecimal():
        raise InputError(f"--copies {name} needs a whole number; write it like {name}=2")
    if equals and not counted:
        raise InputError(f"--copies {text}: only engines, engines_per_peer and threads take a number")
    return name, int(number) if counted else True


@click.command(
    epilog=examples(
        "weft simulate --model t-nlg --sublayer fc2 --tp 8 --compare sequential,t3",
        "weft simulate --gemm 8192,8192,8192 --beside all_reduce:256MiB --ranks 4 --gpu a100-sxm-80gb",
        "weft simulate --gemm 8192,8192,8192 --beside all_gather:896MiB --overlap dma --gpu mi300x",
    )
)
@option("--model", f"A model, see 'weft models list'.  [default: {_DEFAULT_MODEL}]", MODEL_NAME)
@option("--sublayer", f"op, fc2, fc1 or ip.  [default: {_DEFAULT_SUBLAYER}]", metavar="NAME")
@dtype_option("fp16", "the GEMM")
@option("--tp", "GPUs that share the sub-layer.", int, default=8, metavar="N")
@option(
    "--overlap",
    "How compute and communication overlap, see 'weft overlaps list'; with --beside also 'all'.  "
    f"[default: {_DEFAULT_OVERLAP}, with --beside {_DEFAULT_SHARING}]",
    OVERLAP,
)
@option(
    "--compare",
    "Overlaps side by side, each with its speedup over 'sequential', which is simulated for them. Without "
    "--overlap exactly these are compared.",
    OVERLAPS,
)
@option(
    "--arbiter", "Memory arbitration of every run: round-robin, compute-first or communication-first.", metavar="NAME"
)
@option(
    "--mode",
    "Simulate one GPU for all, or each of them.",
    click.Choice(["auto", "mirrored", "explicit"]),
    default="auto",
)
@clock_option()
@beside_options(
    gemm="A GEMM of your own instead of a model's; K is that of all GPUs together.",
    beside="Run --gemm in a loop beside a loop of this independent collective, like all_reduce:256MiB",
    ranks="GPUs of --beside.",
)
@option(
    "--loops",
    "GEMMs and collectives of --beside.  [default: 4, and as many collectives as last as long]",
    Value("G[,C]", _loops),
)
@option(
    "--split",
    "Compute units of the GEMM and those set apart, for the partitioned overlaps of --beside, like "
    "272-32.  [default: as many as the collective can use, or 8 beside DMA engines]",
    SPLIT,
)
@option(
    "--copies",
    "How DMA engines copy where they move the data of --beside: prelaunched, broadcast (all_gather), "
    "swap (all_to_all), engines=N, engines_per_peer=N, threads=N.",
    Value("A,B=N", _copies),
)
@option(
    "--first",
    "Which loop of --beside the host launches first.  [default: the collective where it has priority, else the GEMM]",
    click.Choice(["collective", "gemm"]),
)
@gpu_options("t3-paper", changed="the GPU, its node or its library")
@request_option("512, with --beside as suits the GPU")
@file_option("--json", "Write every run as JSON.")
@file_option("--trace", "Write a trace of --overlap for Perfetto and HTA, one file per rank.")
@folder_option("Write report.html with the pictures to this folder.")
@run_options
@pass_outputs
def simulate(
    outputs: Outputs,
    /,
    beside: tuple[str, int] | None,
    overlap: str | None,
    arbiter: str | None,
    options: RunOptions,
    **work: Any,
) -> None:
    """Simulate one sub-layer: how long its parts take, where the time goes, what memory moves.

    --compare A,B sets overlaps side by side and shows speedups over 'sequential'; exactly A and B are compared, and
    --overlap if it is given, too.
    --beside instead runs --gemm (what one GPU computes) and a collective in two independent streams, and shows what
    each costs the other; --overlap then says how they share the GPU.
    """
    from weft import view
    from weft.view import corun, run

    _check_options(overlap, beside is not None)
    with simulation_status() as watch:
        options = replace(options, arbiter=arbiter, progress=watch)
        if beside is None:
            shown, answer = _sub_layer(options, overlap, outputs, **work)
        else:
            answer = _beside(options, beside, overlap or _DEFAULT_SHARING, **work)
            shown = answer.best
    of_streams: tuple[Any, Any, Any] = corun.corun_parts, corun.corun_record, view.corun_report
    of_layers: tuple[Any, Any, Any] = run.run_parts, run.run_record, view.run_report
    parts, record, page = of_layers if beside is None else of_streams
    outputs.show(
        parts(answer),
        lambda file: write_json(file, record(answer)),
        traced=answer[shown],
        page=lambda folder: page(answer, folder),
    )


def _check_options(overlap: str | None, beside: bool) -> None:
    """Raise InputError for an option, or an overlap, that the chosen kind of work has no use for."""
    from weft.schedule import PASSES, SHARING

    if beside:
        refuse_given("beside --beside, which runs --gemm and the collective alone", *_OF_A_SUBLAYER)
        if overlap in PASSES and overlap not in SHARING:
            raise InputError(
                f"overlap '{overlap}' joins a GEMM with the collective of its own output, but those of --beside do "
                f"not depend on each other; choose {join_or((*SHARING, ALL))}"
            )
        return
    refuse_given("without --beside", *_OF_BESIDE)
    if overlap in (*SHARING, ALL):
        raise InputError(
            f"overlap '{overlap}' shares a GPU between kernels that do not depend on each other, but those of a "
            f"sub-layer do; give --gemm M,N,K --beside all_gather:896MiB --overlap {overlap}"
        )


def _sub_layer(
    options: RunOptions,
    overlap: str | None,
    outputs: Outputs,
    *,
    compare: tuple[str, ...] | None,
    tp: int,
    gpu: Gpu,
    changes: Mapping[str, str],
    **layer: Any,
) -> tuple[str, Comparison]:
    """The overlap to trace, and a sub-layer under --overlap and those of --compare, beside the baseline if several."""
    import weft
    from weft.result import Comparison
    from weft.schedule import Ideal, find_pass

    shown = overlap or (compare[-1] if compare else _DEFAULT_OVERLAP)
    compared = compare or ()
    for name in (*compared, shown):
        find_pass(name)
    if outputs.trace is not None and isinstance(find_pass(shown), Ideal):
        raise InputError(
            f"'{shown}' is computed, not simulated: it has no trace; choose another --overlap, like t3-mca"
        )
    graph, on = _layer(tp=tp, **layer), _machine(gpu, changes, tp)
    if compare is None:
        return shown, Comparison({shown: weft.simulate(graph, on, shown, options)})
    return shown, weft.compare(graph, on, (*compare, shown), options)


def _layer(
    *, model: str | None, sublayer: str | None, gemm: tuple[int, int, int] | None, tp: int, dtype: str, **_beside: Any
) -> Graph:
    """The sub-layer that the options name; InputError if they name two."""
    from weft import parallel
    from weft.models import SubLayer

    if gemm is None:
        return parallel.sublayer(model or _DEFAULT_MODEL, sublayer or _DEFAULT_SUBLAYER, tp=tp, dtype=dtype)
    if model is not None or sublayer is not None:
        raise InputError("--gemm replaces --model and --sublayer; give one or the other")
    return parallel.split(SubLayer.custom(*gemm, dtype), tp)


def _machine(gpu: Gpu, changes: Mapping[str, str], ranks: int) -> System:
    """`ranks` GPUs with the values that --set changes, also of their nodes; InputError for what cannot be."""
    from weft import hardware

    return hardware.system(gpu, gpus=ranks).replace(changes)


def _beside(
    options: RunOptions,
    beside: tuple[str, int],
    overlap: str,
    *,
    gemm: tuple[int, int, int] | None,
    dtype: str,
    ranks: int,
    loops: tuple[int, ...] | None,
    gpu: Gpu,
    changes: Mapping[str, str],
    split: tuple[int, int] | None,
    copies: tuple[tuple[str, int | bool], ...] | None,
    first: Any,
    **_sub_layer: Any,
) -> Comparison:
    """The loops of --gemm and --beside under --overlap; InputError for what the options leave open or cannot mean."""
    import weft

    on = _machine(gpu, changes, ranks)
    passes = _sharing(overlap, split, copies or (), first, on.gpu)
    if gemm is None:
        raise InputError("--beside needs the GEMM of one GPU: give --gemm M,N,K, like 8192,8192,8192")
    work = weft.Gemm(*gemm, dtype), weft.Collective(*beside, ranks, dtype)
    if loops is not None and len(loops) == 2:
        graph = weft.concurrent(*work, *loops)
    else:
        graph = weft.balanced(*work, on, passes[0], options, *(loops or (4,)))
    return weft.compare(graph, on, passes, options)


def _sharing(
    name: str, split: tuple[int, int] | None, copies: Sequence[tuple[str, int | bool]], first: Any, gpu: Gpu
) -> list[Sharing]:
    """The ways to share a GPU that --overlap names, changed as --split, --copies and --first ask."""
    from weft.schedule import SHARING, find_pass
    from weft.schedule.sharing import apart_of

    chosen = list(SHARING.values()) if name == ALL else [SHARING[find_pass(name).name]]
    if split is not None and not any(one.partition for one in chosen):
        parting = [one.name for one in SHARING.values() if one.partition]
        raise InputError(f"--split needs an overlap that sets compute units apart: {join_or(parting)}")
    units = None if split is None else apart_of(*split, gpu)
    several = len(chosen) > 1
    return [
        replace(
            one,
            first=first,
            units=units if one.partition and not (several and one.driver == "dma") else None,
            copies=tuple(copies) if not several or one.driver == "dma" else (),
        )
        for one in chosen
    ]
