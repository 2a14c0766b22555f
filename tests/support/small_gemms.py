"""A GPU of eight compute units with MI100's library, and GEMMs that take it microseconds."""

from weft import hardware
from weft.graph import Gemm, gemm_queue
from weft.hardware import Gpu
from weft.kernels import GemmTiling

TILE = GemmTiling(rows=64, columns=64, step=64, resident=1)
GEMM = Gemm(128, 128, 256)
"""Four tiles: half of the compute units."""


def small_mi100(**changes: str) -> Gpu:
    """MI100 with eight compute units; dots of paths are written as double underscores."""
    values = {
        "compute.compute_units": "8",
        **{path.replace("__", "."): text for path, text in changes.items()},
    }
    return hardware.gpu("mi100").replace(values)


def tiled(gemm: Gemm = GEMM, tiling: GemmTiling = TILE) -> tuple[Gemm, GemmTiling]:
    """A GEMM in small tiles."""
    return gemm, tiling


def queue(count: int = 1, tiling: GemmTiling = TILE, queues: int | None = None):
    """Copies of a GEMM in small tiles."""
    return gemm_queue([GEMM] * count, queues, [tiling] * count)
