"""GO-kernels: for a GEMM and every number of GEMMs that run together, the kernel that is fastest then.

Candidates are ranked by the closed form for the whole GPU and for a half and a quarter of its compute units and of its
last-level cache; the first few of each ranking are simulated as copies that run together (GOLDYLOC,
arXiv:2409.02227).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft.errors import InputError
from weft.hardware import Gpu
from weft.kernels import GemmTiling
from weft.overlap.gemms import TiledGemm
from weft.overlap.tile import tiling_for
from weft.predict.gemm_plans import ranked_plans
from weft.result.gemms_run import GemmsRun
from weft.tuning.batches import Batch, Bench, Workshop
from weft.workload import Gemm

DEGREES = (1, 2, 4, 8, 16)
"""Numbers of GEMMs that run together."""
SHARES = (1, 2, 4)
"""Candidates are ranked for one over so much of the compute units and of the last-level cache."""
FIRST = 3
"""Candidates of each ranking, with K cut where that is faster and with K in one piece, that are simulated."""


@dataclass(frozen=True)
class GoKernels:
    """A GEMM's candidates, and what copies of it take with each of them, by how many run together.

    `runs[degree][tiling]` is what that many copies took. Degree 1 is always there: its fastest candidate is the
    kernel tuned in isolation.
    """

    gemm: Gemm
    runs: Mapping[int, Mapping[GemmTiling, GemmsRun]]

    @property
    def degrees(self) -> tuple[int, ...]:
        """The numbers of copies that were tried, the least first."""
        return tuple(sorted(self.runs))

    @property
    def isolated(self) -> GemmTiling:
        """The kernel that is fastest alone."""
        return self.best(1)

    def best(self, degree: int) -> GemmTiling:
        """The GO-kernel: the fastest where so many copies run together, the first ranked among equals."""
        tried = self.runs[degree]
        return min(tried, key=lambda tiling: tried[tiling].makespan_s)

    def run(self, degree: int) -> GemmsRun:
        """What so many copies of the GO-kernel took."""
        return self.runs[degree][self.best(degree)]

    def seconds(self, degree: int) -> float:
        """How long so many copies of the GO-kernel took [s]."""
        return self.run(degree).makespan_s

    def tiled(self, degree: int) -> TiledGemm:
        """The GEMM with its GO-kernel for a degree."""
        return TiledGemm(self.gemm, self.best(degree))


def candidates(gemm: Gemm, gpu: Gpu, clock: str = "sustained") -> tuple[GemmTiling, ...]:
    """The kernels that are worth a try, those for the whole GPU first; raises InputError for a dtype that it lacks.

    Kernels that leave K in one piece are tried beside those that cut it: many GEMMs together fill the GPU without.
    """
    if gpu.vendor == "none":  # a model of a GPU without a library: one tile
        return (tiling_for(gemm, gpu, clock),)
    ranked = (
        ranked_plans(gemm, part_of(gpu, share), clock, split=split)[:FIRST]
        for share in SHARES
        for split in (True, False)
    )
    return tuple(dict.fromkeys(plan.tiling for plans in ranked for plan in plans))


def part_of(gpu: Gpu, share: int) -> Gpu:
    """A GPU with one over `share` of the compute units and of the last-level cache."""
    if share == 1:
        return gpu
    compute = gpu.compute.model_copy(update={"compute_units": max(gpu.compute.compute_units // share, 1)})
    cache = gpu.cache.model_copy(update={"capacity": gpu.cache.capacity // share})
    return gpu.model_copy(update={"compute": compute, "cache": cache})


def degrees_up_to(count: int) -> tuple[int, ...]:
    """The degrees that so many queued GEMMs allow: powers of two, and all of them together."""
    if count < 1:
        raise InputError(f"{count} GEMMs are queued; at least one must be")
    together = [count] if count <= DEGREES[-1] else []
    return tuple(sorted({*(degree for degree in DEGREES if degree <= count), *together}))


def tune(
    gemms: Mapping[Gemm, Iterable[int]], bench: Bench, workshop: Workshop | None = None
) -> dict[Gemm, GoKernels]:
    """The GO-kernels of some GEMMs, each for the degrees named for it and for 1, by simulating every candidate.

    Raises InputError for a GEMM that no kernel of the GPU's library can run.
    """
    asked = {gemm: tuple(sorted({1, *degrees})) for gemm, degrees in gemms.items()}
    tilings = {gemm: candidates(gemm, bench.gpu, bench.clock) for gemm in asked}
    tasks = {
        (gemm, degree, tiling): bench.copies(gemm, tiling, degree)
        for gemm, degrees in asked.items()
        for degree in degrees
        for tiling in tilings[gemm]
    }
    found = (workshop or Workshop()).simulate(tasks.values())
    return {gemm: _kernels(gemm, degrees, tilings[gemm], tasks, found) for gemm, degrees in asked.items()}


def _kernels(
    gemm: Gemm,
    degrees: Sequence[int],
    tilings: Sequence[GemmTiling],
    tasks: Mapping[tuple[Gemm, int, GemmTiling], Batch],
    found: Mapping[Batch, GemmsRun],
) -> GoKernels:
    runs = {degree: {one: found[tasks[gemm, degree, one]] for one in tilings} for degree in degrees}
    return GoKernels(gemm, runs)
