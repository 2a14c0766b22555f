"""A GEMM and the ring collectives of its own output: kernel by kernel, or joined by T3's tracker."""

from __future__ import annotations

from weft.kernels import gather_kernel, near_memory_reduce_kernel, reduce_kernel
from weft.lower.problem import Problem
from weft.program import Buffer, PlacedKernel, Plan, Wait


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
