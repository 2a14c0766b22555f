"""How far Weft's times of GEMMs and collectives, alone and beside each other, are from public figures, by GPU."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

_FILE = tomllib.loads((resources.files("weft.search") / "model_errors.toml").read_text(encoding="utf-8"))
GEMM: Mapping[str, float] = _FILE["gemm"]
COLLECTIVE: Mapping[str, Mapping[str, float]] = _FILE["collective"]
ONE_CASE: float = _FILE["beside"]["one_case"]
C3_SPEEDUPS: Mapping[str, tuple[float, float]] = _FILE["beside"]["c3"]


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
