"""Representative iterations of a run whose iterations differ in length, and totals from them with stated intervals."""

from weft.papers.sample.estimators import (
    SampledTotal,
    Speedup,
    allocate,
    draw,
    estimate,
    iterations_for,
    speedup,
    strata,
)
from weft.papers.sample.iterations import Iterations, iterations, read_log
from weft.papers.sample.sampled import Sample, sample
from weft.papers.sample.seqpoint import BASELINES, Points, baseline, seqpoints

__all__ = [
    "BASELINES",
    "Iterations",
    "Points",
    "Sample",
    "SampledTotal",
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
