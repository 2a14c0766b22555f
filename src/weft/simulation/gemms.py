"""Run independent GEMMs on one GPU, one after another or together, as plain data for studies and tuners to compose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.engine import layout as y
from weft.engine.state import Machine as State
from weft.errors import InputError
from weft.hardware import Gpu, System
from weft.kernels import gemm_kernel
from weft.overlap.gemms import ConcurrentGemms, TiledGemm, occupancy
from weft.overlap.machine import default_request_bytes
from weft.result import Result
from weft.result.collect import WAITS, loop_times, residency
from weft.result.gemms_run import GemmsRun
from weft.result.loops import GEMM
from weft.simulation.execution import Run, config_of, run_plan

COUNTERS = (
    "cache_hits",
    "cache_merged_misses",
    "cache_misses",
    "cache_write_backs",
    "compute_unit_utilization",
    "dram_bus_utilization",
)
"""Counters of a result that say how GEMMs shared the GPU."""
WORDS = {"chunk": "fill"}
"""A GEMM waits for no other GPU's data: what is counted there is the time to begin and end a workgroup."""


def concurrent_gemms(
    gemms: Sequence[TiledGemm],
    gpu: Gpu,
    *,
    queues: int | None = None,
    units: int | None = None,
    clock: str = "sustained",
    request_bytes: int | None = None,
) -> GemmsRun:
    """What GEMMs that do not depend on each other take on one GPU, dealt to `queues` queues (None: one for each).

    `units` bounds the compute units that they may use (None: all), `clock` is "short" or "sustained", requests are as
    large as suits the GPU unless given. Raises InputError for what cannot be simulated.
    """
    result, program, state = _run(gemms, gpu, queues, units, clock, request_bytes)
    ends, _ = loop_times(program, state, GEMM)
    kernels = [gemm_kernel(one.gemm, gpu, one.tiling, clock) for one in gemms]
    return GemmsRun(
        makespan_s=int(state.clock[y.C_NOW]) * 1e-15,
        ends_s=tuple(ends),
        waits=_shares(state),
        bytes=dict(result.bytes),
        counters={name: result.counters[name] for name in COUNTERS},
        workgroups=tuple(kernel.workgroups for kernel in kernels),
        held=tuple(occupancy(kernel, gpu) for kernel in kernels),
        events=result.events,
    )


def watched_gemms(
    gemms: Sequence[TiledGemm],
    gpu: Gpu,
    *,
    queues: int | None = None,
    clock: str = "sustained",
    request_bytes: int | None = None,
) -> Result:
    """The run with everything that happened in it: who held which compute unit when, for pictures and traces.

    Raises as `concurrent_gemms` does.
    """
    result, program, state = _run(gemms, gpu, queues, None, clock, request_bytes)
    return replace(result, residency=residency(program, state))


def _run(
    gemms: Sequence[TiledGemm],
    gpu: Gpu,
    queues: int | None,
    units: int | None,
    clock: str,
    request_bytes: int | None,
) -> Run:
    planned = ConcurrentGemms(
        tuple(gemms), len(gemms) if queues is None else queues, clock, _first_units(gpu, units)
    )
    system = System(gpu=gpu, gpus=2)  # a system has two GPUs at least; one of them is simulated
    grain = request_bytes or default_request_bytes(gpu)
    config = replace(config_of(system, grain, "streams", "GEMMs"), tp=1)
    return run_plan(planned.plan(gpu), system, config, clock=clock)


def _first_units(gpu: Gpu, units: int | None) -> tuple[int, ...] | None:
    if units is None:
        return None
    most = gpu.compute.compute_units
    if not 1 <= units <= most:
        raise InputError(
            f"{units} compute units are asked for, but {gpu.name} has {most}; choose 1 to {most}"
        )
    return tuple(range(units))


def _shares(state: State) -> dict[str, float]:
    spent = {
        WORDS.get(name, name): float(state.kernel_run[0, :, column].sum()) for name, column in WAITS.items()
    }
    whole = max(sum(spent.values()), 1.0)
    return {name: value / whole for name, value in spent.items()}
