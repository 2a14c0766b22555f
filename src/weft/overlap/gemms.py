"""Independent GEMMs that share one GPU: each with operands, output and kernel of its own, in a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.engine import layout as y
from weft.errors import InputError
from weft.hardware import Gpu
from weft.kernels import GemmTiling, gemm_kernel, operand_sizes, over_dies, tile_table
from weft.overlap.base import MOST_TILES, check_tile, check_tiles
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
        """A kernel for each GEMM, its operands, and its chunk of the buffer of outputs."""
        tables = [over_dies(tile_table(one.gemm, one.tiling, 1), gpu) for one in self.gemms]
        ends = np.cumsum([len(table) for table in tables])
        launch = to_fs(gpu.compute.launch_latency)
        return Plan(
            kernels=tuple(
                PlacedKernel(
                    self._kernel(gpu, number, int(end) - len(table), int(end)),
                    after=number - self.queues if number >= self.queues else None,
                    delay_fs=number * launch if number < self.queues else 0,
                    compute_units=self.compute_units,
                )
                for number, (table, end) in enumerate(zip(tables, ends, strict=True))
            ),
            buffers=self._buffers(gpus),
            work=(_numbered(tables),) * gpus,
            neighbour=tuple((rank - 1) % gpus for rank in range(gpus)),
            wavefronts=max(one.tiling.wavefronts(gpu) for one in self.gemms),
        )

    def _kernel(self, gpu: Gpu, number: int, first: int, end: int) -> Kernel:
        one = self.gemms[number]
        check_tile(one.gemm, one.tiling, gpu)
        kernel = gemm_kernel(one.gemm, gpu, one.tiling, self.clock)
        main, *rest = kernel.phases
        loads = tuple(replace(load, buffer=f"{load.buffer} {number}") for load in main.loads)
        phases = (replace(main, loads=loads), *rest)
        return replace(kernel, name=f"gemm {number}", phases=phases, part=(first, end))

    def _buffers(self, gpus: int) -> tuple[Buffer, ...]:
        operands = [
            Buffer(f"{name} {number}", ((size,),) * gpus)
            for number, one in enumerate(self.gemms)
            for name, size in zip(("a", "b"), operand_sizes(one.gemm, one.tiling), strict=True)
        ]
        outputs = tuple(one.gemm.output_bytes for one in self.gemms)
        return (*operands, Buffer("output", (outputs,) * gpus, (CACHED_STORE,) * len(outputs)))


def occupancy(kernel: Kernel, gpu: Gpu) -> int:
    """How many workgroups of a kernel a compute unit holds at once, by its threads, registers and local memory."""
    compute = gpu.compute
    return min(
        compute.max_workgroups_per_cu,
        compute.threads_per_cu // kernel.threads,
        compute.registers_per_cu // kernel.registers,
        compute.lds_per_cu // max(kernel.lds, 1),
    )


def _numbered(tables: Sequence[Work]) -> Work:
    """The tiles of all GEMMs in one table: each GEMM is a chunk of the outputs."""
    work = np.concatenate(tables)
    work[:, y.T_REGION] = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    work[:, y.T_TILE] = np.arange(len(work))
    return work
