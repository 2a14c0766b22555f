"""Closed-form times: `weft.estimate(work, system)`, vectorised, with the bound that was hit and where the time goes."""

from weft.core.callables import make_callable
from weft.estimate.answer import Bound, Estimate, Parameter
from weft.estimate.dispatch import estimate
from weft.estimate.gemm import ranked_plans
from weft.estimate.target import GEMM_PARAMETERS, BenchmarkProtocol, collective_parameters

__all__ = [
    "GEMM_PARAMETERS",
    "BenchmarkProtocol",
    "Bound",
    "Estimate",
    "Parameter",
    "collective_parameters",
    "estimate",
    "ranked_plans",
]

make_callable(__name__, "weft.estimate.dispatch", "estimate")
