"""Run a GEMM and the collective before or behind it as libraries overlap them today, beside both in sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from weft.engine import layout as y
from weft.errors import InputError, UnknownNameError
from weft.hardware import Gpu, Machine, System
from weft.overlap.chunked import SPLITS, ChunkedGather, ChunkedScatter
from weft.overlap.fused import GatherGemm, GemmScatter, fitting
from weft.overlap.machine import default_request_bytes
from weft.overlap.nodes import system_for
from weft.overlap.tile import tiling_for
from weft.simulation.execution import config_of, run_plan
from weft.workload import Gemm

PATTERNS = {"ag_gemm": "all_gather", "gemm_rs": "reduce_scatter"}
"""An all-gather before the GEMM, or a reduce-scatter behind it, by the collective's name."""
METHODS = ("fused", "chunked")


@dataclass(frozen=True)
class Overlapped:
    """A GEMM and a collective on each of `ranks` GPUs: each alone, in sequence, and overlapped [s].

    The parts in sequence are closed forms (cuBLAS-like kernels, NCCL or RCCL), the overlap is simulated.
    """

    pattern: str
    method: str
    ranks: int
    gemm: float
    collective: float
    overlapped: float
    events: int
    wall_s: float

    @property
    def sequential(self) -> float:
        """The GEMM and the collective one after the other [s]."""
        return self.gemm + self.collective

    @property
    def speedup(self) -> float:
        """How many times faster than in sequence."""
        return self.sequential / self.overlapped

    def record(self) -> dict[str, Any]:
        """The answer as plain data for JSON, in microseconds."""
        return {
            "pattern": self.pattern,
            "method": self.method,
            "ranks": self.ranks,
            "gemm_us": self.gemm * 1e6,
            "comm_us": self.collective * 1e6,
            "sequential_us": self.sequential * 1e6,
            "overlap_us": self.overlapped * 1e6,
            "speedup": self.speedup,
            "events": self.events,
            "wall_s": self.wall_s,
        }


def overlapped(
    pattern: str,
    m: int,
    n: int,
    k: int,
    machine: Gpu | Machine | str,
    *,
    ranks: int = 8,
    dtype: str = "bf16",
    method: str = "fused",
    clock: str = "short",
    request_bytes: int | None = None,
) -> Overlapped:
    """What overlapping a collective with its GEMM of global dimensions `m`, `n`, `k` gives on `ranks` GPUs of a node.

    `pattern` "ag_gemm" gathers A's rows before each GPU multiplies them with its columns of B; "gemm_rs" adds up what
    every GPU made of its part of K and leaves each its rows. `method` "fused": tiles wait for their rows, or go to
    their owners (Flux); "chunked": GEMMs of chunks on streams (TransformerEngine's userbuffers). `clock` is what
    the compute units run at: "short" (the highest) or "sustained"; requests are as large as suits the GPU unless given.

    Raises UnknownNameError for unknown names, InputError for dimensions that `ranks` does not divide, SimulationError
    for a run that cannot finish.
    """
    for what, name, known in (("pattern", pattern, PATTERNS), ("overlap method", method, METHODS)):
        if name not in known:
            raise UnknownNameError(what, name, known)
    gemm = local_gemm(pattern, m, n, k, ranks, dtype)
    system = system_for(machine, ranks)
    plan = _planned(pattern, method, gemm, system, clock).plan(system.gpu)
    # GPUs of one die keep the size that the measured overlaps were compared at.
    usual = default_request_bytes(system.gpu) if system.gpu.dies > 1 else system.gpu.memory.interleave
    grain = request_bytes or usual
    result, _, state = run_plan(plan, system, config_of(system, grain, method, pattern), clock=clock)
    return Overlapped(
        pattern=pattern,
        method=method,
        ranks=ranks,
        gemm=_gemm_time(gemm, system.gpu, clock),
        collective=_collective_time(pattern, gemm, machine, ranks),
        overlapped=float(state.kernel_run[:, :, y.KR_END].max()) * 1e-15,
        events=result.events,
        wall_s=result.wall_s,
    )


def local_gemm(pattern: str, m: int, n: int, k: int, ranks: int, dtype: str) -> Gemm:
    """What one GPU computes of a GEMM; InputError for dimensions that `ranks` does not divide."""
    split, name = (n, "N") if pattern == "ag_gemm" else (k, "K")
    for size, what in ((split, name), (m, "M")):
        if size % ranks:
            raise InputError(
                f"{what} is {size}, which {ranks} GPUs cannot share evenly; choose a multiple of {ranks}"
            )
    return Gemm(m, n // ranks, k, dtype) if pattern == "ag_gemm" else Gemm(m, n, k // ranks, dtype)


def _planned(
    pattern: str, method: str, gemm: Gemm, system: System, clock: str
) -> GatherGemm | GemmScatter | ChunkedGather | ChunkedScatter:
    gpu, ranks = system.gpu, system.gpus
    if method == "fused":
        tiling = fitting(gemm, tiling_for(gemm, gpu, clock), ranks)
        if pattern == "ag_gemm":
            return GatherGemm(gemm, tiling, ranks, clock, at_once=system.peer_bandwidth > 0)
        return GemmScatter(gemm, tiling, ranks, clock)
    if pattern == "ag_gemm":
        chunk = replace(gemm, m=gemm.m // ranks)
        return ChunkedGather(gemm, fitting(gemm, tiling_for(chunk, gpu, clock), ranks), ranks, clock)
    part = replace(gemm, m=-(-gemm.m // SPLITS))
    return ChunkedScatter(gemm, tiling_for(part, gpu, clock), ranks, clock)


def _gemm_time(gemm: Gemm, gpu: Gpu, clock: str) -> float:
    from weft.predict.gemm import gemm as predicted

    return float(predicted(gemm.m, gemm.n, gemm.k, gemm.dtype, gpu, clock=clock).seconds)  # type: ignore[arg-type]


def _collective_time(pattern: str, gemm: Gemm, machine: Gpu | Machine | str, ranks: int) -> float:
    """The library's all-gather of A, or reduce-scatter of C [s]."""
    from weft.predict.collective import collective

    moved = gemm.m * gemm.k * gemm.element_bytes if pattern == "ag_gemm" else gemm.output_bytes
    return float(collective(PATTERNS[pattern], moved, ranks, machine).seconds)
