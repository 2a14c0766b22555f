"""Whether a plan fits a model: what does not divide, and the nearest plan on as many GPUs that works."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from weft.core.errors import InputError
from weft.models import Transformer
from weft.models.parallel.cut import expert_tp
from weft.models.parallel.layers import stage_layers
from weft.models.parallel.plan import TrainingPlan


def check_plan(model: Transformer, plan: TrainingPlan) -> None:
    """Raise InputError if a degree does not divide what it splits; it names the nearest plan that works.

    Stages may differ as `stage_layers` has them; those that the plan states may differ by more.
    """
    check_graphs(model, plan)
    found = next(problems(model, plan), None)
    if found is None:
        return
    better = nearest_plan(model, plan)
    hint = f"the nearest plan that works is {degrees(better)}" if better else "no plan on as many GPUs works"
    raise InputError(f"{found}; {hint}")


def check_graphs(model: Transformer, plan: TrainingPlan) -> None:
    """Raise InputError for modules that the model does not have, or whose shapes no CUDA graph can hold."""
    if plan.cuda_graph_impl not in ("local", "transformer_engine"):
        return
    experts = [name for name in plan.cuda_graph_modules if name.startswith("moe")]
    if experts and not model.experts:
        raise InputError(f"cuda_graph_modules names {', '.join(experts)}, and {model.name} has no experts")
    if "mamba" in plan.cuda_graph_modules and not model.linear.startswith("mamba"):
        raise InputError(f"cuda_graph_modules names mamba, and {model.name} has no such layers")
    if model.experts and ("moe" in plan.cuda_graph_modules or not plan.cuda_graph_modules):
        what = "the module moe" if plan.cuda_graph_modules else "a whole layer"
        raise InputError(
            f"{what} of {model.name} changes its shapes with the tokens of each expert, which no graph holds; give "
            "cuda_graph_modules attn,moe_router,moe_preprocess, or cuda_graph_impl full_iteration"
        )


def can_pair(plan: TrainingPlan) -> bool:
    """Return whether Megatron Core can run a plan's MoE exchanges concurrently with another micro-batch: in interleaved
    stages or without a pipeline, and without full recomputation (transformer_config.py).
    """
    return (plan.pp == 1 or plan.order_of_pipeline.kind == "interleaved") and plan.recompute != "full"


def drop_ep_overlap(plan: TrainingPlan, paired: bool) -> TrainingPlan:
    """Return a plan without the EP overlap that a framework has `paired`, where Megatron Core cannot run it."""
    stated = plan.overlap_moe_expert_parallel_comm is not None
    if not paired or stated or plan.ep == 1 or can_pair(plan):
        return plan
    return plan.alter(overlap_moe_expert_parallel_comm=False)


def problems(model: Transformer, plan: TrainingPlan) -> Iterator[str]:
    """Yield sentences on what does not divide."""
    yield from _tensor(model, plan)
    yield from _stages(model, plan)
    yield from _experts(model, plan)
    yield from _context(model, plan)


def _tensor(model: Transformer, plan: TrainingPlan) -> Iterator[str]:
    tp, shared = plan.tp, model.key_heads
    widths = {
        "attention heads": model.attention_heads,
        "columns of the MLP": model.wide,
        "rows of the vocabulary": model.vocabulary,
    }
    if model.linear:
        widths["linear heads"] = model.linear_heads
    if model.shared_experts:
        widths["columns of the shared experts"] = model.shared_experts * model.expert_wide
    for what, count in widths.items():
        if count % tp:
            padded = f" (pad the vocabulary to {-(-count // tp) * tp})" if "vocabulary" in what else ""
            yield f"tp {tp} does not divide the {count} {what} of {model.name}{padded}"
    if shared % tp and tp % shared:
        yield f"tp {tp} is no divisor or multiple of the {shared} heads of keys of {model.name}"
    if plan.sp and plan.sequence // plan.cp % tp:
        tokens = plan.sequence // plan.cp
        yield f"tp {tp} does not divide the {tokens} tokens of a sequence, as sequence parallelism needs"


def _stages(model: Transformer, plan: TrainingPlan) -> Iterator[str]:
    layers, stages = len(model.layer_kinds), plan.pp * plan.chunks
    what = f"pp {plan.pp}" + (f" with {plan.chunks} chunks each" if plan.chunks > 1 else "")
    if plan.layers or stage_layers(model, plan.pp, plan.chunks) is not None:
        return
    if stages > layers:
        yield f"{what} needs {stages} layers, and {model.name} has {layers}"
    else:
        yield f"{what} does not divide the {layers} layers of {model.name} (if stages differ, state the layers of each)"


def _experts(model: Transformer, plan: TrainingPlan) -> Iterator[str]:
    ranks = plan.tp * plan.cp * plan.dp // expert_tp(plan)
    if plan.ep > 1 and not model.experts:
        yield f"ep {plan.ep} shares experts, and {model.name} has none"
    elif plan.ep > 1 and model.experts % plan.ep:
        yield f"ep {plan.ep} does not divide the {model.experts} experts of {model.name}"
    if ranks % plan.ep:
        yield f"ep {plan.ep} does not divide the {ranks} ranks that route different tokens"
    if plan.expert_load and not model.experts:
        yield f"loads are of experts, and {model.name} has none"
    if isinstance(plan.expert_load, tuple) and len(plan.expert_load) not in (0, model.experts):
        yield f"there are {len(plan.expert_load)} loads for the {model.experts} experts of {model.name}"
    if model.experts and model.expert_wide % expert_tp(plan):
        yield f"tp {plan.tp} does not divide the {model.expert_wide} columns of an expert of {model.name}"


def _context(model: Transformer, plan: TrainingPlan) -> Iterator[str]:
    heads = model.attention_heads // plan.tp
    if plan.cp > 1 and model.linear:
        yield (
            f"cp {plan.cp} splits sequences, and the state of {model.name}'s {model.linear} layers passes from each "
            "token to the next, which is not modelled among ranks"
        )
    if plan.context == "all_to_all" and heads % plan.cp:
        yield f"cp {plan.cp} does not divide the {heads} attention heads of a rank, as an all-to-all of heads needs"
    if plan.cp > 1 and plan.context != "all_to_all" and plan.sequence % (2 * plan.cp):
        yield f"cp {plan.cp} needs a sequence of a multiple of {2 * plan.cp} tokens, and it has {plan.sequence}"


def degrees(plan: TrainingPlan) -> str:
    """Return the degrees of a plan, such as "tp 8, pp 4, dp 2"; those of one rank are left out."""
    named = {name: getattr(plan, name) for name in ("tp", "cp", "pp", "ep", "dp")}
    shown = [f"{name} {degree}" for name, degree in named.items() if degree > 1]
    return ", ".join([*shown, *(["sp"] if plan.sp else [])]) or "one GPU"


def nearest_plan(model: Transformer, plan: TrainingPlan) -> TrainingPlan | None:
    """The plan on as many GPUs that fits the model and changes degrees least, by their ratios; None if none fits."""

    def distance(found: TrainingPlan) -> float:
        names = "tp", "cp", "pp", "ep", "dp"
        ratios = (abs(math.log(getattr(found, name) / getattr(plan, name))) for name in names)
        return sum(ratios)

    fitting = (one for one in _others(model, plan) if next(problems(model, one), None) is None)
    return min(fitting, key=distance, default=None)


def _others(model: Transformer, plan: TrainingPlan) -> Iterator[TrainingPlan]:
    """Yield plans on as many GPUs."""
    for tp in divisors(plan.gpus):
        for pp in divisors(plan.gpus // tp):
            for cp in divisors(plan.gpus // (tp * pp)) if plan.cp > 1 else (1,):
                dp = plan.gpus // (tp * pp * cp)
                for ep in divisors(math.gcd(model.experts, tp * cp * dp)) if model.experts else (1,):
                    sp = tp > 1 and plan.sp
                    try:
                        yield replace(plan, layers=(), tp=tp, pp=pp, cp=cp, dp=dp, ep=ep, sp=sp)
                    except InputError:  # the batch or the sequence do not divide
                        continue


def divisors(number: int) -> list[int]:
    """Return all divisors, ascending."""
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})
