"""Independent GEMMs that share one GPU: each with operands, output and kernel of its own, in a queue."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from weft.engine import layout as y
from weft.errors import InputError
from weft.hardware import Gpu
from weft.kernels import GemmTiling, gemm_kernel, operand_sizes, over_dies, stored_sizes, sums, tile_table
from weft.overlap.base import MOST_TILES, check_tile, check_tiles
from weft.overlap.summed import with_sums
from weft.program import Buffer, Kernel, PlacedKernel, Plan
from weft.program.plan import Work
from weft.program.rules import CACHED_STORE
from weft.units import to_fs
from weft.workload import Gemm

MOST_QUEUED = 256
"""GEMMs that one run may hold."""


@dataclass(frozen=True)
class TiledGemm:
    """A GEMM and how its kernel cuts it; InputError for too many K steps in flight, or too many tiles."""

    gemm: Gemm
    tiling: GemmTiling

    def __post_init__(self) -> None:
        check_tiles(self.gemm, self.tiling)


@dataclass(frozen=True)
class ConcurrentGemms:
    """GEMMs that do not depend on each other, dealt to `queues` queues in turn; those of one queue follow each other.

    One queue is sequential execution. The first kernels of several queues are launched one after another, a launch
    latency apart, as one host or one command processor does; from then on the queues are independent. The dispatcher
    serves the older kernel first, and a later one takes what the earlier cannot use. `compute_units` are those that
    may be used (None: all), `clock` is "short" or "sustained".

    Raises InputError without GEMMs, for more than a run can hold, and for an impossible number of queues.
    """

    gemms: tuple[TiledGemm, ...]
    queues: int
    clock: str = "sustained"
    compute_units: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        count = len(self.gemms)
        if not 1 <= count <= MOST_QUEUED:
            raise InputError(f"{count} GEMMs are queued; a run holds between 1 and {MOST_QUEUED}")
        if not 1 <= self.queues <= count:
            raise InputError(
                f"{count} GEMMs are dealt to {self.queues} queues; choose between 1 and {count} queues"
            )
        tiles = sum(check_tiles(one.gemm, one.tiling) for one in self.gemms)
        if tiles > MOST_TILES:
            raise InputError(
                f"the outputs of {count} GEMMs have {tiles} tiles, more than the {MOST_TILES} that a run can hold; "
                "choose larger tiles or fewer GEMMs"
            )

    def plan(self, gpu: Gpu, gpus: int = 1) -> Plan:
        """The kernels of each GEMM, its operands, and its chunk of the buffer of outputs, or one for each part of K."""
        tables = [over_dies(tile_table(one.gemm, one.tiling, 1), gpu) for one in self.gemms]
        stored = [stored_sizes(one.gemm, one.tiling) for one in self.gemms]
        return Plan(
            kernels=self._placed(gpu, _firsts(tables), _firsts(stored)),
            buffers=self._buffers(stored, gpus),
            work=(_numbered(tables, _firsts(stored)),) * gpus,
            neighbour=tuple((rank - 1) % gpus for rank in range(gpus)),
            wavefronts=max(one.tiling.wavefronts(gpu) for one in self.gemms),
        )

    def _placed(self, gpu: Gpu, tiles: Sequence[int], chunks: Sequence[int]) -> tuple[PlacedKernel, ...]:
        """Every GEMM's kernels behind those of the GEMM before it in its queue."""
        launch = to_fs(gpu.compute.launch_latency)
        placed: list[PlacedKernel] = []
        last: list[int] = []
        for number in range(len(self.gemms)):
            begins = number < self.queues
            delay, after = (number * launch, None) if begins else (0, last[number - self.queues])
            for kernel in self._kernels(gpu, number, tiles[number], chunks[number]):
                placed.append(replace(kernel, after=after, delay_fs=delay, compute_units=self.compute_units))
                delay, after = 0, len(placed) - 1
            last.append(len(placed) - 1)
        return tuple(placed)

    def _kernels(self, gpu: Gpu, number: int, tile: int, chunk: int) -> tuple[PlacedKernel, ...]:
        one = self.gemms[number]
        check_tile(one.gemm, one.tiling, gpu)
        kernel = gemm_kernel(one.gemm, gpu, one.tiling, self.clock)
        phases = tuple(
            replace(
                phase,
                loads=tuple(replace(load, buffer=f"{load.buffer} {number}") for load in phase.loads),
            )
            for phase in kernel.phases
        )
        part = (tile, tile + kernel.workgroups)
        kernel = replace(kernel, name=f"gemm {number}", phases=phases, part=part)
        return with_sums(kernel, one.gemm, gpu, one.tiling, chunk, f"sums {number}")

    def _buffers(self, stored: Sequence[Sequence[int]], gpus: int) -> tuple[Buffer, ...]:
        operands = [
            Buffer(f"{name} {number}", ((size,),) * gpus)
            for number, one in enumerate(self.gemms)
            for name, size in zip(("a", "b"), operand_sizes(one.gemm, one.tiling), strict=True)
        ]
        outputs = tuple(size for sizes in stored for size in sizes)
        added = (
            sums(one.gemm, f"sums {number}", gpus)
            for number, one in enumerate(self.gemms)
            if one.tiling.splits > 1
        )
        return (*operands, Buffer("output", (outputs,) * gpus, (CACHED_STORE,) * len(outputs)), *added)


def occupancy(kernel: Kernel, gpu: Gpu) -> int:
    """How many workgroups of a kernel a compute unit holds at once, by its threads, registers and local memory."""
    compute = gpu.compute
    return min(
        compute.max_workgroups_per_cu,
        compute.threads_per_cu // kernel.threads,
        compute.registers_per_cu // kernel.registers,
        compute.lds_per_cu // max(kernel.lds, 1),
    )


def _numbered(tables: Sequence[Work], chunks: Sequence[int]) -> Work:
    """The tiles of all GEMMs in one table, whose chunks of the outputs begin at `chunks`."""
    work = np.concatenate(tables)
    work[:, y.T_REGION] += np.repeat(chunks, [len(table) for table in tables])
    work[:, y.T_TILE] = np.arange(len(work))
    return work


def _firsts(rows: Sequence[Sized]) -> list[int]:
    """Where each one's entries begin, all laid out in a row."""
    return [0, *accumulate(len(row) for row in rows)][:-1]
