"""A training step by names and numbers: what is left out of the plan follows from the model and the system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from weft.core.contrast import Contrast
from weft.core.errors import InputError, check_name, check_type, check_whole
from weft.core.options import SUSTAINED, Fidelity, RunOptions
from weft.graph import Graph
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.models.parallel.check import check_plan
from weft.models.parallel.complete import complete
from weft.models.parallel.framework import SHARDED, USUAL, Framework
from weft.models.parallel.framework import framework as framework_of
from weft.models.parallel.plan import TrainingPlan, overlap_text
from weft.models.parallel.precision import check_trains
from weft.overlaps import OVERLAPS, applicable
from weft.step.clock import check_runs, time_step, train
from weft.step.effect import elsewhere, idle_options, unpaired_schedule
from weft.step.graphs import graph_step
from weft.step.memory import memory as needed
from weft.step.overlaps import check_overlap
from weft.step.result.graph_step import GraphStep
from weft.step.result.memory import Memory
from weft.step.result.step import Step

if TYPE_CHECKING:
    from weft.step.measured import Measured
    from weft.step.straggler import Straggler


@overload
def step(model: Graph, on: Described, *, options: RunOptions = SUSTAINED) -> GraphStep: ...


@overload
def step(
    model: Transformer | str | Path, on: Described, plan: TrainingPlan | None = None, *,
    framework: Framework | str | None = None, options: RunOptions = SUSTAINED, fidelity: Fidelity = "windows",
    measured: str | None = None, straggler: str | None = None, improve: bool = False, compare: bool = True,
    **stated: Any,
) -> Step: ...  # fmt: skip


def step(
    model: Transformer | Graph | str | Path,
    on: Described,
    plan: TrainingPlan | None = None,
    *,
    framework: Framework | str | None = None,
    options: RunOptions = SUSTAINED,
    fidelity: Fidelity = "windows",
    measured: str | None = None,
    straggler: str | None = None,
    improve: bool = False,
    compare: bool = True,
    **stated: Any,
) -> Step | GraphStep:
    """Return how long a training step takes, and where it goes: `model` and `on` by name, file or object.

    Without a `plan`, keywords state fields of one (`TrainingPlan`); replicas take the GPUs that are left, and the
    answer's notes say what else was chosen. A graph, such as `weft.capture` answers, is timed as it is, in closed form,
    on a rank with its collectives. Without a `framework`, it is Megatron Core, or torchtitan where weights are sharded
    (zero=3); `fidelity` as in `weft.step.train`. With a `measured` time, "9.3 s", or throughput of each GPU,
    "1400 tokens/s" or "412 TFLOP/s", the answer says whether that is to be expected, where time may be lost, and which
    three changes of the plan would gain most; `improve` asks for these changes alone. With a `straggler`, "gpu:5%" (a
    clock 5 % lower), "node:network=0.5" (half the rate of a node's network) or "nic" (one adapter at half its rate), it
    says how much of that part's delay reaches the step. Unless `compare` is False, which is faster where many steps are
    timed, the answer also names stated options without effect, and, without a `framework`, what today's others take.
    Raises UnknownNameError for unknown names, InputError for a plan that does not fit, with the nearest one that does.

    >>> step("gpt-3", "64xa100", tp=8, pp=8, batch=64, fidelity="estimate").plan.micro_batches
    64
    """
    if isinstance(model, Graph):
        asked = (plan, framework, measured, straggler, improve or None)
        if stated or any(one is not None for one in asked):
            raise InputError("a graph is timed as it is, without a plan or a framework; leave them out")
        return graph_step(model, on, options)
    seen = None if measured is None else _measured(measured)
    late = None if straggler is None else _straggler(straggler)
    of = resolve_inputs(model, on, plan, framework, stated)
    check_runs(of.plan, of.system, fidelity)
    check_overlap(of.plan, of.system, fidelity)
    answer = time_step(of.model, of.system, of.plan, of.framework, options, fidelity)
    held = replace(
        needed(of.model, of.system, of.plan, of.framework, answer.pipeline.schedule),
        framework=of.framework, defaulted=of.defaulted,
    )  # fmt: skip
    idle = idle_options(of.model, of.system, of.plan, of.framework, stated, options) if compare else ()
    others = elsewhere(answer, of.framework, options) if compare and "framework" in of.defaulted else {}
    notes = (*of.notes, *idle, *unpaired_schedule(of.plan, answer.framework), *answer.notes)
    answer = replace(answer, memory=held, notes=notes, defaulted=of.defaulted, elsewhere=others)
    if late is not None:
        from weft.step.straggler import delayed

        answer = delayed(answer, late, options)
    if seen is not None:
        from weft.step.measured import judge_step

        return judge_step(answer, seen, options)
    if improve:
        from weft.step.measured import suggest_changes

        return suggest_changes(answer, options)
    return answer


def _measured(text: str) -> Measured:
    from weft.step.measured import Measured

    return Measured.of(text)


def _straggler(text: str) -> Straggler:
    from weft.step.straggler import Straggler

    return Straggler.of(text)


def step_overlaps(
    model: Transformer | str | Path,
    on: Described,
    plan: TrainingPlan | None = None,
    *,
    framework: Framework | str | None = None,
    options: RunOptions = SUSTAINED,
    **stated: Any,
) -> Contrast:
    """Return a training step under every overlap method that applies to its plan, axis by axis, in closed form.

    Arguments as for `step`. The first answer is the step as it was asked; methods that only the engine times, and
    those that the plan or the system cannot use, are left out, each with the reason. Raises what `step` raises, and
    InputError for a plan without an axis that communicates.

    >>> found = step_overlaps("llama-3-8b", "8xh100", tp=8, batch=8, sequence=4096)
    >>> found.best
    'tp=userbuffers'
    """
    found, where, plan, used, notes, _ = resolve_inputs(model, on, plan, framework, stated)
    first = train(found, where, plan, used, options, "estimate")
    whole = replace(
        first, memory=needed(found, where, plan, used, first.pipeline.schedule), notes=(*notes, *first.notes)
    )
    answers: dict[str, Step] = {_as_asked(plan): whole}
    left_out: dict[str, str] = {}
    for axis in ("tp", "cp", "ep", "dp"):
        if (plan.dp * plan.cp if axis == "dp" else plan.degree(axis)) == 1:
            continue
        given = plan.overlap.get(axis, "")
        asked_for = OVERLAPS[given].name if given in OVERLAPS else given  # of "file.py:Name", its own name
        for name in applicable(axis):
            label = f"{axis}={name}"
            if name == asked_for:
                continue
            if not OVERLAPS[name].applies(axis, "closed form"):
                left_out[label] = "only the engine times it; ask with --overlap and the fidelity 'windows'"
                continue
            try:
                other = replace(plan, overlap={**plan.overlap, axis: name})
                answers[label] = train(found, where, other, used, options, "estimate")
            except InputError as error:
                left_out[label] = str(error)
    if len(answers) == 1:
        raise InputError("no axis of the plan communicates in a way that another method would change; give tp, cp, ep")
    return Contrast(answers, left_out)


def _as_asked(plan: TrainingPlan) -> str:
    return overlap_text(plan.overlap) or "the framework's own overlap"


def memory(
    model: Transformer | str | Path,
    on: Described,
    plan: TrainingPlan | None = None,
    *,
    framework: Framework | str | None = None,
    **stated: Any,
) -> Memory:
    """Return what every GPU must hold in a training step, and what would make it fit; arguments as for `step`.

    >>> memory("gpt-3", "64xa100", tp=8, pp=8, batch=64).fits
    True
    """
    of = resolve_inputs(model, on, plan, framework, stated)
    held = needed(of.model, of.system, of.plan, of.framework)
    notes = (*of.notes, *idle_options(of.model, of.system, of.plan, of.framework, stated))
    return replace(held, framework=of.framework, defaulted=of.defaulted, notes=notes)


class StepInputs(NamedTuple):
    """A question with everything resolved: `notes` say what was chosen, `defaulted` names what was not stated."""

    model: Transformer
    system: System
    plan: TrainingPlan
    framework: Framework
    notes: tuple[str, ...]
    defaulted: tuple[str, ...]


def resolve_inputs(
    model: Transformer | str | Path,
    on: Described,
    plan: TrainingPlan | None,
    framework: Framework | str | None,
    stated: dict[str, Any],
) -> StepInputs:
    """Resolve model, system, plan and framework of a question by names and keywords."""
    found = load_model(model)
    where = on if isinstance(on, System) else system(on)
    if plan is not None:
        check_type("the plan", plan, TrainingPlan, "give a weft.TrainingPlan, or its fields as keywords")
        if stated:
            raise InputError(
                f"{', '.join(stated)} belong to the plan; put them into weft.TrainingPlan, or leave it out"
            )
        _check(found, where, plan)
        used = framework_for(framework, plan.zero)
        return StepInputs(found, where, plan, used, _unlike(used, where, plan), _defaulted_fields(framework, None))
    used = framework_for(framework, stated.get("zero"))
    given = stated
    if stated.get("zero") is None:
        stated = {**stated, "zero": used.zero}
    plan, notes = complete(found, where.gpus, stated)
    _check(found, where, plan)
    return StepInputs(
        found, where, plan, used, (*notes, *_unlike(used, where, plan)), _defaulted_fields(framework, given)
    )


def _defaulted_fields(framework: Framework | str | None, stated: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return which of framework, sequence and stage of ZeRO were not stated; of a whole plan at most the framework."""
    names = [] if stated is None else [name for name in ("sequence", "zero") if stated.get(name) is None]
    return (*(["framework"] if framework is None else []), *names)


def _unlike(framework: Framework, where: System, plan: TrainingPlan) -> tuple[str, ...]:
    """Return a sentence on a framework that does not run like this on the GPU or under the recipe."""
    why = framework.unlike(where.gpu, plan.precision)
    return (f"{framework.title} does not run like this here: {why}.",) if why else ()


def _check(model: Transformer, where: System, plan: TrainingPlan) -> None:
    """Raise InputError for a plan that does not fit the model or the GPU, and for a choice that changes nothing."""
    check_plan(model, plan)
    check_trains(plan.dtype, plan.precision, where.gpu)
    if plan.sp and plan.tp == 1:
        raise InputError("sp shares tokens among tensor-parallel ranks, but tp is 1; leave sp out, or raise tp")
    if plan.context != "ring" and plan.cp == 1:
        raise InputError(
            f"context {plan.context} says how context-parallel ranks see each other's keys, but cp is 1; leave it out, "
            "or give cp more ranks"
        )


def framework_for(named: Framework | str | None, zero: int | None) -> Framework:
    """Return the framework that is named; without a name Megatron Core, or torchtitan where weights are sharded."""
    if isinstance(named, Framework):
        check_name("method of a framework's tp", named.tp, ("", *applicable("sub-layer", "closed form")))
        return named
    if zero is not None:
        check_whole("zero", zero, 0, 1)
    return framework_of((SHARDED if zero == 3 else USUAL) if named is None else named)
