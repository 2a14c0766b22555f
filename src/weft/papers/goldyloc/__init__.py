"""GOLDYLOC (ACM TACO 2025): co-running independent GEMMs, with kernels tuned for each one's share of the GPU."""

from weft.papers.goldyloc.cases import JudgedQueue
from weft.papers.goldyloc.study import STUDY, GoldylocStudy, KernelEffect, run
from weft.papers.goldyloc.suite import QueueSuite

__all__ = ["STUDY", "GoldylocStudy", "JudgedQueue", "KernelEffect", "QueueSuite", "run"]
