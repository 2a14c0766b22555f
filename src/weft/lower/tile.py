"""Which tile a GEMM is cut into on a GPU: what its library would choose, and the closed form expects."""

from __future__ import annotations

import numpy as np

from weft.engine import layout as y
from weft.estimate.gemm_plans import ranked_plans
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels import GemmTiling, tile_table
from weft.options import SUSTAINED, RunOptions


def tiling_for(
    gemm: Gemm, gpu: Gpu, options: RunOptions = SUSTAINED, chunks: int = 1, *, split: bool = False
) -> GemmTiling:
    """The tile that is fastest in closed form, of those that cut the output into `chunks` chunks of one size.

    Where none does, the fastest of all; the paper's machine has one tile. With `split`, as GEMMs may whose tiles nobody
    waits for, K is cut into parts where that is faster, and would be if memory and compute units overlapped in full: no
    cut quickens the memory. Raises InputError for a dtype that the GPU lacks.
    """
    if gpu.vendor == "none":
        return GemmTiling()
    plans = ranked_plans(gemm, gpu, options)
    if split:
        cut = ranked_plans(gemm, gpu, options, split=True)[0]
        return min(cut, plans[0], key=lambda plan: plan.overlapped).tiling
    even = (plan.tiling for plan in plans if chunks == 1 or _even(gemm, plan.tiling, chunks))
    return next(even, plans[0].tiling)


def _even(gemm: Gemm, tiling: GemmTiling, chunks: int) -> bool:
    """Whether every chunk of the output has the same size."""
    rows, columns = tiling.grid(gemm)
    if rows * columns % chunks:
        return False
    work = tile_table(gemm, tiling, chunks)
    sizes = np.bincount(work[:, y.WORK_REGION], weights=work[:, y.WORK_BYTES])
    return bool((sizes == sizes[0]).all())
