"""PyTorch's async TP: a GEMM for each rank's share of the rows, on two streams, beside copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from weft.overlaps.base import ClosedFormMethod
from weft.overlaps.graphs import Pattern
from weft.overlaps.pairs import PairTimes

STREAMS = 2
"""Streams over which async TP deals its pieces (PyTorch, symmetric memory)."""


@dataclass(frozen=True)
class AsyncTP(ClosedFormMethod):
    """A GEMM per rank's share on two streams, beside copies; only its closed form times it."""

    name: str = "async-tp"
    title: str = "Async TP"
    summary: str = "a GEMM for each rank's share of the rows, on two streams, beside copies (PyTorch's async TP)"

    joins: ClassVar[str] = "pieces of a GEMM and copies of its collective"
    patterns: ClassVar[tuple[Pattern, ...]] = ("ag_gemm", "gemm_rs", "tp")
    closed_forms: ClassVar[tuple[Pattern, ...]] = patterns

    def estimate(self, pair: PairTimes, costs: Mapping[str, float]) -> Any:
        """Return the time of pieces on two streams; each piece waits for its copy.

        Pieces leave compute units idle where their tiles fill no wave. Before a reduce-scatter each also waits for two
        barriers. The host issues every kernel, copy and barrier.
        """
        others, barriers = pair.ranks - 1, np.where(pair.scatters, 2.0, 0.0)
        copy = pair.copy / costs["async-tp.copy_share"]
        step = pair.piece + copy + barriers * costs["async-tp.barrier"]
        computed = pair.ranks * np.maximum(pair.piece / STREAMS, pair.gemm / pair.ranks) + copy
        linked = others * copy + pair.piece
        device = np.maximum(np.maximum(computed, linked), others / STREAMS * step + pair.piece) + pair.summed
        issued = (others * (2 + barriers) + 4) * costs["async-tp.issue"]
        return costs["async-tp.start"] + np.maximum(device, issued)
