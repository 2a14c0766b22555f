"""`weft step` and `weft memory`: a training step of a whole model, its time and what it must hold."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

import click

import weft
from weft.cli.fields import field_options
from weft.cli.options import (
    as_run_options,
    clock_option,
    examples,
    given,
    option,
    refuse_given,
    set_option,
    together,
)
from weft.cli.output import Outputs, file_option, folder_option, json_of, pass_outputs
from weft.cli.values import DTYPE, MODEL_NAME, SYSTEM_NAME, Value, later, names
from weft.options import Fidelity, RunOptions
from weft.parallel.plan import Parallelism, Recompute, overlap_of
from weft.parallel.quantize import RECIPES
from weft.schedule.pipeline import schedule_names

_EXAMPLE = "weft step gpt-3 --system 64xa100 --tp 8 --pp 8 --batch 64 --recompute full"
_MEMORY = "weft memory gpt-3 --system 64xa100 --tp 8 --pp 8 --batch 64"
_BUDGET = 'weft memory gpt-3 --system 64xa100 --tp 8 --pp 8 --batch 64 --budget "65.3 GB"'
_GRAPH = "weft step llama.graph.jsonl.gz --system h100-sxm"
_LARGE = "weft step gpt-3 --system 1024xa100 --tp 8 --pp 8 --batch 1536 --out out/step"


GRAPH_SUFFIXES = (".jsonl", ".jsonl.gz")
"""How the files of graphs end."""


def recomputed(text: str) -> str | tuple[str, ...]:
    """Parse a policy, or names of operators with commas between."""
    return text if text in get_args(Recompute) else names(text)


plan_options = together(
    option(
        "--system", "The machine, such as 64xh100 or 8x dgx-a100, see 'weft hardware list'.", SYSTEM_NAME, required=True
    ),
    field_options(
        Parallelism,
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
        "quantize",
        schedule=Value("NAME[:N]", str, schedule_names),
        recompute=Value("POLICY|A,B", recomputed, lambda: get_args(Recompute)),
        dtype=DTYPE,
        quantize=Value("NAME", str, lambda: RECIPES),
    ),
    option(
        "--framework",
        "Whose defaults: kernels, number formats, overlaps.  [default: megatron-core, with --zero 3 torchtitan]",
        Value("NAME", str, later("weft.parallel.framework:frameworks")),
    ),
    set_option("every GPU, node or network"),
)
"""The machine and the plan of a training step."""


@click.command(epilog=examples(_EXAMPLE, _LARGE, _GRAPH))
@click.argument("model", type=MODEL_NAME)
@plan_options
@option(
    "--overlap", "Overlap methods by axis, such as tp=flux,dp=dma, see 'weft overlaps list --axis tp'.  "
    "[default: as the framework does]",
    Value("AXIS=NAME", overlap_of),
)  # fmt: skip
@option(
    "--fidelity",
    "What kernels and collectives that run at once cost each other: by the engine, or in closed form (estimate). "
    "The methods t3, t3-mca and t3-critical run the engine at either, for minutes the first time.",
    click.Choice(get_args(Fidelity)),
    default="windows",
)
@clock_option()
@file_option("--json", "Write the answer as JSON.")
@file_option("--csv", "Write the waterfall as CSV.")
@file_option("--trace", "Write a trace for Perfetto and HTA, one file per pipeline stage.")
@folder_option("Write report.html with the pictures, and step.json, to this folder.", "step.json")
@as_run_options
@pass_outputs
def step(
    outputs: Outputs, /, model: str, system: str, changes: Mapping[str, str], options: RunOptions, **stated: Any
) -> None:
    """Time a training step of MODEL: how long it takes, what is exposed, what fits, where the time goes.

    MODEL is a name of 'weft models list', or a file: also a captured graph, which is timed on a rank of
    the system, with its collectives.
    """
    if model.endswith(GRAPH_SUFFIXES):
        _of_graph(outputs, model, weft.system(system).replace(changes), options, stated)
        return
    from weft import view

    answer = weft.step(model, weft.system(system).replace(changes), options=options, **given(**stated))
    outputs.show(answer, trace=partial(view.write_step_trace, answer), files={"step.json": json_of(answer)})


def _of_graph(outputs: Outputs, path: str, system: weft.System, options: RunOptions, stated: Mapping[str, Any]) -> None:
    """A captured graph on a rank of the system; InputError for options of a plan."""
    from weft import view

    refuse_given("beside a captured graph, which is timed as it is", *stated)
    answer = weft.step(weft.read_graph(path), system, options=options)
    outputs.show(answer, trace=partial(view.write_graph_trace, answer), files={"step.json": json_of(answer)})


@click.command(epilog=examples(_MEMORY, _BUDGET))
@click.argument("model", type=MODEL_NAME)
@plan_options
@option(
    "--budget",
    'Find what to compute again, operator by operator, so that no GPU needs more than this, such as "60 GB".',
    metavar="SIZE",
)
@file_option("--json", "Write the answer as JSON.")
@folder_option("Write report.html with the pictures, and memory.json, to this folder.", "memory.json")
@pass_outputs
def memory(
    outputs: Outputs, /, model: str, system: str, changes: Mapping[str, str], budget: str | None, **stated: Any
) -> None:
    """Say whether a training step of MODEL fits, who holds the memory, and what would make it fit."""
    if budget is not None:
        _within(outputs, model, weft.system(system).replace(changes), budget, stated)
        return
    answer = weft.memory(model, weft.system(system).replace(changes), **given(**stated))
    outputs.show(answer, files={"memory.json": json_of(answer)})


def _within(outputs: Outputs, model: str, system: weft.System, budget: str, stated: Mapping[str, Any]) -> None:
    """What to compute again for a peak within the budget."""
    refuse_given("beside --budget, which finds it", "recompute")
    answer = weft.recompute(model, system, budget, **given(**{**stated, "recompute": None}))
    outputs.show(answer, files={"memory.json": json_of(answer)})
