"""GO-kernels: the fastest kernel of a GEMM for each number of GEMMs that run together.

Candidates are ranked by the closed form for the whole GPU and for a half and a quarter of its compute units and of its
last-level cache; the first few of each ranking are simulated as copies that run together (GOLDYLOC, arXiv:2409.02227).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weft.errors import InputError
from weft.estimate.gemm_plans import ranked_plans
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.kernels import GemmTiling
from weft.lower.fit import tiling_for
from weft.options import SUSTAINED, RunOptions
from weft.result import Timeline
from weft.sweep.bench import Bench, Jobs, Tiled, drained

DEGREES = (1, 2, 4, 8, 16)
"""Numbers of GEMMs that may run together."""
SHARES = (1, 2, 4)
"""Candidates are ranked for 1/1, 1/2 and 1/4 of the compute units and of the last-level cache."""
FIRST = 3
"""Number of candidates simulated per ranking: once with K cut where that is faster, once with K in one piece."""


@dataclass(frozen=True)
class GoKernels:
    """A GEMM's candidate kernels, and the time of co-running copies with each, by number of copies.

    `runs[degree][tiling]` is the time of that many copies [s]. Degree 1 is always included: its fastest candidate is
    the kernel tuned in isolation.
    """

    gemm: Gemm
    runs: Mapping[int, Mapping[GemmTiling, Timeline]]

    @property
    def degrees(self) -> tuple[int, ...]:
        """The numbers of copies that were tried, ascending."""
        return tuple(sorted(self.runs))

    @property
    def isolated(self) -> GemmTiling:
        """The kernel that is fastest alone."""
        return self.best(1)

    def best(self, degree: int) -> GemmTiling:
        """The GO-kernel: the fastest for `degree` co-running copies, the first ranked on a tie."""
        tried = self.runs[degree]
        return min(tried, key=lambda tiling: drained(tried[tiling]))

    def seconds(self, degree: int) -> float:
        """Time of `degree` co-running copies with the GO-kernel [s]."""
        return drained(self.runs[degree][self.best(degree)])

    def tiled(self, degree: int) -> Tiled:
        """The GEMM with its GO-kernel for a degree."""
        return Tiled(self.gemm, self.best(degree))


def candidates(gemm: Gemm, gpu: Gpu, options: RunOptions = SUSTAINED) -> tuple[GemmTiling, ...]:
    """The kernels to try, those for the whole GPU first; raises InputError for a dtype that the GPU lacks.

    Kernels with K in one piece are tried beside those that split it: many co-running GEMMs fill the GPU without a
    split.
    """
    if gpu.vendor == "none":  # a model of a GPU without a library: one tile
        return (tiling_for(gemm, gpu, options),)
    ranked = (
        ranked_plans(gemm, part_of(gpu, share), options, split=split)[:FIRST]
        for share in SHARES
        for split in (True, False)
    )
    return tuple(dict.fromkeys(plan.tiling for plans in ranked for plan in plans))


def part_of(gpu: Gpu, share: int) -> Gpu:
    """A GPU with 1 / `share` of the compute units and of the last-level cache."""
    if share == 1:
        return gpu
    compute = gpu.compute.model_copy(update={"compute_units": max(gpu.compute.compute_units // share, 1)})
    cache = gpu.cache.model_copy(update={"capacity": gpu.cache.capacity // share})
    return gpu.model_copy(update={"compute": compute, "cache": cache})


def degrees_up_to(count: int) -> tuple[int, ...]:
    """The degrees for `count` queued GEMMs: powers of two, and all of them together."""
    if count < 1:
        raise InputError(f"{count} GEMMs are queued; at least one must be")
    together = [count] if count <= DEGREES[-1] else []
    return tuple(sorted({*(degree for degree in DEGREES if degree <= count), *together}))


def go_kernels(gemms: Mapping[Gemm, Iterable[int]], bench: Bench, jobs: Jobs | None = None) -> dict[Gemm, GoKernels]:
    """The GO-kernels of some GEMMs, each for the degrees named for it and for 1, by simulating every candidate.

    Raises InputError for a GEMM that no kernel of the GPU's library can run.
    """
    tasks = {
        (gemm, degree, tiling): bench.queue((Tiled(gemm, tiling),) * degree)
        for gemm, degrees in gemms.items()
        for tilings in [candidates(gemm, bench.gpu, bench.options)]
        for degree in sorted({1, *degrees})
        for tiling in tilings
    }
    found = (jobs or Jobs()).run(tasks.values())
    runs: dict[Gemm, dict[int, dict[GemmTiling, Timeline]]] = {}
    for (gemm, degree, tiling), task in tasks.items():
        runs.setdefault(gemm, {}).setdefault(degree, {})[tiling] = found[task]
    return {gemm: GoKernels(gemm, by_degree) for gemm, by_degree in runs.items()}
