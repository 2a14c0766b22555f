"""C3 and ConCCL (ISPASS 2025, arXiv:2412.14335): a GEMM co-run with an independent collective under six strategies."""

from weft.papers.c3.runs import CoRunCase
from weft.papers.c3.scenarios import Scenario, ScenarioSuite
from weft.papers.c3.study import STUDY, C3Study, run

__all__ = ["STUDY", "C3Study", "CoRunCase", "Scenario", "ScenarioSuite", "run"]
