"""T3's sub-layer study: the paper's models, degrees and configurations, and its figures beside Weft's.

Published: S. Pati, S. Aga, M. Islam, N. Jayasena, M. D. Sinclair, "T3: Transparent Tracking & Triggering for
Fine-grained Overlap of Compute & Collectives", ASPLOS 2024, arXiv:2401.16677. The abstract states the geomean
and the maximum of T3-MCA's speedup and of the traffic that it saves; the section on results, the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean
from typing import Any

from weft import hardware
from weft.errors import InputError, UnknownNameError
from weft.estimate import estimate
from weft.graph import Collective, Graph
from weft.hardware import Gpu
from weft.models import SUBLAYERS
from weft.options import SUSTAINED, RunOptions
from weft.parallel import sublayer
from weft.result import Comparison, Timeline
from weft.run.single import FINE_REQUEST
from weft.run.sweep import Progress, Store
from weft.run.sweep.run import comparisons
from weft.studies.headline import Claim, HeadlineRow, PaperStudy, rows

OVERLAPS = ("sequential", "t3", "t3-mca", "ideal-overlap", "ideal-rs-nmc")
"""The paper's configurations, the baseline first."""
MAIN = {"mega-gpt-2": (8, 16), "t-nlg": (8, 16)}
"""The models of the main figures, with their degrees of tensor parallelism."""
LARGE = {"gpt-3": (32,), "palm": (32,), "mt-nlg": (32,)}
"""The large models."""
PAPER_MACHINE = "t3-paper"
"""The machine that the published figures hold for."""
HYPOTHETICAL = "no GPU has a tracker, near-memory updates and copies that it starts; their values here are hypothetical"
"""What must be said beside figures for a machine that can be bought."""


def _sublayers(models: Mapping[str, tuple[int, ...]]) -> tuple[Graph, ...]:
    return tuple(sublayer(model, name, tp) for model, tps in models.items() for tp in tps for name in SUBLAYERS)


MAIN_CASES = _sublayers(MAIN)
"""The 16 sub-layers of the main figures."""
LARGE_CASES = _sublayers(LARGE)
"""The 12 sub-layers of the large models."""
TP8, TP16 = (tuple(graph for graph in MAIN_CASES if graph.ranks == tp) for tp in (8, 16))

Measure = Callable[[Sequence[Comparison]], float]


def _mean_speedup(overlap: str) -> Measure:
    return lambda found: geometric_mean(c.speedup(overlap) for c in found)


def _largest_speedup(overlap: str) -> Measure:
    return lambda found: max(c.speedup(overlap) for c in found)


def _times_fewer(operator: str, *kinds: str) -> Measure:
    """Sequential's traffic of an operator over T3-MCA's: 2.5 is 2.5 times fewer."""
    return lambda found: geometric_mean(
        c.baseline.bytes(operator, *kinds) / c["t3-mca"].bytes(operator, *kinds) for c in found
    )


def _traffic_change(bytes_of: Callable[[Timeline], int]) -> Measure:
    """T3-MCA's traffic over sequential's, less one: -0.22 is 22 % less."""
    return lambda found: 1 / geometric_mean(bytes_of(c.baseline) / bytes_of(c["t3-mca"]) for c in found) - 1


def _written(run: Timeline) -> int:
    return sum(run.bytes(operator, "write", "update") for operator in ("gemm", "reduce_scatter"))


def _all_traffic(run: Timeline) -> int:
    return run.total_bytes


def _largest_saving(found: Sequence[Comparison]) -> float:
    return min(c["t3-mca"].total_bytes / c.baseline.total_bytes - 1 for c in found)


def _near_memory_gain(found: Sequence[Comparison]) -> float:
    """How much faster the reduce-scatter is by near-memory updates: 0.07 is 7 %."""
    name = "reduce_scatter"
    return fmean(c.baseline.duration(name) / c["ideal-rs-nmc"].duration(name) - 1 for c in found)


CLAIMS: tuple[Claim[Comparison], ...] = (
    Claim("t3.speedup.geomean", "T3 speedup, geomean", 1.20, "ratio", _mean_speedup("t3"), MAIN_CASES),
    Claim("t3.speedup.max", "T3 speedup, largest", 1.39, "ratio", _largest_speedup("t3"), MAIN_CASES),
    Claim("t3_mca.speedup.geomean", "T3-MCA speedup, geomean", 1.30, "ratio", _mean_speedup("t3-mca"), MAIN_CASES),
    Claim("t3_mca.speedup.max", "T3-MCA speedup, largest", 1.47, "ratio", _largest_speedup("t3-mca"), MAIN_CASES),
    Claim("ideal_overlap.speedup.geomean", "ideal overlap, speedup, geomean", 1.35, "ratio",
          _mean_speedup("ideal-overlap"), MAIN_CASES),
    Claim("ideal_overlap.speedup.max", "ideal overlap, speedup, largest", 1.50, "ratio",
          _largest_speedup("ideal-overlap"), MAIN_CASES),
    Claim("ideal_rs_nmc.rs_gain.tp8", "RS gain by near-memory updates, TP 8", 0.07, "fraction", _near_memory_gain, TP8),
    Claim("ideal_rs_nmc.rs_gain.tp16", "RS gain by near-memory updates, TP 16", 0.03, "fraction",
          _near_memory_gain, TP16),
    Claim("large.t3_mca.speedup.geomean", "large models, T3-MCA speedup, geomean", 1.29, "ratio",
          _mean_speedup("t3-mca"), LARGE_CASES),
    Claim("large.t3_mca.speedup.max", "large models, T3-MCA speedup, largest", 1.35, "ratio",
          _largest_speedup("t3-mca"), LARGE_CASES),
    Claim("traffic.total.geomean", "T3-MCA, DRAM traffic, geomean", -0.22, "fraction",
          _traffic_change(_all_traffic), MAIN_CASES),
    Claim("traffic.total.max", "T3-MCA, DRAM traffic, largest saving", -0.36, "fraction", _largest_saving, MAIN_CASES),
    Claim("traffic.rs_reads.tp8", "T3-MCA, RS reads, times fewer, TP 8", 2.5, "ratio",
          _times_fewer("reduce_scatter", "read"), TP8),
    Claim("traffic.rs_reads.tp16", "T3-MCA, RS reads, times fewer, TP 16", 2.2, "ratio",
          _times_fewer("reduce_scatter", "read"), TP16),
    Claim("traffic.gemm_rs_writes.geomean", "T3-MCA, GEMM and RS writes, geomean", -0.10, "fraction",
          _traffic_change(_written), MAIN_CASES),
    Claim("traffic.gemm_reads.geomean", "T3-MCA, GEMM reads, times fewer", 1.56, "ratio",
          _times_fewer("gemm", "read"), MAIN_CASES),
)  # fmt: skip
"""Every published figure that the study stands beside."""


@dataclass(frozen=True)
class T3Study(PaperStudy):
    """What the study simulated: a comparison of all configurations per sub-layer."""

    NAME = "t3"
    PAPER = "ASPLOS 2024, arXiv:2401.16677"
    PAPER_GPU = PAPER_MACHINE

    comparisons: Mapping[Graph, Comparison]

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known to read the figures; nothing on the paper's machine."""
        if self.unlike is None:
            return ()
        longer = library_factor(case.baseline for case in self.comparisons.values())
        baseline = () if longer is None else (_about_baseline(longer),)
        return (self.unlike, *(() if self.gpu == PAPER_MACHINE else (HYPOTHETICAL,)), *baseline)

    def headline(self) -> list[HeadlineRow]:
        """Weft's figures, beside the published ones on the paper's machine; without its cases, one is left out."""
        return rows(CLAIMS, self.comparisons, self.comparable)

    def own(self) -> dict[str, Any]:
        """One plain record per sub-layer and configuration."""
        return {"runs": [record for comparison in self.comparisons.values() for record in comparison.rows()]}


def library_factor(baselines: Iterable[Timeline]) -> float | None:
    """How many times longer than `sequential`'s the library's own reduce-scatter and all-gather take.

    The geometric mean over the runs within one node, the library by its closed form on the run's own system; None
    without such a run or where no library is known for the GPU.
    """
    factors = []
    for run in baselines:
        if run.system.node and run.system.nodes == 1:
            moved = [node.op for node in run.graph.collectives if isinstance(node.op, Collective)]
            library = sum(estimate(op, run.system).seconds.item() for op in moved)
            factors.append(library / sum(run.duration(op.name) for op in moved))
    return geometric_mean(factors) if factors else None


def _about_baseline(longer: float) -> str:
    return (
        "sequential's ring kernel uses every compute unit and no staging buffers; by closed form the library's own "
        f"reduce-scatter and all-gather take {longer:.2f} times as long as that kernel's (geomean within one node)"
    )


def select(models: Iterable[str] | None = None, tps: Iterable[int] | None = None) -> list[Graph]:
    """The study's sub-layers of the given models and degrees (None: all).

    Raises UnknownNameError for a model that is not in the study, InputError for such a degree or if no sub-layer
    is left.
    """
    studied = {**MAIN, **LARGE}
    wanted = list(studied) if models is None else list(models)
    degrees = sorted({tp for all_of in studied.values() for tp in all_of})
    chosen = degrees if tps is None else list(tps)
    for model in wanted:
        if model not in studied:
            raise UnknownNameError("model of the T3 study", model, studied)
    for tp in chosen:
        if tp not in degrees:
            listed = ", ".join(map(str, degrees))
            raise InputError(f"the T3 study has no TP {tp}; its degrees are {listed}")
    cases = [
        graph for graph in (*MAIN_CASES, *LARGE_CASES) if graph.labels["model"] in wanted and graph.ranks in chosen
    ]
    if not cases:
        pairs = "; ".join(f"{model} at TP {', '.join(map(str, studied[model]))}" for model in wanted)
        raise InputError(f"the T3 study has none of these models at TP {', '.join(map(str, chosen))}: {pairs}")
    return cases


def finely(options: RunOptions) -> RunOptions:
    """The options, with memory requests of 512 B unless they say otherwise: dependent tiles wait for few bytes."""
    return options if options.request_bytes else replace(options, request_bytes=FINE_REQUEST)


def run(
    models: Iterable[str] | None = None,
    tps: Iterable[int] | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    *,
    gpu: Gpu | str = PAPER_MACHINE,
    options: RunOptions = SUSTAINED,
    store: Store | None = None,
) -> T3Study:
    """Simulate the study, or its cases of some models and degrees, on `jobs` processes.

    `progress(done, all, what)` is called at the start and after every run. FC-1 and FC-2 of a model are the same GEMM:
    equal graphs are simulated once, and both carry the result (its wall time, too). What `store` holds is not
    simulated again.
    A script that asks for more than one job calls this below `if __name__ == "__main__":`.

    Raises what `select` and `weft.compare` raise.
    """
    begin = time.perf_counter()
    machine = hardware.gpu(gpu)
    cases = select(models, tps)
    systems = {ranks: hardware.system(machine, gpus=ranks) for ranks in {graph.ranks for graph in cases}}
    pairs = [(graph, systems[graph.ranks]) for graph in cases]
    options = finely(options)
    made = comparisons(pairs, OVERLAPS, options, jobs, progress, store, whole=True)
    return T3Study(
        dict(zip(cases, made, strict=True)),
        machine=machine,
        request_bytes=options.request_bytes or FINE_REQUEST,
        wall_s=time.perf_counter() - begin,
    )
