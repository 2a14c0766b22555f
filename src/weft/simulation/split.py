"""A GEMM and a whole ring all-reduce on compute units of their own: each alone, or both at once."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from weft.errors import InputError
from weft.kernels.ring import RingTiling, WholeRing
from weft.overlap.machine import default_request_bytes
from weft.overlap.strategies import split_units
from weft.overlap.streams import CollectiveLoop, GemmLoop, Streams
from weft.overlap.tile import tiling_for
from weft.result import Result
from weft.result.collect import loop_times, residency
from weft.simulation.execution import Run
from weft.simulation.runner import Runner, Where, one_node
from weft.units import format_bytes
from weft.workload import Gemm

IN_FLIGHT = 16 * 1024
"""What a workgroup of the ring has on its way [bytes], half of it where it adds: 256 threads x 4 x 16 B.

RCCL unrolls by 4, and by 2 where it adds, on MI200 (ROCm/rccl src/device/common_kernel.h, reduceCopy).
"""
SLOTS = 4


class SplitTimes(NamedTuple):
    """When the GEMM and when the all-reduce ended, from their common start [s]; None where it did not run."""

    gemm_s: float | None
    ring_s: float | None


def ring_alone(
    bytes_: int,
    machine: Where,
    *,
    ranks: int,
    units: int | None = None,
    in_flight: int = IN_FLIGHT,
    request_bytes: int | None = None,
) -> SplitTimes:
    """A ring all-reduce of `bytes_` (the whole buffer) by `units` workgroups, one per compute unit (None: all).

    Raises InputError for what cannot be simulated.
    """
    system = one_node(machine, ranks)
    if units is not None and units < system.gpu.compute.compute_units:
        split_units(system.gpu, units)
    ring = _ring(bytes_, ranks, units, in_flight)
    run = Runner(system, request_bytes or default_request_bytes(system.gpu)).run(
        Streams(None, CollectiveLoop(ring, 1))
    )
    return SplitTimes(None, _end(run, ring.collective))


def split_run(
    gemm: Gemm,
    machine: Where,
    apart: int,
    *,
    ranks: int,
    in_flight: int = IN_FLIGHT,
    request_bytes: int | None = None,
) -> SplitTimes:
    """A GEMM beside an all-reduce of its output's size, which has `apart` compute units of its own.

    Raises InputError for a split that leaves either without a unit, and for what cannot be simulated.
    """
    run = _both(gemm, machine, apart, ranks, in_flight, request_bytes)
    return SplitTimes(_end(run, "gemm"), _end(run, "all_reduce"))


def watched_split(
    gemm: Gemm,
    machine: Where,
    apart: int,
    *,
    ranks: int,
    in_flight: int = IN_FLIGHT,
    request_bytes: int | None = None,
) -> Result:
    """The run with everything that happened in it: who held which compute unit when, for pictures and traces.

    Raises as `split_run` does.
    """
    run = _both(gemm, machine, apart, ranks, in_flight, request_bytes)
    return replace(run.result, residency=residency(run.program, run.state))


def _both(
    gemm: Gemm, machine: Where, apart: int, ranks: int, in_flight: int, request_bytes: int | None
) -> Run:
    system = one_node(machine, ranks)
    split = split_units(system.gpu, apart)
    ring = _ring(gemm.output_bytes, ranks, apart, in_flight)
    loop = GemmLoop(gemm, tiling_for(gemm, system.gpu, "sustained"), 1)
    streams = Streams(loop, CollectiveLoop(ring, 1), gemm_units=split.gemm, collective_units=split.apart)
    return Runner(system, request_bytes or default_request_bytes(system.gpu)).run(streams, "partition")


def _ring(bytes_: int, ranks: int, units: int | None, in_flight: int) -> WholeRing:
    if ranks < 2:
        raise InputError(f"an all-reduce of {ranks} ranks moves nothing; take at least 2")
    if in_flight < 128 * SLOTS or in_flight % (128 * SLOTS):
        raise InputError(
            f"in_flight is {format_bytes(in_flight)}; a workgroup has a multiple of {128 * SLOTS} B on its way"
        )
    return WholeRing(bytes_, ranks, RingTiling(workgroups=units, piece=in_flight // SLOTS, slots=SLOTS))


def _end(run: Run, name: str) -> float:
    return max(loop_times(run.program, run.state, name)[0])
