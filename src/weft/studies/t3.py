"""T3's sub-layer study: the paper's models, degrees and configurations, and its figures beside Weft's.

Published: S. Pati, S. Aga, M. Islam, N. Jayasena, M. D. Sinclair, "T3: Transparent Tracking & Triggering for
Fine-grained Overlap of Compute & Collectives", ASPLOS 2024, arXiv:2401.16677. The abstract states the geomean
and the maximum of T3-MCA's speedup and of the traffic that it saves; the section on results, the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any

from weft.errors import InputError, UnknownNameError
from weft.hardware import Gpu, find_system
from weft.hardware import load as load_gpu
from weft.parallel import ShardedSubLayer, sublayer
from weft.predict import collective
from weft.result import Comparison, Result
from weft.simulation import DEFAULT_REQUEST_BYTES
from weft.studies.claims import (
    CaseKey,
    Claim,
    geomean_speedup,
    largest_saving,
    largest_speedup,
    reduce_scatter_gain,
    times_fewer,
    traffic_change,
)
from weft.studies.headline import HeadlineRow, PaperStudy, unlike
from weft.sweep import Progress, Store, results
from weft.sweep.sublayers import Compared
from weft.workload import SUBLAYERS, Gemm

OVERLAPS = ("sequential", "t3", "t3-mca", "ideal-overlap", "ideal-rs-nmc")
"""The paper's configurations, the baseline first."""
MAIN = {"mega-gpt-2": (8, 16), "t-nlg": (8, 16)}
"""The models of the main figures, with their degrees of tensor parallelism."""
LARGE = {"gpt-3": (32,), "palm": (32,), "mt-nlg": (32,)}
"""The large models."""

PAPER_MACHINE = "t3-paper"
"""The machine that the published figures hold for."""
HYPOTHETICAL = (
    "no GPU has a tracker, near-memory updates and copies that it starts; their values here are hypothetical"
)
"""What must be said beside figures for a machine that can be bought."""


def _cases(models: Mapping[str, tuple[int, ...]]) -> tuple[CaseKey, ...]:
    return tuple((model, tp, name) for model, tps in models.items() for tp in tps for name in SUBLAYERS)


MAIN_CASES = _cases(MAIN)
"""The 16 sub-layers of the main figures."""
LARGE_CASES = _cases(LARGE)
"""The 12 sub-layers of the large models."""


def _at(tp: int) -> tuple[CaseKey, ...]:
    return tuple(case for case in MAIN_CASES if case[1] == tp)


CLAIMS = (
    Claim("t3.speedup.geomean", "T3 speedup, geomean", 1.20, "ratio", MAIN_CASES, geomean_speedup("t3")),
    Claim("t3.speedup.max", "T3 speedup, largest", 1.39, "ratio", MAIN_CASES, largest_speedup("t3")),
    Claim(
        "t3_mca.speedup.geomean",
        "T3-MCA speedup, geomean",
        1.30,
        "ratio",
        MAIN_CASES,
        geomean_speedup("t3-mca"),
    ),
    Claim(
        "t3_mca.speedup.max", "T3-MCA speedup, largest", 1.47, "ratio", MAIN_CASES, largest_speedup("t3-mca")
    ),
    Claim(
        "ideal_overlap.speedup.geomean",
        "ideal overlap, speedup, geomean",
        1.35,
        "ratio",
        MAIN_CASES,
        geomean_speedup("ideal-overlap"),
    ),
    Claim(
        "ideal_overlap.speedup.max",
        "ideal overlap, speedup, largest",
        1.50,
        "ratio",
        MAIN_CASES,
        largest_speedup("ideal-overlap"),
    ),
    Claim(
        "ideal_rs_nmc.rs_gain.tp8",
        "RS gain by near-memory updates, TP 8",
        0.07,
        "fraction",
        _at(8),
        reduce_scatter_gain("ideal-rs-nmc"),
    ),
    Claim(
        "ideal_rs_nmc.rs_gain.tp16",
        "RS gain by near-memory updates, TP 16",
        0.03,
        "fraction",
        _at(16),
        reduce_scatter_gain("ideal-rs-nmc"),
    ),
    Claim(
        "large.t3_mca.speedup.geomean",
        "large models, T3-MCA speedup, geomean",
        1.29,
        "ratio",
        LARGE_CASES,
        geomean_speedup("t3-mca"),
    ),
    Claim(
        "large.t3_mca.speedup.max",
        "large models, T3-MCA speedup, largest",
        1.35,
        "ratio",
        LARGE_CASES,
        largest_speedup("t3-mca"),
    ),
    Claim(
        "traffic.total.geomean",
        "T3-MCA, DRAM traffic, geomean",
        -0.22,
        "fraction",
        MAIN_CASES,
        traffic_change("t3-mca"),
    ),
    Claim(
        "traffic.total.max",
        "T3-MCA, DRAM traffic, largest saving",
        -0.36,
        "fraction",
        MAIN_CASES,
        largest_saving("t3-mca"),
    ),
    Claim(
        "traffic.rs_reads.tp8",
        "T3-MCA, RS reads, times fewer, TP 8",
        2.5,
        "ratio",
        _at(8),
        times_fewer("t3-mca", "rs_read"),
    ),
    Claim(
        "traffic.rs_reads.tp16",
        "T3-MCA, RS reads, times fewer, TP 16",
        2.2,
        "ratio",
        _at(16),
        times_fewer("t3-mca", "rs_read"),
    ),
    Claim(
        "traffic.gemm_rs_writes.geomean",
        "T3-MCA, GEMM and RS writes, geomean",
        -0.10,
        "fraction",
        MAIN_CASES,
        traffic_change("t3-mca", "gemm_write", "rs_write", "rs_update"),
    ),
    Claim(
        "traffic.gemm_reads.geomean",
        "T3-MCA, GEMM reads, times fewer",
        1.56,
        "ratio",
        MAIN_CASES,
        times_fewer("t3-mca", "gemm_read"),
    ),
)
"""Every published figure that the study stands beside."""


@dataclass(frozen=True)
class T3Study(PaperStudy):
    """What the study simulated: a comparison of all configurations per (model, TP, sub-layer)."""

    NAME = "t3"
    PAPER = "ASPLOS 2024, arXiv:2401.16677"

    comparisons: Mapping[CaseKey, Comparison]

    @property
    def _unlike(self) -> str | None:
        return unlike(self.gpu, PAPER_MACHINE, self.changed)

    @property
    def notes(self) -> tuple[str, ...]:
        """What must be known to read the figures; nothing on the paper's machine."""
        why = self._unlike
        if why is None:
            return ()
        longer = self.library_factor()
        baseline = () if longer is None else (_about_baseline(longer),)
        return (why, *(() if self.gpu == PAPER_MACHINE else (HYPOTHETICAL,)), *baseline)

    def library_factor(self) -> float | None:
        """How many times longer than `sequential`'s the library's own reduce-scatter and all-gather take.

        The geometric mean over the cases within one node, the library by its closed form; None where there is no
        such case or the catalogue has no system of the GPU.
        """
        factors = [_library_factor(case.baseline) for case in self.comparisons.values()]
        known = [factor for factor in factors if factor is not None]
        return geometric_mean(known) if known else None

    def headline(self) -> list[HeadlineRow]:
        """Weft's figures, beside the published ones on the paper's machine; without its cases, one is left out."""
        rows = (claim.row(self.comparisons, self.comparable) for claim in CLAIMS)
        return [row for row in rows if row is not None]

    def runs(self) -> list[dict[str, Any]]:
        """One plain record per sub-layer and configuration."""
        return [record for comparison in self.comparisons.values() for record in comparison.rows()]

    def own(self) -> dict[str, Any]:
        """Every run as plain data."""
        return {"runs": self.runs()}

    def __str__(self) -> str:
        title = f"T3 study, {len(self.comparisons)} sub-layers on {self.gpu}"
        beside = f" {'published':>9} {'difference':>10}" if self.comparable else ""
        return "\n".join((title, f"{'figure':<32} {'weft':>7}{beside}", *map(_line, self.headline())))


def _library_factor(baseline: Result) -> float | None:
    config = baseline.config
    try:
        machine = find_system(config.gpu).machine
        if config.tp > machine.gpus_per_node:
            return None
        bytes_ = Gemm(config.m, config.n, config.k, config.dtype).output_bytes
        found = [collective(name, bytes_, config.tp, machine) for name in ("reduce_scatter", "all_gather")]
    except (InputError, UnknownNameError):
        return None
    simulated = baseline.times.reduce_scatter + baseline.times.all_gather
    return float(sum(prediction.seconds.item() for prediction in found)) / simulated


def _about_baseline(longer: float) -> str:
    return (
        "sequential's ring kernel uses every compute unit and no staging buffers; by closed form the library's own "
        f"reduce-scatter and all-gather take {longer:.2f} times as long as that kernel's (geomean within one node)"
    )


def _line(row: HeadlineRow) -> str:
    if not isinstance(row.published, float):
        return f"{row.id:<32} {row.weft:7.3f}"
    beside = f" {row.published:9.2f} {row.difference:+10.3f}"
    return f"{row.id:<32} {row.weft:7.3f}{beside}"


def select(models: Iterable[str] | None = None, tps: Iterable[int] | None = None) -> list[CaseKey]:
    """The study's cases of the given models and degrees (None: all).

    Raises UnknownNameError for a model that is not in the study, InputError for such a degree or if no case
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
    cases = [case for case in (*MAIN_CASES, *LARGE_CASES) if case[0] in wanted and case[1] in chosen]
    if not cases:
        pairs = "; ".join(f"{model} at TP {', '.join(map(str, studied[model]))}" for model in wanted)
        raise InputError(
            f"the T3 study has none of these models at TP {', '.join(map(str, chosen))}: {pairs}"
        )
    return cases


def run(
    models: Iterable[str] | None = None,
    tps: Iterable[int] | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    *,
    gpu: Gpu | str = PAPER_MACHINE,
    request_bytes: int = DEFAULT_REQUEST_BYTES,
    store: Store | None = None,
) -> T3Study:
    """Simulate the study, or its cases of some models and degrees, on `jobs` processes.

    `progress(done, all, what)` is called at the start and after every simulated sub-layer. FC-1 and FC-2 of a
    model are the same GEMM: equal shapes are simulated once, and both carry the result (its wall time, too). What
    `store` holds is not simulated again.
    A script that asks for more than one job calls this below `if __name__ == "__main__":`.

    Raises what `select` and `weft.compare` raise.
    """
    begin = time.perf_counter()
    machine = load_gpu(gpu) if isinstance(gpu, str) else gpu
    layers = {case: sublayer(case[0], case[2], tp=case[1]) for case in select(models, tps)}
    # One task per shape; the first layer that has it stands for all.
    shapes = {_shape(layer): layer for layer in reversed(layers.values())}
    todo = [Compared(layer, machine, OVERLAPS, request_bytes) for layer in shapes.values()]
    made = dict(zip(shapes, results(todo, Compared.comparison, jobs, progress, store).values(), strict=True))
    comparisons = {case: _labelled(made[_shape(layer)], layer) for case, layer in layers.items()}
    first = next(iter(comparisons.values())).baseline.config
    return T3Study(
        comparisons,
        gpu=first.gpu,
        changed=first.changed,
        request_bytes=request_bytes,
        wall_s=time.perf_counter() - begin,
    )


def _shape(layer: ShardedSubLayer) -> tuple[str, int, str]:
    return layer.model, layer.tp, str(layer.gemm)


def _labelled(comparison: Comparison, layer: ShardedSubLayer) -> Comparison:
    """The comparison of an equal shape under this layer's name."""
    if comparison.baseline.config.sublayer == layer.name:
        return comparison
    results = {name: _renamed(result, layer.name) for name, result in comparison.results.items()}
    return replace(comparison, results=results)


def _renamed(result: Result, sublayer_name: str) -> Result:
    config = replace(result.config, sublayer=sublayer_name)
    parts = tuple(_renamed(part, sublayer_name) for part in result.parts)
    return replace(result, config=config, parts=parts)
