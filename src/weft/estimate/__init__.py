"""Closed-form times: `weft.estimate(work, system)`, vectorised, with the bound that was hit and where the time goes."""

import sys
from types import ModuleType
from typing import Any

from weft.estimate.answer import Bound, Estimate, Parameter
from weft.estimate.dispatch import estimate
from weft.estimate.gemm_plans import ranked_plans
from weft.estimate.parameters import GEMM_PARAMETERS, collective_parameters
from weft.estimate.target import Harness

__all__ = [
    "GEMM_PARAMETERS",
    "Bound",
    "Estimate",
    "Harness",
    "Parameter",
    "collective_parameters",
    "estimate",
    "ranked_plans",
]


class _Room(ModuleType):
    """A callable module: `weft.estimate` is both the package and its main function."""

    def __call__(self, *args: Any, **named: Any) -> Estimate:
        return estimate(*args, **named)


sys.modules[__name__].__class__ = _Room
