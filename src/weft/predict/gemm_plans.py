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

MOST_SLOTS = 8
"""K steps that a workgroup of the engine can have in flight."""


@dataclass(frozen=True)
class RankedPlan:
    """A tile for a GEMM, and the time that the closed form gives it, without the launch [s]."""

    tiling: GemmTiling
    seconds: float


def ranked_plans(gemm: Gemm, gpu: Gpu, clock: str = "short") -> tuple[RankedPlan, ...]:
    """Every kernel of the GPU's library that makes each output tile in one piece (no split K), fastest first.

    The operands come from memory. Raises InputError for a dtype that the GPU lacks, UnknownNameError for a
    clock other than "short" and "sustained".
    """
    gpu.matrix_rate(gemm.dtype)  # an InputError that names the dtypes, where it is none of them
    running_clock(gpu, clock)
    machine = effective_rates(gemm.dtype, gpu, cast(Clock, clock), float("inf"))
    plans = [_plan(gemm, one, machine) for one in candidates(gpu.architecture, gemm.dtype)]
    return tuple(sorted(plans, key=lambda plan: plan.seconds))


def _plan(gemm: Gemm, one: Candidate, machine: gemm_kernel.Machine) -> RankedPlan:
    fields = gemm_kernel.Tile._fields
    tile = gemm_kernel.Tile(*(float(getattr(one, field)) for field in fields))
    columns = gemm_kernel.fitted_columns(gemm.n, -(-gemm.m // one.rows), tile, machine.units)
    shape = gemm_kernel.Shape(gemm.m, gemm.n, gemm.k, 1)
    found = gemm_kernel.whole(shape, tile, columns, machine)
    return RankedPlan(engine_tiling(one, int(columns)), found.total)


def engine_tiling(one: Candidate, columns: int) -> GemmTiling:
    """A candidate as the engine runs it; a cluster fetches the longer of the two slabs together."""
    by_columns = one.rows >= columns
    return GemmTiling(
        rows=one.rows,
        columns=columns,
        step=one.step,
        threads=one.threads,
        slots=min(one.stages, MOST_SLOTS),
        stages=one.stages,
        resident=one.resident,
        share_rows=1 if by_columns else one.cluster,
        share_columns=one.cluster if by_columns else 1,
    )
