"""Who shares what, when: the ways to run a GEMM and the collective of its output on the same GPUs."""

from weft.overlap.arbiters import (
    COMMUNICATION,
    COMMUNICATION_FIRST,
    COMPUTE,
    COMPUTE_FIRST,
    NOBODY,
    POLICIES,
    ROUND_ROBIN,
    ArbiterPolicy,
    ArbiterView,
    arbiter,
)
from weft.overlap.base import Ideal, Overlap, PhaseTimes, Problem, Simulated
from weft.overlap.fused_scatter import FusedScatter
from weft.overlap.ideal import IdealOverlap, IdealReduceScatter
from weft.overlap.sequential import NearMemoryReduceScatter, Sequential
from weft.overlap.strategies import STRATEGIES, Strategy, find_strategy
from weft.overlap.track_trigger import TrackTrigger

OVERLAPS: dict[str, Overlap] = {
    overlap.name: overlap
    for overlap in (
        Sequential(),
        FusedScatter(),
        TrackTrigger("t3", "T3", ROUND_ROBIN),
        TrackTrigger("t3-mca", "T3-MCA", COMPUTE_FIRST),
        IdealOverlap(),
        IdealReduceScatter(),
    )
}
"""Every overlap by name, the baseline first."""

__all__ = [
    "COMMUNICATION",
    "COMMUNICATION_FIRST",
    "COMPUTE",
    "COMPUTE_FIRST",
    "NOBODY",
    "OVERLAPS",
    "POLICIES",
    "ROUND_ROBIN",
    "STRATEGIES",
    "ArbiterPolicy",
    "ArbiterView",
    "FusedScatter",
    "Ideal",
    "IdealOverlap",
    "IdealReduceScatter",
    "NearMemoryReduceScatter",
    "Overlap",
    "PhaseTimes",
    "Problem",
    "Sequential",
    "Simulated",
    "Strategy",
    "TrackTrigger",
    "arbiter",
    "find_strategy",
]
