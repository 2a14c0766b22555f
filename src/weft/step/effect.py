"""What a step is held against: the plan without each stated option, and today's other frameworks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.hardware import System
from weft.models import Transformer
from weft.models.parallel.check import can_pair, drop_ep_overlap
from weft.models.parallel.complete import complete
from weft.models.parallel.framework import Framework, current_frameworks
from weft.models.parallel.framework import framework as framework_of
from weft.models.parallel.plan import TrainingPlan
from weft.step.clock import many
from weft.step.memory import memory
from weft.step.result.step import Step

_COMPARED = (
    "sp", "zero", "shard", "context", "schedule", "layers", "recompute", "offload", "precision", "dispatcher",
    "expert_load",
    "cuda_graph_impl", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute",
    "loss_chunks", "overlap",
)  # fmt: skip
"""Fields of a plan that can be without effect. Degrees, batch and sequence never are."""
_SAME = 1e-12
"""Largest relative difference of two results that count as the same: that of rounding."""


def idle_options(
    model: Transformer,
    system: System,
    plan: TrainingPlan,
    framework: Framework,
    stated: Mapping[str, Any],
    options: RunOptions | None = None,
) -> tuple[str, ...]:
    """Return a sentence for each stated field of a plan without which the step takes as long and needs as much memory.

    Without `options` only the memory counts. A field that has its default anyway is not compared.
    """  # fmt: skip
    others = dict(_without(model, plan, framework, stated))
    if not others:
        return ()
    plans = [plan, *others.values()]
    try:
        if options is None:
            return tuple(_memory_notes(model, system, framework, plan, others))
        found = many(model, system, plans, framework, options)
    except InputError:  # a plan that the closed form does not time
        return ()
    took, *without = zip(found.seconds.tolist(), found.peak_bytes.tolist(), strict=True)
    same = [name for name, other in zip(others, without, strict=True) if _same(took, other)]
    return tuple(
        _effect_words(name, plan, framework, "on this plan's time, or its memory as Weft counts it") for name in same
    )


def elsewhere(step: Step, framework: Framework, options: RunOptions) -> dict[str, float]:
    """Return the times [s] of a step by name of today's other frameworks that can run its plan.

    The times are in proportion to closed forms of both. Frameworks that share weights run plans that do (ZeRO 3), the
    others the rest; EP overlap is left out of plans that Megatron Core cannot run with it.
    """
    gpu, plan = step.system.gpu, step.plan
    others = [
        other
        for other in map(framework_of, current_frameworks())
        if other.name != framework.name
        and not other.unlike(gpu, plan.precision)
        and (other.zero == 3) == (plan.zero == 3)
    ]
    found: dict[str, float] = {}
    for one in [framework, *others] if others else []:
        with suppress(InputError):
            runs = plan if one is framework else drop_ep_overlap(plan, one.paired)
            found[one.name] = float(many(step.model, step.system, [runs], one, options).seconds[0])
    own = found.pop(framework.name, 0.0)
    return {name: step.seconds * seconds / own for name, seconds in found.items()} if own else {}


def _memory_notes(
    model: Transformer, system: System, framework: Framework, plan: TrainingPlan, others: Mapping[str, TrainingPlan]
) -> Iterator[str]:
    held = memory(model, system, plan, framework).peak
    for name, other in others.items():
        if _same((held,), (memory(model, system, other, framework).peak,)):
            yield _effect_words(name, plan, framework, "on the memory as Weft counts it")


def _same(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(abs(a - b) <= _SAME * abs(a) for a, b in zip(one, other, strict=True))


def _without(
    model: Transformer, plan: TrainingPlan, framework: Framework, stated: Mapping[str, Any]
) -> Iterator[tuple[str, TrainingPlan]]:
    """Return by field the plan without it, as far as that is another plan."""
    for name in _COMPARED:
        if stated.get(name) is None or (name == "zero" and plan.zero == framework.zero):
            continue
        left = {key: value for key, value in stated.items() if not key.startswith(name)}  # its details, too
        if left.get("zero") is None:
            left["zero"] = framework.zero
        try:
            other, _ = complete(model, plan.gpus, left)
        except InputError:
            continue
        if other != plan:
            yield name, other


def _effect_words(name: str, plan: TrainingPlan, framework: Framework, on_what: str) -> str:
    value = getattr(plan, name)
    shown = "on" if value is True else "off" if value is False else ",".join(map(str, _to_list(value)))
    why = ""
    if name == "recompute" and value == "selective" and framework.style.flash:
        why = ": FlashAttention keeps no scores that could be recomputed"
    if name == "schedule" and plan.pp == 1:
        why = ": there is one stage"
    return f"{name} {shown} has no effect {on_what}{why}."


def _to_list(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return [f"{key}={each}" for key, each in value.items()]
    return list(value) if isinstance(value, tuple) else [value]


def unpaired_schedule(plan: TrainingPlan, framework: Framework) -> tuple[str, ...]:
    """Return a sentence on a schedule that hides no MoE exchanges though it is known for it, or that cannot hide them
    as `framework`, whose paired passes are Megatron Core's, is taken to do.
    """
    kind = plan.order_of_pipeline.kind
    if plan.ep == 1:
        return ()
    if framework.paired:
        if framework.name not in current_frameworks() or can_pair(plan):
            return ()
        said = (
            "EP overlap is counted, but Megatron Core has it only in interleaved stages or without a pipeline, and "
            "without full recomputation: state such a plan (schedule interleaved:2, recompute none), or "
            "overlap_moe_expert_parallel_comm false."
        )
        return (said,)
    if not kind.startswith("dualpipe"):
        return ()
    said = (
        f"{kind} is an order of the pipeline; by itself it hides no MoE dispatch or combine: state "
        "overlap_moe_expert_parallel_comm and delay_wgrad_compute, or the framework deepseek."
    )
    return (said,)
