"""Passes that decide order and sharing: overlaps of a GEMM with its collective, ways to share a GPU, arbitration."""

from __future__ import annotations

from collections.abc import Mapping

from weft.errors import check_name
from weft.schedule.base import Ideal, Pass
from weft.schedule.in_order import IN_ORDER
from weft.schedule.sharing import SHARING_PASSES, Sharing
from weft.schedule.sublayer import SUBLAYER_PASSES

PASSES: Mapping[str, Pass] = {one.name: one for one in (*SUBLAYER_PASSES, *SHARING_PASSES, IN_ORDER)}
"""Every way to overlap by name; the first one that accepts a graph is its baseline."""
SHARING: Mapping[str, Sharing] = {one.name: one for one in SHARING_PASSES}
"""The ways to share a GPU, by name."""


def overlap_names() -> list[str]:
    """Every overlap and every way to share a GPU, by the names that `simulate` and `compare` take."""
    return list(PASSES)


def find_pass(overlap: str | Pass) -> Pass:
    """An overlap by name; UnknownNameError lists the known ones."""
    if isinstance(overlap, Pass):
        return overlap
    check_name("overlap", overlap, PASSES)
    return PASSES[overlap]


__all__ = ["PASSES", "SHARING", "Ideal", "Pass", "Sharing", "find_pass", "overlap_names"]
