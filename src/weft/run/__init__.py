"""Run a graph on a system: once, under several overlaps, or as many runs on several processes."""

from weft.run.several import balanced, compare
from weft.run.single import alone, baseline, simulate

__all__ = ["alone", "balanced", "baseline", "compare", "simulate"]
