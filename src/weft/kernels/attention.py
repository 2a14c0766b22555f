"""Fused attention: workgroups hold queries and go through keys, or, for the gradient, hold keys and go through queries.

The scores stay on the chip. A workgroup multiplies at the rate of a GEMM's main loop; half of the shorter of products
and softmax hides behind the longer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import ChunkLoad, ChunkStore, Kernel, Phase
from weft.engine.program.plan import Work
from weft.graph import Attention
from weft.graph.op import width
from weft.graph.streaming import EXP
from weft.hardware import Gpu
from weft.kernels.gemm import main_loop_flops, running_clock

HELD, TAKEN = 128, 64
"""Queries (for the gradient: keys) that a workgroup holds, and keys (queries) that it takes at a time
(FlashAttention-2, arXiv:2307.08691: 64 to 128 of each)."""
THREADS = 256
RESIDENT = 2
"""Workgroups on a compute unit [assumed; 1 to 3: FlashAttention-2's registers and local memory allow two]."""
_SOFTMAX_OPERATIONS = 6 + EXP
"""Vector operations of a score: scale, subtraction, maximum, exponential, sum, conversion (arXiv:2307.08691)."""
HIDDEN = 0.5
"""Share of the shorter of products and softmax that runs concurrently with the longer [assumed; 0.3 to 0.8]."""
GRADIENT_RATE = 0.72
"""Rate of the gradient's products by that of the forward pass (arXiv:2307.08691: 0.63 beside 0.73 of the peak)
[derived; 0.65 to 0.85]."""

Place = tuple[str, int]
"""A buffer, and the position of a chunk in it."""


def attention_tiles(op: Attention) -> Work:
    """The tiles that workgroups hold, one row each: their place among all heads' queries (or keys), and their head.

    Outputs are rows of the output, or the gradients of keys and values.
    """
    length, size = (op.keys if op.gradient else op.query), width(op.dtype)
    heads, tiles = op.batch * op.heads, -(-length // HELD)
    row_bytes = int((op.head + op.value_head if op.gradient else op.value_head) * size)
    head, tile = np.divmod(np.arange(heads * tiles), tiles)
    work = np.zeros((heads * tiles, y.WORK_FIELDS), dtype=np.int64)
    work[:, y.WORK_ROW] = np.arange(len(work))
    work[:, y.WORK_COLUMN] = head // max(op.heads // op.key_heads, 1) if not op.gradient else head
    work[:, y.WORK_ROWS] = np.minimum(HELD, length - tile * HELD)
    work[:, y.WORK_COLUMNS] = 1
    work[:, y.WORK_BYTES] = work[:, y.WORK_ROWS] * row_bytes
    work[:, y.WORK_OFFSET] = (head * length + tile * HELD) * row_bytes
    work[:, y.WORK_TILE] = np.arange(len(work))
    return work


def attention_kernel(
    op: Attention, gpu: Gpu, options: RunOptions, operator: str, at: Mapping[str, Place], name: str
) -> Kernel:
    """The kernel of fused attention or of its gradient; `at` says where "query", "keys", "values", "output" lie, for
    the gradient also "sums", the fp32 sums of the gradients of queries.

    Of a masked attention every workgroup goes through the mean of what all see.
    """
    size, held = width(op.dtype), min(HELD, op.keys if op.gradient else op.query)
    walked = op.query if op.gradient else op.keys
    steps = -(-walked // TAKEN)
    iterations = max(1, round(steps * seen_share(op)))
    products = 3 * op.head + 2 * op.value_head if op.gradient else op.head + op.value_head
    rate = main_loop_flops(op.dtype, gpu, options) * (GRADIENT_RATE if op.gradient else 1.0)
    multiplied = 2 * held * TAKEN * products / rate * running_clock(gpu, options)
    softmax = held * TAKEN * _SOFTMAX_OPERATIONS / gpu.vector_lanes
    cycles = max(multiplied, softmax) + (1 - HIDDEN) * min(multiplied, softmax)

    def walk(which: str, columns: int) -> ChunkLoad:
        row = int(columns * size)
        return ChunkLoad(*at[which], operator, TAKEN * row, 0, column_stride=walked * row, cached=True)

    def hold(which: str, columns: int) -> ChunkLoad:
        row, length = int(columns * size), op.keys if op.gradient else op.query
        every = length * row // -(-length // HELD)
        return ChunkLoad(*at[which], operator, row, 0, every, row, extent=y.EXTENT_ROWS, cached=True)

    own: tuple[ChunkLoad, ...] = (hold("query", op.head),)
    taken = walk("keys", op.head), walk("values", op.value_head)
    sums: tuple[ChunkStore, ...] = ()
    if op.gradient:
        own = hold("keys", op.head), hold("values", op.value_head)
        taken = walk("query", op.head), walk("output", op.value_head)
        row, tiles = int(op.head * 4), -(-op.keys // HELD)
        sums = (ChunkStore(*at["sums"], operator, TAKEN * row, 0, op.query * row // tiles, TAKEN * row),)
    return Kernel(
        name=name,
        workgroups=len(attention_tiles(op)),
        threads=THREADS,
        registers=gpu.compute.registers_per_cu // RESIDENT,
        lds=0,
        phases=(
            Phase(1, 1, 0, loads=own),
            Phase(iterations, min(2, iterations), cycles, loads=taken, stores=sums),
            Phase(1, 1, 0, stores=(ChunkStore("output", 0, operator),)),
        ),
        tiled=True,
    )


def seen_share(op: Attention) -> float:
    """Return the share of all keys that a query sees on average, whole tiles counted."""
    if not op.causal:
        return 1.0
    share = min(op.query / op.keys, 1.0)
    whole = 1 - share / 2 + HELD / 2 / op.keys
    return min(whole, (op.window + HELD) / op.keys, 1.0) if op.window else min(whole, 1.0)
