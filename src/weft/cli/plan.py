"""`weft plan`: the best plan for a model on a machine, why not the others, and the command that starts it."""

from __future__ import annotations

import math
from typing import Any, get_args

import click

import weft
from weft.cli.options import (
    as_run_options,
    check_terms,
    clock_option,
    energy_option,
    examples,
    on_machine,
    option,
    price_option,
    set_option,
    valued,
)
from weft.cli.output import shows
from weft.cli.progress import progress_bar
from weft.cli.train import parse_recompute
from weft.cli.values import COUNT, MODEL, SYSTEM_NAME, Value, names
from weft.core.answer import Answer
from weft.core.errors import InputError
from weft.core.options import RESERVE, RunOptions
from weft.hardware import System
from weft.models.parallel.deployment import overlap_of
from weft.models.parallel.framework import frameworks
from weft.models.parallel.plan import Recompute
from weft.plan.launch import LAUNCHERS

_EXAMPLE = "weft plan llama-3-70b --system 64xh100 --batch 512 --sequence 8192 --launch megatron"
_FIXED = "weft plan gpt-3 --system 64xa100 --batch 64 --fix tp=8 --fix pp=8 --fix micro_batch=1,2 --refine 0"
_OBJECTIVES = ("tokens/s", "memory", "cost")
_REFINED, _BUDGET_S = 100, 15.0
"""Plans that are timed again without --refine, and when the search stops timing them [s]."""
_FLAGS = {"true": True, "yes": True, "false": False, "no": False}


def _parse_fixes(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse the values of --fix by field; InputError for a malformed one, or a field given twice."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and value):
            raise InputError(f"--fix {text}: name a field and its value, like tp=8, or several values, like tp=4,8")
        if name in found:
            raise InputError(f"--fix gives {name} twice; give several values as {name}=A,B")
        found[name] = _choices(name, value)
    return found


def _choices(name: str, text: str) -> list[Any]:
    """Return the values of a field that --fix allows."""
    if name == "overlap":
        return [overlap_of(text)]
    if name == "cuda_graph_modules":
        return [names(text)]
    if name == "recompute" and not set(names(text)) <= set(get_args(Recompute)):
        return [parse_recompute(text)]
    return [_FLAGS.get(one.lower(), int(one) if one.isdecimal() else one) for one in names(text)]


@click.command(epilog=examples(_EXAMPLE, _FIXED))
@click.argument("model", type=MODEL)
@option(
    "--system", "The machine, such as 64xh100 or 8x dgx-a100, see 'weft hardware list'.", SYSTEM_NAME, required=True
)
@option("--batch", "Global batch: sequences of a step.", COUNT, required=True)
@option("--sequence", "Tokens of each sequence.  [default: the model's context]", COUNT)
@option(
    "--fix", "A choice that is made already, like tp=8, sp=yes or micro_batch=1,2 (either); repeatable.",
    multiple=True, callback=_parse_fixes, metavar="FIELD=VALUE",
)  # fmt: skip
@option(
    "--objective",
    "Least step time on all GPUs, least memory, or least GPU-seconds of a step.",
    click.Choice(_OBJECTIVES),
    default=_OBJECTIVES[0],
)
@option("--top", "Plans to show.", COUNT, default=10)
@option(
    "--refine",
    "Best plans to time again with the engine's windows (each can take minutes); a stated N takes "
    f"the time it needs.  [default: {_REFINED}, with no new window after {_BUDGET_S:.0f} s]",
    click.IntRange(min=0),
    metavar="N",
)
@option(
    "--framework",
    "Whose defaults: kernels, number formats, overlaps, see 'weft frameworks list'.  [default: all of today's that run "
    "on the machine]",
    Value("NAME", str, frameworks),
)
@option(
    "--launch",
    "Search only what this launcher can run, and print how to run it.",
    click.Choice([*LAUNCHERS]),
    name="launcher",
)
@option(
    "--reserve",
    "Share of each GPU's memory that a plan leaves free.",
    click.FloatRange(0, 1, max_open=True),
    metavar="SHARE",
    default=RESERVE,
)
@price_option()
@energy_option()
@set_option("every GPU, node or network")
@clock_option()
@shows(
    "plans.json",
    csv="Write the best plans as CSV.",
    out="Write report.html with the pictures, plans.json and, with --launch, the launch file to this folder.",
)
@as_run_options
@on_machine
def plan(
    model: str,
    machine: System,
    options: RunOptions,
    refine: int | None = None,
    price: str | None = None,
    energy: str | None = None,
    **stated: Any,
) -> Answer:
    """Find the best plan to train MODEL on a machine: its time, its memory, why not another, and how to start it.

    MODEL is a name of 'weft models list', or a file.
    """
    check_terms(price, energy, machine)
    effort: dict[str, Any] = {"refine": _REFINED, "budget_s": _BUDGET_S}
    if refine is not None:
        effort = {"refine": refine, "budget_s": math.inf}
    with progress_bar("planning") as progress:
        plans = weft.plan(model, machine, options=options, progress=progress, **effort, **stated)
    return valued(plans, price, energy)
