"""How far the T3 headline moves when one assumed value goes to either end of its plausible range.

Values that must change together are moved together; values that no simulated block reads alone are left out, by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from weft.errors import UnknownNameError
from weft.hardware import Gpu
from weft.hardware import load as load_gpu
from weft.kernels import GemmTiling
from weft.parallel import sublayer
from weft.result import Comparison
from weft.simulation import DEFAULT_REQUEST_BYTES
from weft.studies.claims import CaseKey
from weft.studies.moved import Row, Sensitivity
from weft.sweep import Progress, Store, results
from weft.sweep.sublayers import Compared

CASES = (("t-nlg", 8, "op"), ("t-nlg", 8, "fc2"), ("mega-gpt-2", 8, "ip"), ("mega-gpt-2", 16, "fc2"))
"""The sub-layers that stand for the study: GEMM-bound and RS-bound, in and out of the cache."""
OVERLAPS = ("sequential", "t3", "t3-mca", "ideal-overlap")
COUPLED: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "memory.timing.ras": {"high": {"memory.timing.ras": "34 ns", "memory.timing.rc": "48 ns"}},
    "memory.ccd": {"high": {"memory.ccd": "2", "memory.ccd_long": "2"}},
}
"""Ends of a range that another value must follow."""
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
FIGURES: Mapping[str, Callable[[Sequence[Comparison]], float]] = {
    "t3": lambda found: _geomean([c.speedup("t3") for c in found]),
    "t3_mca": lambda found: _geomean([c.speedup("t3-mca") for c in found]),
    "ideal_overlap": lambda found: _geomean([c.speedup("ideal-overlap") for c in found]),
    "traffic": lambda found: _geomean([c["t3-mca"].total_bytes / c.baseline.total_bytes for c in found]) - 1,
}
"""What is watched: geomeans over the cases."""
FORMATS = {name: "+.1%" if name == "traffic" else ".3f" for name in FIGURES}


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


@dataclass(frozen=True)
class _Variant:
    what: str
    end: str
    setting: str
    gpu: Gpu
    tiling: GemmTiling | None = None

    @property
    def about(self) -> str:
        """The variant in a few words."""
        return f"{self.what} {self.setting}".strip()


def assumed(gpu: Gpu) -> list[str]:
    """The paths of the machine's assumed values that the study moves."""
    return [
        path
        for path, found in gpu.provenance.items()
        if found.kind == "assumed" and path in gpu.paths() and path not in LEFT_OUT
    ]


def _variants(gpu: Gpu, paths: Sequence[str] | None) -> list[_Variant]:
    moved = assumed(gpu)
    for path in paths or ():
        if path not in moved:
            raise UnknownNameError("assumed value", path, moved)
    variants = [_Variant("as chosen", "", "", gpu)]
    for path in moved if paths is None else paths:
        ends = (("low", gpu.provenance[path].low), ("high", gpu.provenance[path].high))
        for end, text in ends:
            if text is None or gpu.with_values({path: text}).value(path) == gpu.value(path):
                continue
            values = COUPLED.get(path, {}).get(end, {path: text})
            variants.append(_Variant(path, end, text, gpu.with_values(values)))
    if paths is None:
        for what, tilings in TILINGS.items():
            for end, tiling in zip(("low", "high"), tilings, strict=True):
                variants.append(_Variant(what, end, end, gpu, tiling))
    return variants


def run(
    paths: Sequence[str] | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    *,
    gpu: Gpu | str = "t3-paper",
    cases: Sequence[CaseKey] = CASES,
    store: Store | None = None,
) -> Sensitivity:
    """Move every assumed value (or those at `paths`) to the ends of its range and simulate the cases.

    Without `paths`, ways to cut the GEMM are moved too. `progress(done, all, what)` is called after every case. What
    `store` holds is not simulated again.

    Raises UnknownNameError for a path that is not an assumed value, and what `weft.compare` raises.
    """
    machine = load_gpu(gpu) if isinstance(gpu, str) else gpu
    variants = _variants(machine, paths)
    todo = {variant: [_task(variant, model, tp, name) for model, tp, name in cases] for variant in variants}
    every = [task for tasks in todo.values() for task in tasks]
    made = results(every, Compared.comparison, jobs, progress, store)
    rows = (_row(variant, [made[task] for task in tasks]) for variant, tasks in todo.items())
    return Sensitivity("t3", tuple(cases), tuple(rows), FORMATS)


def _task(variant: _Variant, model: str, tp: int, name: str) -> Compared:
    layer = sublayer(model, name, tp=tp)
    return Compared(
        layer, variant.gpu, OVERLAPS, DEFAULT_REQUEST_BYTES, variant.tiling, spans=False, about=variant.about
    )


def _row(variant: _Variant, found: list[Comparison]) -> Row:
    figures = {name: figure(found) for name, figure in FIGURES.items()}
    return Row(variant.what, variant.setting, figures)
