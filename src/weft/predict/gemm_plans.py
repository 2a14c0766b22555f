"""The kernels that a library could run a GEMM with, each with its time in closed form: what the engine chooses from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from weft.hardware import Gpu
from weft.kernels.gemm import GemmTiling, running_clock
from weft.kernels.library import Candidate, candidates
from weft.predict import gemm_kernel
from weft.predict.gemm import Clock, effective_rates
from weft.workload import Gemm


@dataclass(frozen=True)
class RankedPlan:
    """A tile for a GEMM, and the time that the closed form gives it, without the launch [s].

    `overlapped` is that time if memory and compute units overlap in full, as they do in the engine [s].
    """

    tiling: GemmTiling
    seconds: float
    overlapped: float


def ranked_plans(
    gemm: Gemm, gpu: Gpu, clock: str = "short", *, split: bool = False
) -> tuple[RankedPlan, ...]:
    """Every kernel of the GPU's library, fastest first: with `split`, K in as many parts as suit it, else in one.

    The operands come from memory. Raises InputError for a dtype that the GPU lacks, UnknownNameError for a clock other
    than "short" and "sustained".
    """
    gpu.matrix_rate(gemm.dtype)  # an InputError that names the dtypes, where it is none of them
    running_clock(gpu, clock)
    machine = cold_rates(gemm.dtype, gpu, clock)
    plan = _cut if split else _whole
    plans = [plan(gemm, one, machine) for one in candidates(gpu.architecture, gemm.dtype)]
    return tuple(sorted(plans, key=lambda plan: plan.seconds))


def cold_rates(dtype: str, gpu: Gpu, clock: str) -> gemm_kernel.Machine:
    """The GPU's effective rates as the engine meets them: operands in memory, and a launch for the kernel that adds."""
    machine = effective_rates(dtype, gpu, cast(Clock, clock), float("inf"))
    # On MI210 and MI100 the measured rows hardly determine what a cut of K costs: they leave it below a launch.
    return machine._replace(split=max(machine.split, gpu.compute.launch_latency))


def _whole(gemm: Gemm, one: Candidate, machine: gemm_kernel.Machine) -> RankedPlan:
    shape, tile = _numbers(gemm, one)
    columns, _, _ = gemm_kernel.fitted(shape, tile, machine)
    return _ranked(one, gemm_kernel.fixed(shape, tile, columns, 1, machine))


def _cut(gemm: Gemm, one: Candidate, machine: gemm_kernel.Machine) -> RankedPlan:
    shape, tile = _numbers(gemm, one)
    moved, cost = gemm_kernel.traffic(shape, machine), gemm_kernel.costs(tile, machine)
    _, columns, splits, _ = gemm_kernel.under(shape, moved, tile, cost, float("inf"), machine)
    return _ranked(one, gemm_kernel.fixed(shape, tile, columns, splits, machine))


def _ranked(one: Candidate, found: gemm_kernel.Attempt) -> RankedPlan:
    overlapped = max(found.units_time, found.memory_time) + found.split_time
    return RankedPlan(one.tiling(int(found.columns), int(found.splits)), found.total, overlapped)


def _numbers(gemm: Gemm, one: Candidate) -> tuple[gemm_kernel.Shape, gemm_kernel.Tile]:
    fields = gemm_kernel.Tile._fields
    tile = gemm_kernel.Tile(*(float(getattr(one, field)) for field in fields))
    return gemm_kernel.Shape(gemm.m, gemm.n, gemm.k, 1), tile
