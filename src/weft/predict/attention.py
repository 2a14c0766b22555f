"""Attention in closed form: as batched GEMMs with a softmax between, and as one fused kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from weft.predict.gemm import Clock, effective_rates, gemm
from weft.predict.kernel import (
    SPECIALS_PER_CLOCK,
    Amount,
    Residency,
    from_parts,
    idle_latency,
    memory_seconds,
)
from weft.predict.prediction import FloatArray, Prediction
from weft.workload import DTYPE_BYTES

if TYPE_CHECKING:
    from weft.hardware import Gpu

SoftmaxTime = Callable[[Amount, Amount, "Gpu", str], Prediction]

QUERY_TILE, KEY_TILE = 128, 64
"""Queries that a workgroup of the fused kernel holds, and keys that it takes at a time (FlashAttention-2,
arXiv:2307.08691: 64 to 128 of each)."""
LEAST_SPLIT = 256
"""Fewest keys that a workgroup takes when keys are split among workgroups, for want of queries (Flash-Decoding)."""
OPERATIONS_PER_SCORE = 6
"""Vector operations on each score besides its exponential: scale, maximum, subtraction, sum, conversion, and its share
of rescaling the output (FlashAttention-2, algorithm 1)."""
_OVERLAPPING = ("hopper", "blackwell")
"""Architectures whose kernels multiply one tile while they take the exponentials of another (FlashAttention-3)."""
HIDDEN = 0.5
"""Share of the exponentials' time that such kernels hide [assumed; 0.3 to 0.8]: with both kinds of overlap,
FlashAttention-3 (arXiv:2407.08608, ablation) gains 14 % over either."""


def scores_gemm(
    count: Amount, query: Amount, keys: Amount, head: Amount, dtype: str, gpu: Gpu, clock: Clock
) -> Prediction:
    """Queries times keys: `count` GEMMs of query x keys x head in one launch."""
    return gemm(query, keys, head, dtype, gpu, batch=count, clock=clock)


def values_gemm(
    count: Amount, query: Amount, keys: Amount, head: Amount, dtype: str, gpu: Gpu, clock: Clock
) -> Prediction:
    """Scores times values: `count` GEMMs of query x head x keys in one launch."""
    return gemm(query, head, keys, dtype, gpu, batch=count, clock=clock)


def batched_attention(
    shape: Mapping[str, FloatArray], gpu: Gpu, dtype: str, clock: Clock, softmax_time: SoftmaxTime
) -> tuple[Prediction, Prediction, Prediction]:
    """The three kernels of attention with its scores in memory: scores, softmax, values."""
    count = shape["batch"] * shape["heads"]
    query, keys, head = shape["query"], shape["keys"], shape["head"]
    return (
        scores_gemm(count, query, keys, head, dtype, gpu, clock),
        softmax_time(count * query, keys, gpu, dtype),
        values_gemm(count, query, keys, head, dtype, gpu, clock),
    )


def fused_attention(shape: Mapping[str, FloatArray], gpu: Gpu, dtype: str, clock: Clock) -> Prediction:
    """One kernel in the manner of FlashAttention: a workgroup per tile of queries, the scores never in memory.

    Masked attention skips the tiles above the diagonal, half of them in the limit. With few queries the keys are
    split among workgroups until every compute unit has some. Query heads that share keys and values share tiles, and so
    read them together (packed GQA, as in FlashAttention-3 and FlashInfer).
    """
    units = gpu.compute.compute_units
    query, keys, head = shape["query"], shape["keys"], shape["head"]
    count = shape["batch"] * shape["heads"]
    kv_count = shape["batch"] * np.where(shape["kv_heads"] > 0, shape["kv_heads"], shape["heads"])
    packed = query * count / kv_count
    tiles = kv_count * np.ceil(packed / QUERY_TILE)
    splits = np.clip(np.floor(units / tiles), 1, np.ceil(keys / LEAST_SPLIT))
    per_tile = np.minimum(packed, QUERY_TILE)
    seen = np.where(shape["causal"] > 0, _causal_share(query, keys), 1.0)
    scores = tiles * np.ceil(keys / KEY_TILE) * KEY_TILE * seen
    rows = np.ceil(per_tile / 16) * 16  # what a matrix instruction takes at least
    share = np.ceil(tiles * splits / units) / (tiles * splits) * units
    matrix, vector = _unit_seconds(scores * rows, head, gpu, dtype, clock)
    hidden = HIDDEN * np.minimum(matrix, vector) if gpu.architecture in _OVERLAPPING else 0.0
    compute = share * (matrix + vector - hidden)
    return _slowest(compute, _moved(count, kv_count, tiles, query, keys, head, gpu, dtype, seen), splits, gpu)


def _causal_share(query: FloatArray, keys: FloatArray) -> FloatArray:
    """Share of the scores that a mask leaves, if the last query sees every key; whole tiles on the diagonal."""
    share: FloatArray = 1 - np.maximum(query - QUERY_TILE, 0) / (2 * np.maximum(query, keys))
    return share


def _unit_seconds(
    scores: FloatArray, head: FloatArray, gpu: Gpu, dtype: str, clock: Clock
) -> tuple[FloatArray, FloatArray]:
    """Time of all matrix units and of all vector units for so many scores [s]."""
    gpu.matrix_rate(dtype)  # an InputError that names the data types, where there is none
    rate = gpu.compute.compute_units * effective_rates(dtype, gpu, clock, 1.0).unit_flops
    matrix = 4 * scores * head / rate
    clocks = scores * (OPERATIONS_PER_SCORE / gpu.vector_lanes + 1 / SPECIALS_PER_CLOCK)
    return matrix, clocks / (gpu.compute.compute_units * gpu.compute.clock)


def _moved(
    count: FloatArray,
    kv_count: FloatArray,
    tiles: FloatArray,
    query: FloatArray,
    keys: FloatArray,
    head: FloatArray,
    gpu: Gpu,
    dtype: str,
    seen: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Time in DRAM and in the cache, and the latency of its first loads [s]: keys and values once per tile.

    Keys and values come from memory: since they were written, other layers have used the cache.
    """
    size = DTYPE_BYTES[dtype]
    own = count * query * head * size
    shared = 2 * kv_count * keys * head * size
    held = Residency(2 * own, gpu)
    dram = memory_seconds(gpu, held.dram * own + shared, held.dram * own)
    through = 2 * own + tiles * 2 * keys * head * size * seen
    idle = np.broadcast_to(idle_latency(gpu), np.shape(dram))
    return dram, through / (gpu.cache.bandwidth * gpu.cache.efficiency), idle


def _slowest(
    compute: FloatArray, moved: tuple[FloatArray, FloatArray, FloatArray], splits: FloatArray, gpu: Gpu
) -> Prediction:
    """A prediction whose time is the slowest of compute, memory and cache, after launch and first loads.

    Split keys take a second, small kernel that joins the parts.
    """
    memory, cache, latency = moved
    times = np.stack(np.broadcast_arrays(compute, memory, cache))
    slowest = times.argmax(axis=0)
    spent = [np.where(slowest == index, time, 0.0) for index, time in enumerate(times)]
    kernels = np.where(splits > 1, 2.0, 1.0)
    return from_parts(
        {
            "launch": kernels * gpu.compute.launch_latency,
            "latency": (kernels + 1) * latency,
            "memory": spent[1],
            "cache": spent[2],
            "compute": spent[0],
        }
    )
