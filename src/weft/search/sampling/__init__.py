"""Representative iterations of a run whose iterations differ in length, and totals from them with stated intervals."""

from weft.search.sampling.baselines import BASELINES, baseline
from weft.search.sampling.estimators import Estimate, Speedup, estimate, iterations_for, speedup
from weft.search.sampling.iterations import Iterations, iterations, read_log
from weft.search.sampling.sample import Sample, sample
from weft.search.sampling.seqpoint import Points, seqpoints
from weft.search.sampling.strata import allocate, draw, strata

__all__ = [
    "BASELINES",
    "Estimate",
    "Iterations",
    "Points",
    "Sample",
    "Speedup",
    "allocate",
    "baseline",
    "draw",
    "estimate",
    "iterations",
    "iterations_for",
    "read_log",
    "sample",
    "seqpoints",
    "speedup",
    "strata",
]
