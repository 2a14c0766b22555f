"""The clock of training steps: operators to layers, layers to stages, stages to a pipeline, and what ends the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np

from weft.core.errors import InputError, check_name
from weft.core.options import SUSTAINED, Fidelity, RunOptions
from weft.core.units import format_time
from weft.hardware import System
from weft.kernels.library.software import Residual
from weft.models import Transformer
from weft.models.parallel.check import check_plan
from weft.models.parallel.cut import routing_under
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.precision import check_trains
from weft.step.batch import BatchedSteps, PipelineBatch, StepComposer, ends, pause_collection
from weft.step.corun import CoRunWindow
from weft.step.durations import DurationCache, OperatorTimes
from weft.step.overlaps import check_overlap, engine_note, framework_fields, idle_note, needs, resolve_framework
from weft.step.pipeline import Durations, Send, run_schedule
from weft.step.pruning import Pruning
from weft.step.result.step import Step, exposed_part


def train(
    model: Transformer,
    system: System,
    plan: TrainingPlan,
    framework: Framework | None = None,
    options: RunOptions = SUSTAINED,
    fidelity: Fidelity = "windows",
    calibration: Residual | None = None,
) -> Step:
    """Time one training step of a model on a system under a plan, and say where it goes.

    With the `fidelity` "windows" the engine says what kernels and collectives cost each other while they run at once;
    with "estimate" closed forms do. Kernels take as long as alone; what measured steps take beyond that is a part of
    its own, the calibration residual (None: as shipped). Raises InputError for a plan that does not fit the model or
    the system, UnknownNameError for an unknown fidelity.
    """
    check_runs(plan, system, fidelity)
    check_trains(plan.dtype, plan.precision, system.gpu)
    check_plan(model, plan)
    check_overlap(plan, system, fidelity)
    return time_step(model, system, plan, framework or Framework(), options, fidelity, calibration)


def check_runs(plan: TrainingPlan, system: System, fidelity: Fidelity) -> None:
    """Raise UnknownNameError for an unknown fidelity, InputError for a plan of another number of GPUs."""
    check_name("fidelity", fidelity, get_args(Fidelity))
    if plan.gpus != system.gpus:
        raise InputError(
            f"the plan uses {plan.gpus} GPUs (tp {plan.tp} x cp {plan.cp} x pp {plan.pp} x dp {plan.dp}), but the "
            f"system has {system.gpus}; let the degrees multiply to {system.gpus}"
        )


def time_step(
    model: Transformer,
    system: System,
    plan: TrainingPlan,
    framework: Framework,
    options: RunOptions = SUSTAINED,
    fidelity: Fidelity = "windows",
    calibration: Residual | None = None,
) -> Step:
    """Time a step as `train` does, under a plan that has been checked."""
    framework = resolve_framework(framework, plan)
    cache = DurationCache(system, options, calibration=calibration)
    prices = OperatorTimes(system, plan, options, fidelity, cache)
    chunks, pipe, epilogue = StepComposer(model, framework, cache, prices).detail(plan)
    assert pipe.times is not None
    notes = (
        *_recipe_note(plan, framework),
        *engine_note(plan, ", at either fidelity"),
        *idle_note(plan, {axis for _, _, axis in prices.windows.found}),
        *_loads_note(model, system, plan, framework, options),
    )
    return Step(
        model,
        system,
        plan,
        framework,
        chunks,
        pipe.times,
        _waits(pipe),
        tuple(epilogue.parts(0, device) for device in range(pipe.times.schedule.devices)),
        tuple(epilogue.hidden[0].tolist()),
        float(sum(part[0] for part in ends(epilogue, [pipe]))),
        float(np.max(pipe.send.latency)),
        needs=needs(plan, system),
        windows=tuple(prices.windows.found.values()),
        fidelity=fidelity,
        notes=notes,
    )


def _recipe_note(plan: TrainingPlan, framework: Framework) -> tuple[str, ...]:
    """Return a sentence on a recipe that the framework does not run."""
    if not plan.recipe.operands or not framework.recipes or plan.precision in framework.recipes:
        return ()
    runs = ", ".join(framework.recipes)
    return (f"{framework.title} has no recipe {plan.precision}, and is timed as if it had; it runs {runs}.",)


def _loads_note(
    model: Transformer, system: System, plan: TrainingPlan, framework: Framework, options: RunOptions
) -> tuple[str, ...]:
    """Return how uneven the loads of a plan's experts are, and what they cost, in a sentence."""
    if not plan.expert_load:
        return ()
    routing = routing_under(model, plan)
    each = routing.fullest.sum() / (routing.rows or 1)
    seconds = many(model, system, [plan.alter(expert_load=()), plan], framework, options).seconds
    took = format_time(seconds[1] - seconds[0], 3)
    said = (
        f"The slowest expert has {routing.imbalance:.1f}x the mean load, the fullest of {plan.ep} GPUs {each:.2f}x; "
        f"in closed forms a step takes {took} ({seconds[1] / seconds[0] - 1:.1%}) longer than with even loads."
    )
    return (said,)


def many(
    model: Transformer,
    system: System,
    plans: Sequence[TrainingPlan],
    framework: Framework | None = None,
    options: RunOptions = SUSTAINED,
    cache: DurationCache | None = None,
    *,
    limit: float = np.inf,
    pruning: Pruning | None = None,
) -> BatchedSteps:
    """Step times and peaks of plans that fit the model and the system, as `train` and `memory` give them, at the
    fidelity "estimate".

    `cache` holds what calls for the same model, GPUs and framework have in common. Plans with peaks above `limit`
    [bytes] are not timed, nor are those that the `pruning` excludes: their times are infinite.
    """
    found = BatchedSteps(*np.full((5, len(plans)), np.inf))
    framework = framework or Framework()
    cache = cache or DurationCache(system, options)
    alike: dict[tuple[object, ...], list[int]] = {}
    for at, plan in enumerate(plans):
        alike.setdefault(framework_fields(plan), []).append(at)
    with pause_collection():
        for mine in alike.values():
            batch = StepComposer(model, resolve_framework(framework, plans[mine[0]]), cache)
            batch.fill(found, np.array(mine), [plans[at] for at in mine], limit, pruning)
    return found


def meetings(
    model: Transformer, system: System, plan: TrainingPlan, framework: Framework, options: RunOptions = SUSTAINED
) -> tuple[CoRunWindow, ...]:
    """The kernels and collectives that meet in a step, by closed forms: what the fidelity "windows" simulates."""
    framework = resolve_framework(framework, plan)
    prices = OperatorTimes(system, plan, options)
    StepComposer(model, framework, prices.known, prices).detail(plan)
    return tuple(prices.windows.meetings)


def _waits(pipe: PipelineBatch) -> dict[str, float]:
    """Return the idle time of the mean pipeline device by cause [s]: sends, stage imbalance, and the bubble."""
    ran, seconds = pipe.times, pipe.seconds
    assert ran is not None
    at_once = run_schedule(ran.schedule, Durations(*seconds), Send())
    even = run_schedule(ran.schedule, Durations(*(np.full_like(each, each.mean()) for each in seconds)), Send())
    alike_end = min(even.makespan, at_once.makespan)  # unequal stages may fit a schedule better by chance
    return {
        exposed_part("pp"): ran.makespan - at_once.makespan,
        "imbalance": at_once.makespan - alike_end,
        "bubble": alike_end - float(even.busy.mean()),
    }
