"""A tiled GEMM: every workgroup computes one output tile, walking K with a bounded number of steps in flight."""

from __future__ import annotations

import numpy as np

from weft.core.errors import UnknownNameError
from weft.core.options import SUSTAINED, RunOptions
from weft.engine import layout as y
from weft.engine.program import Buffer, ChunkLoad, ChunkStore, Kernel, Phase
from weft.engine.program.plan import Work, scripts
from weft.graph import Gemm
from weft.graph.tiling import GemmTiling
from weft.hardware import Gpu
from weft.hardware.gpus import rated_as

_LONG_RUN = 0.94
"""Share of the matrix rate at the sustained clock (ROCm/rocm-blogs: MI300X 0.942, MI325X 0.936, bf16)."""
OVERHEAD_REGISTERS = 32
"""Registers per thread besides accumulators and operands: addresses, loop counters, fragments [assumed]."""


def gemm_kernel(
    gemm: Gemm, gpu: Gpu, tiling: GemmTiling, options: RunOptions = SUSTAINED, operator: str = "gemm", prefix: str = ""
) -> Kernel:
    """The GEMM's kernel: a loop over K loads slabs of A and B and multiplies; then the tile, or the partial sums of a
    part of K, are stored.

    Operands lie slab by slab (a tile's rows for one K step are contiguous), as packed or swizzled operands do, part of
    K by part of K, in the buffers "a" and "b" with `prefix` before their names. All traffic counts as that of
    `operator`. `options` give the clock of the compute units.
    """
    registers, lds = claims(gemm, gpu, tiling)
    parts = range(tiling.splits)
    return Kernel(
        name="gemm",
        workgroups=tiling.workgroups(gemm),
        threads=tiling.threads,
        registers=registers,
        lds=lds,
        phases=scripts(*(_script(gemm, gpu, tiling, options, part, operator, prefix) for part in parts)),
        tiled=True,
        script_of=tuple(parts) if tiling.splits > 1 else (),
        in_step=bool(gpu.compute.stages_in_step),
    )


def _script(
    gemm: Gemm, gpu: Gpu, tiling: GemmTiling, options: RunOptions, part: int, operator: str, prefix: str
) -> tuple[Phase, ...]:
    """Return the script of a workgroup for one part of K."""
    rows, columns = tiling.grid(gemm)
    steps = tiling.part_steps(gemm)
    unit = tiling.step * gemm.element_bytes
    short = sum(steps) * tiling.step - gemm.k  # by how much the last K step is shorter
    last = unit - short * gemm.element_bytes if part == tiling.splits - 1 else unit
    slab_a, slab_b = tiling.rows * unit, tiling.columns * unit
    # Time to begin and end a workgroup, without the fetch of the first slabs [s].
    fetch = (slab_a + slab_b) / (gpu.compute.port_bytes_per_clock * running_clock(gpu, options))
    begin = max(0.0, gpu.achieved.gemm_fill - gpu.cache.latency - gpu.memory.latency - fetch)
    load_a = ChunkLoad(
        f"{prefix}a", 0, operator, unit, last, slab_a * steps[0], slab_a,
        extent=y.EXTENT_ROWS, cached=True, shared_by_columns=min(tiling.share_columns, columns),
    )  # fmt: skip
    load_b = ChunkLoad(
        f"{prefix}b", 0, operator, unit, last, 0, slab_b,
        extent=y.EXTENT_COLUMNS, column_stride=slab_b * steps[0], cached=True,
        shared_by_rows=min(tiling.share_rows, rows),
    )  # fmt: skip
    return (
        Phase(
            iterations=steps[part],
            slots=min(tiling.slots, steps[part]),
            cycles=step_cycles(gemm, gpu, tiling, options),
            loads=(load_a, load_b),
            delay_fs=round(begin * 1e15),
            staged=gpu.vendor != "none",  # the paper's kernel keeps the order under which its stages were studied
        ),
        Phase(1, 1, 0, stores=(ChunkStore("output", 0, operator),)),
    )


def running_clock(gpu: Gpu, options: RunOptions) -> float:
    """Return the compute units' clock in a "short" or a "sustained" run [hertz]; UnknownNameError for other names.

    A machine without a vendor has no power limit.
    """
    limit = gpu.compute.clock if gpu.vendor == "none" else gpu.clocks.sustained
    clocks = {"short": gpu.compute.clock, "sustained": min(gpu.compute.clock, limit)}
    if options.clock not in clocks:
        raise UnknownNameError("clock of a simulated run", options.clock, clocks)
    return clocks[options.clock]


def main_loop_flops(dtype: str, gpu: Gpu, options: RunOptions) -> float:
    """Main-loop rate of a tuned GEMM on one compute unit [FLOP/s]; InputError for an unsupported dtype.

    In a short run it is a measured share of the rate at the boost clock, which includes the effect of a falling clock;
    in a long run it is at most _LONG_RUN of the rate at the sustained clock of its number format.
    """
    gpu.matrix_rate(dtype)
    field = rated_as(dtype)
    rate = float(getattr(gpu.rates, field))
    # There are no measurements of fp64: it is assumed to reach fp32's share.
    reached = rate * gpu.compute.clock * float(getattr(gpu.achieved, f"matrix_{field}", gpu.achieved.matrix_fp32))
    running = running_clock(gpu, options)
    if running >= gpu.compute.clock:
        return reached
    own = {"fp8": gpu.clocks.sustained_fp8, "fp16": gpu.clocks.sustained_fp16, "fp32": gpu.clocks.sustained_fp32}
    held = own.get(field) or running
    return min(reached, rate * held * _LONG_RUN)


PROMOTED = (0.0, 1.0, 2.25)
"""Vector instructions for each sum of 128 products that is scaled and added to others in fp32, by how many operands are
`scaled`: a multiply-add; a product of scales more, and a quarter of a load of these (deepseek-ai/DeepGEMM @54e2261
sm90_fp8_gemm_1d2d.cuh, sm90_fp8_gemm_1d1d.cuh)."""
_PROMOTES = ("ada", "blackwell-rtx", "hopper")
"""Architectures whose vector units scale sums; matrix units do on Blackwell with tensor memory."""


def promoted_share(scaled: int, dtype: str, gpu: Gpu, options: RunOptions) -> float:
    """Return the share of the main-loop rate that remains where vector units scale and add each sum of 128 products.

    A warpgroup waits for its products before it adds them. Raises as `main_loop_flops`.
    """
    if not scaled or gpu.architecture not in _PROMOTES:
        return 1.0
    lanes = gpu.vector_lanes * running_clock(gpu, options)
    return 1 / (1 + PROMOTED[scaled] / (2 * 128) * main_loop_flops(dtype, gpu, options) / lanes)


def step_cycles(gemm: Gemm, gpu: Gpu, tiling: GemmTiling, options: RunOptions) -> float:
    """Compute-unit cycles of one K step of a workgroup: its products, and its share of the issue cost.

    Resident workgroups hide each other's issue, so it is paid once for all of them.
    """
    products = 2 * tiling.rows * tiling.columns * tiling.step / main_loop_flops(gemm.dtype, gpu, options)
    issue = gpu.achieved.gemm_issue / gpu.compute.clock / max(tiling.resident, 1)
    return (products + issue) * running_clock(gpu, options)


def claims(gemm: Gemm, gpu: Gpu, tiling: GemmTiling) -> tuple[int, int]:
    """Registers and local memory of a workgroup [bytes], sized so that `tiling.resident` share a compute unit.

    Registers hold accumulators, one K step of operands, and overhead; local memory `tiling.stages` K steps.
    """
    operands = (tiling.rows + tiling.columns) * tiling.step * gemm.element_bytes
    accumulators = tiling.rows * tiling.columns * gemm.accumulator_bytes
    registers = accumulators + operands + OVERHEAD_REGISTERS * tiling.threads * 4
    lds = tiling.stages * operands
    if not tiling.resident:
        return registers, lds
    c, each = gpu.compute, tiling.resident
    registers, lds = min(registers, c.registers_per_cu // each), min(lds, c.lds_per_cu // each)
    if min(c.registers_per_cu // registers, c.lds_per_cu // lds) > each:  # libraries reserve local memory for that
        lds = c.lds_per_cu // (each + 1) + 1
    return registers, lds


def operand_sizes(gemm: Gemm, tiling: GemmTiling) -> tuple[int, int]:
    """Return the sizes of A and B in memory, padded to whole slabs and equal parts of K [bytes]."""
    rows, columns = tiling.grid(gemm)
    slab = tiling.step * gemm.element_bytes * tiling.part_steps(gemm)[0] * tiling.splits * gemm.batch
    return rows * tiling.rows * slab, columns * tiling.columns * slab


def operands(gemm: Gemm, tiling: GemmTiling, prefix: str = "") -> list[Buffer]:
    """Return a and B as the buffers "a" and "b" with `prefix` before their names."""
    return [Buffer(prefix + name, ((size,),)) for name, size in zip("ab", operand_sizes(gemm, tiling), strict=True)]


def tile_table(gemm: Gemm, tiling: GemmTiling, chunks: int, first_chunk: int = 0, nodes: int = 1) -> Work:
    """Return the output tiles in run order, one row each: chunk by chunk, beginning with `first_chunk` (the stagger).

    Chunks cut the longer side of the tile grid, so that a chunk is as square as can be and its operands are reused in
    the cache; they are equal runs of tiles in raster order. With several `nodes`, the chunks of a node stay together:
    those of the first chunk's node from it on, around the node, then the next node's likewise. Where K is cut, its
    parts follow each other, and the tiles of each part fill a chunk of partial sums. The tiles of a batch's GEMMs
    follow each other.
    """
    parts = np.array_split(_raster(gemm, tiling, chunks), chunks)
    ordered = [parts[chunk] for chunk in _stagger_chunks(chunks, first_chunk, nodes)]
    lengths, tiles = [len(part) for part in ordered], np.concatenate(ordered)
    table = np.zeros((len(tiles), y.WORK_FIELDS), dtype=np.int64)
    table[:, y.WORK_ROW], table[:, y.WORK_COLUMN] = tiles[:, 0], tiles[:, 1]
    table[:, y.WORK_ROWS] = np.minimum(tiling.rows, gemm.m - tiles[:, 0] * tiling.rows)
    table[:, y.WORK_COLUMNS] = np.minimum(tiling.columns, gemm.n - tiles[:, 1] * tiling.columns)
    table[:, y.WORK_BYTES] = table[:, y.WORK_ROWS] * table[:, y.WORK_COLUMNS] * gemm.output_element_bytes
    table[:, y.WORK_REGION] = np.repeat(np.arange(chunks), lengths)
    before, first = np.cumsum(table[:, y.WORK_BYTES]) - table[:, y.WORK_BYTES], np.cumsum(lengths) - lengths
    table[:, y.WORK_OFFSET] = before - before[np.repeat(first, lengths)]
    if tiling.splits > 1:
        table = _part_by_part(table, gemm, tiling)
    elif gemm.batch > 1:
        table = _one_by_one(table, gemm, tiling)
    table[:, y.WORK_TILE] = np.arange(len(table))
    return table


def _stagger_chunks(chunks: int, first: int, nodes: int) -> list[int]:
    """Return the order of chunks from the `first` one on, the places in a node inside, the nodes outside."""
    each = chunks // nodes
    node, place = divmod(first, each)
    return [(node + q) % nodes * each + (place + s) % each for q in range(nodes) for s in range(each)]


def in_parts(tiles: Work, gemm: Gemm, tiling: GemmTiling) -> Work:
    """The tiles of the output, repeated for every part of K; each part's slabs follow those of the part before."""
    work = np.concatenate([tiles] * tiling.splits)
    part = np.repeat(np.arange(tiling.splits), len(tiles))
    rows, columns = tiling.grid(gemm)
    work[:, y.WORK_ROW] += part * rows
    work[:, y.WORK_COLUMN] += part * columns
    work[:, y.WORK_SCRIPT] = part
    return work


def _part_by_part(tiles: Work, gemm: Gemm, tiling: GemmTiling) -> Work:
    """Return the tiles for every part of K, each with a chunk of partial sums of its own."""
    work = in_parts(tiles, gemm, tiling)
    work[:, y.WORK_REGION] = work[:, y.WORK_SCRIPT]
    for column in (y.WORK_BYTES, y.WORK_OFFSET):
        work[:, column] = work[:, column] // gemm.output_element_bytes * gemm.accumulator_bytes
    return work


def _one_by_one(tiles: Work, gemm: Gemm, tiling: GemmTiling) -> Work:
    """Repeat the tiles for every GEMM of a batch; its operands and its output follow those of the one before."""
    work, rows, columns = np.concatenate([tiles] * gemm.batch), *tiling.grid(gemm)
    number = np.repeat(np.arange(gemm.batch), len(tiles))
    work[:, y.WORK_ROW] += number * rows
    work[:, y.WORK_COLUMN] += number * columns
    work[:, y.WORK_OFFSET] += number * gemm.m * gemm.n * gemm.output_element_bytes
    return work


def owner_by_owner(work: Work, gemm: Gemm, tiling: GemmTiling) -> Work:
    """Reorder the tiles of `tile_table` so that neighbours in run order belong to different chunks.

    Bands of `tiling.band` lines, as in `tile_table`, hold as many lines of every chunk (at least one each), and are
    walked across line by line: as many operands are shared as in a band of neighbouring lines.
    """
    rows, columns = tiling.grid(gemm)
    along, across = (y.WORK_ROW, y.WORK_COLUMN) if rows >= columns else (y.WORK_COLUMN, y.WORK_ROW)
    chunk, line = work[:, y.WORK_REGION], work[:, along]
    first = np.full(int(chunk.max()) + 1, line.max())
    np.minimum.at(first, chunk, line)
    inside, high = line - first[chunk], max(tiling.band // len(first), 1)
    found: Work = work[np.lexsort((chunk, inside % high, work[:, across], inside // high))]
    return found


def over_dies(work: Work, gpu: Gpu) -> Work:
    """Reorder the tiles of `tile_table` for a GPU of several dies, as tuned kernels do: neighbours on one die.

    Workgroups are dealt to the dies round robin. In each batch of as many workgroups as there are compute units, a
    die's workgroups therefore take a run of neighbouring tiles, which share operands in its cache (Tensile's workgroup
    mapping across XCCs; ROCm's Triton and IREE renumber likewise).
    """
    if gpu.dies == 1:
        return work
    window, order = gpu.compute.compute_units, np.arange(len(work))
    for first in range(0, len(work), window):
        these = np.arange(first, min(first + window, len(work)))
        order[these[np.argsort(these % gpu.dies, kind="stable")]] = these
    found = work[order]
    found[:, y.WORK_TILE] = work[:, y.WORK_TILE]
    return found


def _raster(gemm: Gemm, tiling: GemmTiling, chunks: int) -> Work:
    """Return all (row, column) pairs: bands of `tiling.band` lines of the longer side, walked across line by line.

    Bands do not straddle chunks where the chunks divide the longer side evenly.
    """
    rows, columns = tiling.grid(gemm)
    long, short = max(rows, columns), min(rows, columns)
    part = long // chunks if long % chunks == 0 else long
    line, across = np.indices((long, short)).reshape(2, -1)
    chunk, inside = line // part, line % part
    order = np.lexsort((line, across, inside // tiling.band, chunk))
    pairs = np.stack([line, across], axis=1)[order]
    return pairs if rows >= columns else pairs[:, ::-1]


THREADS = 256
"""Threads of a workgroup that adds split sums [assumed; 128 to 512]."""
_ELEMENTS = 4
"""Sums per thread: one 16-byte load of each part [assumed; 1 to 8]."""
REGISTERS = 64
"""Registers per thread that adds split sums [assumed: eight workgroups then fit on a compute unit]."""


def stored_sizes(gemm: Gemm, tiling: GemmTiling) -> tuple[int, ...]:
    """Sizes of the chunks that a GEMM's tiles fill: its output, or the partial sums of each part of K [bytes]."""
    if tiling.splits == 1:
        return (gemm.output_bytes,)
    return (gemm.m * gemm.n * gemm.accumulator_bytes,) * tiling.splits


def adding_kernel(gemm: Gemm, gpu: Gpu, tiling: GemmTiling, operator: str, first: int, result: str) -> Kernel:
    """The kernel that adds up the partial sums in the chunks of "output" from `first` on, into the buffer `result`.

    Its workgroups each take as many elements in a row as their threads hold; its traffic counts as that of `operator`.
    """
    elements = THREADS * _ELEMENTS
    partial, whole = elements * gemm.accumulator_bytes, elements * gemm.output_element_bytes
    parts = range(first, first + tiling.splits)
    phase = Phase(
        iterations=1,
        slots=1,
        cycles=(tiling.splits - 1) * elements / gpu.vector_lanes,
        loads=tuple(ChunkLoad("output", part, operator, partial, 0, partial, 0, cached=True) for part in parts),
        stores=(ChunkStore(result, 0, operator, whole, 0, whole, 0),),
    )
    workgroups = -(-gemm.m * gemm.n // elements)
    return Kernel("sum", workgroups, THREADS, THREADS * REGISTERS * 4, 0, (phase,))
