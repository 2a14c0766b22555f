"""Plans in words and as a table, shared by the pages of steps, of memory and of inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.core.report.table import Table, text

if TYPE_CHECKING:
    from weft.hardware import System
    from weft.models import Transformer
    from weft.models.parallel.framework import Framework
    from weft.models.parallel.plan import TrainingPlan

AXES = {
    "tp": "tensor parallelism",
    "cp": "context parallelism",
    "ep": "expert parallelism",
    "dp": "data parallelism",
    "pp": "pipeline parallelism",
    "host": "offload to the host",
}
"""The axes of a plan in words."""
_ZERO = (
    "nothing", "optimizer states (ZeRO 1)", "optimizer states and gradients (ZeRO 2)",
    "optimizer states, gradients and weights (ZeRO 3, FSDP)",
)  # fmt: skip


def plan_title(model: Transformer, system: System, plan: TrainingPlan) -> str:
    """Return the model, the machine and the plan on one line."""
    return f"{model.title} on {plan.gpus:,} GPUs of {system.name}, {plan_words(plan)}"


def plan_words(plan: TrainingPlan) -> str:
    """Return the plan in a few words: its degrees above one, and its batch."""
    degrees = [
        f"{axis.upper()} {plan.degree(axis)}" for axis in ("tp", "pp", "cp", "ep", "dp") if plan.degree(axis) > 1
    ]
    return ", ".join([*(degrees or ["one GPU"]), f"batch {plan.batch} x {plan.sequence}"])


def framework_words(framework: Framework, defaulted: Sequence[str]) -> str:
    """Return whose defaults an answer has, and whether it was stated."""
    return f"Framework {framework.name}" + " (the default; 'weft frameworks list' has others)" * (
        "framework" in defaulted
    )


def framework_sentence(framework: Framework, plan: TrainingPlan, defaulted: Sequence[str]) -> str:
    """Return whose defaults an answer has, and what is in force of those that the plan leaves to the framework."""
    named = framework_words(framework, defaulted)
    values = [f"ZeRO {plan.zero}"] if "zero" in defaulted and plan.dp * plan.cp > 1 else []
    if plan.ep > 1:
        values += [] if plan.dispatcher else [f"dispatch by {framework.dispatcher}"]
        if plan.overlap_moe_expert_parallel_comm is None:
            values.append("EP overlap" if framework.paired else "no EP overlap")
        if plan.cuda_graph_impl is None:
            held = ", ".join(framework.graphs).replace("full_iteration", "the full iteration")
            values.append(f"CUDA graphs of {held}" if held else "no CUDA graphs")
    said = named + (f": {', '.join(values)}" if values else "")
    length = f"; sequences of {plan.sequence:,} tokens, the model's context" if "sequence" in defaulted else ""
    return f"{said}{length}."


def plan_table(plan: TrainingPlan, framework: str, stages: int) -> Table:
    """Return the plan, field by field, as it was timed."""
    overlaps = ", ".join(f"{axis} by {name}" for axis, name in plan.overlap.items())
    rows = [
        ("GPUs", f"{plan.gpus} = " + " x ".join(f"{axis} {plan.degree(axis)}" for axis in reversed(plan.order))),
        ("batch", f"{plan.batch} sequences of {plan.sequence:,} tokens, {plan.batch * plan.sequence:,} tokens"),
        ("micro-batches", f"{plan.micro_batches} of {plan.micro_batch} in each pipeline"),
        ("schedule", f"{plan.schedule}, {stages} stages" if plan.pp > 1 else "no pipeline"),
        ("sequence parallelism", "yes" if plan.sp else "no"),
        ("sharded over replicas", _ZERO[plan.zero]),
        ("recomputation", plan.recompute_words),
        *([("in the host's memory", plan.offload)] if plan.offload != "none" else []),
        ("overlap", overlaps or "as the framework does"),
        ("framework", framework),
        ("precision", f"{plan.precision}: {plan.recipe.about}" if plan.precision else plan.dtype),
    ]
    return Table([text("field", "plan"), text("value", " ")], rows)


def shown_devices(devices: int, most: int = 9) -> list[int]:
    """Return the pipeline devices that a figure shows: all, or some of them spread evenly, first and last included."""
    if devices <= most:
        return list(range(devices))
    return sorted({round(at * (devices - 1) / (most - 1)) for at in range(most)})
