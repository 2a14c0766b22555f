"""What runs mean beside each other: speedup, share of the ideal, slowdown, exposed time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weft.result.timeline import Timeline

LONGER = 1.15
"""One of both is the long one if it takes more than this many times the other's time alone (arXiv:2412.14335)."""
CLASSES = {"G-long": "GEMM is longer", "GC-equal": "both alike", "C-long": "collective is longer"}
"""Which of a GEMM and a collective is the long one: the paper's names, and words."""


def speedup(run: Timeline, baseline: Timeline) -> float:
    """How many times faster than `baseline`."""
    return baseline.seconds / run.seconds


def ideal_speedup(first_s: float, second_s: float) -> float:
    """Over one after the other, if the shorter of both cost nothing."""
    return (first_s + second_s) / max(first_s, second_s)


def share_of_ideal(speedup: float, ideal: float) -> float:
    """How much of what the ideal saves a speedup saves; below 0 where it loses."""
    return (speedup - 1) / (ideal - 1)


def slowdown(run: Timeline, alone: Timeline, operator: str) -> float:
    """How many times later an operator's last iteration ends than alone, from the common start."""
    return run.end(operator) / alone.end(operator)


def exposed(run: Timeline, operator: str) -> float:
    """For how long an operator ran, on GPU 0, while no kernel of another one did [s]."""
    own = [(s.start_fs, s.end_fs) for s in run.spans if s.gpu == 0 and s.operator == operator]
    others = [(s.start_fs, s.end_fs) for s in run.spans if s.gpu == 0 and s.operator != operator]
    return (_covered(own + others) - _covered(others)) * 1e-15


def _covered(spans: list[tuple[int, int]]) -> int:
    """The length of the union of intervals."""
    total, until = 0, -1
    for start, end in sorted(spans):
        total += max(end - max(start, until), 0)
        until = max(until, end)
    return total


def owned_bytes(run: Timeline, gemms: bool, writes: bool, gpu: int = 0) -> npt.NDArray[np.float64]:
    """Bytes per bin of a run's series that the GEMMs, or everything else, read, or wrote, in DRAM."""
    assert run.series is not None  # a simulated run has one
    names = {node.name for node in run.graph.gemms}
    rows = [
        bins[gpu]
        for (operator, kind), bins in run.series.traffic.items()
        if (operator in names) is gemms and (kind != "read") is writes and operator != "earlier"
    ]
    return np.sum(rows, axis=0, dtype=np.float64) if rows else np.zeros(run.series.link.shape[1])


def class_of(gemm_s: float, collective_s: float) -> str:
    """Which of CLASSES two times alone make."""
    if gemm_s > LONGER * collective_s:
        return "G-long"
    return "C-long" if collective_s > LONGER * gemm_s else "GC-equal"
