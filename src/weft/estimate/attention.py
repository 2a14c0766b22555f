"""Fused attention in closed form: one kernel in the manner of FlashAttention, the scores never in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.estimate.answer import Estimate, FloatArray, floats, from_parts, in_sequence, slowest
from weft.estimate.gemm import gemm
from weft.estimate.kernel import SPECIALS_PER_CLOCK, Residency, idle_latency, memory_seconds
from weft.estimate.streaming import streaming
from weft.estimate.target import Target
from weft.graph import DTYPE_BYTES, Attention, Gemm, Streaming
from weft.graph.streaming import EXP
from weft.hardware import Gpu
from weft.kernels.gemm import main_loop_flops

QUERY_TILE, KEY_TILE = 128, 64
"""Queries that a workgroup of the fused kernel holds, and keys that it takes at a time (FlashAttention-2,
arXiv:2307.08691: 64 to 128 of each)."""
GRADIENT_TILE = 128
"""Keys that a workgroup of the gradient's kernel holds while it goes through the queries (FlashAttention-2)."""
LEAST_SPLIT = 256
"""Fewest keys per workgroup when keys are split among workgroups because there are few queries (Flash-Decoding)."""
GRADIENT_RATE = 0.72
"""Rate of the gradient's products by that of the forward pass [derived; 0.65 to 0.85]: all operands of its five
products pass through local memory, 88 B a score at 128 elements a head on A100, which takes as long as the products.
Published: 0.63 of the peak beside 0.73 forward on A100 (arXiv:2307.08691), 1248 to 1360 beside 1535 TFLOP/s on B200
(Dao-AILab/flash-attention pull request 2280)."""


class _Generation(NamedTuple):
    """How a generation of fused kernels computes the softmax of a score.

    `operations` are vector operations: scale and subtraction, maximum, sum, conversion, and its share of rescaling the
    output. `exponentials` are those on special-function units. `hidden` is the share of the shorter of products and
    softmax that runs beside the longer.
    """

    operations: float
    exponentials: float
    hidden: float


_GENERATIONS = {"blackwell": _Generation(3.5 + 0.25 * EXP, 0.75, 0.9)}
"""Blackwell's kernels rescale the output rarely, compute a quarter of the exponentials on vector units, and run two
tiles of queries in turn (FlashAttention-4) [assumed: a quarter, and nine tenths hidden]."""
_GENERATION = _Generation(6.0, 1.0, 0.5)
"""All others (FlashAttention-2, algorithm 1): two workgroups share a compute unit, or multiply in turn
(FlashAttention-3, arXiv:2407.08608: both kinds of overlap gain 14 % over either) [hidden: assumed; 0.3 to 0.8]."""


class _Older(NamedTuple):
    """What an older generation of fused kernels reaches, by the newest on an architecture."""

    forward: float
    gradient: float


_FIRST = _Older(0.68, 0.56)
"""FlashAttention by FlashAttention-2: up to 0.50 beside 0.73 of the peak forward, 0.35 beside 0.63 for the gradient
(arXiv:2307.08691, sections 1 and 4, A100)."""
_SECOND = {"hopper": _Older(0.57, 0.62), "blackwell": _Older(0.57, 0.62)}
"""FlashAttention-2 by FlashAttention-3 on H100, which is 1.5 to 2.0 times as fast forward and 1.5 to 1.75 times for the
gradient (arXiv:2407.08608) [middle of both; Blackwell: assumed alike]."""


def _older(op: Attention, gpu: Gpu) -> _Older:
    """Rate of the kernels of an attention's generation by that of the newest."""
    newest = _Older(1.0, 1.0)
    second = _SECOND.get(gpu.architecture, newest)
    if op.generation == 1:
        return _Older(_FIRST.forward * second.forward, _FIRST.gradient * second.gradient)
    return second if op.generation == 2 else newest


def attention(op: Attention, machine: Target) -> Estimate:
    """The time of attention or of its gradient: of separate kernels in sequence, or of one fused kernel.

    Masked attention skips the tiles that no query sees. With few queries the keys are split among workgroups until
    every compute unit has work. Query heads that share keys and values are packed into common tiles and read them once
    (packed GQA, as in FlashAttention-3 and FlashInfer). Raises InputError for a dtype that the GPU's matrix units lack.
    """
    if not op.fused:
        return in_sequence([_kernel(kernel, machine) for kernel in op.kernels])
    return _gradient(op, machine) if op.gradient else _forward(op, machine)


def _forward(op: Attention, machine: Target) -> Estimate:
    """The fused kernel: workgroups hold queries, and go through the keys that these see."""
    gpu, units = machine.gpu, machine.gpu.compute.compute_units
    query, keys, size = floats(op.query), floats(op.keys), DTYPE_BYTES[op.dtype]
    count, kv_count = floats(op.batch) * op.heads, floats(op.batch) * op.key_heads
    packed = query * count / kv_count
    tiles = kv_count * np.ceil(packed / QUERY_TILE)
    splits = np.clip(np.floor(units / tiles), 1, np.ceil(keys / LEAST_SPLIT))
    per_tile = np.minimum(packed, QUERY_TILE)
    seen = _seen(op, QUERY_TILE)
    scores = tiles * np.ceil(keys / KEY_TILE) * KEY_TILE * seen
    rows = np.ceil(per_tile / 16) * 16  # the fewest rows that a matrix instruction processes
    compute = _unit_seconds(scores * rows, floats(op.head) + op.value_head, tiles * splits, 1.0, op, machine)
    compute = compute / _older(op, gpu).forward
    widths = floats(op.head) + op.value_head
    own, kept = count * query * widths * size, kv_count * keys * widths * size * _reached(op)
    through = own + tiles * keys * widths * size * seen
    memory, cache, latency = _moved(own, kept, through, gpu)
    # Split keys need a second, small kernel that combines the partial results.
    return _estimate(compute, memory, cache, latency, np.where(splits > 1, 2.0, 1.0), gpu)


def _gradient(op: Attention, machine: Target) -> Estimate:
    """The gradient's kernels: workgroups hold keys and values, and go through the queries that see them.

    A kernel before it multiplies the output and its gradient; gradients of queries are added up in fp32 in the cache
    and converted by a kernel behind it; so are those of keys and values if query heads share them.
    """
    gpu, size = machine.gpu, DTYPE_BYTES[op.dtype]
    query, keys, count = floats(op.query), floats(op.keys), floats(op.batch) * op.heads
    head, value = floats(op.head), floats(op.value_head)
    tiles = count * np.ceil(keys / GRADIENT_TILE)
    seen = _seen(op, GRADIENT_TILE)
    scores = tiles * GRADIENT_TILE * np.ceil(query / KEY_TILE) * KEY_TILE * seen
    compute = _unit_seconds(scores, 3 * head + 2 * value, tiles, GRADIENT_RATE, op, machine) / _older(op, gpu).gradient
    sums = count * query * head * 4
    own, kept = 2 * count * query * (head + value) * size, 2 * count * keys * (head + value) * size
    through = own + kept + tiles * query * (head * (size + 4) + value * size) * seen
    memory, cache, latency = _moved(own, kept, through, gpu)
    shared = np.where(count > floats(op.batch) * op.key_heads, kept / 2, 0.0)
    before, behind = memory_seconds(gpu, own / 2, sums), memory_seconds(gpu, sums + shared, sums / 4 * size + shared)
    return _estimate(compute, memory, cache, latency, floats(3.0), gpu, before + behind)


def _estimate(
    compute: FloatArray,
    memory: FloatArray,
    cache: FloatArray,
    latency: FloatArray,
    kernels: FloatArray,
    gpu: Gpu,
    beside: FloatArray | float = 0.0,
) -> Estimate:
    """The estimate of a main kernel, bounded by its slowest part, and of smaller ones that spend `beside` in memory."""
    spent = slowest({"compute": compute, "memory": memory, "cache": cache})
    return from_parts(
        {
            "launch": kernels * gpu.compute.launch_latency,
            "latency": (kernels + 1) * latency,
            "memory": spent["memory"] + beside,
            "cache": spent["cache"],
            "compute": spent["compute"],
        }
    )


def _kernel(kernel: Gemm | Streaming, machine: Target) -> Estimate:
    return gemm(kernel, machine) if isinstance(kernel, Gemm) else streaming(kernel, machine)


def _seen(op: Attention, tile: int) -> FloatArray:
    """Share of the scores that tiles compute: those that a mask keeps, and whole tiles along its edges."""
    query, keys = floats(op.query), floats(op.keys)
    edges = np.where(floats(op.window) > 0, 2.0, 1.0) * np.minimum(query, tile) / 2
    share: FloatArray = np.minimum((floats(op.pairs) / query + edges) / keys, 1.0)
    return share


def _reached(op: Attention) -> FloatArray:
    """Share of the keys that some query sees."""
    reach = np.where(floats(op.window) > 0, floats(op.window) + op.query, floats(op.keys))
    share: FloatArray = np.minimum(reach / op.keys, 1.0)
    return share


def _unit_seconds(
    scores: FloatArray, width: FloatArray, workgroups: FloatArray, rate: float, op: Attention, machine: Target
) -> FloatArray:
    """Time of the compute units [s]: products and softmax, partly side by side, and the workgroups' begin and end.

    A score takes `width` multiply-adds, at a share `rate` of the main loop's; the fullest unit sets the pace.
    """
    compute = machine.gpu.compute
    how = _GENERATIONS.get(machine.gpu.architecture, _GENERATION)
    each = np.ceil(workgroups / compute.compute_units) / workgroups  # of all work, on the fullest unit
    matrix = 2 * scores * width / (rate * main_loop_flops(op.dtype, machine.gpu, machine.options))
    clocks = scores * (how.operations / machine.gpu.vector_lanes + how.exponentials / SPECIALS_PER_CLOCK)
    vector = clocks / compute.clock
    busy: FloatArray = matrix + vector - how.hidden * np.minimum(matrix, vector)
    return each * (busy + workgroups * machine.gpu.achieved.gemm_fill)


def _moved(
    own: FloatArray, kept: FloatArray, through: FloatArray, gpu: Gpu
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Time in DRAM and in the cache, and the latency of the first loads [s]; keys and values are read once per tile.

    `own` counts the bytes of queries and output; `kept` those of keys and values, which come from DRAM, since other
    layers have used the cache since they were written.
    """
    held = Residency(2 * own, gpu)
    dram = memory_seconds(gpu, held.dram * own + kept, held.dram * own)
    idle = np.broadcast_to(idle_latency(gpu), np.shape(dram))
    return dram, through / (gpu.cache.bandwidth * gpu.cache.efficiency), idle
