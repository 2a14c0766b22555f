"""The baseline: GEMM, then ring reduce-scatter, then ring all-gather, each alone on the compute units."""

from __future__ import annotations

from weft.kernels import gather_kernel, near_memory_reduce_kernel, reduce_kernel
from weft.overlap.base import Problem, Simulated
from weft.program import Buffer, PlacedKernel, Plan


class Sequential(Simulated):
    """GEMM with cached stores, release of the output, reduce-scatter and all-gather on compute units."""

    name = "sequential"
    title = "Sequential"
    summary = "GEMM, then ring reduce-scatter, then ring all-gather on the compute units: the baseline"

    def plan(self, problem: Problem) -> Plan:
        """Three kernels in a row; the output is stored through the cache and written back before others read it."""
        chunks, gpu, ring = problem.layer.tp, problem.gpu, problem.ring
        reduce = reduce_kernel(chunks, gpu, problem.ring_tiling, problem.layer.gemm.output_element_bytes)
        gather = gather_kernel(chunks, gpu, problem.ring_tiling, own=("result", 0))
        return Plan(
            kernels=(
                # AMD's caches are written back at a kernel's end; NVIDIA's L2, where all SMs meet, keeps its lines.
                PlacedKernel(problem.gemm, release=gpu.vendor != "nvidia"),
                PlacedKernel(reduce, after=0),
                PlacedKernel(gather, after=1),
            ),
            buffers=(
                *problem.operands(),
                problem.output(ring.stored_output()),
                Buffer("received", problem.chunk_bytes, ring.received()),
                Buffer("result", tuple((sizes[-1],) for sizes in problem.chunk_bytes)),
                problem.gathered(),
            ),
            work=problem.work,
            neighbour=problem.neighbours,
            wavefronts=problem.tiling.wavefronts(gpu),
        )


class NearMemoryReduceScatter(Simulated):
    """The reduce-scatter alone, with its additions made by the memory: what `ideal-rs-nmc` takes its time from."""

    name = "rs-nmc"
    title = "RS + NMC"
    summary = "ring reduce-scatter alone, its stores being near-memory updates"

    def plan(self, problem: Problem) -> Plan:
        """One kernel that sends each chunk on, as updates, when it has been fully updated."""
        kernel = near_memory_reduce_kernel(problem.layer.tp, problem.gpu, problem.ring_tiling)
        return Plan(
            kernels=(PlacedKernel(kernel),),
            buffers=(Buffer("output", problem.chunk_bytes, problem.ring.updated_output()),),
            work=(),
            neighbour=problem.neighbours,
        )
