"""Fused attention in closed form: one kernel in the manner of FlashAttention, the scores never in memory."""

from __future__ import annotations

import numpy as np

from weft.estimate.answer import Estimate, FloatArray, floats, from_parts, in_sequence, slowest
from weft.estimate.gemm import gemm
from weft.estimate.kernel import SPECIALS_PER_CLOCK, Residency, idle_latency, memory_seconds
from weft.estimate.streaming import streaming
from weft.estimate.target import Target
from weft.graph import DTYPE_BYTES, Attention, Gemm, Streaming
from weft.hardware import Gpu
from weft.kernels.gemm import main_loop_flops

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


def attention(op: Attention, on: Target) -> Estimate:
    """The time of attention: of its kernels one after the other, or of the fused one.

    Masked attention skips the tiles above the diagonal, half of them in the limit. With few queries the keys are
    split among workgroups until every compute unit has some. Query heads that share keys and values share tiles, and so
    read them together (packed GQA, as in FlashAttention-3 and FlashInfer). Raises InputError for a dtype that the GPU's
    matrix units lack.
    """
    if not op.fused:
        return in_sequence([_kernel(kernel, on) for kernel in op.kernels])
    gpu, units = on.gpu, on.gpu.compute.compute_units
    query, keys, head = floats(op.query), floats(op.keys), floats(op.head)
    count = floats(op.batch) * op.heads
    kv_count = floats(op.batch) * op.key_heads
    packed = query * count / kv_count
    tiles = kv_count * np.ceil(packed / QUERY_TILE)
    splits = np.clip(np.floor(units / tiles), 1, np.ceil(keys / LEAST_SPLIT))
    per_tile = np.minimum(packed, QUERY_TILE)
    seen = np.where(floats(op.causal) > 0, _causal_share(query, keys), 1.0)
    scores = tiles * np.ceil(keys / KEY_TILE) * KEY_TILE * seen
    rows = np.ceil(per_tile / 16) * 16  # what a matrix instruction takes at least
    share = np.ceil(tiles * splits / units) / (tiles * splits) * units
    matrix, vector = _unit_seconds(scores * rows, head, op.dtype, on)
    hidden = HIDDEN * np.minimum(matrix, vector) if gpu.architecture in _OVERLAPPING else 0.0
    size = DTYPE_BYTES[op.dtype]
    own, kept = count * query * head * size, 2 * kv_count * keys * head * size
    through = 2 * own + tiles * 2 * keys * head * size * seen
    memory, cache, latency = _moved(own, kept, through, gpu)
    spent = slowest({"compute": share * (matrix + vector - hidden), "memory": memory, "cache": cache})
    kernels = np.where(splits > 1, 2.0, 1.0)  # split keys take a second, small kernel that joins the parts
    return from_parts(
        {
            "launch": kernels * gpu.compute.launch_latency,
            "latency": (kernels + 1) * latency,
            "memory": spent["memory"],
            "cache": spent["cache"],
            "compute": spent["compute"],
        }
    )


def _kernel(kernel: Gemm | Streaming, on: Target) -> Estimate:
    return gemm(kernel, on) if isinstance(kernel, Gemm) else streaming(kernel, on)


def _causal_share(query: FloatArray, keys: FloatArray) -> FloatArray:
    """Share of the scores that a mask leaves, if the last query sees every key; whole tiles on the diagonal."""
    share: FloatArray = 1 - np.maximum(query - QUERY_TILE, 0) / (2 * np.maximum(query, keys))
    return share


def _unit_seconds(scores: FloatArray, head: FloatArray, dtype: str, on: Target) -> tuple[FloatArray, FloatArray]:
    """Time of all matrix units and of all vector units for a number of scores [s]."""
    gpu = on.gpu
    rate = gpu.compute.compute_units * main_loop_flops(dtype, gpu, on.options)
    matrix = 4 * scores * head / rate
    clocks = scores * (OPERATIONS_PER_SCORE / gpu.vector_lanes + 1 / SPECIALS_PER_CLOCK)
    return matrix, clocks / (gpu.compute.compute_units * gpu.compute.clock)


def _moved(
    own: FloatArray, kept: FloatArray, through: FloatArray, gpu: Gpu
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Time in DRAM and in the cache, and the latency of its first loads [s]: keys and values once per tile.

    `own` are the bytes of the queries, and of the output, `kept` those of keys and values, which come from memory:
    since they were written, other layers have used the cache.
    """
    held = Residency(2 * own, gpu)
    dram = memory_seconds(gpu, held.dram * own + kept, held.dram * own)
    idle = np.broadcast_to(idle_latency(gpu), np.shape(dram))
    return dram, through / (gpu.cache.bandwidth * gpu.cache.efficiency), idle
