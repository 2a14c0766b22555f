"""A training step by names and numbers: what is left out of the plan follows from the model and the system."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.errors import InputError, check_type
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.options import SUSTAINED, RunOptions
from weft.parallel.check import check_plan
from weft.parallel.complete import complete
from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism
from weft.result.memory import Memory
from weft.result.step import Step
from weft.run.step.clock import train
from weft.run.step.memory import memory as needed


def _asked(
    model: Transformer | str | Path, on: Described, plan: Parallelism | None, stated: dict[str, Any]
) -> tuple[Transformer, System, Parallelism, tuple[str, ...]]:
    """Model, system and plan, and notes on what was chosen."""
    found = model if isinstance(model, Transformer) else load_model(model)
    where = on if isinstance(on, System) else system(on)
    if plan is None:
        plan, notes = complete(found, where.gpus, stated)
        check_plan(found, plan)
        return found, where, plan, notes
    check_type("the plan", plan, Parallelism, "give a weft.Parallelism, or its fields as keywords")
    if stated:
        raise InputError(f"{', '.join(stated)} belong to the plan; put them into weft.Parallelism, or leave it out")
    check_plan(found, plan)
    return found, where, plan, ()


def step(
    model: Transformer | str | Path,
    on: Described,
    plan: Parallelism | None = None,
    *,
    framework: Framework | None = None,
    options: RunOptions = SUSTAINED,
    **stated: Any,
) -> Step:
    """How long a training step takes, and where it goes: `model` and `on` by name, file or object.

    Without a `plan`, keywords state fields of one (`Parallelism`); replicas take the GPUs that are left, and the
    answer's notes say what else was chosen. Raises UnknownNameError for unknown names, InputError for a plan that does
    not fit, with the nearest one that does.

    >>> step("gpt-3", "64xa100", tp=8, pp=8, batch=64).plan.micro_batches
    64
    """
    found, where, plan, notes = _asked(model, on, plan, stated)
    answer = train(found, where, plan, framework, options)
    held = needed(found, where, plan, framework)
    return replace(answer, memory=held, notes=(*notes, *answer.notes))


def memory(
    model: Transformer | str | Path,
    on: Described,
    plan: Parallelism | None = None,
    *,
    framework: Framework | None = None,
    **stated: Any,
) -> Memory:
    """What every GPU must hold in a training step, and what would make it fit; arguments as for `step`.

    >>> memory("gpt-3", "64xa100", tp=8, pp=8, batch=64).fits
    False
    """
    found, where, plan, _ = _asked(model, on, plan, stated)
    return needed(found, where, plan, framework)
