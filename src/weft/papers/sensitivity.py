"""Sensitivity of the T3 headline to single assumed values at either end of their plausible ranges.

Values that must change together are moved together; values that no simulated block reads by themselves are excluded by
name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from statistics import geometric_mean

from weft import hardware
from weft.core.errors import UnknownNameError
from weft.core.store import Store
from weft.hardware import Gpu, System
from weft.kernels import GemmTiling
from weft.models.parallel import sublayer
from weft.overlaps.ideals import IDEALS
from weft.plan.tune.perturb import ENDS, Sensitivity, ValueMove, Values, moves, perturb
from weft.simulate.result.metrics import speedup
from weft.simulate.single import assemble_ideal
from weft.sweep.simulations import Jobs, Runs, Simulation
from weft.sweep.tasks import Progress

CASES = (("t-nlg", 8, "op"), ("t-nlg", 8, "fc2"), ("mega-gpt-2", 8, "ip"), ("mega-gpt-2", 16, "fc2"))
"""The sub-layers that represent the study: GEMM-bound and RS-bound, in and out of the cache."""
OVERLAPS = ("sequential", "t3", "t3-mca")
COUPLED: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "memory.timing.ras": {"high": {"memory.timing.rc": "48 ns"}},
    "memory.timing.rp": {"high": {"memory.timing.rc": "49 ns"}},
    "memory.timing.rc": {"low": {"memory.timing.ras": "28 ns", "memory.timing.rp": "12 ns"}},
    "memory.ccd": {"high": {"memory.ccd_long": "2"}},
}
"""Ends of ranges that another value must follow."""
LEFT_OUT = {
    "compute.wavefront_size": "sets the wavefront tiles per workgroup only, with the threads of a workgroup",
    "compute.threads_per_cu": "the registers bound the workgroups per compute unit, not the threads",
    "memory.channels": "at constant bandwidth it needs another bus width",
    "memory.interleave": "bounds the request size; see the request-size figures",
}
"""Assumed values that are not moved, and why."""
TILINGS: Mapping[str, tuple[GemmTiling, GemmTiling]] = {
    "GEMM: K steps in flight (1, 2, 3)": (GemmTiling(slots=1), GemmTiling(slots=3)),
    "GEMM: K step (16, 32, 64)": (GemmTiling(step=16), GemmTiling(step=64)),
    "GEMM: band of the raster (1, 8, 16)": (GemmTiling(band=1), GemmTiling(band=16)),
    "GEMM: tile (128 x 64, 128 x 128, 256 x 128)": (GemmTiling(columns=64), GemmTiling(rows=256)),
}
"""Assumed ways to cut the GEMM: low and high end."""
FORMATS = {"t3": ".3f", "t3_mca": ".3f", "ideal_overlap": ".3f", "traffic": "+.1%"}
"""The figures that are watched (geomeans over the cases), and their formats."""


def assumed_paths(gpu: Gpu) -> list[str]:
    """Return the paths of the machine's assumed values that the study moves."""
    return [
        path
        for path, found in gpu.provenance.items()
        if found.kind == "assumed" and path in gpu.rules() and path not in LEFT_OUT
    ]


def run(
    paths: Sequence[str] | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    *,
    gpu: Gpu | str = "t3-paper",
    cases: Sequence[tuple[str, int, str]] = CASES,
    store: Store | None = None,
) -> Sensitivity:
    """Move every assumed value (or those at `paths`) to the ends of its range and simulate the cases.

    Without `paths`, ways to cut the GEMM are moved too. Raises UnknownNameError for a path that is not an assumed
    value, and what the simulations raise.
    """
    machine = hardware.gpu(gpu)
    moved = list(_moves(hardware.system(machine, gpus=2), paths))
    graphs = [sublayer(model, name, tp) for model, tp, name in cases]
    tasks = [[Simulation(g, hardware.system(machine, gpus=g.ranks), name) for name in OVERLAPS] for g in graphs]
    rows = perturb(chain.from_iterable(tasks), moved, partial(_figures, tasks), Jobs(jobs, store, progress))
    return Sensitivity("t3", tuple(cases), rows, FORMATS)


def _moves(system: System, paths: Sequence[str] | None = None) -> Iterator[ValueMove]:
    known = assumed_paths(system.gpu)
    for path in paths or ():
        if path not in known:
            raise UnknownNameError("assumed value", path, known)
    values = (Values((path,), follow=COUPLED.get(path, {})) for path in (known if paths is None else paths))
    yield from moves(system, values)
    for what, tilings in TILINGS.items() if paths is None else ():
        for end, tiling in zip(ENDS, tilings, strict=True):
            yield ValueMove(what, end, change=partial(_cut, tiling))


def _cut(tiling: GemmTiling, task: Simulation) -> Simulation:
    """Return the task with another tiling of its GEMM."""
    return replace(task, graph=task.graph.with_tiling(tiling))


def _figures(tasks: Sequence[Sequence[Simulation]], runs: Runs) -> dict[str, float]:
    found = []
    for each in tasks:
        base, t3, mca = (runs[task] for task in each)
        ideal = assemble_ideal(IDEALS[0], each[0].graph, {"sequential": base})
        moved = mca.total_bytes / base.total_bytes
        found.append((speedup(t3, base), speedup(mca, base), speedup(ideal, base), moved))
    *speedups, traffic = map(geometric_mean, zip(*found, strict=True))
    return dict(zip(FORMATS, (*speedups, traffic - 1), strict=True))
