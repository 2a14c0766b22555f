"""Overlap methods and co-run strategies, one class each: where it applies, how it runs, what it takes; arbiters."""

from weft.core.callables import make_callable
from weft.overlaps.base import AXES, FORMS, PLACES, SEQUENTIAL, Axis, Clock, OverlapMethod, Part, Place
from weft.overlaps.corun import CoRunStrategy
from weft.overlaps.graphs import Pattern
from weft.overlaps.ideals import Ideal
from weft.overlaps.lowering import lower_under
from weft.overlaps.registry import (
    BUILT_IN,
    OVERLAPS,
    STRATEGIES,
    applicable,
    find_overlap,
    find_simulated,
    find_strategy,
    not_an_overlap,
    overlap_names,
    register_overlap,
    simulated,
)

__all__ = [
    "AXES",
    "BUILT_IN",
    "FORMS",
    "OVERLAPS",
    "PLACES",
    "SEQUENTIAL",
    "STRATEGIES",
    "Axis",
    "Clock",
    "CoRunStrategy",
    "Ideal",
    "OverlapMethod",
    "Part",
    "Pattern",
    "Place",
    "applicable",
    "find_overlap",
    "find_simulated",
    "find_strategy",
    "lower_under",
    "not_an_overlap",
    "overlap_names",
    "register_overlap",
    "simulated",
]

make_callable(__name__, "weft.overlaps.registry", "overlap_names")
