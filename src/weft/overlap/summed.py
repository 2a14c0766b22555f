"""A GEMM as kernels of a plan: the one that multiplies, and where K is cut behind it the one that adds up its parts."""

from __future__ import annotations

from weft.hardware import Gpu
from weft.kernels import GemmTiling, adding_kernel
from weft.program import Kernel, PlacedKernel
from weft.workload import Gemm


def with_sums(
    main: Kernel, gemm: Gemm, gpu: Gpu, tiling: GemmTiling, first: int = 0, result: str = "sums"
) -> tuple[PlacedKernel, ...]:
    """The GEMM's kernel, such as "gemm 3", and where K is cut "gemm sum 3", each to follow the one before it.

    Partial sums lie in the chunks of "output" from `first` on, the sums in `result`. Dies with caches of their own meet
    in memory: there the parts are written back before they are added.
    """
    if tiling.splits == 1:
        return (PlacedKernel(main),)
    loop, _, number = main.name.rpartition(" ")
    adding = adding_kernel(gemm, gpu, tiling, f"{loop} sum {number}", first, result)
    return PlacedKernel(main, release=gpu.dies > 1), PlacedKernel(adding)
