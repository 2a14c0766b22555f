"""The layers of each stage of a pipeline."""

from __future__ import annotations

from functools import lru_cache

from weft.models import Transformer
from weft.models.counts import forward_flops

_MOST_UNEVEN = 0.1
"""Share of the mean by which the fullest stage may exceed it where stages do not divide the layers [assumed]."""


def stage_layers(model: Transformer, pp: int, chunks: int = 1) -> tuple[int, ...] | None:
    """Return the layers of each of `pp` x `chunks` stages: empty if all are equal; None if no rule divides them.

    Where the number of stages does not divide that of layers, the device that computes most has one less, in turn: the
    first in its first stage, others in their last; of equal ones that with the head, then the first, which holds most
    micro-batches. The embedding counts with the first stage and the head, with layers that predict decode tokens, with
    the last, each by its FLOPs as a GEMM. So have Llama 3 (arXiv:2407.21783 section 3.3.2), BLOOM and Megatron Bridge's
    recipes of DeepSeek-V3 (recipes/deepseek/deepseek_v3.py). Stages take turns on the devices.

    >>> from weft.models import load_model
    >>> stage_layers(load_model("bloom-176b"), 12)
    (5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5)
    >>> stage_layers(load_model("deepseek-v3"), 4)
    (16, 16, 16, 13)
    """
    layers, stages = len(model.layer_kinds), pp * chunks
    if layers % stages == 0:
        return ()
    each = -(-layers // stages)
    if each * stages > (1 + _MOST_UNEVEN) * layers or (each == 1 and stages - layers > 2):
        return None
    return _relieve_stages(model, pp, chunks, each)


@lru_cache(maxsize=256)
def _relieve_stages(model: Transformer, pp: int, chunks: int, each: int) -> tuple[int, ...]:
    """The layers of stages that have `each`, once the devices that compute most have as many less as are too many."""
    layers, stages = len(model.layer_kinds), pp * chunks
    counts, costs = [each] * stages, [float(each * chunks)] * pp
    first, last = _ends(model)
    costs[0] += first
    costs[-1] += last
    for _ in range(each * stages - layers):
        # embedding and head may be stages by themselves
        free = [stage for stage in range(stages) if counts[stage] > (0 < stage < stages - 1)]
        device = max({stage % pp for stage in free}, key=lambda one: (costs[one], one == pp - 1, -one))
        own = [stage for stage in free if stage % pp == device]
        counts[own[0] if device == 0 else own[-1]] -= 1
        costs[device] -= 1
    return tuple(counts)


def _ends(model: Transformer) -> tuple[float, float]:
    """Return the FLOPs of the embedding, as a GEMM, and of the head, over those of a mean layer."""
    flops = forward_flops(model, 1, source=1 if model.encoder_layers else 0)
    layer = flops["layers"] / len(model.layer_kinds)
    return 2.0 * model.vocabulary * model.hidden / layer, flops["head"] / layer
