"""Time of a kernel that moves data and computes little: sweeps over memory, cache and vector units.

A kernel is one or more *sweeps* over its data. Workgroups that start together stay nearly in step, so the sweeps follow
each other; within a sweep, loads, stores and arithmetic of different workgroups overlap, and the slowest of them sets
the pace. Too few bytes in flight cannot saturate memory (Little's law); too few workgroups cannot use all units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.estimate.answer import Estimate, FloatArray, from_parts, slowest

if TYPE_CHECKING:
    from weft.hardware import Gpu

PARTS = ("launch", "latency", "memory", "cache", "compute")
"""The parts of a kernel's time."""

SPECIALS_PER_CLOCK = 16
"""Exponentials, reciprocals or roots per clock and unit: 16 on an SM since Kepler (CUDA programming guide, arithmetic
instructions), and 16 on a CU of 64 lanes, where they run at a quarter of the rate (CDNA instruction set guides)."""
BYTES_IN_FLIGHT = 32
"""Bytes in flight per thread: two vector loads of 16 B [assumed; 16 to 64]."""
REDUCTION_CLOCKS = 200
"""Clocks of a sum over the threads of a workgroup: five shuffles, one exchange through local memory and two barriers
[assumed; 100 to 400]."""
Amount = FloatArray | float
"""A number per case, or one for all cases."""


@dataclass(frozen=True)
class DataSweep:
    """One pass over a kernel's data, summed over its workgroups.

    `reads` and `writes` go to memory unless the cache holds them [bytes]. `rereads` repeat reads of the previous sweep
    and hit the cache if the rows in progress fit into it [bytes]. `operations` occupy a vector lane for a clock each,
    `specials` a special-function unit.
    """

    reads: Amount = 0.0
    writes: Amount = 0.0
    rereads: Amount = 0.0
    operations: Amount = 0.0
    specials: Amount = 0.0


@dataclass(frozen=True)
class SweepKernel:
    """A kernel's sweeps, run by `workgroups` of `threads` threads; a workgroup touches `footprint` bytes per sweep.

    A thread has `in_flight` bytes under way, reads and writes together. `shared` bytes of the rereads are parameters
    that every compute unit reads, and waits for as long as the first one.
    """

    sweeps: Sequence[DataSweep]
    workgroups: Amount
    threads: Amount
    footprint: Amount = 0.0
    in_flight: Amount = BYTES_IN_FLIGHT
    shared: Amount = 0.0


def kernel_time(kernel: SweepKernel, gpu: Gpu, recent: Amount = np.inf) -> Estimate:
    """Return the time of a kernel on its own, its operands in the cache if they fit; parts as in `PARTS`.

    At most `recent` bytes of them have been used so recently that they may be there. The vector units run at the boost
    clock, since a memory-bound kernel stays below the power limit.
    """
    at_work = _Occupancy(kernel, gpu)
    touched = sum((sweep.reads + sweep.writes for sweep in kernel.sweeps), start=np.zeros(()))
    computed = sum((sweep.operations + sweep.specials for sweep in kernel.sweeps), start=np.zeros(()))
    each = (touched, computed, kernel.workgroups, kernel.threads)
    shape = np.broadcast_shapes(*(np.shape(amount) for amount in each))
    cached = CacheShare(touched, gpu, np.minimum(recent / np.maximum(touched, 1.0), 1.0))
    latency = CacheShare(touched, gpu, np.minimum(recent / np.maximum(touched + kernel.shared, 1.0), 1.0)).latency
    again = CacheShare(at_work.resident * kernel.footprint, gpu, emptied=_IN_PROGRESS)
    parts = {name: np.zeros(shape) for name in PARTS}
    parts["launch"] += gpu.compute.launch_latency
    for sweep in kernel.sweeps:
        _add_sweep(parts, sweep, cached, latency, again, at_work, gpu)
    # The last stores must arrive before the kernel has ended.
    parts["latency"] += latency
    if len(kernel.sweeps) > 1:
        parts["latency"] += (len(kernel.sweeps) - 1) * REDUCTION_CLOCKS / gpu.compute.clock
    return from_parts(parts)


class _Occupancy:
    """How many workgroups are resident, and the largest share of the work on one compute unit."""

    def __init__(self, kernel: SweepKernel, gpu: Gpu) -> None:
        units = gpu.compute.compute_units
        slots = np.floor(gpu.compute.threads_per_cu / np.maximum(kernel.threads, gpu.compute.wavefront_size))
        slots = np.clip(slots, 1, gpu.compute.max_workgroups_per_cu)
        self.active = np.minimum(kernel.workgroups, units)
        self.resident = np.minimum(kernel.workgroups, units * slots)
        self.largest_share = np.ceil(kernel.workgroups / units) / kernel.workgroups
        self.bytes_in_flight = self.resident * kernel.threads * kernel.in_flight


_SWEPT = 1.25
"""How many times its capacity a cache is swept over from one kernel to the next to keep nothing [measured on H100 by
weft measure: all at 0.64 times, none at 1.28 times; assumed for other GPUs, range 1.1 to 2]."""
_IN_PROGRESS = 2.0
"""The same for rows that workgroups read again while they work on them, each at another place of its rows, so that half
of the others' bytes come between [measured on V100: LayerNorm within 3 % from 0.9 to 2 times; range 1.25 to 2.5]."""


class CacheShare:
    """Which share of `touched` bytes the cache and the memory-side cache hold, and the rate of the rest.

    Of the `recent` share, all bytes up to the capacity, none beyond `emptied` times that, a falling share between.
    """

    def __init__(self, touched: Amount, gpu: Gpu, recent: Amount = 1.0, emptied: float = _SWEPT) -> None:
        self._gpu = gpu
        self.cache = recent * _cached_share(touched, gpu.cache.capacity, emptied)
        self.beside = (recent - self.cache) * _cached_share(touched, gpu.memory_cache.capacity, emptied)
        self.dram = 1 - self.cache - self.beside
        beside = gpu.cache.latency + gpu.memory_cache.latency
        self.latency = self.cache * gpu.cache.latency + self.beside * beside + self.dram * idle_latency(gpu)


def idle_latency(gpu: Gpu) -> float:
    """Load latency of idle DRAM with a closed row: cache, path, activation and column access [s]."""
    return gpu.cache.latency + gpu.memory.latency + gpu.memory.timing.rcd + gpu.memory.timing.cl


def _cached_share(touched: Amount, capacity: float, emptied: float) -> FloatArray:
    if not capacity:
        return np.zeros(np.shape(touched))
    return np.clip((emptied - touched / capacity) / (emptied - 1), 0.0, 1.0)


def memory_seconds(gpu: Gpu, reads: FloatArray, writes: FloatArray) -> FloatArray:
    """Return time of long streams in DRAM [s]: at the read efficiency, and slower the more reads and writes alternate.

    Each byte written alongside a byte read costs a share of a bus turnaround, so that equal reads and writes reach the
    copy efficiency.
    """
    total = reads + writes
    read_cost, copy_cost = 1 / gpu.memory.read_efficiency, 1 / gpu.memory.copy_efficiency
    return (total * read_cost + 2 * np.minimum(reads, writes) * (copy_cost - read_cost)) / gpu.memory.bandwidth


def _memory_time(sweep: DataSweep, cached: CacheShare, again: CacheShare, gpu: Gpu) -> FloatArray:
    """Return the time of cache misses in DRAM or in the memory-side cache, whichever is longer [s]."""
    missed = (1 - cached.cache) * (sweep.reads + sweep.writes + (1 - again.cache) * sweep.rereads)
    read = cached.dram * sweep.reads + np.minimum(cached.dram, again.dram) * sweep.rereads
    dram = memory_seconds(gpu, read, cached.dram * sweep.writes)
    side = gpu.memory_cache
    return np.maximum(dram, missed / side.bandwidth) if side.capacity else dram


def _add_sweep(
    parts: dict[str, FloatArray], sweep: DataSweep, cached: CacheShare, loads: FloatArray, again: CacheShare,
    at_work: _Occupancy, gpu: Gpu,
) -> None:  # fmt: skip
    """Add the sweep's time to its longest part, and the latency of its first `loads` [s]."""
    moved = sweep.reads + sweep.writes + sweep.rereads
    missed = sweep.rereads * (1 - again.cache)
    latency = np.where(sweep.reads + missed > 0, loads, np.where(sweep.rereads > 0, gpu.cache.latency, 0.0))
    port = gpu.compute.port_bytes_per_clock * gpu.compute.clock
    spent = slowest(
        {
            "memory": _memory_time(sweep, cached, again, gpu),
            "cache": np.maximum(moved / (gpu.cache.bandwidth * gpu.cache.efficiency), moved / (at_work.active * port)),
            "latency": moved * latency / at_work.bytes_in_flight,
            "compute": np.maximum(sweep.operations / gpu.vector_lanes, sweep.specials / SPECIALS_PER_CLOCK)
            * at_work.largest_share
            / gpu.compute.clock,
        }
    )
    for name, seconds in spent.items():
        parts[name] += seconds
    parts["latency"] += latency
