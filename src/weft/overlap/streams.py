"""Independent streams: a loop of GEMMs beside a loop of collectives that does not depend on it.

Kernels of one stream follow each other; between the streams only the dispatcher, the memory and the link decide. A
collective is driven by compute units (a library's ring kernel) or by DMA engines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from weft.hardware import Gpu
from weft.kernels import (
    GemmTiling,
    gemm_kernel,
    operand_sizes,
    over_dies,
    stored_sizes,
    sums,
    tile_table,
)
from weft.kernels.channels import ChannelRing
from weft.kernels.copies import DmaGather
from weft.kernels.direct import DirectExchange
from weft.kernels.exchange import ChannelExchange
from weft.kernels.ring import WholeRing
from weft.overlap.base import check_tile, check_tiles
from weft.overlap.strategies import Strategy, split_units
from weft.overlap.summed import with_sums
from weft.program import Buffer, PlacedKernel, Plan
from weft.program.plan import Work
from weft.program.rules import CACHED_STORE
from weft.workload import Gemm

Collective = ChannelRing | ChannelExchange | DirectExchange | WholeRing | DmaGather


@dataclass(frozen=True)
class GemmLoop:
    """The same GEMM, `count` times in a row; compute units run at the clock of a "short" or a "sustained" run.

    Raises InputError for a GEMM of more tiles, or K steps in flight, than a run can hold.
    """

    gemm: Gemm
    tiling: GemmTiling
    count: int
    clock: str = "sustained"

    def __post_init__(self) -> None:
        check_tiles(self.gemm, self.tiling)


@dataclass(frozen=True)
class CollectiveLoop:
    """The same collective, `count` times in a row."""

    collective: Collective
    count: int


@dataclass(frozen=True)
class Streams:
    """What runs on every GPU: a stream of GEMMs, a stream of collectives, or both side by side.

    `first` names the stream whose first kernel the host launches first; both begin at once. With `priority`, waiting
    workgroups of collectives go before those of GEMMs. `gemm_units` and `collective_units` mask the compute units that
    a stream may use (None: all). `gpus` are simulated (one stands for all where they are equal).
    """

    gemms: GemmLoop | None
    collectives: CollectiveLoop | None
    first: str = "collective"
    priority: bool = False
    gemm_units: tuple[int, ...] | None = None
    collective_units: tuple[int, ...] | None = None

    def plan(self, gpu: Gpu, gpus: int = 1) -> Plan:
        """The kernels of both streams, their buffers and tiles; InputError for a tile that the GPU cannot hold."""
        gemms = self._gemm_kernels(gpu)
        collectives = self._collective_kernels(gpu)
        streams = (gemms, collectives) if self.first == "gemm" else (collectives, gemms)
        buffers: list[Buffer] = []
        work: tuple[Work, ...] = ()
        if self.gemms is not None:
            buffers += self._gemm_buffers(gpus)
            work = (over_dies(tile_table(self.gemms.gemm, self.gemms.tiling, 1), gpu),) * gpus
        if self.collectives is not None:
            buffers += self.collectives.collective.buffers(gpus)
        return Plan(
            kernels=_in_order(*streams),
            buffers=tuple(buffers),
            work=work,
            neighbour=tuple((rank - 1) % gpus for rank in range(gpus)),
            wavefronts=1 if self.gemms is None else self.gemms.tiling.wavefronts(gpu),
        )

    def _gemm_kernels(self, gpu: Gpu) -> list[PlacedKernel]:
        if self.gemms is None:
            return []
        gemm, tiling = self.gemms.gemm, self.gemms.tiling
        check_tile(gemm, tiling, gpu)
        main = gemm_kernel(gemm, gpu, tiling, self.gemms.clock)
        placed = []
        for i in range(self.gemms.count):
            kernels = with_sums(replace(main, name=f"gemm {i}"), gemm, gpu, tiling)
            placed += [replace(kernel, compute_units=self.gemm_units) for kernel in kernels]
        return placed

    def _collective_kernels(self, gpu: Gpu) -> list[PlacedKernel]:
        if self.collectives is None:
            return []
        collective, count = self.collectives.collective, self.collectives.count
        return [
            PlacedKernel(
                collective.kernel(gpu, f"{collective.collective} {i}", i),
                priority=int(self.priority),
                compute_units=self.collective_units,
            )
            for i in range(count)
        ]

    def _gemm_buffers(self, gpus: int) -> list[Buffer]:
        assert self.gemms is not None
        gemm, tiling = self.gemms.gemm, self.gemms.tiling
        sizes, stored = operand_sizes(gemm, tiling), stored_sizes(gemm, tiling)
        return [
            *(Buffer(name, ((size,),) * gpus) for name, size in zip(("a", "b"), sizes, strict=True)),
            Buffer("output", (stored,) * gpus, (CACHED_STORE,) * len(stored)),
            *([sums(gemm, "sums", gpus)] if tiling.splits > 1 else []),
        ]


def arranged(
    strategy: Strategy, gpu: Gpu, gemms: GemmLoop, collectives: CollectiveLoop, units: int | None, first: str
) -> Streams:
    """Both streams as a strategy arranges them; `units` are set apart where it partitions, `first` is launched first.

    Raises InputError for units that leave one side without any.
    """
    streams = Streams(gemms, collectives, first, strategy.priority)
    if not strategy.partition or units is None:
        return streams
    split = split_units(gpu, units)
    apart = split.apart if strategy.driver == "cu" else None
    return replace(streams, gemm_units=split.gemm, collective_units=apart)


def _in_order(*streams: list[PlacedKernel]) -> tuple[PlacedKernel, ...]:
    """The kernels of all streams in one row, each after the one before it in its own stream."""
    placed: list[PlacedKernel] = []
    for stream in streams:
        for number, kernel in enumerate(stream):
            placed.append(replace(kernel, after=len(placed) - 1 if number else None))
    return tuple(placed)
