"""`weft simulate`: a sub-layer, or a GEMM beside an independent collective, under one overlap or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import click

import weft
from weft import parallel
from weft.cli.cases import layer_of_experts, routed_graph
from weft.cli.options import (
    Asks,
    beside_options,
    dtype_option,
    examples,
    field_options,
    option,
    refuse_given,
    refuse_others,
    run_options,
    store_option,
    typed,
)
from weft.cli.output import Outputs, details_option, file_option, folder_option, pass_outputs
from weft.cli.progress import simulation_status
from weft.cli.values import MODEL_NAME, OVERLAP, OVERLAPS, RANKS, SPLIT, Value, names, numbers
from weft.errors import InputError, check_name, join_or
from weft.graph import Collective, DmaCopies, Driver, Gemm, Graph, KernelChoice, Node, operator
from weft.graph.collective import Form
from weft.graph.graph import MOST_ITERATIONS
from weft.graph.routing import loads_of
from weft.hardware import Gpu, Stragglers, System
from weft.library.collectives import KERNELS
from weft.models import SubLayer
from weft.options import RunOptions
from weft.result import Comparison
from weft.schedule import PASSES, SEQUENTIAL, SHARING, Ideal, Pass, Sharing, find_pass
from weft.schedule.arbiters import POLICIES
from weft.schedule.sharing import apart_of
from weft.schedule.sublayer import LIBRARY, Sequential
from weft.store import Store
from weft.store.records import say
from weft.units import Dimension, parse

ALL = "all"
"""The value of --overlap that compares every way to share a GPU."""
_DEFAULT_MODEL, _DEFAULT_SUBLAYER = "t-nlg", "fc2"
_DEFAULT_OVERLAP: Mapping[Form, str] = {"ag_gemm": "t3-all-gather", "gemm_rs": "t3-mca", "gemm_ar": "t3-mca"}
_QUESTIONS = {
    "program": Asks("beside --graph and --op, which run a program on one GPU", ("graph", "op")),
    "plan": Asks(
        "beside --collective, whose kernel the plan describes",
        ("gemm", "collective", "overlap", "ranks", "loops", "split", "first"),
    ),
    "sub-layer": Asks(
        "without --beside", ("model", "sublayer", "gemm", "form", "tp", "overlap", "compare", "algorithm", "stragglers")
    ),
    "experts": Asks(
        "beside --experts, a layer of a mixture", ("experts", "ep", "loads", "overlap", "compare", "stragglers")
    ),
    "co-run": Asks(
        "beside --beside, which runs --gemm and the collective alone",
        ("gemm", "beside", "overlap", "ranks", "loops", "split", "channels", "algorithm", "copies", "first"),
    ),
}
"""What the command can be asked, with the options that belong to each question; all others belong to every one."""
_COUNTED = ("engines", "engines_per_peer", "threads")


def _loops(text: str) -> tuple[int, ...]:
    """Parse the numbers of GEMMs and collectives "8,20", or of GEMMs "8"; InputError for anything else."""
    loops = numbers(text)
    if len(loops) > 2:
        raise InputError(f"--loops has {len(loops)} numbers; write GEMMs,collectives, like 8,20")
    if min(loops) < 1:
        raise InputError(f"--loops has {min(loops)} in it; each loop runs at least once, like --loops 8,20")
    if max(loops) > MOST_ITERATIONS:
        raise InputError(f"--loops has {max(loops)} in it; a loop runs at most {MOST_ITERATIONS} times")
    return loops


def _planned(text: str) -> tuple[str, str]:
    """Parse "plan.json:16MiB", a file and the size of the whole buffer; InputError for one without the other."""
    file, _, size = text.rpartition(":")
    if not file or not size:
        raise InputError(f"--collective {text} needs a file and a size, like plan.json:16MiB")
    parse(size, Dimension.BYTES)
    return file, size


def _copies(text: str) -> DmaCopies:
    """Parse the DMA options "prelaunched,engines=2"; InputError for one given twice."""
    options = tuple(map(_copy_option, names(text)))
    if len(dict(options)) < len(options):
        raise InputError(f"--copies {text} gives an option twice; give each once")
    for name, _ in options:
        check_name("option of DMA engines", name, [one.name for one in fields(DmaCopies)])
    return DmaCopies(**dict(options))  # type: ignore[arg-type]


def _copy_option(text: str) -> tuple[str, int | bool]:
    """Parse one DMA option, "prelaunched" or "engines=2"; InputError for a missing or unexpected number."""
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
        "weft simulate --collective plan.json:16MiB --gemm 8192,8192,8192 --gpu h100-sxm",
        "weft simulate --sublayer op --compare sequential,t3,t3-mca --stragglers one:5%",
        "weft simulate --gemm 8192,17024,4256 --form ag_gemm --compare flux,t3-all-gather",
        "weft simulate --experts 512x7168x2048,top8/64 --ep 8 --gpu h100-sxm --compare sequential,t3-all-to-all",
        "weft simulate --op gemv:rows=16384,columns=1024,stride=131072 --gpu v100-sxm2-32gb --heatmap channel",
    )
)
@option("--model", f"A model, see 'weft models list'.  [default: {_DEFAULT_MODEL}]", MODEL_NAME)
@option("--sublayer", f"op, fc2, fc1 or ip.  [default: {_DEFAULT_SUBLAYER}]", metavar="NAME")
@dtype_option("the GEMM", "bf16, of --model its own")
@option(
    "--form",
    "How the GEMM of a sub-layer and its collective depend on each other: the all-reduce (gemm_ar) or reduce-scatter "
    "(gemm_rs) of its output behind it or, with --gemm, the all-gather of its rows before it (ag_gemm; N is that of "
    "all GPUs together).  [default: gemm_ar]",
    click.Choice(get_args(Form)),
)
@option("--tp", "GPUs that share the sub-layer.", int, default=8, metavar="N")
@option(
    "--experts",
    "A layer of experts, sent to and back: tokens of each GPU, hidden size and inner width, top 8 of 256 experts; "
    "those of a token may lie on fewer GPUs, as under group-limited routing: ...,reach4.",
    Value("TOKENSxHIDDENxFFN,topK/EXPERTS[,reachGPUS]", layer_of_experts),
)
@option("--ep", "GPUs that share --experts.", RANKS, default=8)
@option(
    "--loads",
    "Tokens by expert of --experts: even, power:1.1 (a power law of this exponent) or a number for each, like 3,2,2,1.",
    Value("LOADS", loads_of),
    default="even",
)
@option(
    "--overlap",
    "How compute and communication overlap, see 'weft overlaps list'; with --beside also 'all'.  "
    "[default: t3-mca, with --form ag_gemm t3-all-gather, with --beside streams]",
    OVERLAP,
)
@option(
    "--compare",
    "Overlaps side by side, each with its speedup over 'sequential', which is simulated for them. Without "
    "--overlap exactly these are compared.",
    OVERLAPS,
)
@option(
    "--stragglers",
    "Clocks that differ: one:5% (one GPU 5 % slower; one:1/2/5/10%: by each), gpus:8%,draws=5,seed=0 (those of all "
    "GPUs spread over 8 %), iterations:8% (another GPU in each draw up to 8 % slower), or workgroups:2% (those of "
    "all workgroups). "
    "Each GPU is simulated; the answer says what they cost against equal ones.",
    Value("WHO:SHARE", Stragglers.of),
)
@option("--graph", "A program to run on one GPU, operator after operator.", click.Path(path_type=Path), metavar="FILE")
@option("--op", "An operator to run on one GPU, see 'weft predict ops'.", metavar="NAME:A=1,B=2")
@option("--arbiter", f"Memory arbitration of every run: {', '.join(POLICIES)}.", metavar="NAME")
@field_options(RunOptions, "mode", "memory")
@beside_options(
    gemm="A GEMM of your own instead of a model's; K is that of all GPUs together.",
    beside="Run --gemm in a loop beside a loop of this independent collective, like all_reduce:256MiB",
    ranks="GPUs of --beside.",
)
@option(
    "--collective",
    "An execution plan of MSCCL++ and the size of its whole buffer, to run alone or beside --gemm; the plan says how "
    "many GPUs.",
    Value("FILE:SIZE", _planned),
)
@option(
    "--loops",
    "GEMMs and collectives of --beside; of G GEMMs alone, as many collectives as last as long.  [default: 1,1]",
    Value("G[,C]", _loops),
)
@option(
    "--split",
    "Compute units of the GEMM and those set apart, for the partitioned overlaps of --beside, like "
    "272-32.  [default: as many as hold the collective's channels at once, or 8 beside DMA engines]",
    SPLIT,
)
@option(
    "--channels",
    "Channels of the collective of --beside where compute units drive it, each one workgroup; those that its compute "
    "units cannot hold at once wait.  [default: the library's own number]",
    int,
    metavar="N",
)
@option(
    "--algorithm",
    "Algorithm of the collective of --beside, or of both collectives of a sub-layer under 'sequential', where compute "
    "units drive them: ring, direct (a link to each peer), nvls (a switch that reduces), or auto (the library's "
    "choice).  [default: auto, of a sub-layer the paper's ring]",
    click.Choice(["auto", *KERNELS]),
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
@run_options("t3-paper", "the GPU, its node or its library", "512, with --beside as suits the GPU")
@field_options(RunOptions, "interference", "heatmap", "hashing")
@file_option("--json", "Write every run as JSON.")
@file_option("--trace", "Write a trace of --overlap for Perfetto and HTA, one file per rank.")
@folder_option("Write report.html with the pictures to this folder.")
@details_option
@store_option
@pass_outputs
def simulate(outputs: Outputs, /, options: RunOptions, store: Store | None, **values: Any) -> None:
    """Simulate a sub-layer, a GEMM beside a collective, or a program: times, where they go, what memory moves.

    --compare A,B sets overlaps side by side and shows speedups over 'sequential'; exactly A and B are compared, and
    --overlap if it is given, too.
    --beside instead runs --gemm (what one GPU computes) and a collective in two independent streams, and shows what
    each costs the other; --overlap then says how they share the GPU.
    --collective runs an execution plan of MSCCL++, alone or beside --gemm.
    --experts runs a layer of a mixture: tokens to their experts, two grouped GEMMs, and the results back.
    --graph runs a file that 'weft capture' or 'weft import' wrote, operator after operator on one GPU, --op a single
    operator.
    """
    asked = SimpleNamespace(**values, traced=outputs.trace is not None, store=store)
    with simulation_status() as watch:
        options = replace(options, progress=watch)
        if asked.graph is not None or asked.op is not None:
            show = _program(asked, options, outputs)
        else:
            question = _question(asked)
            shown, answer = question(asked, options)
            show = partial(outputs.show, answer, traced=answer[shown])
    show()
    if store is not None and store.found:
        say(f"{store.found} of the runs {'was' if store.found == 1 else 'were'} kept from before; --no-cache runs anew")


def _question(asked: SimpleNamespace) -> Callable[[SimpleNamespace, RunOptions], tuple[str, Comparison]]:
    """What is asked, by the option that names the work."""
    if asked.beside is not None:
        return _beside
    if asked.collective is not None:
        return _plan
    return _sub_layer if asked.experts is None else _experts


def _program(asked: SimpleNamespace, options: RunOptions, outputs: Outputs) -> Callable[[], None]:
    """Simulate the graph of a file, or a single operator; the returned function shows it beside its closed form."""
    from weft.cli.cases import dimensions
    from weft.view.program import ProgramReport

    refuse_others("program", _QUESTIONS)
    if asked.graph is not None and asked.op is not None:
        raise InputError("--graph and --op each name a program; give one of them")
    if asked.graph is not None:
        graph = weft.read_graph(asked.graph)
    else:
        name, _, sizes = asked.op.partition(":")
        op = operator(name, asked.dtype or "bf16", **dimensions(names(sizes)))
        graph = Graph((Node(op, name),), title=str(op))
    on = weft.system(asked.gpu).replace(asked.changes)
    found = weft.simulate(graph, on, options=options, store=asked.store)
    closed = weft.estimate(graph, on, RunOptions(clock=options.clock))
    return partial(outputs.show, ProgramReport(found, closed), traced=found)


def _experts(asked: SimpleNamespace, options: RunOptions) -> tuple[str, Comparison]:
    """Simulate --experts under --overlap and --compare, and return the overlap to trace and the answer."""
    refuse_others("experts", _QUESTIONS)
    graph = routed_graph(asked.experts, asked.ep, asked.loads, asked.dtype or "bf16")
    return _overlapped(asked, graph, asked.ep, asked.overlap or (asked.compare or ("t3-all-to-all",))[-1], options)


def _sub_layer(asked: SimpleNamespace, options: RunOptions) -> tuple[str, Comparison]:
    """Simulate a sub-layer under --overlap and --compare, and return the overlap to trace and the answer."""
    refuse_others("sub-layer", _QUESTIONS)
    shown = asked.overlap or (asked.compare[-1] if asked.compare else _DEFAULT_OVERLAP[asked.form or "gemm_ar"])
    if shown in (*SHARING, ALL):
        raise InputError(
            f"overlap '{shown}' shares a GPU between kernels that do not depend on each other, but those of a "
            f"sub-layer do; give --gemm M,N,K --beside all_gather:896MiB --overlap {shown}"
        )
    if isinstance(find_pass(shown), Ideal) and asked.traced:
        raise InputError(
            f"'{shown}' is computed, not simulated: it has no trace; choose another --overlap, like t3-mca"
        )
    return _overlapped(asked, _layer(asked), asked.tp, shown, options)


def _overlapped(
    asked: SimpleNamespace, graph: Graph, gpus: int, shown: str, options: RunOptions
) -> tuple[str, Comparison]:
    """Simulate a graph on so many GPUs under the overlap `shown` and those of --compare."""
    catalogued = weft.system(asked.gpu, gpus=gpus)
    system = catalogued.replace(asked.changes)
    if asked.compare is None and asked.stragglers is None:
        one = _baseline(asked) if shown == SEQUENTIAL else shown
        if asked.algorithm is not None and one == shown:
            raise InputError(
                f"--algorithm is that of both collectives under 'sequential', but --overlap is {shown}; add --compare "
                f"sequential to set {shown} beside it, or leave --algorithm out"
            )
        answer = Comparison({shown: weft.simulate(graph, system, one, options, store=asked.store)})
        return shown, _with_unchanged(answer, shown, one, graph, catalogued, asked, options)
    overlaps = (_baseline(asked), *(name for name in (*(asked.compare or ()), shown) if name != SEQUENTIAL))
    answer = weft.compare(graph, system, overlaps, options, store=asked.store, stragglers=asked.stragglers)
    own = _baseline(asked) if shown == SEQUENTIAL else shown
    return shown, _with_unchanged(answer, shown, own, graph, catalogued, asked, options)


def _with_unchanged(
    answer: Comparison,
    shown: str,
    overlap: str | Pass,
    graph: Graph,
    catalogued: System,
    asked: SimpleNamespace,
    options: RunOptions,
) -> Comparison:
    """The answer with the run of the overlap `shown` on the machine without the values of --set, if any changed it."""
    if not asked.changes or shown not in answer.timelines or asked.stragglers is not None:
        return answer
    return replace(answer, unchanged=weft.simulate(graph, catalogued, overlap, options, store=asked.store))


def _baseline(asked: SimpleNamespace) -> Sequential:
    """The baseline of a sub-layer, its collectives by --algorithm."""
    one = PASSES[SEQUENTIAL]
    assert isinstance(one, Sequential)
    return replace(one, algorithm={"auto": LIBRARY}.get(asked.algorithm, asked.algorithm))


def _layer(asked: SimpleNamespace) -> Graph:
    """The sub-layer that --model and --sublayer or --gemm name, in its --form; InputError if both are given."""
    if asked.gemm is None:
        if asked.form == "ag_gemm":
            raise InputError("sub-layers of models end with a collective; give --form ag_gemm a --gemm M,N,K")
        name, kind = asked.model or _DEFAULT_MODEL, asked.sublayer or _DEFAULT_SUBLAYER
        work = parallel.sublayer(name, kind, tp=asked.tp, dtype=asked.dtype)
        gemm = work["gemm"].op
        assert isinstance(gemm, Gemm)
        return work if asked.form != "gemm_rs" else parallel.dependent("gemm_rs", gemm, asked.tp)
    if asked.model is not None or asked.sublayer is not None:
        raise InputError("--gemm replaces --model and --sublayer; give one or the other")
    m, n, k = asked.gemm
    if asked.form in (None, "gemm_ar"):
        return parallel.split(SubLayer.custom(m, n, k, asked.dtype or "bf16"), asked.tp)
    whole = weft.Gemm(m, n, k, asked.dtype or "bf16")
    return parallel.dependent(asked.form, parallel.share_of(asked.form, whole, asked.tp), asked.tp)


def _beside(asked: SimpleNamespace, options: RunOptions) -> tuple[str, Comparison]:
    """Simulate the loops of --gemm and --beside under the overlaps of --overlap; return the best one and the answer."""
    refuse_others("co-run", _QUESTIONS)
    catalogued = weft.system(asked.gpu, gpus=asked.ranks)
    system = catalogued.replace(asked.changes)
    passes = _sharing(asked, system.gpu)
    if asked.gemm is None:
        raise InputError("--beside needs the GEMM of one GPU: give --gemm M,N,K, like 8192,8192,8192")
    (m, n, k), (name, size) = asked.gemm, asked.beside
    dtype = asked.dtype or "bf16"
    work = weft.Gemm(m, n, k, dtype), weft.Collective(name, size, asked.ranks, dtype)
    return _looped(asked, *work, system, catalogued, passes, options)


def _looped(
    asked: SimpleNamespace,
    gemm: Gemm,
    moved: Collective,
    system: System,
    catalogued: System,
    passes: list[Sharing],
    options: RunOptions,
    choice: KernelChoice | None = None,
) -> tuple[str, Comparison]:
    """Simulate --loops of a GEMM and a collective under several overlaps; return the best one and the answer."""
    loops = asked.loops or (1, 1)
    if len(loops) == 2:
        graph = weft.concurrent(gemm, moved, loops[0], loops[1], choice)
    else:
        graph = weft.balanced(gemm, moved, system, passes[0], options, loops[0], asked.store, choice)
    answer = weft.compare(graph, system, passes, options, store=asked.store)
    best = next(one for one in passes if one.name == answer.best)
    return answer.best, _with_unchanged(answer, answer.best, best, graph, catalogued, asked, options)


def _plan(asked: SimpleNamespace, options: RunOptions) -> tuple[str, Comparison]:
    """Simulate a plan of --collective, alone or beside loops of --gemm; return the best overlap and the answer."""
    refuse_others("plan", _QUESTIONS)
    file, size = asked.collective
    plan = weft.read_collective(file)
    if asked.ranks != plan.ranks and typed({"ranks": asked.ranks}):
        raise InputError(
            f"--ranks is {asked.ranks}, but the plan in {file} is for {plan.ranks} GPUs; leave --ranks out, or give a "
            f"plan for {asked.ranks}"
        )
    catalogued = weft.system(asked.gpu, gpus=plan.ranks)
    system = catalogued.replace(asked.changes)
    op = plan.op(size, asked.dtype or "bf16")
    if asked.gemm is None:
        refuse_given("without --gemm beside --collective", "loops", "split", "first", "overlap")
        alone = weft.simulate(plan.graph(size, op.dtype), system, options=options, store=asked.store)
        return alone.overlap, Comparison({alone.overlap: alone})
    passes = [one for one in _sharing(asked, system.gpu) if one.driver is Driver.CU or asked.overlap != ALL]
    m, n, k = asked.gemm
    return _looped(asked, weft.Gemm(m, n, k, op.dtype), op, system, catalogued, passes, options, plan.choice())


def _sharing(asked: SimpleNamespace, gpu: Gpu) -> list[Sharing]:
    """The ways to share a GPU that --overlap names, with the options of --beside applied."""
    name = asked.overlap or "streams"
    if name in PASSES and name not in SHARING:
        raise InputError(
            f"overlap '{name}' joins a GEMM with the collective of its own output, but those of --beside do not depend "
            f"on each other; choose {join_or((*SHARING, ALL))}"
        )
    chosen = list(SHARING.values()) if name == ALL else [SHARING[find_pass(name).name]]
    if asked.split is not None and not any(one.partition for one in chosen):
        parting = [one.name for one in SHARING.values() if one.partition]
        raise InputError(f"--split needs an overlap that sets compute units apart: {join_or(parting)}")
    left, apart = asked.split or (0, 0)
    units = None if asked.split is None else apart_of(left, apart, gpu)
    several = len(chosen) > 1
    return [
        replace(
            one,
            first=asked.first,
            units=units if one.partition and not (several and one.driver is Driver.DMA) else None,
            channels=None if several and one.driver is Driver.DMA else asked.channels,
            algorithm=None if asked.algorithm == "auto" or (several and one.driver is Driver.DMA) else asked.algorithm,
            copies=asked.copies or DmaCopies() if not several or one.driver is Driver.DMA else DmaCopies(),
        )
        for one in chosen
    ]
