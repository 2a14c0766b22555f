"""GOLDYLOC (ACM TACO 2025): co-running independent GEMMs, with kernels tuned for each one's share of the GPU."""

from weft.papers.goldyloc.cases import Case
from weft.papers.goldyloc.study import STUDY, Change, GoldylocStudy, run
from weft.papers.goldyloc.suite import Suite

__all__ = ["STUDY", "Case", "Change", "GoldylocStudy", "Suite", "run"]
