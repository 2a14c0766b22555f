"""Passes that decide order and sharing: overlaps of a GEMM with its collective, ways to share a GPU, arbitration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.errors import InputError, check_name
from weft.schedule.base import Ideal, Pass
from weft.schedule.methods import OVERLAPS, SEQUENTIAL, Overlap, applicable, find_overlap, overlap_names
from weft.schedule.sharing import SHARING_PASSES, Sharing

PASSES: Mapping[str, Pass] = {name: one.simulation for name, one in OVERLAPS.items() if one.simulation}
"""The overlap methods that the engine runs; the first one that accepts a graph is its baseline."""
SHARING: Mapping[str, Sharing] = {one.name: one for one in SHARING_PASSES}
"""The ways to share a GPU, by name."""


def find_pass(overlap: str | Pass) -> Pass:
    """The pass of an overlap method; UnknownNameError for an unknown one, InputError for one in closed form only."""
    if isinstance(overlap, Pass):
        return overlap
    name: Any = overlap
    if isinstance(name, str) and name in OVERLAPS and name not in PASSES:
        raise InputError(
            f"the overlap '{overlap}' is timed in closed form only, not by the engine; ask 'weft predict overlap' or "
            f"'weft step --overlap tp={overlap}', or choose one of {', '.join(PASSES)}"
        )
    check_name("overlap", overlap, PASSES, listed=True)
    return PASSES[overlap]


__all__ = [
    "OVERLAPS",
    "PASSES",
    "SEQUENTIAL",
    "SHARING",
    "Ideal",
    "Overlap",
    "Pass",
    "Sharing",
    "applicable",
    "find_overlap",
    "find_pass",
    "overlap_names",
]
