"""Metrics of one or two runs: speedup, share of the ideal, exposed time, bytes over time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weft.simulate.result.timeline import Timeline

_LONGER = 1.15
"""An operator counts as the longer one if it takes more than this many times the other's time (arXiv:2412.14335)."""
CLASSES = {"G-long": "GEMM is longer", "GC-equal": "both alike", "C-long": "collective is longer"}
"""Classes of a GEMM concurrent with a collective by which of them takes longer alone: the paper's names, and words."""


def speedup(run: Timeline, baseline: Timeline) -> float:
    """Speedup over `baseline`."""
    return baseline.seconds / run.seconds


def ideal_speedup(first_s: float, second_s: float) -> float:
    """Speedup over both in sequence if the shorter one were hidden entirely."""
    return (first_s + second_s) / max(first_s, second_s)


def share_of_ideal(speedup: float, ideal: float) -> float:
    """Return the fraction of the ideal's gain that a speedup reaches; below 0 for a slowdown."""
    return (speedup - 1) / (ideal - 1)


def owned_bytes(run: Timeline, gemms: bool, writes: bool, gpu: int = 0) -> npt.NDArray[np.float64]:
    """DRAM bytes per bin of a run's series: reads or `writes`, of the `gemms` or of everything else; shape (bins,)."""
    assert run.series is not None  # a simulated run always has a series
    names = {node.name for node in run.graph.gemms}
    rows = [
        bins[gpu]
        for (operator, kind), bins in run.series.traffic.items()
        if (operator in names) is gemms and (kind != "read") is writes and operator != "earlier"
    ]
    return np.sum(rows, axis=0, dtype=np.float64) if rows else np.zeros(run.series.link.shape[1])


def stage_spreads(run: Timeline, gpu: int = 0) -> tuple[float, ...]:
    """Standard deviation of the ends of the workgroups of each stage of the first GEMM on a GPU [s].

    In step, all workgroups of a stage end together; then they store together, and the next stage's loads wait.
    """
    return tuple(float(np.std(ends)) * 1e-15 for ends in stage_ends(run, gpu))


def stage_ends(run: Timeline, gpu: int = 0) -> list[npt.NDArray[np.int64]]:
    """The ends of the workgroups of each stage of the first GEMM on a GPU [fs], stages in order; empty without any."""
    if run.residency is None or not run.graph.gemms:
        return []
    found, gemm = [], run.graph.gemms[0].name
    for kernel in dict.fromkeys(span.kernel for span in run.spans if span.operator == gemm):
        ends = run.residency.of(gpu, [kernel])[2]
        sizes = [stage.workgroups for stage in run.stages if (stage.gpu, stage.kernel) == (gpu, kernel)]
        found += np.split(ends, np.cumsum(sizes)[:-1])
    return found


def class_of(gemm_s: float, collective_s: float) -> str:
    """Return the class (one of `CLASSES`) of a GEMM and a collective by their isolated times [s]."""
    if gemm_s > _LONGER * collective_s:
        return "G-long"
    return "C-long" if collective_s > _LONGER * gemm_s else "GC-equal"
