"""How one operator runs on one GPU: tiles and their order, workgroup scripts, what a workgroup needs."""

from weft.kernels.gemm import GemmTiling, gemm_kernel, tile_table
from weft.kernels.ring import gather_kernel, reduce_kernel

__all__ = ["GemmTiling", "gather_kernel", "gemm_kernel", "reduce_kernel", "tile_table"]
