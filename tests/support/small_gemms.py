"""A GPU of eight compute units with MI100's library, and GEMMs that take it microseconds."""

from weft.hardware import Gpu, load
from weft.kernels import GemmTiling
from weft.overlap.gemms import TiledGemm
from weft.workload import Gemm

TILE = GemmTiling(rows=64, columns=64, step=64, resident=1)
GEMM = Gemm(128, 128, 256)
"""Four tiles: half of the compute units."""


def small_mi100(**changes: str) -> Gpu:
    """MI100 with eight compute units; dots of paths are written as double underscores."""
    values = {
        "compute.compute_units": "8",
        **{path.replace("__", "."): text for path, text in changes.items()},
    }
    return load("mi100").with_values(values)


def tiled(gemm: Gemm = GEMM, tiling: GemmTiling = TILE) -> TiledGemm:
    """A GEMM in small tiles."""
    return TiledGemm(gemm, tiling)
