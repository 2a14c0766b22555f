"""T3: the GEMM's stores start the reduce-scatter by themselves (ASPLOS 2024, arXiv:2401.16677)."""

from __future__ import annotations

from weft.kernels import gather_kernel
from weft.overlap.arbiters import ArbiterPolicy
from weft.overlap.base import Problem, Simulated
from weft.program import PlacedKernel, Plan, Wait


class TrackTrigger(Simulated):
    """Track and trigger: the same GEMM kernel under T3's address map, then the all-gather.

    Stores are near-memory updates, the tracker counts them, complete tiles leave by DMA. The all-gather
    begins when the GPU's part of the reduce-scatter is over.
    """

    def __init__(self, name: str, title: str, policy: ArbiterPolicy) -> None:
        self.name = name
        self.title = title
        self.policy = policy
        self.summary = (
            f"GEMM fused with the reduce-scatter by track and trigger; memory arbitration: {policy.name}"
        )

    def plan(self, problem: Problem) -> Plan:
        """Two kernels; the reduce-scatter is in the address map."""
        chunks, gpu, ring = problem.layer.tp, problem.gpu, problem.ring
        gather = gather_kernel(chunks, gpu, problem.ring_tiling, own=("output", chunks - 1))
        # The reduce-scatter is over on a GPU when its own chunk is reduced and the last one for others has left.
        over = [Wait("output", chunks - 1)]
        if chunks > 2:
            over.append(Wait("output", chunks - 2, sent=True))
        return Plan(
            kernels=(
                PlacedKernel(problem.gemm, monitor=True),
                PlacedKernel(gather, after=0, after_chunks=tuple(over)),
            ),
            buffers=(*problem.operands(), problem.output(ring.fused_reduce_scatter()), problem.gathered()),
            work=problem.work,
            neighbour=problem.neighbours,
            wavefronts=problem.tiling.wavefronts(gpu),
        )
