"""Which tile a GEMM is cut into on a GPU: the vendor's library chooses it, the engine and the closed form share it."""

from __future__ import annotations

from weft.hardware import Gpu
from weft.kernels import GemmTiling
from weft.overlap.machine import running_clock
from weft.workload import Gemm

_ADA = (GemmTiling(256, 128, 32, 256, 3, 8, 3), GemmTiling(128, 128, 32, 256, 4, 8, 4))
_CDNA2 = (GemmTiling(256, 128, 64, 256, 2, 8, 1), GemmTiling(128, 128, 64, 256, 2, 8, 1))
_CDNA3 = (GemmTiling(256, 256, 64, 256, 2, 8, 1), GemmTiling(128, 128, 64, 256, 2, 8, 1))
_CANDIDATES = {
    "ampere": (
        GemmTiling(256, 128, 32, 256, 3, 8, 3),
        GemmTiling(128, 256, 64, 256, 3, 8, 3),
        GemmTiling(128, 128, 32, 256, 4, 8, 4),
    ),
    "ada": _ADA,
    "hopper": (
        GemmTiling(128, 256, 64, 384, 4, 8, 4, 168),
        GemmTiling(256, 128, 64, 384, 4, 8, 4, 168),
        GemmTiling(128, 128, 64, 384, 6, 8, 6, 168),
    ),
    "blackwell": (
        GemmTiling(256, 256, 64, 256, 4, 8, 3),
        GemmTiling(128, 256, 64, 256, 6, 8, 4),
        GemmTiling(128, 128, 64, 256, 7, 8, 7),
    ),
    "cdna1": _CDNA2,
    "cdna2": _CDNA2,
    "cdna3": _CDNA3,
    "cdna4": _CDNA3,
}


def tiling_for(gemm: Gemm, gpu: Gpu, clock: str = "sustained") -> GemmTiling:
    """The tile that the GPU's library would choose for a GEMM; the paper's machine has one."""
    running_clock(gpu, clock)
    found = _CANDIDATES.get(gpu.architecture)
    if found is None:
        return GemmTiling()

    def cost(tiling: GemmTiling) -> int:
        rows, columns = tiling.grid(gemm)
        return -(-rows * columns // gpu.compute.compute_units) * tiling.rows * tiling.columns

    return min(found, key=cost)
