"""The update of weights that ends a training step, as operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from weft.core.errors import check_name
from weft.graph import Op, Streaming

Optimizer = Literal["adam", "lamb", "sgd"]
MASTER = "fp32"
"""Number format of master weights and moments."""

_UNFUSED: Mapping[str, tuple[tuple[int, int], ...]] = {
    "sgd": ((1, 1), (2, 1), (2, 1)),
    "adam": ((1, 1), (2, 1), (1, 1), (3, 1), (1, 1), (2, 1), (1, 1), (3, 1)),
}
"""Tensors that each kernel of an unfused optimizer reads and writes, as PyTorch's foreach implementations (2.x) run
them. SGD: decay and addition of momentum, step. Adam: weight decay, first moment, decay and addition of the second, its
root, division by the correction, epsilon, step."""


def optimizer_ops(
    name: str,
    parameters: int,
    *,
    gradients: str = "fp32",
    weights: str = "bf16",
    fused: bool = True,
    loss_scaling: bool = False,
    clips: bool = True,
    zeroed: int | None = None,
) -> tuple[Op, ...]:
    """Return the operators of an optimizer's step on that many parameters of a GPU, in their order.

    As in Megatron-LM's mixed precision: with `loss_scaling` gradients are unscaled and checked for infinities; their
    norm is taken and, if the optimizer `clips`, they are scaled to it; the optimizer, `fused` into one kernel (LAMB:
    two, and the norms of weights and updates between) or not, changes fp32 master weights and moments; where `weights`
    are kept in another format, they are copied from these; and gradients, `zeroed` of them (None: all), are set to zero
    for the next step. Kernels go over all tensors in one launch. Raises UnknownNameError for an unknown optimizer or
    dtype, InputError for a number of parameters that is no whole number above zero.

    >>> sum(op.least_bytes for op in optimizer_ops("adam", 1_000_000))
    50000000
    """
    check_name("optimizer", name, get_args(Optimizer))

    def each(reads: int, writes: int, dtype: str = gradients) -> Op:
        return Streaming("elementwise", parameters, 1, dtype, inputs=reads, outputs=writes)

    scaled = [each(1, 1)] if loss_scaling else []
    norm = [each(1, 0), *([each(1, 1)] if clips else [])]
    if fused:
        step: list[Op] = [Streaming(name, parameters, 1, gradients)]
    else:
        step = [each(*counts, MASTER) for counts in _UNFUSED["sgd" if name == "sgd" else "adam"]]
    if name == "lamb":
        step.append(each(2, 0, MASTER))
        step += [] if fused else [each(1, 1, MASTER)]
    # A fused kernel with 16-bit gradients writes the weights of that format itself.
    copied = weights != MASTER and not (fused and gradients == weights)
    copies = [Streaming("cast", parameters, 1, weights)] if copied else []
    zeros = Streaming("elementwise", parameters if zeroed is None else zeroed, 1, gradients, inputs=0, outputs=1)
    return *scaled, *norm, *step, *copies, zeros
