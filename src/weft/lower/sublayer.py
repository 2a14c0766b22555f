"""A sub-layer on the GPUs that reduce its output, and how its kernels are cut."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

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
    operand_sizes,
    reduce_kernel,
    tile_table,
)
from weft.kernels.gemm import check_slots
from weft.kernels.ring import Ring
from weft.lower.fit import check_tile, check_whole
from weft.options import SUSTAINED, RunOptions
from weft.program import Buffer, ChunkRule, Kernel, PlacedKernel, Plan, Wait
from weft.program.plan import Work


@dataclass(frozen=True)
class Problem:
    """One GPU's share of a GEMM whose output `chunks` GPUs reduce; `ranks` are simulated (1: one stands for all).

    `options` say what clock the compute units run at.
    """

    gemm: Gemm
    chunks: int
    gpu: Gpu
    tiling: GemmTiling
    ranks: int = 1
    ring_tiling: RingTiling = field(default_factory=RingTiling)
    options: RunOptions = SUSTAINED

    def __post_init__(self) -> None:
        _check_fit(self)

    @property
    def ring(self) -> Ring:
        """The ring over the GPUs that reduce the output."""
        return Ring(self.chunks)

    @functools.cached_property
    def product(self) -> Kernel:
        """The producer's kernel: one object, whatever the overlap."""
        return gemm_kernel(self.gemm, self.gpu, self.tiling, self.options)

    @functools.cached_property
    def work(self) -> tuple[Work, ...]:
        """The output tiles of every simulated GPU in its staggered order."""
        chunks = self.chunks
        return tuple(
            tile_table(self.gemm, self.tiling, chunks, self.ring.reduced_chunk(rank, 0)) for rank in range(self.ranks)
        )

    @functools.cached_property
    def chunk_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of the output chunks of every simulated GPU, in the order in which it makes them [bytes]."""
        return tuple(
            tuple(int(work[work[:, y.WORK_REGION] == p, y.WORK_BYTES].sum()) for p in range(self.chunks))
            for work in self.work
        )

    @property
    def gathered_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of the chunks by all-gather position: a GPU's own (made last) first [bytes]."""
        return tuple((sizes[-1], *sizes[:-1]) for sizes in self.chunk_bytes)

    def operands(self) -> list[Buffer]:
        """The GEMM's inputs."""
        sizes = operand_sizes(self.gemm, self.tiling)
        return [Buffer(name, ((size,),) * self.ranks) for name, size in zip(("a", "b"), sizes, strict=True)]

    def output(self, rules: tuple[ChunkRule, ...]) -> Buffer:
        """The GEMM's output in chunks, under an address map."""
        return Buffer("output", self.chunk_bytes, rules)

    def gathered(self) -> Buffer:
        """Where the all-gather collects the reduced chunks of the others."""
        return Buffer("gathered", self.gathered_bytes, self.ring.gathered())


def _check_fit(problem: Problem) -> None:
    check_slots(problem.ring_tiling.slots, "ring tiling")
    tiling, gemm = problem.tiling, problem.gemm
    check_whole(tiling)
    tiles = check_tile(gemm, tiling, problem.gpu)
    if tiles < problem.chunks:
        raise InputError(
            f"the output of {gemm} has {tiles} tiles of {tiling.rows} x {tiling.columns}, fewer than the "
            f"{problem.chunks} GPUs that reduce it; choose a smaller tile, fewer GPUs or a larger GEMM"
        )


def sequential(problem: Problem) -> Plan:
    """Three kernels in a row; the output is stored through the cache and written back before others read it."""
    chunks, gpu, ring = problem.chunks, problem.gpu, problem.ring
    reduce = reduce_kernel(chunks, gpu, problem.ring_tiling, problem.gemm.output_element_bytes)
    gather = gather_kernel(chunks, gpu, problem.ring_tiling, own=("result", 0))
    return Plan(
        kernels=(
            # AMD's caches are written back at a kernel's end; NVIDIA's L2, where all SMs meet, keeps its lines.
            PlacedKernel(problem.product, release=gpu.vendor != "nvidia", operator="gemm"),
            PlacedKernel(reduce, after=(0,), operator="reduce_scatter"),
            PlacedKernel(gather, after=(1,), operator="all_gather"),
        ),
        buffers=(
            *problem.operands(),
            problem.output(ring.stored_output()),
            Buffer("received", problem.chunk_bytes, ring.received()),
            Buffer("result", tuple((sizes[-1],) for sizes in problem.chunk_bytes)),
            problem.gathered(),
        ),
        work=problem.work,
        wavefronts=problem.tiling.wavefronts(gpu),
    )


def near_memory_scatter(problem: Problem) -> Plan:
    """One kernel that sends each chunk on, as updates, when it has been fully updated."""
    kernel = near_memory_reduce_kernel(problem.chunks, problem.gpu, problem.ring_tiling)
    return Plan(
        kernels=(PlacedKernel(kernel, operator="reduce_scatter"),),
        buffers=(Buffer("output", problem.chunk_bytes, problem.ring.updated_output()),),
        work=(),
    )


def track_and_trigger(problem: Problem) -> Plan:
    """T3 (ASPLOS 2024, arXiv:2401.16677): the reduce-scatter is in the address map; two kernels are left."""
    chunks, gpu, ring = problem.chunks, problem.gpu, problem.ring
    gather = gather_kernel(chunks, gpu, problem.ring_tiling, own=("output", chunks - 1))
    # The reduce-scatter is over on a GPU when its own chunk is reduced and the last one for others has left.
    over = [Wait("output", chunks - 1)]
    if chunks > 2:
        over.append(Wait("output", chunks - 2, sent=True))
    return Plan(
        kernels=(
            PlacedKernel(problem.product, monitor=True, operator="gemm"),
            PlacedKernel(gather, after=(0,), after_chunks=tuple(over), operator="all_gather"),
        ),
        buffers=(*problem.operands(), problem.output(ring.fused_reduce_scatter()), problem.gathered()),
        work=problem.work,
        wavefronts=problem.tiling.wavefronts(gpu),
    )
