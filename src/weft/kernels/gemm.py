"""A tiled GEMM: every workgroup computes one output tile, walking K with a bounded number of steps in flight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.engine import layout as y
from weft.errors import InputError
from weft.hardware import Gpu
from weft.program import Cause, Extent, Kernel, Load, Phase, Store
from weft.program.plan import Work
from weft.workload import Gemm

OVERHEAD_REGISTERS = 32
"""Registers per thread beside accumulators and operands: addresses, loop counters, fragments (assumed)."""


@dataclass(frozen=True)
class GemmTiling:
    """How a GEMM is cut: the tile of a workgroup, its step along K, its threads, and the steps in flight.

    128 x 128 with 256 threads (4 wavefronts) is the workhorse of tuned half-precision libraries on 100-CU-class
    GPUs. `slots` counts the K steps held at once: the one that computes and those loaded ahead of it. `band`
    is how many lines of tiles are walked together (Tensile's "workgroup mapping", whose usual value is 8).
    `stages` K steps lie in local memory; `registers_per_thread` is what the kernel was compiled to use (0: what
    accumulators, a K step of operands and some overhead take).
    """

    rows: int = 128
    columns: int = 128
    step: int = 32
    threads: int = 256
    slots: int = 2
    band: int = 8
    stages: int = 2
    registers_per_thread: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int) or value < (name != "registers_per_thread"):
                raise InputError(f"GEMM tiling: {name} is {value!r}; it must be a whole number above zero")

    def registers(self, gemm: Gemm) -> int:
        """Registers of a workgroup: accumulators, one K step of operands, and overhead, or as compiled [bytes]."""
        if self.registers_per_thread:
            return self.registers_per_thread * self.threads * 4
        operands = (self.rows + self.columns) * self.step * gemm.element_bytes
        return (
            self.rows * self.columns * gemm.accumulator_bytes
            + operands
            + OVERHEAD_REGISTERS * self.threads * 4
        )

    def lds(self, gemm: Gemm) -> int:
        """Local memory of a workgroup: `stages` K steps of both operands [bytes]."""
        return self.stages * (self.rows + self.columns) * self.step * gemm.element_bytes

    def wavefronts(self, gpu: Gpu) -> int:
        """Wavefronts, and so wavefront tiles, of a workgroup."""
        return -(-self.threads // gpu.compute.wavefront_size)

    def grid(self, gemm: Gemm) -> tuple[int, int]:
        """Tile rows and tile columns of the output."""
        return -(-gemm.m // self.rows), -(-gemm.n // self.columns)


def gemm_kernel(gemm: Gemm, gpu: Gpu, tiling: GemmTiling) -> Kernel:
    """The GEMM's kernel: a loop over K that loads a slab of A and of B and multiplies, then one store of the
    tile.

    Operands lie slab by slab (a tile's rows for one K step are contiguous), as packed or swizzled operands do.
    """
    rows, columns = tiling.grid(gemm)
    steps = -(-gemm.k // tiling.step)
    element = gemm.element_bytes
    unit, last = tiling.step * element, (gemm.k - (steps - 1) * tiling.step) * element
    slab_a, slab_b = tiling.rows * unit, tiling.columns * unit
    cycles = 2 * tiling.rows * tiling.columns * tiling.step / main_loop_rate(gemm, gpu)
    load_a = Load(
        "a",
        0,
        unit,
        last,
        Cause.GEMM_READ,
        Extent.ROWS,
        row_stride=slab_a * steps,
        step_stride=slab_a,
        cached=True,
    )
    load_b = Load(
        "b", 0, unit, last, Cause.GEMM_READ, Extent.COLUMNS, column_stride=slab_b * steps, step_stride=slab_b,
        cached=True,
    )  # fmt: skip
    return Kernel(
        name="gemm",
        workgroups=rows * columns,
        threads=tiling.threads,
        registers=tiling.registers(gemm),
        lds=tiling.lds(gemm),
        phases=(
            Phase(iterations=steps, slots=min(tiling.slots, steps), cycles=cycles, loads=(load_a, load_b)),
            Phase(iterations=1, slots=1, cycles=0, store=Store("output", Cause.GEMM_WRITE)),
        ),
        tiled=True,
    )


def main_loop_rate(gemm: Gemm, gpu: Gpu) -> float:
    """Operations per clock and compute unit that the main loop reaches in the GEMM's dtype [FLOP].

    Raises InputError if the GPU does not multiply in it. fp64, of which nothing is measured, is taken to reach what
    fp32 does.
    """
    gpu.matrix_rate(gemm.dtype)
    share = getattr(gpu.achieved, f"matrix_{gemm.dtype}", gpu.achieved.matrix_fp32)
    return float(getattr(gpu.rates, gemm.dtype) * share)


def operand_sizes(gemm: Gemm, tiling: GemmTiling) -> tuple[int, int]:
    """The sizes of A and B as they lie in memory, in whole slabs [bytes]."""
    rows, columns = tiling.grid(gemm)
    steps = -(-gemm.k // tiling.step)
    slab = tiling.step * gemm.element_bytes * steps
    return rows * tiling.rows * slab, columns * tiling.columns * slab


def tile_table(gemm: Gemm, tiling: GemmTiling, chunks: int, first_chunk: int = 0) -> Work:
    """The output tiles in run order, one row each: chunk by chunk, beginning with `first_chunk` (the
    stagger).

    Chunks cut the longer side of the tile grid, so that a chunk is as square as can be and its operands are
    reused in the cache; they are equal runs of tiles in raster order.
    """
    parts = np.array_split(_raster(gemm, tiling, chunks), chunks)
    work = [_chunk_rows(gemm, tiling, parts[(first_chunk + p) % chunks], p) for p in range(chunks)]
    table = np.concatenate(work)
    table[:, y.T_TILE] = np.arange(len(table))
    return table


def _raster(gemm: Gemm, tiling: GemmTiling, chunks: int) -> Work:
    """All (row, column) pairs: bands of `tiling.band` lines of the longer side, walked across line by line.

    Bands do not straddle chunks where the chunks divide the longer side evenly.
    """
    rows, columns = tiling.grid(gemm)
    long, short = max(rows, columns), min(rows, columns)
    part = long // chunks if long % chunks == 0 else long
    order = [
        (line, across)
        for chunk in range(0, long, part)
        for top in range(chunk, chunk + part, tiling.band)
        for across in range(short)
        for line in range(top, min(top + tiling.band, chunk + part))
    ]
    pairs = np.array(order, dtype=np.int64)
    return pairs if rows >= columns else pairs[:, ::-1]


def _chunk_rows(gemm: Gemm, tiling: GemmTiling, tiles: Work, position: int) -> Work:
    work = np.zeros((len(tiles), y.T_FIELDS), dtype=np.int64)
    work[:, y.T_ROW], work[:, y.T_COLUMN] = tiles[:, 0], tiles[:, 1]
    work[:, y.T_ROWS] = np.minimum(tiling.rows, gemm.m - tiles[:, 0] * tiling.rows)
    work[:, y.T_COLUMNS] = np.minimum(tiling.columns, gemm.n - tiles[:, 1] * tiling.columns)
    work[:, y.T_BYTES] = work[:, y.T_ROWS] * work[:, y.T_COLUMNS] * gemm.output_element_bytes
    work[:, y.T_OFFSET] = np.cumsum(work[:, y.T_BYTES]) - work[:, y.T_BYTES]
    work[:, y.T_REGION] = position
    return work
