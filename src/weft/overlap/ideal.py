"""Ideals: what overlap would give if compute and communication shared nothing but time."""

from __future__ import annotations

from collections.abc import Mapping

from weft.overlap.base import Ideal, PhaseTimes
from weft.overlap.sequential import NearMemoryReduceScatter, Sequential

_SEQUENTIAL = Sequential()
_NEAR_MEMORY = NearMemoryReduceScatter()


class IdealOverlap(Ideal):
    """max(GEMM, reduce-scatter) + all-gather, from isolated times."""

    name = "ideal-overlap"
    title = "Ideal-GEMM-RS-Overlap"
    summary = "max(GEMM, RS) + AG of the sequential run's isolated times: perfect overlap, no contention"
    needs = (_SEQUENTIAL,)

    def combine(self, parts: Mapping[str, PhaseTimes]) -> PhaseTimes:
        """The longer of GEMM and reduce-scatter hides the other."""
        return _overlapped(parts[_SEQUENTIAL.name], parts[_SEQUENTIAL.name].reduce_scatter)


class IdealReduceScatter(Ideal):
    """max(GEMM, reduce-scatter with near-memory reduction) + all-gather, from isolated times."""

    name = "ideal-rs-nmc"
    title = "Ideal-RS+NMC"
    summary = "as ideal-overlap, with the reduce-scatter's additions made near memory"
    needs = (_SEQUENTIAL, _NEAR_MEMORY)

    def combine(self, parts: Mapping[str, PhaseTimes]) -> PhaseTimes:
        """The longer of GEMM and near-memory reduce-scatter hides the other."""
        return _overlapped(parts[_SEQUENTIAL.name], parts[_NEAR_MEMORY.name].reduce_scatter)


def _overlapped(isolated: PhaseTimes, reduce_scatter: float) -> PhaseTimes:
    total = max(isolated.gemm, reduce_scatter) + isolated.all_gather
    return PhaseTimes(isolated.gemm, reduce_scatter, isolated.all_gather, total)
