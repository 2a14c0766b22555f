"""Fused attention in closed form: one kernel in the manner of FlashAttention, the scores never in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError
from weft.estimate.answer import Estimate, FloatArray, blend_parts, floats, from_parts, in_sequence, slowest
from weft.estimate.gemm import gemm
from weft.estimate.kernel import SPECIALS_PER_CLOCK, CacheShare, idle_latency, memory_seconds
from weft.estimate.streaming import streaming
from weft.estimate.target import Target
from weft.graph import DTYPE_BYTES, Attention, Gemm, Streaming
from weft.graph.op import width
from weft.graph.streaming import EXP
from weft.hardware import Gpu
from weft.kernels.gemm import main_loop_flops
from weft.kernels.library.served import Library, library, table_of, values_of

QUERY_TILE, KEY_TILE = 128, 64
"""Queries that a workgroup of the fused kernel holds, and keys that it takes at a time (FlashAttention-2,
arXiv:2307.08691: 64 to 128 of each)."""
_GRADIENT_TILE = 128
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
    output. `exponentials` are those on special-function units, which run concurrently with the vector units if
    `beside`, else in turn with them. `hidden` is the share of the shorter of products and softmax that runs
    concurrently with the longer. A workgroup holds `queries`, tile by tile, and takes all of them through the keys that
    any of them sees.
    """

    operations: float
    exponentials: float
    hidden: float
    beside: bool = False
    queries: int = QUERY_TILE


_GENERATIONS = {"blackwell": _Generation(3.5 + 0.25 * EXP, 0.75, 2 / 3, beside=True, queries=2 * QUERY_TILE)}
"""Blackwell's kernels rescale the output rarely, compute a quarter of the exponentials on vector units while special
units compute the others, and run two tiles of queries in turn, unless keys are split (FlashAttention-4,
flash_attn/cute/flash_fwd_sm100.py, q_stage) [assumed: a quarter, and two thirds hidden, 0.5 to 0.8]. With heads of 64
the exponentials take longer than the products."""
_GENERATION = _Generation(6.0, 1.0, 0.5)
"""All others (FlashAttention-2, algorithm 1): two workgroups share a compute unit, or multiply in turn
(FlashAttention-3, arXiv:2407.08608: both kinds of overlap gain 14 % over either) [hidden: assumed; 0.3 to 0.8]."""


def _kernel_of(gpu: Gpu) -> _Generation:
    return _GENERATIONS.get(gpu.architecture, _GENERATION)


class _OlderKernel(NamedTuple):
    """What an older generation of fused kernels reaches, by the newest on an architecture."""

    forward: float
    gradient: float


_FIRST = _OlderKernel(0.68, 0.56)
"""FlashAttention by FlashAttention-2: up to 0.50 beside 0.73 of the peak forward, 0.35 beside 0.63 for the gradient
(arXiv:2307.08691, sections 1 and 4, A100)."""
_AOTRITON = _OlderKernel(0.71, 0.71)
"""Kernels that PyTorch has on AMD's GPUs (AOTriton) by AITER's on MI300X, which are 1.18 to 1.62 times as fast forward
(midiareshadi.github.io/blog/attn-dsl-bench, 2026, seen in an excerpt) [assumed from it, 0.6 to 0.85; gradient and
CDNA4: assumed alike]."""
_SECOND = {
    "hopper": _OlderKernel(0.57, 0.62),
    "blackwell": _OlderKernel(0.57, 0.62),
    "cdna3": _AOTRITON,
    "cdna4": _AOTRITON,
}
"""FlashAttention-2 by FlashAttention-3 on H100, which is 1.5 to 2.0 times as fast forward and 1.5 to 1.75 times for the
gradient (arXiv:2407.08608) [middle of both; Blackwell: assumed alike]."""


def _older(op: Attention, gpu: Gpu) -> _OlderKernel:
    """Rate of the kernels of an attention's generation by that of the newest."""
    newest = _OlderKernel(1.0, 1.0)
    second = _SECOND.get(gpu.architecture, newest)
    if op.generation == 1:
        return _OlderKernel(_FIRST.forward * second.forward, _FIRST.gradient * second.gradient)
    return second if op.generation == 2 else newest


def attention(op: Attention, machine: Target) -> Estimate:
    """Return the time of attention or of its gradient: of separate kernels in sequence, or of one fused kernel.

    Masked attention skips the tiles that no query sees. With few queries the keys are split among workgroups until
    every compute unit has work. Query heads that share keys and values are packed into common tiles and read them once
    (packed GQA, as in FlashAttention-3 and FlashInfer). Kernels of a library of inference take its own costs and shares
    (`_served_attention`). Raises InputError for a dtype that the GPU's matrix units lack.
    """
    if op.library:
        return _served_attention(op, machine)
    if not op.fused:
        return in_sequence([_kernel(kernel, machine) for kernel in op.kernels])
    return _gradient(op, machine) if op.gradient else _forward(op, machine)


def _forward(op: Attention, machine: Target) -> Estimate:
    """Return the fused kernel: workgroups hold queries, and go through the keys that these see."""
    gpu, units = machine.gpu, machine.gpu.compute.compute_units
    query, keys, size = floats(op.query), floats(op.keys), DTYPE_BYTES[op.dtype]
    count, kv_count = floats(op.batch) * op.heads, floats(op.batch) * op.key_heads
    packed = query * count / kv_count
    tiles = kv_count * np.ceil(packed / QUERY_TILE)
    splits = np.clip(np.floor(units / tiles), 1, np.ceil(keys / LEAST_SPLIT))
    per_tile = np.minimum(packed, QUERY_TILE)
    held_queries = np.where(splits > 1, QUERY_TILE, _kernel_of(gpu).queries)
    seen, groups = _computed_share(op, held_queries), kv_count * np.ceil(packed / held_queries)
    scores = tiles * np.ceil(keys / KEY_TILE) * KEY_TILE * seen
    rows = np.ceil(per_tile / 16) * 16  # the fewest rows that a matrix instruction processes
    compute = _unit_seconds(scores * rows, floats(op.head) + op.value_head, tiles * splits, 1.0, op, machine)
    compute = compute / _older(op, gpu).forward
    widths = floats(op.head) + op.value_head
    held = width(op.kv_dtype or op.dtype)
    own, kept = count * query * widths * size, kv_count * keys * widths * held * _key_share(op)
    through = own + groups * keys * widths * held * seen
    memory, cache, latency = _memory_times(own, kept, through, gpu)
    # Split keys need a second, small kernel that combines the partial results.
    return _estimate(compute, memory, cache, latency, np.where(splits > 1, 2.0, 1.0), gpu)


_ROWS = 64
"""Fewest query rows that a library's matrix instruction processes (wgmma and the tensor cores' tiles of FA2)."""
_NARROW = 128
"""Elements of a head whose output all libraries keep in registers beside the scores."""
_BLENDED = 4.0
"""How sharply the longest of compute units, cache and memory decides [assumed, 2 to infinity: it alone counts]."""


def _served_attention(op: Attention, machine: Target) -> Estimate:
    """Attention by a library of inference, as frameworks run it: a prompt ("context") or the next token ("generation").

    One query that looks at several keys of each sequence is generation, all else context. The time is the launch and
    what surrounds the kernel, and the longest of compute units, cache and memory, blended. Raises
    UnknownNameError for an unknown library, InputError for what it has no values of.
    """
    of = library("attention", op.library)
    alone = (floats(op.query) == 1) & (floats(op.keys) > 1)
    cases = {"context": ~alone, "generation": alone}
    done = [(here, _phase(phase, op, machine, of)) for phase, here in cases.items() if np.any(here)]
    if len(done) == 1:
        return from_parts(done[0][1])
    (first, ours), (_, others) = done
    return from_parts({name: np.where(first, ours[name], others[name]) for name in ours})


def _phase(phase: str, op: Attention, machine: Target, of: Library) -> dict[str, FloatArray]:
    names = ["bf16" if dtype == "fp16" else dtype for dtype in (op.dtype, op.kv_dtype or op.dtype)]
    place = table_of("attention", of.name, f"{phase}.{'-'.join(names)}", machine.gpu.architecture)
    own = values_of(place, machine.harness.values)
    if phase not in of.how:
        raise InputError(f"{of.name} has no {phase}; choose another library")
    return (_context if phase == "context" else _generation)(op, machine, of.how[phase], own)


def _spread(workgroups: FloatArray, units: int, total: FloatArray, longest: FloatArray) -> FloatArray:
    """Time of the compute units [s]: the longest workgroup, or all of them evenly and half a workgroup for the tail."""
    return np.where(workgroups <= units, longest, total / units + longest / 2)


def _context(
    op: Attention, machine: Target, how: Mapping[str, float], own: Mapping[str, float]
) -> dict[str, FloatArray]:
    """Return a prompt's kernel: workgroups hold `tile` query rows, of one head or of all that share keys (`packed`)."""
    gpu, units = machine.gpu, machine.gpu.compute.compute_units
    query, keys, widths = floats(op.query), floats(op.keys), floats(op.head) + op.value_head
    count, kv_count = floats(op.batch) * op.heads, floats(op.batch) * op.key_heads
    shared = count / kv_count if how["packed"] else floats(1.0)
    tile, window = how["tile"], floats(op.window) * how["window"]
    workgroups = count / shared * np.ceil(query * shared / tile)
    rows = np.ceil(np.minimum(query * shared, tile) / _ROWS) * _ROWS
    reach = np.where(window > 0, np.minimum(window, keys), keys)
    edge = np.where(window > 0, 2.0, 1.0) * np.minimum(query, np.ceil(tile / shared)) / 2 + KEY_TILE / 2
    whole = np.ceil(keys / KEY_TILE) * KEY_TILE
    pairs = floats(op.pairs) if how["window"] else floats(replace(op, window=0).pairs)
    wide = np.where(floats(op.head) > _NARROW, own.get("wide", 1.0), 1.0)
    rate = own["peak"] * wide * main_loop_flops(op.dtype, gpu, machine.options)
    each = 2 * widths / rate + own["softmax"] / (gpu.vector_lanes * gpu.compute.clock)
    mean, longest = (
        own["begin"] + rows * np.minimum(seen, whole) * each for seen in (pairs / query + edge, reach + edge)
    )
    size, kept = DTYPE_BYTES[op.dtype], kv_count * keys * widths * DTYPE_BYTES[op.kv_dtype or op.dtype]
    busy = blend_parts(
        {
            "compute": _spread(workgroups, units, workgroups * mean, longest),
            "memory": (count * query * widths * size + kept) / (own["memory"] * gpu.memory.bandwidth),
        },
        _BLENDED,
    )
    stored = kept / own["store"] if "store" in own else np.zeros(np.shape(kept))
    return {
        "launch": np.broadcast_to(own["start"], np.shape(kept)),
        "compute": busy["compute"],
        "cache": np.zeros(np.shape(kept)),
        "memory": busy["memory"] + stored,
        "latency": np.zeros(np.shape(kept)),
    }


def _generation(
    op: Attention, machine: Target, how: Mapping[str, float], own: Mapping[str, float]
) -> dict[str, FloatArray]:
    """The next token's kernel: query heads that share keys go in one workgroup if a library packs that number of heads.

    It packs `least` to `most` (0: any number), `rows` to a workgroup; other heads read their keys one by one, through
    the cache. Keys are split among workgroups, which a combination follows.
    """
    gpu, units = machine.gpu, machine.gpu.compute.compute_units
    keys, widths = floats(op.keys), floats(op.head) + op.value_head
    count, kv_count = floats(op.batch) * op.heads, floats(op.batch) * op.key_heads
    group, window = count / kv_count, floats(op.window) * how["window"]
    packed = (group >= how["least"]) & (group <= (how["most"] or np.inf))
    reach = np.where(window > 0, np.minimum(window, keys), keys)
    rows = how.get("rows", _ROWS)
    readers = np.where(packed, np.ceil(group / rows), group)  # how often keys are read
    splits = how.get("waves", 2) * units / (kv_count * readers)
    splits = np.clip(np.floor(splits), 1, np.ceil(reach / LEAST_SPLIT))
    splits = np.where(packed | bool(how["split"]), splits, 1.0)
    workgroups = kv_count * readers * splits
    element = DTYPE_BYTES[op.kv_dtype or op.dtype]
    step = own["step"] * widths * element / _STEP_BYTES
    if "peak" in own:
        rate = own["peak"] * main_loop_flops(op.dtype, gpu, machine.options)
        step = np.maximum(step, 2 * rows * KEY_TILE * widths / rate)
    begin = np.where(packed, own["begin"], own.get("single", own["begin"]))
    longest = begin + np.ceil(reach / splits / KEY_TILE) * step
    stored = floats(op.head) if how.get("latent") else widths  # a latent key holds its value
    kept, passed = kv_count * reach * stored * element, count * widths * DTYPE_BYTES[op.dtype]
    held = CacheShare(kept, gpu)
    busy = blend_parts(
        {
            "compute": _spread(workgroups, units, workgroups * longest, longest),
            "cache": (readers * kept + passed) / (own["cache"] * gpu.cache.bandwidth * gpu.cache.efficiency),
            "memory": (1 - held.cache) * kept / (own["memory"] * gpu.memory.bandwidth),
        },
        _BLENDED,
    )
    return {
        "launch": np.broadcast_to(own["start"], np.shape(kept)),
        **busy,
        "latency": np.where(splits > 1, own["combine"], 0.0),
    }


_STEP_BYTES = 512
"""Bytes of a key and its value in a step of reference: 128 elements of 16 bits each."""


def _gradient(op: Attention, machine: Target) -> Estimate:
    """Return the gradient's kernels: workgroups hold keys and values, and go through the queries that see them.

    A kernel before it multiplies the output and its gradient; gradients of queries are added up in fp32 in the cache
    and converted by a kernel behind it; so are those of keys and values if query heads share them.
    """
    gpu, size = machine.gpu, DTYPE_BYTES[op.dtype]
    query, keys, count = floats(op.query), floats(op.keys), floats(op.batch) * op.heads
    head, value = floats(op.head), floats(op.value_head)
    tiles = count * np.ceil(keys / _GRADIENT_TILE)
    seen = _computed_share(op, _GRADIENT_TILE)
    scores = tiles * _GRADIENT_TILE * np.ceil(query / KEY_TILE) * KEY_TILE * seen
    compute = _unit_seconds(scores, 3 * head + 2 * value, tiles, GRADIENT_RATE, op, machine) / _older(op, gpu).gradient
    sums = count * query * head * 4
    own, kept = 2 * count * query * (head + value) * size, 2 * count * keys * (head + value) * size
    through = own + kept + tiles * query * (head * (size + 4) + value * size) * seen
    memory, cache, latency = _memory_times(own, kept, through, gpu)
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


def _computed_share(op: Attention, tile: npt.ArrayLike) -> FloatArray:
    """Return the share of the scores that tiles compute: those that a mask keeps, and whole tiles along its edges."""
    query, keys = floats(op.query), floats(op.keys)
    edges = np.where(floats(op.window) > 0, 2.0, 1.0) * np.minimum(query, tile) / 2
    share: FloatArray = np.minimum((floats(op.pairs) / query + edges) / keys, 1.0)
    return share


def _key_share(op: Attention) -> FloatArray:
    """Return the share of the keys that some query sees."""
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
    how = _kernel_of(machine.gpu)
    each = np.ceil(workgroups / compute.compute_units) / workgroups  # of all work, on the fullest unit
    matrix = 2 * scores * width / (rate * main_loop_flops(op.dtype, machine.gpu, machine.options))
    vector_clocks, special_clocks = how.operations / machine.gpu.vector_lanes, how.exponentials / SPECIALS_PER_CLOCK
    clocks = max(vector_clocks, special_clocks) if how.beside else vector_clocks + special_clocks
    vector = scores * clocks / compute.clock
    busy: FloatArray = matrix + vector - how.hidden * np.minimum(matrix, vector)
    return each * (busy + workgroups * machine.gpu.achieved.gemm_fill)


def _memory_times(
    own: FloatArray, kept: FloatArray, through: FloatArray, gpu: Gpu
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Time in DRAM and in the cache, and the latency of the first loads [s]; keys and values are read once per tile.

    `own` counts the bytes of queries and output; `kept` those of keys and values, which come from DRAM, since other
    layers have used the cache since they were written.
    """
    held = CacheShare(2 * own, gpu)
    dram = memory_seconds(gpu, held.dram * own + kept, held.dram * own)
    idle = np.broadcast_to(idle_latency(gpu), np.shape(dram))
    return dram, through / (gpu.cache.bandwidth * gpu.cache.efficiency), idle
