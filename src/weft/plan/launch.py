"""Plans as what a user starts: flags of Megatron-LM, torchtitan's TOML, DeepSpeed's JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from weft.errors import InputError, check_name
from weft.hardware import System
from weft.models import Transformer
from weft.parallel.cut import expert_tp
from weft.parallel.framework import Framework
from weft.parallel.plan import ORDER, Parallelism

_Flag = tuple[str, ...]
_ROWS = 128
"""Megatron-LM pads the vocabulary to a multiple of this and of the tensor-parallel ranks."""
_FSDP = 3


def launch(launcher: str, model: Transformer, system: System, plan: Parallelism, framework: Framework) -> str:
    """The command line, or the configuration file, with which a launcher trains a model under a plan.

    The text is complete but for the user's own data, tokenizer and learning rate. Raises UnknownNameError for an
    unknown launcher, and InputError that lists what the launcher has no option for.
    """
    if missing := lacking(launcher, model, plan):
        raise InputError(f"{launcher} cannot run this plan: {missing}; choose another plan or launcher")
    return LAUNCHERS[launcher][0](model, system, plan, framework)


def lacking(launcher: str, model: Transformer, plan: Parallelism) -> str:
    """What a launcher has no option for in a plan, "" if for nothing; UnknownNameError for an unknown launcher."""
    check_name("launcher", launcher, LAUNCHERS)
    return "; ".join(LAUNCHERS[launcher][1](model, plan))


# -- Megatron-LM (NVIDIA/Megatron-LM @d98e8a6, megatron/training/arguments.py and the dataclasses that it reads)


def _megatron(model: Transformer, system: System, plan: Parallelism, framework: Framework) -> str:
    groups = (
        _shape(model), _attention(model), _experts(model, plan), _degrees(plan, framework), _precision(plan),
        _optimizer(plan, framework), _data(model, plan),
    )  # fmt: skip
    each = system.gpus_per_node if system.node else system.gpus
    start = [
        *([] if plan.zero == _FSDP else ["export CUDA_DEVICE_MAX_CONNECTIONS=1  # Hopper and older"]),
        f"torchrun --nproc-per-node {each} --nnodes {plan.gpus // each} \\",
        "    --rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:29500 pretrain_gpt.py \\",
    ]
    lines = [" ".join(" ".join(flag) for flag in group) for group in groups]
    return "\n".join([*start, " \\\n".join(f"    {line}" for line in lines if line)]) + "\n"


def _shape(model: Transformer) -> Iterator[_Flag]:
    yield "--num-layers", str(model.layers)
    yield "--hidden-size", str(model.hidden)
    yield "--ffn-hidden-size", str(model.wide)
    yield "--num-attention-heads", str(model.attention_heads)
    yield "--max-position-embeddings", str(model.sequence_length)
    yield "--position-embedding-type", {"rotary": "rope", "learned": "learned_absolute"}.get(model.positions, "none")
    yield "--normalization", {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}[model.norm]
    if model.activation == "swiglu":
        yield ("--swiglu",)
    if model.biases != "all":
        yield ("--disable-bias-linear",)
    if model.biases == "qkv":
        yield ("--add-qkv-bias",)
    if not model.tied:
        yield ("--untie-embeddings-and-output-weights",)
    if model.predict_layers:
        yield "--mtp-num-layers", str(model.predict_layers)


def _attention(model: Transformer) -> Iterator[_Flag]:
    yield "--attention-dropout", "0.0"
    yield "--hidden-dropout", "0.0"
    if model.kv_rank:
        yield ("--multi-latent-attention",)
        if model.query_rank:
            yield "--q-lora-rank", str(model.query_rank)
        yield "--kv-lora-rank", str(model.kv_rank)
        yield "--qk-head-dim", str(model.head)
        yield "--qk-pos-emb-head-dim", str(model.rotary_head)
        yield "--v-head-dim", str(model.value_size)
        return
    if model.head:
        yield "--kv-channels", str(model.head)
    if model.key_heads != model.attention_heads:
        yield ("--group-query-attention",)
        yield "--num-query-groups", str(model.key_heads)
    if model.qk_norm:
        yield ("--qk-layernorm",)


def _experts(model: Transformer, plan: Parallelism) -> Iterator[_Flag]:
    if not model.experts:
        return
    yield "--num-experts", str(model.experts)
    yield "--moe-router-topk", str(model.experts_per_token)
    yield "--moe-ffn-hidden-size", str(model.expert_wide)
    if model.shared_experts:
        yield "--moe-shared-expert-intermediate-size", str(model.shared_experts * model.expert_wide)
    kinds = [int(kind == "moe") for kind in model.layer_kinds]
    if not all(kinds):
        yield "--moe-layer-freq", f"'({_runs(kinds)})'"
    yield "--expert-model-parallel-size", str(plan.ep)
    yield "--expert-tensor-parallel-size", str(expert_tp(plan))
    yield "--moe-token-dispatcher-type", "alltoall"
    yield ("--moe-grouped-gemm",)


def _runs(kinds: Iterable[int]) -> str:
    """A pattern of layers as Megatron-LM reads it: "[0]*3+[1]*58"."""
    runs: list[list[int]] = []
    for kind in kinds:
        if runs and runs[-1][0] == kind:
            runs[-1][1] += 1
        else:
            runs.append([kind, 1])
    return "+".join(f"[{kind}]*{count}" for kind, count in runs)


def _degrees(plan: Parallelism, framework: Framework) -> Iterator[_Flag]:
    yield "--tensor-model-parallel-size", str(plan.tp)
    yield "--pipeline-model-parallel-size", str(plan.pp)
    yield "--context-parallel-size", str(plan.cp)
    if plan.sp:
        yield ("--sequence-parallel",)
    if plan.cp > 1:
        yield "--cp-comm-type", {"ring": "p2p", "all_gather": "allgather", "all_to_all": "a2a"}[plan.context]
    if plan.layers:
        yield "--pipeline-model-parallel-layout", f"'{_layout(plan.layers)}'"
    elif plan.chunks > 1:
        yield "--num-virtual-stages-per-pipeline-rank", str(plan.chunks)
    group = plan.order_of_pipeline.group
    if group:
        yield "--microbatch-group-size-per-virtual-pipeline-stage", str(group)
    if plan.sp and plan.overlap.get("tp", framework.tp) == "userbuffers":
        yield ("--tp-comm-overlap",)
    if plan.order == ("tp", "cp", "pp", "dp"):
        yield ("--use-tp-pp-dp-mapping",)
    if isinstance(plan.recompute, tuple):
        yield "--recompute-granularity", "selective"
        yield "--recompute-modules", *_modules(plan.recompute)
    else:
        yield from _RECOMPUTED[plan.recompute]


_RECOMPUTED: Mapping[str, tuple[_Flag, ...]] = {
    "none": (),
    "selective": (("--recompute-granularity", "selective"),),
    "full": (("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"),),
}


_MODULES: Mapping[str, frozenset[str]] = {
    "layernorm": frozenset({"norm1", "norm2"}),
    "core_attn": frozenset({"attention"}),
    "moe_act": frozenset({"experts_activation"}),
}
"""Operators that each of Megatron-LM's modules computes again. Its "mlp" also repeats the last GEMM."""


def _modules(names: tuple[str, ...]) -> list[str]:
    return [module for module, operators in _MODULES.items() if operators <= set(names)]


def _is_modules(names: tuple[str, ...]) -> bool:
    return set(names) == {name for module in _modules(names) for name in _MODULES[module]}


def _layout(layers: Iterable[int]) -> str:
    """The layers of each stage as Megatron-LM reads them, with embedding (E) and head (L): "Ett|ttt|ttL"."""
    return f"E{'|'.join('t' * count for count in layers)}L"


def _precision(plan: Parallelism) -> Iterator[_Flag]:
    if plan.dtype != "fp32":
        yield (f"--{plan.dtype}",)
    yield from _QUANTIZED[plan.quantize]


_QUANTIZED: Mapping[str, tuple[_Flag, ...]] = {
    "": (),
    "delayed": (("--fp8-format", "hybrid", "--fp8-recipe", "delayed"),),
    "current": (("--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"),),
    "mxfp8": (("--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"),),
    "nvfp4": (("--fp4-format", "e2m1", "--fp4-recipe", "nvfp4"),),
}


def _optimizer(plan: Parallelism, framework: Framework) -> Iterator[_Flag]:
    if plan.zero:
        yield ("--use-distributed-optimizer",)
    if plan.zero > 1:
        yield ("--use-megatron-fsdp",)
        yield "--data-parallel-sharding-strategy", "optim_grads_params" if plan.zero == _FSDP else "optim_grads"
        yield "--ckpt-format", "fsdp_dtensor"
        yield ("--no-gradient-accumulation-fusion",)
    replicas = plan.dp * plan.cp
    if plan.shard and plan.shard < replicas:
        yield "--num-distributed-optimizer-instances", str(replicas // plan.shard)
    if framework.dp_overlap and replicas > 1:
        yield ("--overlap-grad-reduce",)
        if framework.gather_overlap and plan.zero:
            yield ("--overlap-param-gather",)


def _data(model: Transformer, plan: Parallelism) -> Iterator[_Flag]:
    yield "--micro-batch-size", str(plan.micro_batch)
    yield "--global-batch-size", str(plan.batch)
    yield "--seq-length", str(plan.sequence)
    yield ("--mock-data",)
    yield "--tokenizer-type", "NullTokenizer"
    yield "--vocab-size", str(model.vocabulary - 1)  # it adds a token for the end of a document
    yield "--make-vocab-size-divisible-by", str(math.gcd(model.vocabulary // plan.tp, _ROWS))
    yield "--train-iters", "100"
    yield "--lr", "1e-4"


def _megatron_lacks(model: Transformer, plan: Parallelism) -> Iterator[str]:
    yield from _decoders(model)
    if model.activation in ("geglu", "relu"):
        yield f"no flag chooses the activation {model.activation}"
    if model.positions in ("alibi", "relative"):
        yield f"no flag chooses {model.positions} positions"
    if model.norms != "before" or model.parallel:
        yield "blocks other than norm, attention, norm, MLP need a layer specification of their own"
    if plan.pp > 1 and plan.order_of_pipeline.kind not in ("1f1b", "interleaved"):
        yield f"the schedule {plan.schedule} is not among 1F1B and interleaved 1F1B"
    if isinstance(plan.recompute, tuple):
        if not _is_modules(plan.recompute):
            yield f"recomputation of {plan.recompute_words} is no set of its modules ({', '.join(_MODULES)})"
    elif plan.recompute not in _RECOMPUTED:
        yield f"recomputation '{plan.recompute}' has no flag (none, selective, full do)"
    yield from _offloaded(plan)
    if plan.quantize not in _QUANTIZED:
        yield f"the recipe {plan.quantize} is one of torchao"
    if plan.zero > 1 and plan.pp > 1:
        yield "Megatron-FSDP has no pipeline stages"
    if plan.overlap.get("tp", "userbuffers") != "userbuffers":
        yield f"the overlap {plan.overlap['tp']} is not built in (userbuffers is)"
    if plan.order not in (ORDER, ("tp", "cp", "pp", "dp")):
        yield f"ranks are not placed in the order {', '.join(plan.order)}"


def _offloaded(plan: Parallelism) -> Iterator[str]:
    if plan.offload != "none":
        yield f"{plan.offload} in the memory of the host are streamed to the GPU, which it does in another way"


def _decoders(model: Transformer) -> Iterator[str]:
    if model.masked or not model.causal or model.encoder_layers:
        yield "only decoders are launched"


# -- torchtitan (pytorch/torchtitan v0.2.2, torchtitan/config/job_config.py)

_PIPELINES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}  # fmt: skip
_CHECKPOINTS = {
    "none": ['mode = "none"'],
    "operators": ['mode = "selective"', 'selective_ac_option = "op"'],
    "full": ['mode = "full"'],
}


def _torchtitan(model: Transformer, system: System, plan: Parallelism, framework: Framework) -> str:
    shard = max((plan.shard or plan.dp * plan.cp) // plan.cp, 1) if plan.zero else 1
    tables: dict[str, list[str]] = {
        "training": [
            f"local_batch_size = {plan.batch // plan.dp if plan.pp > 1 else plan.micro_batch}",
            f"global_batch_size = {plan.batch}",
            f"seq_len = {plan.sequence}",
        ],
        "parallelism": [
            f"data_parallel_replicate_degree = {plan.dp // shard}",
            f"data_parallel_shard_degree = {shard}",
            f'fsdp_reshard_after_forward = "{"never" if framework.keeps_weights or plan.zero == 2 else "default"}"',
            f"tensor_parallel_degree = {plan.tp}",
            f"enable_async_tensor_parallel = {_toml(plan.overlap.get('tp') == 'async-tp')}",
            f"context_parallel_degree = {plan.cp}",
            f'context_parallel_rotate_method = "{"alltoall" if plan.context == "ring" else "allgather"}"',
            f"expert_parallel_degree = {plan.ep}",
            f"pipeline_parallel_degree = {plan.pp}",
            *(_stages(model, plan) if plan.pp > 1 else []),
        ],
        "activation_checkpoint": _CHECKPOINTS[plan.recompute_words],
        "compile": [f"enable = {_toml(framework.style.fused)}"],
    }
    if plan.quantize in ("tensorwise", "rowwise"):
        tables["quantize.linear.float8"] = [f'recipe_name = "{plan.quantize}"']
    head = f"# torchtitan 0.2: {plan.gpus} GPUs. Name your model under [model], its tokenizer and dataset.\n"
    return head + "".join(f"\n[{name}]\n" + "\n".join(rows) + "\n" for name, rows in tables.items())


def _stages(model: Transformer, plan: Parallelism) -> list[str]:
    each = -(-len(model.layer_kinds) // (plan.pp * plan.chunks))
    return [
        f'pipeline_parallel_schedule = "{_PIPELINES[plan.order_of_pipeline.kind]}"',
        f"pipeline_parallel_microbatch_size = {plan.micro_batch}",
        f"pipeline_parallel_layers_per_stage = {each}",
    ]


def _toml(value: bool) -> str:
    return str(value).lower()


def _torchtitan_lacks(model: Transformer, plan: Parallelism) -> Iterator[str]:
    yield from _decoders(model)
    if plan.pp > 1 and plan.order_of_pipeline.kind not in _PIPELINES:
        yield f"the schedule {plan.schedule} is not among {', '.join(_PIPELINES)}"
    if plan.recompute not in _CHECKPOINTS:
        yield f"recomputation '{plan.recompute_words}' has no setting (none, operators, full do)"
    yield from _offloaded(plan)
    if plan.quantize not in ("", "tensorwise", "rowwise"):
        yield f"the recipe {plan.quantize} is not one of torchao's"
    if plan.dp > 1 and plan.zero < 2:
        yield f"it shards weights and gradients over replicas, and the plan has ZeRO stage {plan.zero}"
    if plan.tp > 1 and not plan.sp:
        yield "tensor-parallel ranks always share the tokens (sp)"
    if plan.overlap.get("tp", "async-tp") != "async-tp":
        yield f"the overlap {plan.overlap['tp']} is not built in (async-tp is)"
    if plan.layers:
        yield "stages with layers of their own need lists of modules"
    if plan.context == "all_to_all" and plan.cp > 1:
        yield "context parallelism passes keys and values, not heads"


# -- DeepSpeed (deepspeed/runtime/config.py, deepspeed/runtime/zero/config.py)


def _deepspeed(model: Transformer, system: System, plan: Parallelism, framework: Framework) -> str:
    zero: dict[str, Any] = {"stage": plan.zero, "overlap_comm": framework.dp_overlap, "contiguous_gradients": True}
    replicas = plan.dp * plan.cp
    if plan.zero == _FSDP and plan.shard and plan.shard < replicas:
        zero["zero_hpz_partition_size"] = plan.shard
    settings: dict[str, Any] = {
        "train_batch_size": plan.batch,
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.micro_batches,
        plan.dtype: {"enabled": True},
        "gradient_clipping": 1.0,
        "zero_optimization": zero,
    }
    if plan.tp > 1:
        settings["tensor_parallel"] = {"autotp_size": plan.tp}
    return json.dumps(settings, indent=2) + "\n"


def _deepspeed_lacks(model: Transformer, plan: Parallelism) -> Iterator[str]:
    yield from _decoders(model)
    if plan.pp > 1:
        yield "the JSON has no pipeline stages; they are written in the program (PipelineModule)"
    if plan.cp > 1:
        yield "the JSON has no context parallelism"
    if plan.recompute not in ("none", "full"):
        yield f"recomputation '{plan.recompute_words}' is chosen in the program"
    yield from _offloaded(plan)
    if plan.quantize:
        yield f"the recipe {plan.quantize} is chosen in the program"
    if plan.sp or plan.ep > 1:
        yield "the JSON shares neither tokens between tensor-parallel ranks nor experts"
    if plan.overlap:
        yield "overlap methods are not built in"


LAUNCHERS: Mapping[
    str,
    tuple[
        Callable[[Transformer, System, Parallelism, Framework], str],
        Callable[[Transformer, Parallelism], Iterator[str]],
    ],
] = {
    "megatron": (_megatron, _megatron_lacks),
    "torchtitan": (_torchtitan, _torchtitan_lacks),
    "deepspeed": (_deepspeed, _deepspeed_lacks),
}
"""What writes a plan for each launcher, and what says which parts of a plan it has no option for."""
PROFILES: Mapping[str, str] = {
    "megatron": "megatron-core",
    "torchtitan": "torchtitan",
    "deepspeed": "deepspeed-zero3",
}
"""The framework whose defaults a launcher's plans are timed with."""
FILES: Mapping[str, str] = {"megatron": "launch.sh", "torchtitan": "launch.toml", "deepspeed": "launch.json"}
"""The name of the file that a launcher's text is written to."""
