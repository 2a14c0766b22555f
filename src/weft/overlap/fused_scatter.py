"""A sub-layer whose GEMM scatters its tiles itself: no tracker, no near-memory addition, on today's GPUs."""

from __future__ import annotations

from weft.kernels import gather_kernel, sum_kernel
from weft.overlap.base import Problem, Simulated
from weft.program import Buffer, Cause, ChunkRule, PlacedKernel, Plan, RemoteMap, Wait
from weft.program.rules import PLAIN_STORE


class FusedScatter(Simulated):
    """GEMM whose tiles are stored at the GPU that owns them, which adds them up; then the all-gather (Flux).

    Flux, arXiv:2406.06858. Chunks for other GPUs are made first, in staggered order; the own chunk is last.
    """

    name = "fused-scatter"
    title = "Fused GEMM-scatter"
    summary = "GEMM that stores its tiles at their owners, then a local addition and a ring all-gather (Flux)"

    def plan(self, problem: Problem) -> Plan:
        """Three kernels; the scatter is in the address map of the GEMM's output."""
        chunks, gpu = problem.layer.tp, problem.gpu
        element = problem.layer.gemm.output_element_bytes
        sources = (("output", chunks - 1), *(("partials", p) for p in range(chunks - 1)))
        add = sum_kernel("reduce_scatter", sources, gpu, problem.ring_tiling, element)
        gather = gather_kernel(chunks, gpu, problem.ring_tiling, own=("result", 0))
        arrivals = tuple(Wait("partials", p) for p in range(chunks - 1))
        return Plan(
            kernels=(
                PlacedKernel(problem.gemm),
                PlacedKernel(add, after=0, after_chunks=arrivals),
                PlacedKernel(gather, after=1),
            ),
            buffers=(
                *problem.operands(),
                problem.output(self._stores(chunks)),
                Buffer("partials", tuple((sizes[-1],) * (chunks - 1) for sizes in problem.chunk_bytes)),
                Buffer("result", tuple((sizes[-1],) for sizes in problem.chunk_bytes)),
                problem.gathered(),
            ),
            work=problem.work,
            neighbour=problem.neighbours,
            wavefronts=problem.tiling.wavefronts(gpu),
        )

    @staticmethod
    def _stores(chunks: int) -> tuple[ChunkRule, ...]:
        """Position p of the ring's order belongs to the GPU p + 1 further up, `chunks` - 1 - p neighbours down."""
        maps = (RemoteMap("partials", p, False, Cause.RS_WRITE, chunks - 1 - p) for p in range(chunks - 1))
        return (*(ChunkRule(remote=remote) for remote in maps), PLAIN_STORE)
