"""What a training framework does by default: kernels, number formats, and which communication it overlaps."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.models.block import Style


@dataclass(frozen=True)
class Framework:
    """A training framework's defaults.

    `style` says how it writes a layer's operators. `gradients` is the number format in which gradients of weights are
    kept and summed over replicas; with `accumulates` the GEMM adds to them itself. `async_tp` collectives of the
    backward pass run beside the GEMMs of gradients. With `dp_overlap` gradients are summed over replicas in buckets of
    `bucket` parameters while the backward pass runs. `keeps_weights` (FSDP) from the forward to the backward pass.
    With `scatter_gather` each tensor-parallel rank sends its part of the activations between stages. Weights are kept
    in the number format `weights` (empty: that of the computation), beside `optimizer_bytes` of states per parameter:
    12 for Adam with fp32 master weights. `optimizer` names the kernel.
    """

    name: str = "megatron"
    style: Style = field(default_factory=Style)
    gradients: str = "fp32"
    accumulates: bool = True
    async_tp: bool = True
    dp_overlap: bool = False
    bucket: int = 40_000_000
    keeps_weights: bool = False
    weights: str = ""
    optimizer_bytes: int = 12
    scatter_gather: bool = True
    optimizer: str = "adam"
