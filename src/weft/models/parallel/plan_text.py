"""Plans in words: what a plan chooses, and what another one chooses instead."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from weft.graph.routing import Loads
from weft.models.parallel.plan import TrainingPlan

_SHARED = ("nothing sharded", "optimizer states sharded", "optimizer states and gradients sharded", "FSDP")
_AXES = ("tp", "pp", "cp", "ep", "dp")


def choices(plan: TrainingPlan) -> dict[str, str]:
    """Return what a plan chooses in words by field, without batch and sequence.

    >>> ", ".join(choices(TrainingPlan(tp=8, pp=8, batch=64)).values())
    'TP 8, PP 8, 64 micro-batches of 1, 1F1B, no recomputation'
    """
    said = {axis: f"{axis.upper()} {plan.degree(axis)}" for axis in _AXES if plan.degree(axis) > 1}
    if plan.sp:
        said["sp"] = "sequence parallelism"
    if plan.cp > 1 and plan.context != "ring":
        said["context"] = plan.context.replace("_", "-")
    said["micro_batch"] = f"{plan.micro_batches:,} micro-batches of {plan.micro_batch}"
    if plan.pp > 1:
        said["schedule"] = plan.order_of_pipeline.words
    if plan.layers:
        said["layers"] = f"{layers_words(plan.layers)} layers"
    if plan.zero:
        said["zero"] = _SHARED[plan.zero] + (f" in groups of {plan.shard}" if plan.shard else "")
    said["recompute"] = recompute_words(plan)
    if plan.offload != "none":
        said["offload"] = f"{plan.offload} on the host"
    if plan.recipe.operands:
        said["precision"] = plan.precision
    if plan.dispatcher:
        said["dispatcher"] = f"tokens by {plan.dispatcher}"
    if plan.expert_load:
        said["expert_load"] = f"experts' loads by {loads_words(plan.expert_load)}"
    if plan.cuda_graph_impl is not None:
        said["cuda_graph_impl"] = graphs_words(plan)
    if plan.overlap_moe_expert_parallel_comm is not None:
        said["overlap_moe_expert_parallel_comm"] = _switch_words("EP overlap", plan.overlap_moe_expert_parallel_comm)
    if plan.delay_wgrad_compute is not None:
        said["delay_wgrad_compute"] = _switch_words("delayed weight gradients", plan.delay_wgrad_compute)
    if plan.overlap:
        said["overlap"] = ", ".join(f"{axis.upper()} by {name}" for axis, name in plan.overlap.items())
    return said


def _switch_words(what: str, on: bool) -> str:
    return what if on else f"no {what}"


def graphs_words(plan: TrainingPlan) -> str:
    """Return what CUDA graphs hold in words.

    >>> graphs_words(TrainingPlan(cuda_graph_impl="local", cuda_graph_modules=("attn", "mlp")))
    'CUDA graphs of attn, mlp'
    """
    whole = {"none": "no CUDA graphs", "full_iteration": "CUDA graphs of the full iteration"}
    return whole.get(str(plan.cuda_graph_impl)) or f"CUDA graphs of {', '.join(plan.cuda_graph_modules) or 'layers'}"


def words(plan: TrainingPlan) -> str:
    """Return a plan's choices as one phrase."""
    return ", ".join(choices(plan).values())


def changes(plan: TrainingPlan, base: TrainingPlan) -> list[str]:
    """Return the choices in which a plan differs from `base`, in words.

    >>> changes(TrainingPlan(tp=4, dp=2, batch=8), TrainingPlan(tp=8, batch=8))
    ['TP 4 instead of 8', 'DP 2 instead of 1', '4 micro-batches of 1 instead of 8 of 1']
    """
    mine, theirs = choices(plan), choices(base)
    return [
        _change_words(name, mine.get(name), theirs.get(name))
        for name in dict.fromkeys([*mine, *theirs])
        if mine.get(name) != theirs.get(name)
    ]


def _change_words(name: str, mine: str | None, theirs: str | None) -> str:
    if name in _AXES:
        mine, theirs = mine or f"{name.upper()} 1", theirs or f"{name.upper()} 1"
        return f"{mine} instead of {theirs.split()[1]}"
    if mine is None:
        return f"no {theirs}"
    if theirs is None or theirs == "no recomputation":
        return mine
    return f"{mine} instead of {theirs.replace(' micro-batches', '').replace('interleaved 1F1B of ', '')}"


def loads_words(loads: Loads) -> str:
    """Loads of experts as users type them.

    >>> loads_words(0.6)
    'power:0.6'
    """
    return f"power:{loads:g}" if isinstance(loads, float) else ",".join(f"{load:g}" for load in loads) or "even"


def layers_words(layers: Sequence[int]) -> str:
    """Return the layers of stages, equal neighbours once.

    >>> layers_words((5, 6, 6, 6, 5))
    '5 + 3 x 6 + 5'
    """
    runs = ((each, len(list(alike))) for each, alike in groupby(layers))
    return " + ".join(f"{times} x {each}" if times > 1 else f"{each}" for each, times in runs)


def recompute_words(plan: TrainingPlan) -> str:
    """Recomputation in words: "full" is "full recomputation"."""
    if isinstance(plan.recompute, tuple):
        return f"recomputation of {plan.recompute_words}"
    return {"none": "no recomputation", "operators": "recomputation by operators"}.get(
        plan.recompute, f"{plan.recompute} recomputation"
    )
