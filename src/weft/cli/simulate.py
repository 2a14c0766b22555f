"""`weft simulate`: request-level simulations, one subcommand for each kind of work."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click

import weft
from weft import hardware
from weft.cli.cases import dimensions, layer_of_experts, routed_graph
from weft.cli.options import dtype_option, examples, field_options, option, run_options, store_option, together
from weft.cli.output import Outputs, details_option, file_option, folder_option, pass_outputs
from weft.cli.progress import simulation_status
from weft.cli.values import COUNT, MODEL_NAME, NAMES, OVERLAP, OVERLAPS, RANKS, SHAPE, SPLIT, Value, names, numbers
from weft.core.errors import InputError, check_name, join_or
from weft.core.options import RunOptions
from weft.core.report import Report
from weft.core.store import Store
from weft.core.store.records import say
from weft.core.units import Dimension, parse, parse_collective
from weft.graph import Collective, DmaCopies, Driver, Gemm, Graph, Node, concurrent, operator
from weft.graph.collective import Form
from weft.graph.graph import MOST_ITERATIONS
from weft.graph.routing import loads_of
from weft.hardware import Gpu, Stragglers, System
from weft.kernels.library.collectives import KERNELS
from weft.models import SubLayer, parallel
from weft.overlaps import SEQUENTIAL, STRATEGIES, CoRunStrategy, OverlapMethod, find_simulated, find_strategy
from weft.overlaps.arbiters import POLICIES
from weft.overlaps.corun import Launched
from weft.overlaps.lower.masks import apart_of
from weft.overlaps.sequential import LIBRARY, Sequential
from weft.simulate import balance_loops
from weft.simulate import compare as compare_overlaps
from weft.simulate.result import Comparison, Timeline
from weft.simulate.single import simulate as simulate_graph

ALL = "all"
"""The value of --overlap that compares every co-run strategy."""
_DEFAULT_MODEL, _DEFAULT_SUBLAYER = "t-nlg", "fc2"
_DEFAULT_OVERLAP: Mapping[Form, str] = {"ag_gemm": "t3-all-gather", "gemm_rs": "t3-mca", "gemm_ar": "t3-mca"}
_DEFAULT_RANKS = 8
_COUNTED = ("engines", "engines_per_peer", "threads")
_ALGORITHMS: Mapping[str, Any] = {"auto": LIBRARY, **{name: name for name in KERNELS}}
_NAMED_WORK = {"--experts": "moe", "--graph": "graph", "--op": "op", "--collective": "collective"}
"""Options of a former form of the command whose value its subcommand takes as an argument."""
_PLAN_SUFFIX = ".json"
"""Ending of a file that holds an execution plan of MSCCL++."""
Shown = tuple[Comparison | Report[Timeline], Timeline]
"""What a subcommand shows, and the timeline that --trace writes."""


@dataclass(frozen=True)
class _SimulationOptions:
    """The machine and the options that all simulations of one command share."""

    gpu: Gpu
    changes: Mapping[str, str]
    options: RunOptions
    store: Store | None
    is_traced: bool

    def system(self, gpus: int | None = None, nodes: int | None = None) -> System:
        """Return the system of `gpus` GPUs on `nodes` nodes with the values of --set."""
        return hardware.system(self.gpu, gpus=gpus, nodes=nodes).replace(self.changes)

    def simulate(self, graph: Graph, system: System, overlap: str | OverlapMethod | None = None) -> Timeline:
        """Simulate a graph on a system."""
        return simulate_graph(graph, system, overlap, self.options, store=self.store)

    def compare(
        self,
        graph: Graph,
        system: System,
        overlaps: Iterable[str | OverlapMethod],
        stragglers: Stragglers | None = None,
    ) -> Comparison:
        """Simulate a graph on a system under several overlaps."""
        return compare_overlaps(graph, system, overlaps, self.options, store=self.store, stragglers=stragglers)

    def with_unchanged(
        self,
        answer: Comparison,
        graph: Graph,
        gpus: int,
        overlap: str | OverlapMethod,
        nodes: int | None = None,
    ) -> Comparison:
        """Return the answer with the run of `overlap` on the machine without the values of --set, if there are any."""
        if not self.changes or find_simulated(overlap).name not in answer.timelines or answer.stragglers is not None:
            return answer
        usual = hardware.system(self.gpu, gpus=gpus, nodes=nodes)
        return replace(answer, unchanged=self.simulate(graph, usual, overlap))


def _simulation(requests: str) -> Callable[[Callable[..., Shown]], Any]:
    """Add the options of every simulation to a command that returns what it shows; `requests` is their usual size."""
    options = together(
        option("--arbiter", f"Memory arbitration of every run: {', '.join(POLICIES)}.", metavar="NAME"),
        field_options(RunOptions, "mode", "memory"),
        run_options("t3-paper", "the GPU, its node or its library", requests),
        field_options(RunOptions, "interference", "heatmap", "hashing"),
        file_option("--json", "Write every run as JSON."),
        file_option("--trace", "Write a trace for Perfetto and HTA, one file per rank."),
        folder_option("Write report.html with the pictures to this folder."),
        details_option,
        store_option,
        pass_outputs,
    )

    def add(command: Callable[..., Shown]) -> Any:
        @wraps(command)
        def call(
            outputs: Outputs,
            /,
            gpu: Gpu,
            changes: Mapping[str, str],
            options: RunOptions,
            store: Store | None,
            **values: Any,
        ) -> None:
            with simulation_status() as watch:
                run = _SimulationOptions(
                    gpu, changes, replace(options, progress=watch), store, outputs.trace is not None
                )
                answer, traced = command(run, **values)
            outputs.show(answer, traced=traced)
            if store is not None and store.found:
                were = "was" if store.found == 1 else "were"
                say(f"{store.found} of the runs {were} cached; --no-cache reruns them")

        return options(call)

    return add


_FINE, _COARSE = "512", "as suits the GPU"
"""The usual size of a memory request as help pages say it: where operators depend on each other, and elsewhere."""


class _WorkGroup(click.Group):
    """The subcommands of `weft simulate`; options without one are answered with the command to type."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments of the group; InputError for options before the kind of work."""
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names and not ctx.resilient_parsing:
            raise InputError(
                "'weft simulate' takes the kind of work before its options; run: "
                f"{shlex.join(('weft', 'simulate', *_with_kind(args)))}"
            )
        return super().parse_args(ctx, args)


def _with_kind(args: Sequence[str]) -> list[str]:
    """Return options of one kind of work with its subcommand before them: --corun all_gather:1MiB is a co-run."""
    words = [part for text in args for part in (text.split("=", 1) if text.startswith("--") else [text])]
    flag = next((flag for flag in _NAMED_WORK if flag in words[:-1]), None)
    if flag is None:
        return ["corun" if "--corun" in words else "sublayer", *words]
    at = words.index(flag)
    value, before, after = words[at + 1], words[:at], words[at + 2 :]
    if flag == "--collective" and "--gemm" in words:
        return ["corun", *before, "--corun", value, *after]
    name, colon, sizes = value.partition(":") if flag == "--op" else (value, "", "")
    return [_NAMED_WORK[flag], name, *(("--shape", sizes) if colon else ()), *before, *after]


@click.group(
    cls=_WorkGroup,
    epilog=examples(
        "weft simulate sublayer --model t-nlg --sublayer fc2 --tp 8 --compare sequential,t3",
        "weft simulate corun --gemm 8192,8192,8192 --corun all_reduce:256MiB --ranks 4 --gpu a100-sxm-80gb",
    ),
)
def simulate() -> None:
    """Simulate work request by request: times, where they go, and what memory moves."""


_compare_option = option(
    "--compare",
    "Overlaps side by side, each with its speedup over 'sequential', which is simulated for them. Without "
    "--overlap exactly these are compared.",
    OVERLAPS,
)
_stragglers_option = option(
    "--stragglers",
    "Clocks that differ: one:5% (one GPU 5 % slower; one:1/2/5/10%: by each), gpus:8%,draws=5,seed=0 (those of all "
    "GPUs spread over 8 %), iterations:8% (another GPU in each draw up to 8 % slower), or workgroups:2% (those of "
    "all workgroups). "
    "Each GPU is simulated; the answer says what they cost against equal ones.",
    Value("WHO:SHARE", Stragglers.of),
)


@simulate.command(
    "sublayer",
    short_help="A GEMM and the collective of its output or input, under overlap methods.",
    epilog=examples(
        "weft simulate sublayer --model t-nlg --sublayer fc2 --tp 8 --compare sequential,t3",
        "weft simulate sublayer --sublayer op --compare sequential,t3,t3-mca --stragglers one:5%",
        "weft simulate sublayer --gemm 8192,17024,4256 --form ag_gemm --compare flux,t3-all-gather",
    ),
)
@option("--model", f"A model, see 'weft models list'.  [default: {_DEFAULT_MODEL}]", MODEL_NAME)
@option("--sublayer", f"op, fc2, fc1 or ip.  [default: {_DEFAULT_SUBLAYER}]", metavar="NAME", name="kind")
@option("--gemm", "A GEMM of your own instead of a model's; K is that of all GPUs together.", SHAPE)
@dtype_option("the GEMM", "bf16, of --model its own")
@option(
    "--form",
    "How the GEMM and its collective depend on each other: the all-reduce (gemm_ar) or reduce-scatter (gemm_rs) of "
    "its output behind it or, with --gemm, the all-gather of its rows before it (ag_gemm; N is that of all GPUs "
    "together).  [default: gemm_ar]",
    click.Choice(get_args(Form)),
)
@option("--tp", "GPUs that share the sub-layer.", int, default=8, metavar="N")
@option(
    "--overlap",
    "The overlap method, see 'weft overlaps list'.  [default: t3-mca, with --form ag_gemm t3-all-gather]",
    OVERLAP,
)
@_compare_option
@option(
    "--algorithm",
    "Algorithm of both collectives under 'sequential': ring, direct (a link to each peer), nvls (a switch that "
    "reduces), or auto (the library's choice).  [default: the paper's ring]",
    click.Choice(["auto", *KERNELS]),
)
@_stragglers_option
@_simulation(_FINE)
def sublayer(
    run: _SimulationOptions,
    model: str | None,
    kind: str | None,
    gemm: tuple[int, int, int] | None,
    dtype: str | None,
    form: Form | None,
    tp: int,
    overlap: str | None,
    compare: tuple[str, ...] | None,
    algorithm: str | None,
    stragglers: Stragglers | None,
) -> Shown:
    """Simulate a GEMM split over GPUs and its collective under overlap methods.

    --compare A,B sets methods side by side and shows speedups over 'sequential'; exactly A and B are compared, and
    --overlap if it is given, too.
    """
    shown = overlap or (compare[-1] if compare else _DEFAULT_OVERLAP[form or "gemm_ar"])
    if shown == ALL or find_strategy(shown) is not None:
        raise InputError(
            f"overlap '{shown}' shares a GPU between kernels that do not depend on each other, but those of a "
            f"sub-layer do; run: weft simulate corun --gemm M,N,K --corun all_gather:896MiB --overlap {shown}"
        )
    graph = _sublayer_graph(model, kind, gemm, dtype, form, tp)
    if algorithm is not None and shown != SEQUENTIAL and compare is None and stragglers is None:
        raise InputError(
            f"--algorithm is that of both collectives under 'sequential', but --overlap is {shown}; add --compare "
            f"sequential to set {shown} beside it, or leave --algorithm out"
        )
    return _simulate_overlaps(run, graph, tp, shown, compare, stragglers, algorithm)


def _sublayer_graph(
    model: str | None,
    kind: str | None,
    gemm: tuple[int, int, int] | None,
    dtype: str | None,
    form: Form | None,
    tp: int,
) -> Graph:
    """Return the sub-layer of a model, or that of a GEMM, in its form; InputError if both are given."""
    if gemm is None:
        if form == "ag_gemm":
            raise InputError("sub-layers of models end with a collective; give --form ag_gemm a --gemm M,N,K")
        work = parallel.sublayer(model or _DEFAULT_MODEL, kind or _DEFAULT_SUBLAYER, tp=tp, dtype=dtype)
        if form != "gemm_rs":
            return work
        op = work["gemm"].op
        assert isinstance(op, Gemm)
        return parallel.dependent("gemm_rs", op, tp)
    if model is not None or kind is not None:
        raise InputError("--gemm replaces --model and --sublayer; give one or the other")
    if form in (None, "gemm_ar"):
        return parallel.split(SubLayer.custom(*gemm, dtype or "bf16"), tp)
    whole = Gemm(*gemm, dtype or "bf16")
    return parallel.dependent(form, parallel.share_of(form, whole, tp), tp)


@simulate.command(
    "moe",
    short_help="The experts of an MoE layer, with dispatch and combine.",
    epilog=examples("weft simulate moe 512x7168x2048,top8/64 --ep 8 --gpu h100-sxm --compare sequential,t3-all-to-all"),
)
@click.argument("layer", type=Value("TOKENSxHIDDENxFFN,topK/EXPERTS[,reachGPUS]", layer_of_experts))
@option("--ep", "GPUs that share the experts.", RANKS, default=8)
@option(
    "--expert-load",
    "Tokens by expert: even, power:1.1 (a power law of this exponent) or a number for each, like 3,2,2,1.",
    Value("LOADS", loads_of),
    default="even",
)
@dtype_option("tokens and weights")
@option("--overlap", "The overlap method, see 'weft overlaps list'.  [default: t3-all-to-all]", OVERLAP)
@_compare_option
@_stragglers_option
@_simulation(_COARSE)
def moe(
    run: _SimulationOptions,
    layer: Mapping[str, int],
    ep: int,
    expert_load: float | tuple[float, ...],
    dtype: str,
    overlap: str | None,
    compare: tuple[str, ...] | None,
    stragglers: Stragglers | None,
) -> Shown:
    """Simulate the experts of an MoE layer: dispatch, two grouped GEMMs, and combine.

    512x7168x2048,top8/64: each GPU has 512 tokens of 7168 elements, each of which goes to 8 of 64 experts of inner
    width 2048. With ",reach4" the experts of a token lie on at most 4 GPUs, as under group-limited routing.
    """
    graph = routed_graph(layer, ep, expert_load, dtype)
    return _simulate_overlaps(run, graph, ep, overlap or (compare or ("t3-all-to-all",))[-1], compare, stragglers)


def _simulate_overlaps(
    run: _SimulationOptions,
    graph: Graph,
    gpus: int,
    shown: str,
    compare: tuple[str, ...] | None,
    stragglers: Stragglers | None,
    algorithm: str | None = None,
) -> Shown:
    """Simulate a graph under the overlap `shown` and those of --compare; `algorithm` is that of 'sequential'."""
    if find_simulated(shown).parts and run.is_traced:
        raise InputError(
            f"'{shown}' is computed, not simulated: it has no trace; choose another --overlap, like t3-mca"
        )
    baseline = Sequential(algorithm=None if algorithm is None else _ALGORITHMS[algorithm])
    own: str | OverlapMethod = baseline if shown == SEQUENTIAL else shown
    if compare is None and stragglers is None:
        answer = Comparison({shown: run.simulate(graph, run.system(gpus), own)})
    else:
        overlaps: list[str | OverlapMethod] = [
            baseline,
            *(name for name in (*(compare or ()), shown) if name != SEQUENTIAL),
        ]
        answer = run.compare(graph, run.system(gpus), overlaps, stragglers)
    return run.with_unchanged(answer, graph, gpus, own), answer[shown]


def _plan_or_collective(text: str) -> tuple[str | Path, str | int]:
    """Parse "all_reduce:256MiB", or "plan.json:16MiB" into a path and the size of the whole buffer."""
    name, _, size = text.rpartition(":")
    return _sized_plan(text) if (name or size).strip().endswith(_PLAN_SUFFIX) else parse_collective(text)


def _sized_plan(text: str) -> tuple[Path, str]:
    """Parse "plan.json:16MiB" into a path and the size of the whole buffer; InputError if one is missing."""
    file, _, size = text.rpartition(":")
    if not file or not size:
        raise InputError(f"'{text}' needs a file and a size, like plan.json:16MiB")
    parse(size, Dimension.BYTES)
    return Path(file), size


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


@simulate.command(
    "corun",
    short_help="A GEMM and an independent collective in two streams of one GPU.",
    epilog=examples(
        "weft simulate corun --gemm 8192,8192,8192 --corun all_reduce:256MiB --ranks 4 --gpu a100-sxm-80gb",
        "weft simulate corun --gemm 8192,8192,8192 --corun all_gather:896MiB --overlap dma --gpu mi300x",
        "weft simulate corun --gemm 8192,8192,8192 --corun plan.json:16MiB --gpu h100-sxm",
    ),
)
@option("--gemm", "The GEMM that each GPU computes in a loop.", SHAPE, required=True)
@option(
    "--corun",
    "The collective that runs in a loop concurrently with the GEMM, like all_reduce:256MiB, or an execution plan of "
    "MSCCL++, "
    "like plan.json:16MiB; SIZE is that of the whole buffer.",
    Value("COLLECTIVE:SIZE|FILE:SIZE", _plan_or_collective),
    required=True,
)
@option("--ranks", f"GPUs of the collective.  [default: {_DEFAULT_RANKS}, of a plan its own]", RANKS)
@option("--nodes", "Nodes that hold them.  [default: as few as hold them]", COUNT)
@dtype_option("the GEMM and the collective")
@option(
    "--overlap",
    "The co-run strategy, see 'weft overlaps list', or 'all' to compare every one.  [default: streams]",
    OVERLAP,
)
@option(
    "--loops",
    "GEMMs and collectives; of G GEMMs alone, as many collectives as last as long.  [default: 1,1]",
    Value("G[,C]", _loops),
)
@option(
    "--split",
    "Compute units of the GEMM and those reserved for the collective, for strategies that partition them, like "
    "272-32.  [default: as many as hold the collective's channels at once, or 8 with DMA engines]",
    SPLIT,
)
@option(
    "--channels",
    "Channels of the collective where compute units drive it, each one workgroup; those that its compute units cannot "
    "hold at once wait.  [default: the library's own number]",
    int,
    metavar="N",
)
@option(
    "--algorithm",
    "Algorithm of the collective where compute units drive it: ring, direct (a link to each peer), nvls (a switch "
    "that reduces), or auto (the library's choice).  [default: auto]",
    click.Choice(["auto", *KERNELS]),
)
@option(
    "--copies",
    "How DMA engines copy where they move the collective's data: prelaunched, broadcast (all_gather), "
    "swap (all_to_all), engines=N, engines_per_peer=N, threads=N.",
    Value("A,B=N", _copies),
)
@option(
    "--first",
    "Which loop the host launches first.  [default: the collective where it has priority, else the GEMM]",
    click.Choice(["collective", "gemm"]),
)
@_simulation(_COARSE)
def corun(
    run: _SimulationOptions,
    gemm: tuple[int, int, int],
    corun: tuple[str | Path, Any],
    ranks: int | None,
    nodes: int | None,
    dtype: str,
    overlap: str | None,
    loops: tuple[int, ...] | None,
    **stated: Any,
) -> Shown:
    """Simulate a GEMM and a collective that do not depend on each other, and show what each costs the other."""
    what, size = corun
    choice, drivers = None, tuple(Driver)
    if isinstance(what, Path):
        plan = weft.read_collective(what)
        if ranks not in (None, plan.ranks):
            raise InputError(
                f"--ranks is {ranks}, but the plan in {what} is for {plan.ranks} GPUs; leave --ranks out, or give a "
                f"plan for {ranks}"
            )
        moved, choice = plan.op(size, dtype), plan.choice()
        drivers = drivers if overlap != ALL else (Driver.CU,)
    else:
        moved = Collective(what, size, ranks or _DEFAULT_RANKS, dtype)
    system = run.system(moved.ranks, nodes)
    strategies = _strategies(overlap or "streams", drivers, system.gpu, **stated)
    work = Gemm(*gemm, moved.dtype), moved
    counts = loops or (1, 1)
    if len(counts) == 2:
        graph = concurrent(*work, counts[0], counts[1], choice)
    else:
        graph = balance_loops(*work, system, strategies[0], run.options, counts[0], run.store, choice)
    answer = run.compare(graph, system, strategies)
    best = next(one for one in strategies if one.name == answer.best)
    return run.with_unchanged(answer, graph, moved.ranks, best, nodes), answer[best.name]


def _strategies(
    name: str,
    drivers: Sequence[Driver],
    gpu: Gpu,
    split: tuple[int, int] | None,
    channels: int | None,
    algorithm: Any,
    copies: DmaCopies | None,
    first: Launched | None,
) -> list[CoRunStrategy]:
    """Return the co-run strategies of a name or "all"; of several, each takes the options that suit its driver."""
    named = None if name == ALL else find_strategy(find_simulated(name).name)
    if named is None and name != ALL:
        raise InputError(
            f"overlap '{name}' joins a GEMM with the collective of its own output, but those of a co-run do not depend "
            f"on each other; choose {join_or((*STRATEGIES, ALL))}"
        )
    found = STRATEGIES.values() if named is None else [named]
    chosen = [one for one in found if one.driver in drivers]
    if split is not None and not any(one.partition for one in chosen):
        parting = [one.name for one in STRATEGIES.values() if one.partition]
        raise InputError(f"--split needs an overlap that reserves compute units: {join_or(parting)}")
    on_units: dict[str, Any] = {"channels": channels, "algorithm": None if algorithm == "auto" else algorithm}
    units = None if split is None else apart_of(*split, gpu)
    on_engines: dict[str, Any] = {"copies": copies or DmaCopies()}
    both = len({one.driver for one in chosen}) > 1
    return [
        replace(
            one,
            first=first,
            units=units if one.partition and not (both and one.driver is Driver.DMA) else None,
            **on_units if not both or one.driver is Driver.CU else {},
            **on_engines if not both or one.driver is Driver.DMA else {},
        )
        for one in chosen
    ]


@simulate.command(
    "collective",
    short_help="An execution plan of MSCCL++ alone.",
    epilog=examples("weft simulate collective plan.json:16MiB --gpu h100-sxm"),
)
@click.argument("plan", type=Value("FILE:SIZE", _sized_plan))
@dtype_option("the buffer")
@_simulation(_COARSE)
def collective(run: _SimulationOptions, plan: tuple[Path, str], dtype: str) -> Shown:
    """Simulate the collective that an execution plan of MSCCL++ carries out on a buffer of SIZE.

    The plan says how many GPUs take part. To run it concurrently with a GEMM, see 'weft simulate corun'.
    """
    file, size = plan
    what = weft.read_collective(file)
    alone = run.simulate(what.graph(size, dtype), run.system(what.ranks))
    return Comparison({alone.overlap: alone}), alone


@simulate.command(
    "op",
    short_help="One operator on one GPU.",
    epilog=examples(
        "weft simulate op gemv --shape rows=16384,columns=1024,stride=131072 --gpu v100-sxm2-32gb --heatmap channel"
    ),
)
@click.argument("name", metavar="NAME")
@option("--shape", "Its dimensions, see 'weft predict ops'.", NAMES)
@dtype_option("its tensors")
@_simulation(_FINE)
def op(run: _SimulationOptions, name: str, shape: tuple[str, ...] | None, dtype: str) -> Shown:
    """Simulate one operator on one GPU, and compare its closed form; 'weft predict ops' lists the operators."""
    work = operator(name, dtype, **dimensions(shape or ()))
    return _program(run, Graph((Node(work, name),), title=str(work)))


@simulate.command(
    "graph",
    short_help="The operators of a captured or imported program on one GPU.",
    epilog=examples("weft simulate graph llama.graph.jsonl.gz --gpu h100-sxm"),
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@_simulation(_FINE)
def graph(run: _SimulationOptions, file: Path) -> Shown:
    """Simulate a graph that 'weft capture' or 'weft import' wrote, operator after operator on one GPU."""
    return _program(run, weft.read_graph(file))


def _program(run: _SimulationOptions, work: Graph) -> Shown:
    """Simulate a program on one GPU, and compare its closed form."""
    from weft.view.program import ProgramReport

    machine = run.system()
    found = run.simulate(work, machine)
    return ProgramReport(found, weft.estimate(work, machine, RunOptions(clock=run.options.clock))), found
