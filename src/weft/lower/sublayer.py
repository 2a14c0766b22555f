"""A GEMM and the ring collectives of its own output: kernel by kernel, or joined by T3's tracker."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from weft.engine import layout as y
from weft.errors import InputError
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels import (
    GemmTiling,
    RingTiling,
    gather_kernel,
    gemm_kernel,
    near_memory_reduce_kernel,
    operands,
    reduce_kernel,
    tile_table,
)
from weft.kernels.ring import forwarded, fused_reduce_scatter
from weft.lower.fit import check_tile, check_whole
from weft.options import SUSTAINED, RunOptions
from weft.program import Buffer, PlacedKernel, Plan, Wait
from weft.program.plan import CACHED_STORE, Work


@dataclass(frozen=True)
class RingSubLayer:
    """One GPU's share of a GEMM whose output `ranks` GPUs reduce around a ring.

    `options` say what clock the compute units run at. Raises InputError for tiles that the GPU cannot hold, or of which
    there are fewer than GPUs.
    """

    gemm: Gemm
    ranks: int
    gpu: Gpu
    tiling: GemmTiling
    options: RunOptions = SUSTAINED
    ring: RingTiling = field(default_factory=RingTiling)

    def __post_init__(self) -> None:
        check_whole(self.tiling)
        tiles = check_tile(self.gemm, self.tiling, self.gpu)
        if tiles < self.ranks:
            raise InputError(
                f"the output of {self.gemm} has {tiles} tiles of {self.tiling.rows} x {self.tiling.columns}, fewer "
                f"than the {self.ranks} GPUs that reduce it; choose a smaller tile, fewer GPUs or a larger GEMM"
            )

    @cached_property
    def tiles(self) -> Work:
        """The output tiles of GPU 0 in their order: GPU g makes chunk g + 1 first."""
        return tile_table(self.gemm, self.tiling, self.ranks, 1)

    @property
    def even(self) -> bool:
        """Whether the chunks that go around are of one size."""
        return len(set(self._sizes(self.tiles))) == 1

    def _work(self, gpus: int) -> tuple[Work, ...]:
        """The output tiles of every simulated GPU."""
        return self.tiles, *(tile_table(self.gemm, self.tiling, self.ranks, rank + 1) for rank in range(1, gpus))

    def _sizes(self, tiles: Work) -> tuple[int, ...]:
        """Sizes of the output chunks in the order in which a GPU makes them [bytes]."""
        return tuple(np.bincount(tiles[:, y.WORK_REGION], tiles[:, y.WORK_BYTES]).astype(int).tolist())

    def plan(self, *, tracked: bool, gpus: int = 1) -> Plan:
        """The GEMM, its reduce-scatter and the all-gather on `gpus` simulated GPUs (1: one stands for all).

        Where it is `tracked`, the reduce-scatter is in T3's address map (ASPLOS 2024, arXiv:2401.16677), and two
        kernels are left. Else there are three in a row, and the output is stored through the cache and written back
        before others read it.
        """
        ranks, gpu = self.ranks, self.gpu
        work = self._work(gpus)
        sizes = tuple(map(self._sizes, work))
        product = gemm_kernel(self.gemm, gpu, self.tiling, self.options)
        # The all-gather begins with a GPU's own chunk, which it made last.
        gathered = tuple((own[-1], *own[:-1]) for own in sizes)
        buffers = (
            *operands(self.gemm, self.tiling, gpus),
            Buffer("gathered", gathered, forwarded("gathered", "all_gather", ranks)),
        )
        if tracked:
            gather = gather_kernel(ranks, gpu, self.ring, own=("output", ranks - 1))
            # The reduce-scatter is over on a GPU when its own chunk is reduced and the last one for others has left.
            over = (Wait("output", ranks - 1), *([Wait("output", ranks - 2, sent=True)] if ranks > 2 else ()))
            kernels: tuple[PlacedKernel, ...] = (
                PlacedKernel(product, monitor=True, operator="gemm"),
                PlacedKernel(gather, after=(0,), after_chunks=over, operator="all_gather"),
            )
            output: tuple[Buffer, ...] = (Buffer("output", sizes, fused_reduce_scatter(ranks)),)
        else:
            reduce = reduce_kernel(ranks, gpu, self.ring, self.gemm.output_element_bytes)
            gather = gather_kernel(ranks, gpu, self.ring, own=("result", 0))
            kernels = (
                # AMD's caches are written back at a kernel's end; NVIDIA's L2, where all SMs meet, keeps its lines.
                PlacedKernel(product, release=gpu.vendor != "nvidia", operator="gemm"),
                PlacedKernel(reduce, after=(0,), operator="reduce_scatter"),
                PlacedKernel(gather, after=(1,), operator="all_gather"),
            )
            output = (
                Buffer("output", sizes, (CACHED_STORE,) * ranks),
                Buffer("received", sizes, forwarded("received", "reduce_scatter", ranks)),
                Buffer("result", tuple((own[-1],) for own in sizes)),
            )
        return Plan(kernels, (*buffers[:2], *output, buffers[2]), work, self.tiling.wavefronts(gpu))

    def near_memory_scatter(self, gpus: int = 1) -> Plan:
        """The reduce-scatter alone: one kernel that sends each chunk on, as updates, when it has been fully updated."""
        updates = forwarded("output", "reduce_scatter", self.ranks, update=True)
        output = Buffer("output", tuple(map(self._sizes, self._work(gpus))), updates)
        kernel = near_memory_reduce_kernel(self.ranks, self.gpu, self.ring)
        return Plan((PlacedKernel(kernel, operator="reduce_scatter"),), (output,), ())
