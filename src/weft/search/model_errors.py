"""Errors of Weft's times against public figures, by GPU: GEMMs and collectives, alone and co-running."""

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
    """Factors on a speedup if contention were as published, and the reason."""

    low: float
    high: float
    why: str


def gemm_error(gpu: str) -> tuple[float, bool]:
    """The mean error of GEMMs on a GPU and whether it was measured there; if not, the worst of other GPUs."""
    return (GEMM[gpu], True) if gpu in GEMM else (max(GEMM.values()), False)


def collective_error(gpu: str, collective: str) -> tuple[float, bool]:
    """The mean error of a collective on a GPU and whether it was measured there; if not, the worst of other GPUs."""
    here = COLLECTIVE.get(gpu, {})
    if collective in here:
        return here[collective], True
    return max(found[collective] for found in COLLECTIVE.values() if collective in found), False


def contention_error(vendor: str, strategy: str) -> Contention:
    """Uncertainty of a strategy's speedup due to contention, on GPUs of a vendor.

    On AMD's GPUs it extends towards the published means. For other vendors a single public case exists.
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
