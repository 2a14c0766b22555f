"""The kernels with which a library could run a GEMM, each with its closed-form time; the engine chooses among them."""

from __future__ import annotations

from dataclasses import dataclass

from weft.estimate import gemm_kernel
from weft.estimate.gemm import as_tile, effective_rates
from weft.estimate.target import Harness, target
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels.gemm import GemmTiling
from weft.library.tiles import Candidate, candidates
from weft.options import RunOptions


@dataclass(frozen=True)
class RankedPlan:
    """A tiling of a GEMM and its closed-form time without the launch [s].

    `overlapped` is the time if memory and compute units overlap in full, as they do in the engine [s].
    """

    tiling: GemmTiling
    seconds: float
    overlapped: float


def ranked_plans(
    gemm: Gemm, gpu: Gpu, options: RunOptions | None = None, *, split: bool = False
) -> tuple[RankedPlan, ...]:
    """Every kernel of the GPU's library, fastest first: with `split`, K in as many parts as suit it, else in one.

    The operands come from memory; without options the run is a long one. Raises InputError for a dtype that the GPU
    lacks.
    """
    rates, shape = cold_rates(gemm.dtype, gpu, options), gemm_kernel.Shape(gemm.m, gemm.n, gemm.k, 1)
    plans = [_ranked(shape, one, rates, split) for one in candidates(gpu.architecture, gemm.dtype)]
    return tuple(sorted(plans, key=lambda plan: plan.seconds))


def cold_rates(dtype: str, gpu: Gpu, options: RunOptions | None = None) -> gemm_kernel.Machine:
    """The GPU's effective rates in the engine: operands in memory, and a launch for the kernel that adds split sums."""
    rates = effective_rates(dtype, target(gpu, options, Harness(rotation=float("inf"))))
    # MI210's and MI100's rows hardly constrain the cost of splitting K: the fit is below the cost of a launch.
    return rates._replace(split=max(rates.split, gpu.compute.launch_latency))


def _ranked(shape: gemm_kernel.Shape, one: Candidate, rates: gemm_kernel.Machine, split: bool) -> RankedPlan:
    tile, splits = as_tile(one), 1.0
    columns, _, _ = gemm_kernel.fitted(shape, tile, rates)
    if split:
        moved, cost = gemm_kernel.traffic(shape, rates), gemm_kernel.costs(tile, rates)
        _, columns, splits, _ = gemm_kernel.under(shape, moved, tile, cost, float("inf"), rates)
    found = gemm_kernel.fixed(shape, tile, columns, splits, rates)
    overlapped = max(found.units_time, found.memory_time) + found.split_time
    return RankedPlan(one.tiling(int(found.columns), int(found.splits)), found.total, overlapped)
