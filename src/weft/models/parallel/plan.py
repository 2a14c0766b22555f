"""How a model is spread over GPUs: degrees of parallelism, micro-batches, schedule, recomputation, and overlap."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from weft.core.answer import to_plain
from weft.core.errors import InputError, check_name, check_type
from weft.core.fields import declare, redeclare
from weft.graph.routing import Loads
from weft.models.parallel.deployment import Deployment
from weft.models.parallel.precision import RECIPES, Recipe

Axis = Literal["tp", "cp", "dp", "pp"]
ORDER: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")
"""Order in which GPUs are given to the groups, from neighbours in a node outwards, as Megatron-LM does."""
Context = Literal["ring", "all_gather", "all_to_all"]
"""How context-parallel ranks see each other's keys and values: passed on in a ring while attention works on those of
the rank before, gathered before it, or by exchanging parts of the sequence for parts of the heads (Ulysses)."""
Recompute = Literal["none", "selective", "operators", "full"]
"""What the backward pass computes again: nothing, the scores of attention, all operators but attention and every second
GEMM (torchtitan's selective checkpointing by operators), or all layers from their inputs."""
CudaGraphImpl = Literal["none", "local", "transformer_engine", "full_iteration"]
"""What CUDA graphs hold, as in Megatron Core: nothing, modules of each layer (captured by Megatron Core or by
Transformer Engine), or forward and backward passes of the whole step."""
GRAPH_MODULES = ("attn", "mamba", "mlp", "moe", "moe_router", "moe_preprocess")
"""Modules of a layer that CUDA graphs can hold, as Megatron Core names them."""
Offload = Literal["none", "activations", "optimizer"]
"""What the memory of the host holds: nothing, what layers keep for the backward pass, or the optimizer's states."""


_NUMBER = re.compile(r"[0-9]{1,9}")
_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "interleaved 1F1B"}


class ScheduleName(NamedTuple):
    """A pipeline schedule as users name it: "interleaved:5:16" is of the kind "interleaved" with the options 5 and 16.

    Options that are no whole numbers are None; the name of a file has none.
    """

    kind: str
    options: tuple[int | None, ...] = ()

    @property
    def chunks(self) -> int:
        """Parts of the model on each device that the name asks for: those of "interleaved", else one."""
        return (self.options[0] or 1) if self.kind == "interleaved" and self.options else 1

    @property
    def group(self) -> int | None:
        """Micro-batches that "interleaved" passes through a chunk before the next one; None: as many as devices."""
        return self.options[1] if self.kind == "interleaved" and len(self.options) > 1 else None

    @property
    def words(self) -> str:
        """The schedule in words: "interleaved:5" is "interleaved 1F1B of 5 chunks"."""
        if self.kind != "interleaved":
            return _SCHEDULES.get(str(self), str(self))
        chunks = f" of {self.chunks} chunks" if self.options else ""
        return _SCHEDULES[self.kind] + chunks + (f" in groups of {self.group}" if self.group else "")

    def __str__(self) -> str:
        return ":".join([self.kind, *map(str, self.options)])


@lru_cache(maxsize=1024)
def schedule_name(text: str) -> ScheduleName:
    """Return the kind and the options of a pipeline schedule by the text that users type.

    >>> schedule_name("interleaved:5:16")
    ScheduleName(kind='interleaved', options=(5, 16))
    """
    if text.endswith(".json"):
        return ScheduleName(text)
    kind, *given = text.split(":")
    return ScheduleName(kind, tuple(int(each) if _NUMBER.fullmatch(each) else None for each in given))


def overlap_text(overlap: Mapping[str, str]) -> str:
    """Overlap methods by axis as users type them, "tp=t3-mca,dp=dma"; the inverse of `overlap_of`."""
    return ",".join(f"{axis}={method}" for axis, method in overlap.items())


@dataclass(frozen=True)
class TrainingPlan(Deployment):
    """A plan of training: `tp` x `cp` x `dp` x `pp` GPUs, `batch` sequences of `sequence` tokens per step.

    `tp` ranks share every layer (with `sp` the tokens between their GEMMs, too), `cp` ranks every sequence, `pp` stages
    the layers, `ep` ranks the experts; `dp` replicas share the batch. `zero` shards over the replicas the optimizer
    states (1), gradients (2) and weights (3, as FSDP does), within groups of `shard` replicas (None: over all). Each
    pipeline runs `micro_batches` of `micro_batch` sequences, in the order of `schedule` ("1f1b", "interleaved:5").
    `layers` are those of each stage, in the order of the data (left out: equal numbers, or as `stage_layers` has them).
    `context` names how attention sees the other ranks' keys. `recompute` what attention or layers need in the backward
    pass, or, as a tuple, the names of operators of layers that run again, such as ("norm1", "activation"). `offload`
    names what is kept in the memory of the host and comes back over its link. All computes in `dtype` but for what the
    recipe `precision` (`weft.models.parallel.precision`) gives 8 or 4 bits: the operands of the layers' GEMMs, and
    tokens on their way to them. `dispatcher` names the library that exchanges tokens among experts ("": the
    framework's), `expert_load` how many each expert gets (the GPU with the most tokens is timed): "power:0.6", its
    exponent, or relative numbers (none: even loads). The host launches what CUDA graphs hold at once
    (`cuda_graph_impl`, of each layer the modules `cuda_graph_modules`). With `overlap_moe_expert_parallel_comm` a
    forward pass runs concurrently with another micro-batch's backward pass, so that one computes while the other
    exchanges tokens; with `delay_wgrad_compute` gradients of weights fill what is left of these exchanges. None is as
    the framework does. Logits and loss are computed in `loss_chunks` chunks of the tokens, each with its backward pass
    before the next one. `overlap` names the method for the collectives of an axis, such as {"tp": "t3-mca"} or
    "tp=t3-mca"; of tp there may be two, such as "tp=t3-mca+t3-all-gather". Left out, they overlap as in the framework.
    `order` places the axes, the innermost first.

    Raises InputError for numbers below 1, for a batch that replicas and micro-batches do not divide, and for options
    that contradict each other; UnknownNameError for an unknown recomputation.

    >>> TrainingPlan(tp=8, pp=8, dp=2, batch=64).micro_batches
    32
    """

    dp: int = declare(1, "Data parallelism: replicas that share the batch.", default="the GPUs that are left")
    cp: int = declare(1, "Context parallelism: GPUs that share every sequence.")
    batch: int = declare(
        1, "Global batch: sequences of a step.", default="four micro-batches for each stage of each pipeline"
    )
    micro_batch: int = declare(1, "Sequences of a micro-batch.")
    sequence: int = declare(2048, "Tokens of each sequence.", default="the model's context")
    sp: bool = declare(
        False, "Sequence parallelism: shard the tokens between the GEMMs of --tp, too.", default="with --tp"
    )
    zero: int = declare(
        0,
        "ZeRO stage: shard over replicas optimizer states (1), gradients (2), weights (3, FSDP); Megatron "
        "Core's distributed optimizer is 1.",
        least=0,
        most=3,
        example=1,
        default="as the framework",
    )
    shard: int | None = declare(
        None, "Replicas of a sharding group of --zero (hybrid sharding, HSDP): a divisor of theirs.", default="all"
    )
    context: Context = declare(
        "ring",
        "Communication of --cp (Megatron Core: --cp-comm-type): ring (p2p), all_gather, or all_to_all (a2a, Ulysses).",
        noun="context parallelism",
    )
    schedule: str = declare("1f1b", "Pipeline schedule: {names}; interleaved:5 has 5 virtual stages per GPU.")
    layers: tuple[int, ...] = declare(
        (), "Layers of each stage, such as 4,4,4,3.", default="equal, or less where most is computed"
    )
    recompute: Recompute | tuple[str, ...] = declare(
        "none",
        "Activation checkpointing (recomputation): {names}, or operators of a layer, such as norm1,activation.",
    )
    offload: Offload = declare("none", "CPU offload of activations or optimizer states.")
    dtype: str = declare("bf16", "Data type, but for tensors to which --precision gives fewer bits: bf16, fp16, fp32.")
    precision: str = declare("", "Training recipe of low precision: {names}.", default="16 bits, as --dtype")
    expert_load: Loads = redeclare(Deployment, "expert_load", (), default="even")
    cuda_graph_impl: CudaGraphImpl | None = declare(
        None,
        "Scope of CUDA graphs.",
        default="as the framework",
        noun="implementation of CUDA graphs",
    )
    cuda_graph_modules: tuple[str, ...] = declare(
        (), "Modules of each layer that local and transformer_engine graphs hold: {names}.", default="whole layers"
    )
    overlap_moe_expert_parallel_comm: bool | None = declare(
        None,
        "Hide MoE dispatch and combine of a micro-batch behind the compute of another one.",
        default="as the framework",
    )
    delay_wgrad_compute: bool | None = declare(
        None,
        "Delay weight gradients, to hide MoE dispatch and combine behind them.",
        default="as the framework",
    )
    loss_chunks: int = declare(
        1, "Chunks of tokens whose logits and loss are computed one after another, which takes less memory."
    )
    order: tuple[Axis, ...] = ORDER

    def __post_init__(self) -> None:
        check_type("schedule", self.schedule, str, "name one, like '1f1b' or 'interleaved:4'")
        check_type("order", self.order, (tuple, list), f"name each of {', '.join(ORDER)} once")
        super().__post_init__()
        self._check_graphs()
        self._check_paired()
        self._check_shard()
        self._check_recompute()
        self._check_precision()
        each = self.dp * self.micro_batch
        if self.batch % each:
            nearest = max(round(self.batch / each), 1) * each
            raise InputError(
                f"batch {self.batch} does not divide into {self.dp} replicas x micro-batches of {self.micro_batch}; "
                f"give a multiple of {each}, such as {nearest}"
            )
        if sorted(self.order) != sorted(ORDER):
            raise InputError(f"the order of placement is {self.order}; name each of {', '.join(ORDER)} once")
        if self.sequence % self.cp:
            raise InputError(f"sequence {self.sequence} does not divide into {self.cp} context-parallel ranks")
        if any(layers < 0 for layers in self.layers):
            raise InputError(f"layers of the stages are {', '.join(map(str, self.layers))}; none can have fewer than 0")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the number of GPUs as plain data."""
        return to_plain(**super().to_dict(), gpus=self.gpus)

    def _check_shard(self) -> None:
        """Raise InputError for groups that share nothing, or into which the replicas do not divide."""
        replicas = self.dp * self.cp
        if self.shard is not None and not self.zero:
            raise InputError(
                f"shard is {self.shard}, but zero is 0, so that replicas share nothing; give zero 1 to 3, or leave "
                "shard out"
            )
        if self.shard is not None and replicas % self.shard:
            raise InputError(
                f"shard is {self.shard}, but {replicas} replicas hold the same weights; give a divisor of {replicas}, "
                "or leave it out: all share"
            )

    def _check_precision(self) -> None:
        if self.precision:
            check_name("recipe", self.precision, RECIPES)
            if self.dtype != "bf16":
                raise InputError(
                    f"dtype {self.dtype} contradicts the precision {self.precision}, under which all but operands of "
                    "GEMMs is in bf16; give one of both"
                )

    def _check_graphs(self) -> None:
        if isinstance(self.cuda_graph_modules, list):  # as plain data has it
            object.__setattr__(self, "cuda_graph_modules", tuple(self.cuda_graph_modules))
        check_type("cuda_graph_modules", self.cuda_graph_modules, tuple, "name some, like ('attn', 'moe_router')")
        if not self.cuda_graph_modules:
            return
        for name in self.cuda_graph_modules:
            check_name("module of a layer", name, GRAPH_MODULES)
        if self.cuda_graph_impl not in ("local", "transformer_engine"):
            raise InputError(
                f"cuda_graph_modules names {', '.join(self.cuda_graph_modules)}, which graphs of layers hold, but "
                f"cuda_graph_impl is {self.cuda_graph_impl or 'as the framework'}; give cuda_graph_impl "
                "transformer_engine or local, or leave the modules out"
            )
        if "moe_preprocess" in self.cuda_graph_modules and "moe_router" not in self.cuda_graph_modules:
            raise InputError("cuda_graph_modules names moe_preprocess without moe_router, before it; name both")

    def _check_paired(self) -> None:
        if self.overlap_moe_expert_parallel_comm and self.ep == 1:
            raise InputError(
                "overlap_moe_expert_parallel_comm overlaps the exchange of tokens among ranks that share experts, but "
                "ep is 1; give ep 2 or more, or leave it out"
            )
        if self.delay_wgrad_compute and (self.overlap_moe_expert_parallel_comm is False or self.ep == 1):
            raise InputError(
                "delay_wgrad_compute fills MoE dispatch and combine with gradients of weights, as Megatron Core does "
                "under overlap_moe_expert_parallel_comm with ep 2 or more; turn that on, or leave it out"
            )

    def _check_recompute(self) -> None:
        if isinstance(self.recompute, list):  # as plain data has it
            object.__setattr__(self, "recompute", tuple(self.recompute))
        if not isinstance(self.recompute, tuple):
            check_name("recomputation", self.recompute, get_args(Recompute))
        elif not self.recompute:
            raise InputError("recompute names no operator; name some of a layer, or say 'none'")

    __hash__ = Deployment.__hash__

    @property
    def gpus(self) -> int:
        """Number of GPUs: the product of the degrees."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def recompute_words(self) -> str:
        """What runs again in the backward pass: a policy, or the names of operators."""
        return self.recompute if isinstance(self.recompute, str) else ", ".join(self.recompute)

    @property
    def recipe(self) -> Recipe:
        """Which tensors have fewer bits than `dtype`."""
        return RECIPES[self.precision or "bf16"]

    @property
    def expert_replicas(self) -> int:
        """Ranks of a stage that hold the same experts: all that route different tokens, divided by `ep`."""
        return max(self.cp * self.dp * (self.tp if self.sp else 1) // self.ep, 1)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each pipeline per step."""
        return self.batch // (self.dp * self.micro_batch)

    @property
    def shards_weights(self) -> bool:
        """Whether replicas share the weights, as in ZeRO's stage 3 and FSDP."""
        return self.zero == 3

    @property
    def gathers_each_pass(self) -> bool:
        """Whether sharded weights are gathered for every pass, rather than once a step.

        Stages of a pipeline keep them, and their whole gradients, until the last micro-batch, as torchtitan's do.
        """
        return self.shards_weights and self.pp == 1

    @property
    def chunks(self) -> int:
        """Parts of the model on each stage, as the schedule "interleaved:5" says; one by default."""
        return self.order_of_pipeline.chunks

    @property
    def order_of_pipeline(self) -> ScheduleName:
        """The kind and the options of the schedule."""
        return schedule_name(self.schedule)

    def stride(self, axis: str) -> int:
        """Distance between neighbours of a group, in GPUs counted through the machine.

        The groups "replica" join the ranks that hold the same shard; the others are as of `Deployment.stride`.
        """
        if axis == "replica":
            return self.stride("cp" if self.cp > 1 else "dp") * (self.shard or 1)
        return super().stride(axis)
