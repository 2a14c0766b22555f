"""Plans as what a user starts: flags of Megatron-LM, torchtitan's TOML, DeepSpeed's JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from weft.core.files import to_json
from weft.hardware import System
from weft.models import Transformer
from weft.models.block import LAYERS
from weft.models.parallel.cut import expert_tp
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import ORDER, TrainingPlan

_ROWS = 128
"""Megatron-LM pads the vocabulary to a multiple of this and of the tensor-parallel ranks."""
_FSDP = 3


def _no_decoder(model: Transformer) -> Iterator[str]:
    if not model.causal or model.masked or model.encoder_layers:
        yield "only decoders are launched"


# -- Megatron-LM (NVIDIA/Megatron-LM @d98e8a6, megatron/training/arguments.py and the dataclasses that it reads)


def megatron(model: Transformer, system: System, plan: TrainingPlan, framework: Framework) -> str:
    """Return the command of Megatron-LM."""
    groups = (
        _shape(model),
        _attention(model),
        _experts(model, plan),
        _degrees(plan, framework),
        [
            plan.dtype != "fp32" and f"--{plan.dtype}",
            RECIPE_FLAGS[plan.precision],
            plan.zero and framework.keeps_low and plan.recipe.weights and "--fp8-param-gather",
        ],
        _optimizer(plan, framework),
        [*_graph_flags(plan, framework), *_paired_flags(plan, framework)],
        _data(model, plan),
    )
    each = system.gpus_per_node if system.node else system.gpus
    queues = "32" if _paired_flags(plan, framework) else "1  # Hopper and older"
    program = "pretrain_mamba.py" if _is_hybrid(model) else "pretrain_gpt.py"
    start = [
        *([] if plan.zero == _FSDP else [f"export CUDA_DEVICE_MAX_CONNECTIONS={queues}"]),
        f"torchrun --nproc-per-node {each} --nnodes {plan.gpus // each} \\",
        f"    --rdzv-backend c10d --rdzv-endpoint $MASTER_ADDR:29500 {program} \\",
    ]
    lines = (" ".join(flag for flag in group if isinstance(flag, str) and flag) for group in groups)
    return "\n".join([*start, " \\\n".join(f"    {line}" for line in lines if line)]) + "\n"


_Flags = list[str | bool | int | None]
"""Flags of a group; what is no text is left out, so that `condition and flag` is a flag under a condition."""


def _shape(model: Transformer) -> _Flags:
    positions = {"rotary": "rope", "learned": "learned_absolute"}.get(model.positions, "none")
    return [
        f"--num-layers {model.layers}",
        f"--hidden-size {model.hidden}",
        f"--ffn-hidden-size {model.wide}",
        f"--num-attention-heads {model.attention_heads}",
        f"--max-position-embeddings {model.sequence_length}",
        f"--position-embedding-type {positions}",
        f"--normalization {'LayerNorm' if model.norm == 'layernorm' else 'RMSNorm'}",
        model.activation == "swiglu" and "--swiglu",
        model.activation == "relu2" and "--squared-relu",
        model.biases != "all" and "--disable-bias-linear",
        model.biases == "qkv" and "--add-qkv-bias",
        not model.tied and "--untie-embeddings-and-output-weights",
        model.predict_layers and f"--mtp-num-layers {model.predict_layers}",
    ]


def _attention(model: Transformer) -> _Flags:
    latent = model.kv_rank > 0
    grouped = not latent and model.key_heads != model.attention_heads
    return [
        "--attention-dropout 0.0 --hidden-dropout 0.0",
        latent and "--multi-latent-attention",
        latent and model.query_rank and f"--q-lora-rank {model.query_rank}",
        latent and f"--kv-lora-rank {model.kv_rank} --qk-head-dim {model.head}",
        latent and f"--qk-pos-emb-head-dim {model.rotary_head} --v-head-dim {model.value_size}",
        not latent and model.head and f"--kv-channels {model.head}",
        grouped and f"--group-query-attention --num-query-groups {model.key_heads}",
        not latent and model.qk_norm and "--qk-layernorm",
        model.attention_gate and "--attention-output-gate",
        *_window_flags(model),
        *_linear_flags(model),
    ]


_BLOCKS = {"linear": "M", "attention": "*", "mlp": "-", "experts": "E"}
"""The letters of hybrid models' layers, each of one sub-layer."""


def _is_hybrid(model: Transformer) -> bool:
    """Return whether a model is one of `pretrain_mamba.py`: every layer has one sub-layer."""
    return all(kind in _BLOCKS for kind in model.layer_kinds)


def _linear_flags(model: Transformer) -> _Flags:
    """Return the sizes of linear layers, and which layers they are."""
    if _is_hybrid(model):
        of = model.mixer
        letters = "".join(_BLOCKS[kind] for kind in model.layer_kinds)
        sizes = f"--mamba-state-dim {of.state} --mamba-head-dim {of.head} --mamba-num-groups {of.groups}"
        return [f"--is-hybrid-model --hybrid-override-pattern '{letters}'", f"{sizes} --mamba-num-heads {of.heads}"]
    if model.linear != "gated_delta":
        return []
    of, linear = model.mixer, [int(LAYERS[kind].linear) for kind in model.layer_kinds]
    return [
        f"--experimental-attention-variant gated_delta_net --linear-attention-freq '({_runs(linear)})'",
        f"--linear-num-value-heads {of.heads} --linear-num-key-heads {of.groups}",
        f"--linear-value-head-dim {of.head} --linear-key-head-dim {of.state} --linear-conv-kernel-dim {of.conv}",
    ]


def _window_flags(model: Transformer) -> _Flags:
    """Return the window of attention, and the layers that have it where not all do."""
    slides = [int(LAYERS[kind].window) for kind in model.layer_kinds]
    if not any(slides):
        return []
    some = not all(slides) and f"--window-attn-skip-freq '({_runs(slides)})'"
    return [f"--window-size {model.window},0", some]


def _experts(model: Transformer, plan: TrainingPlan) -> _Flags:
    if not model.experts:
        return []
    shared = model.shared_experts * model.expert_wide
    kinds = [int(LAYERS[kind].mixture) for kind in model.layer_kinds]
    return [
        f"--num-experts {model.experts}",
        f"--moe-router-topk {model.experts_per_token}",
        model.expert_groups and f"--moe-router-num-groups {model.expert_groups}",
        model.expert_groups and f"--moe-router-group-topk {model.groups_per_token}",
        f"--moe-ffn-hidden-size {model.expert_wide}",
        shared and f"--moe-shared-expert-intermediate-size {shared}",
        not all(kinds) and f"--moe-layer-freq '({_runs(kinds)})'",
        f"--expert-model-parallel-size {plan.ep}",
        f"--expert-tensor-parallel-size {expert_tp(plan)}",
        f"{_DISPATCHERS[plan.dispatcher]} --moe-grouped-gemm",
    ]


_ALL_TO_ALL = "--moe-token-dispatcher-type alltoall"
_DISPATCHERS = {
    "": _ALL_TO_ALL,
    "nccl": _ALL_TO_ALL,
    "deepep": "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep",
    "hybridep": "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
}
"""Megatron-LM's arguments for a library that exchanges tokens (megatron/training/arguments.py)."""


def _runs(kinds: Iterable[int]) -> str:
    """A pattern of layers as Megatron-LM reads it: "[0]*3+[1]*58"."""
    return "+".join(f"[{kind}]*{len(list(layers))}" for kind, layers in groupby(kinds))


def _degrees(plan: TrainingPlan, framework: Framework) -> _Flags:
    ring = {"ring": "p2p", "all_gather": "allgather", "all_to_all": "a2a"}[plan.context]
    group, several = plan.order_of_pipeline.group, isinstance(plan.recompute, tuple)
    return [
        f"--tensor-model-parallel-size {plan.tp}",
        f"--pipeline-model-parallel-size {plan.pp}",
        f"--context-parallel-size {plan.cp}",
        plan.sp and "--sequence-parallel",
        plan.cp > 1 and f"--cp-comm-type {ring}",
        plan.layers != () and f"--pipeline-model-parallel-layout '{_layout(plan.layers)}'",
        not plan.layers and plan.chunks > 1 and f"--num-virtual-stages-per-pipeline-rank {plan.chunks}",
        group and f"--microbatch-group-size-per-virtual-pipeline-stage {group}",
        plan.sp and plan.overlap.get("tp", framework.tp) == "userbuffers" and "--tp-comm-overlap",
        plan.order == ("tp", "cp", "pp", "dp") and "--use-tp-pp-dp-mapping",
        not several and _RECOMPUTED[str(plan.recompute)],
        several and f"--recompute-granularity selective --recompute-modules {' '.join(_modules(plan.recompute))}",
    ]


_RECOMPUTED = {
    "none": "",
    "selective": "--recompute-granularity selective",
    "full": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
}


MODULES: Mapping[str, frozenset[str]] = {
    "layernorm": frozenset({"norm1", "norm2"}),
    "core_attn": frozenset({"attention"}),
    "mlp": frozenset({"fc1", "activation", "fc2"}),
    "moe_act": frozenset({"experts_activation"}),
    "shared_experts": frozenset({"shared_fc1", "shared_activation", "shared_fc2"}),
    "mla_up_proj": frozenset({"q_norm", "q_up", "kv_norm", "kv_up", "rotary"}),
}
"""Operators that each of Megatron-LM's modules recomputes in the backward pass."""


def _modules(names: str | tuple[str, ...]) -> list[str]:
    return [module for module, operators in MODULES.items() if operators <= set(names)]


def _is_modules(names: tuple[str, ...]) -> bool:
    return set(names) == {name for module in _modules(names) for name in MODULES[module]}


def _layout(layers: Iterable[int]) -> str:
    """The layers of each stage as Megatron-LM reads them, with embedding (E) and head (L): "Ett|ttt|ttL"."""
    return f"E{'|'.join('t' * count for count in layers)}L"


RECIPE_FLAGS = {
    "": "",
    "bf16": "",
    "fp8-delayed": "--fp8-format hybrid --fp8-recipe delayed",
    "fp8-tensorwise": "--fp8-format hybrid --fp8-recipe tensorwise",
    "fp8-block": "--fp8-format e4m3 --fp8-recipe blockwise",
    "mxfp8": "--fp8-format e4m3 --fp8-recipe mxfp8",
    "nvfp4": "--fp4-format e2m1 --fp4-recipe nvfp4",
}


def _optimizer(plan: TrainingPlan, framework: Framework) -> _Flags:
    replicas, sharded = plan.dp * plan.cp, "optim_grads_params" if plan.zero == _FSDP else "optim_grads"
    reduced = framework.dp_overlap and replicas > 1
    return [
        plan.zero and "--use-distributed-optimizer",
        plan.zero > 1 and f"--use-megatron-fsdp --data-parallel-sharding-strategy {sharded}",
        plan.zero > 1 and "--ckpt-format fsdp_dtensor --no-gradient-accumulation-fusion",
        plan.shard and plan.shard < replicas and f"--num-distributed-optimizer-instances {replicas // plan.shard}",
        reduced and "--overlap-grad-reduce",
        reduced and framework.gather_overlap and plan.zero and "--overlap-param-gather",
    ]


def _graph_flags(plan: TrainingPlan, framework: Framework) -> _Flags:
    """Return the flags of CUDA graphs; graphs of layers that a framework names are Transformer Engine's."""
    modules = plan.cuda_graph_modules
    impl: str | None = plan.cuda_graph_impl
    if impl is None and framework.graphs:
        whole = framework.graphs == ("full_iteration",)
        impl, modules = ("full_iteration", ()) if whole else ("transformer_engine", framework.graphs)
    if impl in (None, "none"):
        return []
    held = f" --cuda-graph-modules {' '.join(modules)}" if modules else ""
    return [f"--cuda-graph-impl {impl}{held} --te-rng-tracker"]


def _paired_flags(plan: TrainingPlan, framework: Framework) -> _Flags:
    """Return whether MoE dispatch and combine run concurrently with another micro-batch's passes."""
    stated = plan.overlap_moe_expert_parallel_comm
    if plan.ep == 1 or not (framework.paired if stated is None else stated):
        return []
    own = framework.delay_wgrad if stated is None else False
    delays = own if plan.delay_wgrad_compute is None else plan.delay_wgrad_compute
    return ["--overlap-moe-expert-parallel-comm" + " --delay-wgrad-compute" * delays]


def _data(model: Transformer, plan: TrainingPlan) -> _Flags:
    return [
        f"--micro-batch-size {plan.micro_batch}",
        f"--global-batch-size {plan.batch}",
        f"--seq-length {plan.sequence}",
        "--mock-data --tokenizer-type NullTokenizer",
        f"--vocab-size {model.vocabulary - 1}",  # it adds a token for the end of a document
        f"--make-vocab-size-divisible-by {math.gcd(model.vocabulary // plan.tp, _ROWS)}",
        "--train-iters 100 --lr 1e-4",
    ]


def _no_layers(model: Transformer) -> Iterator[str]:
    if model.linear:
        yield f"{model.linear} layers are chosen in the program"


def _unwritten_layers(model: Transformer) -> Iterator[str]:
    """Yield the linear layers that no argument of Megatron-LM puts where the model has them."""
    if model.linear and model.linear != "gated_delta" and not (model.linear == "mamba2" and _is_hybrid(model)):
        yield f"no flag puts {model.linear} layers in the layers of {model.name}"


def megatron_lacks(model: Transformer, plan: TrainingPlan) -> Iterator[str]:
    """Yield the parts of a plan for which the launcher has no option."""
    yield from _no_decoder(model)
    yield from _unwritten_layers(model)
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
            yield f"recomputation of {plan.recompute_words} is no set of its modules ({', '.join(MODULES)})"
    elif plan.recompute not in _RECOMPUTED:
        yield f"recomputation '{plan.recompute}' has no flag (none, selective, full do)"
    yield from _offload_limits(plan)
    if plan.dispatcher not in _DISPATCHERS:
        yield f"tokens by {plan.dispatcher} have no flag (nccl, deepep, hybridep do)"
    if plan.overlap_moe_expert_parallel_comm and plan.pp > 1 and plan.order_of_pipeline.kind != "interleaved":
        yield "overlap_moe_expert_parallel_comm needs an interleaved schedule where there are several stages"
    if plan.overlap_moe_expert_parallel_comm and plan.recompute == "full":
        yield "overlap_moe_expert_parallel_comm goes with no full recomputation"
    if plan.precision not in RECIPE_FLAGS:
        yield f"the recipe {plan.precision} is one of torchao"
    if plan.zero > 1 and plan.pp > 1:
        yield "Megatron-FSDP has no pipeline stages"
    if plan.overlap.get("tp", "userbuffers") != "userbuffers":
        yield f"the overlap {plan.overlap['tp']} is not built in (userbuffers is)"
    if plan.order not in (ORDER, ("tp", "cp", "pp", "dp")):
        yield f"ranks are not placed in the order {', '.join(plan.order)}"


def _offload_limits(plan: TrainingPlan) -> Iterator[str]:
    if plan.loss_chunks > 1:
        yield f"the loss in {plan.loss_chunks} chunks is chosen in the program"
    if plan.offload != "none":
        yield f"{plan.offload} in the memory of the host are streamed to the GPU, which it does in another way"


def _unlike_megatron(plan: TrainingPlan) -> Iterator[str]:
    if plan.cuda_graph_impl not in (None, "none"):
        yield "CUDA graphs of training have no setting"
    if plan.overlap_moe_expert_parallel_comm:
        yield "MoE dispatch and combine do not overlap another micro-batch"
    if plan.dispatcher not in ("", "nccl"):
        yield f"tokens by {plan.dispatcher} have no setting (nccl does)"


# -- torchtitan (pytorch/torchtitan v0.2.2, torchtitan/config/job_config.py)

PIPELINES = {
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}  # fmt: skip
_CHECKPOINTS = {
    "none": ['mode = "none"'],
    "operators": ['mode = "selective"', 'selective_ac_option = "op"'],
    "full": ['mode = "full"'],
}


def torchtitan(model: Transformer, system: System, plan: TrainingPlan, framework: Framework) -> str:
    """Return torchtitan's configuration."""
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
    if plan.recipe.operands:
        tables["model"] = ['converters = ["quantize.linear.float8"]']
        tables["quantize.linear.float8"] = [
            f'recipe_name = "{plan.precision.removeprefix("fp8-")}"',
            f"enable_fsdp_float8_all_gather = {_toml(framework.keeps_low and plan.recipe.shared != '')}",
        ]
    head = f"# torchtitan 0.2: {plan.gpus} GPUs. Name your model under [model], its tokenizer and dataset.\n"
    return head + "".join(f"\n[{name}]\n" + "\n".join(rows) + "\n" for name, rows in tables.items())


def _stages(model: Transformer, plan: TrainingPlan) -> list[str]:
    each = -(-len(model.layer_kinds) // (plan.pp * plan.chunks))
    return [
        f'pipeline_parallel_schedule = "{PIPELINES[plan.order_of_pipeline.kind]}"',
        f"pipeline_parallel_microbatch_size = {plan.micro_batch}",
        f"pipeline_parallel_layers_per_stage = {each}",
    ]


def _toml(value: bool) -> str:
    return str(value).lower()


def torchtitan_lacks(model: Transformer, plan: TrainingPlan) -> Iterator[str]:
    """Yield the parts of a plan for which the launcher has no option."""
    yield from _no_decoder(model)
    yield from _no_layers(model)
    if plan.pp > 1 and plan.order_of_pipeline.kind not in PIPELINES:
        yield f"the schedule {plan.schedule} is not among {', '.join(PIPELINES)}"
    if plan.recompute not in _CHECKPOINTS:
        yield f"recomputation '{plan.recompute_words}' has no setting (none, operators, full do)"
    yield from _offload_limits(plan)
    yield from _unlike_megatron(plan)
    if plan.recipe.operands and plan.precision not in ("fp8-tensorwise", "fp8-rowwise"):
        yield f"the recipe {plan.precision} is not one of its float8 linear layers"
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


def deepspeed_config(model: Transformer, system: System, plan: TrainingPlan, framework: Framework) -> str:
    """Return DeepSpeed's configuration."""
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
    return to_json(settings, indent=2) + "\n"


def deepspeed_lacks(model: Transformer, plan: TrainingPlan) -> Iterator[str]:
    """Yield the parts of a plan for which the launcher has no option."""
    yield from _no_decoder(model)
    yield from _no_layers(model)
    if plan.pp > 1:
        yield "the JSON has no pipeline stages; they are written in the program (PipelineModule)"
    if plan.cp > 1:
        yield "the JSON has no context parallelism"
    if plan.recompute not in ("none", "full"):
        yield f"recomputation '{plan.recompute_words}' is chosen in the program"
    yield from _offload_limits(plan)
    yield from _unlike_megatron(plan)
    if plan.recipe.operands:
        yield f"the recipe {plan.precision} is chosen in the program"
    if plan.sp or plan.ep > 1:
        yield "the JSON shares neither tokens between tensor-parallel ranks nor experts"
    if plan.overlap:
        yield "overlap methods are not built in"
