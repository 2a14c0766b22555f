"""What a framework's own memory estimator says of a plan, by its formulas, to set beside Weft's account."""

from __future__ import annotations

from dataclasses import dataclass

from weft.models import Transformer
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan

_MEGATRON = "NVIDIA/Megatron-LM megatron/training/theoretical_memory_usage.py @00caa53"
_DEEPSPEED = "microsoft/DeepSpeed deepspeed/runtime/zero/stage3.py @0003660, estimate_zero3_model_states_mem_needs"
_EAGER = 1.05
"""Megatron's share of temporaries without sequence parallelism, added to activations."""


@dataclass(frozen=True)
class EstimatedMemory:
    """What an estimator says [bytes]: of weights, gradients and optimizer states, and of activations (None: nothing).

    `source` names it, `leaves_out` says what its formulas do not know.
    """

    source: str
    states: float
    activations: float | None
    leaves_out: str


def estimate_as_framework(model: Transformer, plan: TrainingPlan, framework: Framework) -> EstimatedMemory | None:
    """Return what the framework's own estimator says; None where it has no formulas, or none for such a model."""
    if framework.name.startswith("deepspeed"):
        return _deepspeed(model, plan) if plan.zero == 3 else None
    plain = not (model.pattern or model.linear or model.encoder_layers or model.masked or model.kv_rank)
    if framework.name.startswith("megatron") and plain and not plan.shards_weights:
        return _megatron(model, plan)
    return None


def _megatron(model: Transformer, plan: TrainingPlan) -> EstimatedMemory:
    """Return Megatron-LM's estimate of the most loaded GPU: the first stage."""
    hidden, heads = model.hidden, model.attention_heads
    norm = 1 if model.norm == "rmsnorm" else 2
    gated = 3 / 2 if model.is_gated else 1
    attention = 2 * hidden * model.head_size * heads * (1 + model.key_heads / heads)
    moe = sum("moe" in kind for kind in model.layer_kinds)
    dense = len(model.layer_kinds) - moe
    wide = (model.expert_ffn or 0) * (model.experts + model.shared_experts)
    block = dense * (attention + 2 * hidden * (model.wide * gated + norm))
    block += moe * (attention + 2 * hidden * (wide * gated + norm)) + norm * hidden
    embedding = model.vocabulary * hidden
    shard = (block / plan.pp + embedding * (1 if model.tied or plan.pp > 1 else 2)) / plan.tp
    states = shard * (18 if plan.zero == 0 else 6 + 12 / plan.dp)
    leaves_out = "gathers, fragmentation, the process" + ", EP" * (plan.ep > 1) + ", CP" * (plan.cp > 1)
    leaves_out += ", full recomputation" * (plan.recompute == "full")
    return EstimatedMemory(_MEGATRON, states, _megatron_activations(model, plan), leaves_out)


def _megatron_activations(model: Transformer, plan: TrainingPlan) -> float:
    tokens, hidden, pp, tp = plan.sequence * plan.micro_batch, model.hidden, plan.pp, plan.tp
    selective = plan.sp and plan.recompute == "selective"
    each = 18 + 4 * model.wide / hidden if selective else 10 + 24 / tp
    found = tokens * hidden * each * len(model.layer_kinds) + tokens * (8 + hidden) * pp
    if plan.chunks > 1:
        found *= 1 + (pp - 1) / (pp * plan.chunks)
    elif pp > 1:
        found *= min(1, plan.micro_batches / pp)
    if selective:
        return (found + (4 * tokens * (hidden + model.vocabulary) if pp == 1 else 0)) / tp
    return _EAGER * (found + (2 * tokens * (model.vocabulary / tp + hidden) if pp == 1 else 0))


def _deepspeed(model: Transformer, plan: TrainingPlan) -> EstimatedMemory:
    """Return DeepSpeed's estimate of model states under ZeRO-3 without offload: of all parameters, and one module."""
    largest = model.hidden * max(model.vocabulary, model.wide)
    states = 4 * largest + 18 * model.parameters / plan.gpus
    return EstimatedMemory(_DEEPSPEED, states, None, "activations, buffers, fragmentation, the process")
