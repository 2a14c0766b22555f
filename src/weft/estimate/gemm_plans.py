"""The kernels that a library could run a GEMM with, each with its time in closed form: what the engine chooses from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.estimate import gemm_kernel
from weft.estimate.gemm import effective_rates
from weft.estimate.target import Harness, target
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels.gemm import GemmTiling
from weft.library.tiles import candidates
from weft.options import RunOptions


@dataclass(frozen=True)
class RankedPlan:
    """A tile for a GEMM, and the time that the closed form gives it, without the launch [s].

    `overlapped` is that time if memory and compute units overlap in full, as they do in the engine [s].
    """

    tiling: GemmTiling
    seconds: float
    overlapped: float


def ranked_plans(
    gemm: Gemm, gpu: Gpu, options: RunOptions | None = None, *, split: bool = False
) -> tuple[RankedPlan, ...]:
    """Every kernel of the GPU's library, fastest first: with `split`, K in as many parts as suit it, else in one.

    The operands come from memory; without options the run is a short one. Raises InputError for a dtype that the GPU
    lacks.
    """
    rates, shape = cold_rates(gemm.dtype, gpu, options), gemm_kernel.Shape(gemm.m, gemm.n, gemm.k, 1)
    library = candidates(gpu.architecture, gemm.dtype)
    tiles = gemm_kernel.Tile.of(library)
    columns, splits = gemm_kernel.ways(shape, tiles, rates)
    splits = splits if split else splits[:, :1]
    found = gemm_kernel.fixed(shape, tiles, columns, splits, rates)
    overlapped = np.maximum(found.units_time, found.memory_time) + found.split_time
    plans = []
    for at, (one, best) in enumerate(zip(library, found.total.argmin(axis=1).tolist(), strict=True)):
        tiling = one.tiling(int(columns[at, 0]), int(splits[at, best]))
        plans.append(RankedPlan(tiling, float(found.total[at, best]), float(overlapped[at, best])))
    return tuple(sorted(plans, key=lambda plan: plan.seconds))


def cold_rates(dtype: str, gpu: Gpu, options: RunOptions | None = None) -> gemm_kernel.Machine:
    """The GPU's effective rates as the engine meets them: operands in memory, and a launch for the kernel that adds."""
    rates = effective_rates(dtype, target(gpu, options, Harness(rotation=float("inf"))))
    # On MI210 and MI100 the measured rows hardly determine what a cut of K costs: they leave it below a launch.
    return rates._replace(split=max(rates.split, gpu.compute.launch_latency))
