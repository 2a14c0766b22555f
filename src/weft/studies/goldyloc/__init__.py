"""GOLDYLOC (ACM TACO 2025): independent GEMMs on one GPU, with kernels for the share that each really gets."""

from weft.studies.goldyloc.study import STUDY, Case, Change, GoldylocStudy, run
from weft.studies.goldyloc.suite import Suite

__all__ = ["STUDY", "Case", "Change", "GoldylocStudy", "Suite", "run"]
