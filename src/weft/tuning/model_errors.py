"""How far Weft's times of GEMMs and collectives alone are from public measurements, by GPU, as `weft validate` found.

The page "How far off Weft is today" has these figures with their rows and sources.
"""

from __future__ import annotations

from collections.abc import Mapping

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
CONTENTION = 0.052
"""The largest error of the one GEMM beside a collective that is public with both slowdowns (four A100)."""


def gemm_error(gpu: str) -> tuple[float, bool]:
    """The mean error of GEMMs on a GPU, and whether it was measured there; else the worst of the others."""
    return (GEMM[gpu], True) if gpu in GEMM else (max(GEMM.values()), False)


def collective_error(gpu: str, collective: str) -> tuple[float, bool]:
    """The mean error of a collective on a GPU, and whether it was measured there; else the worst of the others."""
    here = COLLECTIVE.get(gpu, {})
    if collective in here:
        return here[collective], True
    return max(found[collective] for found in COLLECTIVE.values() if collective in found), False
