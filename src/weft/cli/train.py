"""`weft step`, `memory`, `roofline` and `scale`: a training step of a whole model, its time and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

import click

import weft
from weft.cli.options import (
    WithScript,
    against_option,
    against_options,
    as_run_options,
    check_terms,
    clock_option,
    examples,
    field_options,
    on_machine,
    option,
    refuse_given,
    set_option,
    together,
    typed_options,
    words_behind,
)
from weft.cli.output import details_option, shows
from weft.cli.values import DTYPE, FACTORS, MODEL, SYSTEM_NAME, Value, assignments, names
from weft.core.answer import Answer
from weft.core.errors import InputError
from weft.core.fields import describe_fields
from weft.core.options import Fidelity, RunOptions
from weft.graph import EXCHANGES
from weft.graph.routing import loads_of
from weft.hardware import System
from weft.models.load import graph_in
from weft.models.parallel.deployment import overlap_of
from weft.models.parallel.framework import current_frameworks, frameworks
from weft.models.parallel.plan import GRAPH_MODULES, Recompute, TrainingPlan
from weft.models.parallel.precision import RECIPES
from weft.step.pipeline import schedule_names
from weft.step.run import TrainingRun

_EXAMPLE = "weft step gpt-3 --system 64xa100 --tp 8 --pp 8 --batch 64 --recompute full"
_MEMORY = "weft memory gpt-3 --system 64xa100 --tp 8 --pp 8 --batch 64"
_BUDGET = 'weft memory gpt-3 --system 64xa100 --tp 8 --pp 8 --batch 64 --budget "65.3 GB"'
_ROOFLINE = "weft roofline llama-3-70b --system 8xh100 --tp 8 --out out/roofline"
_SCALE = "weft scale llama-3-70b --system 64xh100 --tp 8 --pp 4 --compute 1,2,4 --network 1,2"
_T3 = "weft scale llama-3-70b --system 8xh100 --tp 8 --compute 4 --network 2 --overlap framework,t3-mca --out out/scale"
_GRAPH = "weft step llama.graph.jsonl.gz --system h100-sxm"
_AGAINST = "weft step gpt-3 --system 64xa100 --tp 8 --pp 8 --batch 64 --against link.bandwidth='600 GB/s'"
_LAUNCHED = 'weft step --launch pretrain.sh --system 64xh100 --measured "412 TFLOP/s"'
_RUN_OF = "weft step llama-3-70b --system 4096xh100 --tp 8 --pp 4 --batch 2048 --duration 30d --failures 5.3e-4"
_LARGE = "weft step gpt-3 --system 1024xa100 --tp 8 --pp 8 --batch 1536 --out out/step"


def parse_recompute(text: str) -> str | tuple[str, ...]:
    """Parse a policy, or names of operators with commas between."""
    return text if text in get_args(Recompute) else names(text)


plan_options = together(
    option(
        "--system", "The machine, such as 64xh100 or 8x dgx-a100, see 'weft hardware list'.", SYSTEM_NAME, required=True
    ),
    field_options(
        TrainingPlan,
        "tp",
        "pp",
        "dp",
        "cp",
        "ep",
        "sp",
        "batch",
        "micro_batch",
        "sequence",
        "schedule",
        "recompute",
        "offload",
        "zero",
        "layers",
        "context",
        "shard",
        "dtype",
        "precision",
        "dispatcher",
        "expert_load",
        "cuda_graph_impl",
        "cuda_graph_modules",
        "overlap_moe_expert_parallel_comm",
        "delay_wgrad_compute",
        "loss_chunks",
        schedule=Value("NAME[:N]", str, schedule_names),
        recompute=Value("POLICY|A,B", parse_recompute, lambda: get_args(Recompute)),
        dtype=DTYPE,
        precision=Value("RECIPE", str, lambda: RECIPES),
        dispatcher=Value("LIBRARY", str, lambda: EXCHANGES),
        expert_load=Value("LOADS", loads_of),
        cuda_graph_modules=Value("A,B", names, lambda: GRAPH_MODULES),
    ),
    option(
        "--framework",
        f"Whose defaults: kernels, number formats, overlaps: {', '.join(current_frameworks())}, or another of 'weft "
        "frameworks list'.  [default: megatron-core, with --zero 3 torchtitan]",
        Value("NAME", str, frameworks),
    ),
    set_option("every GPU, node or network"),
)
"""The machine and the plan of a training step."""


@click.command(cls=WithScript, epilog=examples(_EXAMPLE, _LARGE, _AGAINST, _GRAPH, _LAUNCHED, _RUN_OF))
@click.argument("model", type=MODEL, required=False)
@plan_options
@option(
    "--overlap",
    "Overlap methods by axis, such as tp=flux,dp=dma or tp=t3-mca+t3-all-gather, see 'weft overlaps list --axis tp'.  "
    "[default: as the framework does]",
    Value("AXIS=NAME", overlap_of),
)
@option(
    "--fidelity",
    "What kernels and collectives that run at once cost each other: by the engine, or in closed form (estimate). "
    "The methods of T3, like t3-mca, run the engine at either, for minutes the first time.",
    click.Choice(get_args(Fidelity)),
    default="windows",
)
@against_option
@click.option(
    "--compare-overlaps",
    is_flag=True,
    help="Compare every overlap method that applies to the plan, in closed form, and say what bounds the step.",
)
@option(
    "--launch",
    "The launch file of the run, or its command: a script, a recipe or overrides of Megatron-Bridge, torchtitan's "
    "TOML, DeepSpeed's JSON, YAML of AutoModel, NeMo, Primus, HyperPod, Axolotl, LLaMA-Factory, TRL or Accelerate. "
    "MODEL can be left out where it describes one. Arguments of a script follow behind --, as in: weft step --launch "
    "run.sh --system 8xh100 -- 8b 4",
    metavar="FILE|COMMAND",
)
@option(
    "--define",
    "State a variable of the file of --launch, like TP=4, which it does not set, or sets otherwise; repeatable.",
    name="define",
    multiple=True,
    callback=assignments,
    metavar="NAME=VALUE",
)
@option(
    "--measured",
    "What was measured, like '9.3 s', or of each GPU '1400 tokens/s' or '412 TFLOP/s': is it to be expected, where "
    "may time be lost, what would gain most?",
    metavar="RATE|TIME",
)
@option(
    "--improve",
    "Also say which three changes of the plan, one at a time, would gain most and fit, in closed form.",
    is_flag=True,
)
@option(
    "--straggler",
    "One slow part, and how much of its delay reaches the step: gpu:5% (a clock 5 % lower), node:network=0.5 (half the "
    "rate of a node's network), nic (one adapter at half its rate).",
    Value("PART"),
)
@field_options(
    TrainingRun,
    *describe_fields(TrainingRun),
    energy=Value("TERMS"),
    price=Value("PRICE|FILE"),
    tokens=Value("TOKENS"),
    duration=Value("TIME"),
    restart=Value("TIME"),
    checkpoint_bandwidth=Value("RATE"),
    checkpoint_every=Value("TIME"),
    repair=Value("TIME"),
)
@clock_option()
@shows(
    "step.json",
    csv="Write the waterfall as CSV.",
    out="Write report.html with the pictures, and step.json, to this folder.",
    trace="Write a trace for Perfetto and HTA, one file per pipeline stage.",
)
@details_option
@as_run_options
@on_machine
def step(
    machine: System,
    options: RunOptions,
    model: str | None = None,
    compare_overlaps: bool = False,
    launch: str | None = None,
    define: Mapping[str, str] | None = None,
    **stated: Any,
) -> Answer:
    """Time a training step of MODEL: step time, MFU, exposed communication, peak memory, and where the time goes.

    MODEL is a name of 'weft models list', or a file: also a captured graph, which is timed on a rank of
    the system, with its collectives.
    """
    stated, terms = _without_run(stated)
    if terms:
        check_terms(terms.price, terms.energy, machine)
    arguments = words_behind()
    if launch is None and (arguments or define):
        raise InputError("words behind -- and --define belong to a script; name it, like --launch pretrain.sh")
    if launch is not None:
        refuse_given("with --launch; change the file", "compare_overlaps")
        changed = against_options(stated)
        kept = {name: value for name, value in typed_options(stated).items() if name not in changed}
        started = weft.read_launch(launch, system=machine, arguments=arguments, define=define)
        answer = started.step(machine, model, options=options, instead=changed, **kept)
        return answer.over(terms) if terms else answer
    if model is None:
        raise InputError("name a model, like llama-3-8b, or the file that starts the run: --launch pretrain.sh")
    if (graph := graph_in(model)) is not None:
        refuse_given(
            "with a captured graph, which is timed as it is", *stated, *_RUN, "compare_overlaps", "straggler", "improve"
        )
        return weft.step(graph, machine, options=options)
    if compare_overlaps:
        asked = ("fidelity", "measured", "straggler", "improve")
        refuse_given("with --compare-overlaps, which times in closed form", *asked, *_RUN)
        for closed in asked:
            stated.pop(closed, None)
        return weft.step_overlaps(model, machine, options=options, **stated)
    answer = weft.step(model, machine, options=options, **stated)
    return answer.over(terms) if terms else answer


_RUN = tuple(describe_fields(TrainingRun))


def _without_run(stated: dict[str, Any]) -> tuple[dict[str, Any], TrainingRun | None]:
    """Separate the options of a whole run from the others; the run is None if none is stated."""
    usual = describe_fields(TrainingRun)
    given = {name: stated[name] for name in _RUN if name in stated and stated[name] != usual[name].value}
    rest = {name: value for name, value in stated.items() if name not in _RUN}
    return rest, TrainingRun(**given) if given else None


@click.command(epilog=examples(_MEMORY, _BUDGET))
@click.argument("model", type=MODEL)
@plan_options
@option(
    "--budget",
    'Find which operators to recompute so that no GPU needs more than this, such as "60 GB".',
    metavar="SIZE",
)
@partial(
    details_option,
    flag="--explain",
    help_text="Print every saved tensor, too, and what the framework's own estimator says.",
)
@shows("memory.json", out="Write report.html with the pictures, and memory.json, to this folder.")
@on_machine
def memory(model: str, machine: System, budget: str | None = None, **stated: Any) -> Answer:
    """Compute the peak memory of a training step of MODEL: whether it fits, what holds it, what would fit.

    For the launch file of a run, 'weft step --launch' states the peak memory, too.
    """
    if budget is None:
        return weft.memory(model, machine, **stated)
    refuse_given("with --budget, which finds it", "recompute")
    return weft.recompute(model, machine, budget, **stated)


@click.command(epilog=examples(_ROOFLINE))
@click.argument("model", type=MODEL)
@plan_options
@clock_option()
@shows(
    "roofline.json",
    csv="Write the table as CSV.",
    out="Write report.html with the picture, and roofline.json, to this folder.",
)
@as_run_options
@on_machine
def roofline(model: str, machine: System, options: RunOptions, **stated: Any) -> Answer:
    """Show the operators of a layer of MODEL on the roofline of a GPU: intensity, attained rate, bound.

    Forward and backward, as one rank of the plan computes them. MODEL is a name of 'weft models list', or a file.
    """
    return weft.roofline(model, machine, options=options, **stated)


@click.command(epilog=examples(_SCALE, _T3))
@click.argument("model", type=MODEL)
@plan_options
@option("--compute", "Rates of computing, as multiples of today's.", FACTORS, default=(1.0, 2.0, 4.0))
@option("--network", "Rates of links and network, as multiples of today's.", FACTORS, default=(1.0,))
@option("--memory", "Rates of memory, as multiples of today's.  [default: as --compute]", FACTORS, name="memory_rates")
@option(
    "--overlap",
    "Methods for tensor parallelism to compare, see 'weft overlaps list --axis tp', and framework: as it "
    "does by itself.  [default: sequential,framework]",
    Value("A,B", names),
    name="methods",
)
@option(
    "--fidelity",
    "What kernels and collectives that run at once cost each other: nothing (estimate), or by the engine (windows).",
    click.Choice(get_args(Fidelity)),
    default="estimate",
)
@clock_option()
@shows(
    "scale.json",
    csv="Write the table as CSV.",
    out="Write report.html with the maps, and scale.json, to this folder.",
)
@as_run_options
@on_machine
def scale(
    model: str, machine: System, options: RunOptions, memory_rates: tuple[float, ...] | None = None, **stated: Any
) -> Answer:
    """Time a training step of MODEL on machines that compute faster, and whose links carry more.

    Shows the share of communication that is exposed and hidden on every machine, and what methods of overlap change,
    with the range in which the answer may lie. MODEL is a name of 'weft models list', or a file.
    """
    return weft.scale(model, machine, options=options, memory=memory_rates, **stated)
