"""K cut into parts (split-K): each part's sums lie in a workspace of its own, and a second kernel adds them up.

Libraries do so where the output has few tiles: Tensile's GlobalSplitU with several buffers, the split-K of cuBLAS and
CUTLASS with a workspace.
"""

from __future__ import annotations

from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels.gemm import GemmTiling
from weft.program import Buffer, Kernel, Load, Phase, Store
from weft.program.rules import CACHED_STORE

THREADS = 256
"""Threads of a workgroup that adds (assumed; 128 to 512)."""
ELEMENTS = 4
"""Sums of a thread: one 16-byte load of each part (assumed; 1 to 8)."""
REGISTERS = 64
"""Registers of a thread that adds (assumed; as many leave room for eight workgroups on a compute unit)."""


def stored_sizes(gemm: Gemm, tiling: GemmTiling) -> tuple[int, ...]:
    """What the tiles of a GEMM are stored into: its output, or the partial sums of every part of K [bytes]."""
    if tiling.splits == 1:
        return (gemm.output_bytes,)
    return (gemm.m * gemm.n * gemm.accumulator_bytes,) * tiling.splits


def sums(gemm: Gemm, name: str, gpus: int) -> Buffer:
    """Where the sums over all parts go: the output."""
    return Buffer(name, ((gemm.output_bytes,),) * gpus, (CACHED_STORE,))


def adding_kernel(gemm: Gemm, gpu: Gpu, tiling: GemmTiling, name: str, first: int = 0, result: str = "sums") -> Kernel:
    """The kernel that adds up the partial sums in the chunks of "output" from `first` on, into the buffer `result`.

    Its workgroups each take as many elements in a row as their threads hold.
    """
    elements = THREADS * ELEMENTS
    partial, whole = elements * gemm.accumulator_bytes, elements * gemm.output_element_bytes
    phase = Phase(
        iterations=1,
        slots=1,
        cycles=(tiling.splits - 1) * elements / gpu.vector_lanes,
        loads=tuple(
            Load("output", first + part, partial, partial, "gemm", row_stride=partial, cached=True)
            for part in range(tiling.splits)
        ),
        store=Store(result, "gemm", 0, whole, row_stride=whole),
    )
    workgroups = -(-gemm.m * gemm.n // elements)
    return Kernel(name, workgroups, THREADS, THREADS * REGISTERS * 4, 0, (phase,))
