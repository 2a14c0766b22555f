"""How far Weft's times of GEMMs and collectives, alone and beside each other, are from public figures, by GPU.

Alone: mean errors as `weft validate` found, which the page "How far off Weft is today" has with rows and sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

GEMM: Mapping[str, float] = {
    "a100-sxm-80gb": 0.087,
    "b200": 0.086,
    "h100-sxm": 0.073,
    "l40s": 0.110,
    "mi210": 0.087,
    "mi250x-gcd": 0.118,
}
"""Mean error of GEMMs in bf16, or fp16 where nothing else is public."""
COLLECTIVE: Mapping[str, Mapping[str, float]] = {
    "a100-sxm-80gb": {"all_gather": 0.026, "all_reduce": 0.123, "all_to_all": 0.041, "reduce_scatter": 0.030},
    "h100-sxm": {"all_gather": 0.034, "all_reduce": 0.095, "all_to_all": 0.094, "reduce_scatter": 0.040},
    "b200": {"all_gather": 0.028, "all_reduce": 0.021, "all_to_all": 0.043, "reduce_scatter": 0.023},
    "mi250x-gcd": {"all_gather": 0.087, "all_reduce": 0.063, "all_to_all": 0.074, "reduce_scatter": 0.056},
    "mi300x": {"all_reduce": 0.092},
}
"""Mean error of collectives by the GPU's library."""
ONE_CASE = 0.046
"""NVIDIA: the largest error of the one GEMM beside a collective that is public with both slowdowns (four A100)."""
C3_SPEEDUPS: Mapping[str, tuple[float, float]] = {
    "streams": (1.105, 1.146),
    "priority": (1.512, 1.292),
    "partition": (1.480, 1.285),
    "dma": (1.663, 1.459),
    "dma-partition": (1.663, 1.501),
}
"""AMD: mean speedup over the scenarios of `weft study c3` on MI300X, and the mean that the published share of the ideal
(arXiv:2412.14335) gives with the ideals of the same scenarios: 1 + share * (ideal - 1).
"""


class Contention(NamedTuple):
    """What a speedup would be, as factors, if sharing went as it was published; and why that may be so."""

    low: float
    high: float
    why: str


def gemm_error(gpu: str) -> tuple[float, bool]:
    """The mean error of GEMMs on a GPU, and whether it was measured there; else the worst of the others."""
    return (GEMM[gpu], True) if gpu in GEMM else (max(GEMM.values()), False)


def collective_error(gpu: str, collective: str) -> tuple[float, bool]:
    """The mean error of a collective on a GPU, and whether it was measured there; else the worst of the others."""
    here = COLLECTIVE.get(gpu, {})
    if collective in here:
        return here[collective], True
    return max(found[collective] for found in COLLECTIVE.values() if collective in found), False


def contention_error(vendor: str, strategy: str) -> Contention:
    """How far the speedup of a strategy may be off by what both cost each other, on GPUs of a vendor.

    On AMD's to the side on which the published means lie. Elsewhere one case is all that is public.
    """
    if vendor == "amd" and strategy in C3_SPEEDUPS:
        here, published = C3_SPEEDUPS[strategy]
        than, side = ("no better than", "higher") if here > published else ("as good as", "lower")
        why = (
            f"{strategy} is {than} published for C3 on MI300X, where Weft's mean speedup is "
            f"{abs(here / published - 1):.0%} {side}"
        )
        return Contention(min(published / here, 1.0), max(published / here, 1.0), why)
    why = f"both side by side are off by {ONE_CASE:.1%}, as in the one case that is public (four A100)"
    return Contention(1 / (1 + ONE_CASE), 1 / (1 - ONE_CASE), why)
