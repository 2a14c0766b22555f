"""How one operator runs on one GPU: workgroup scripts, tiles, DMA commands; `library` is what vendors choose."""

from weft.graph.tiling import GemmTiling
from weft.kernels.gemm import (
    adding_kernel,
    claims,
    gemm_kernel,
    operand_sizes,
    operands,
    over_dies,
    running_clock,
    stored_sizes,
    tile_table,
)
from weft.kernels.ring import RingTiling, gather_kernel, near_memory_reduce_kernel, reduce_kernel, sum_kernel

__all__ = [
    "GemmTiling",
    "RingTiling",
    "adding_kernel",
    "claims",
    "gather_kernel",
    "gemm_kernel",
    "near_memory_reduce_kernel",
    "operand_sizes",
    "operands",
    "over_dies",
    "reduce_kernel",
    "running_clock",
    "stored_sizes",
    "sum_kernel",
    "tile_table",
]
