"""Closed-form times of operators and collectives: vectorised, in microseconds, with the bound that was hit."""

from weft.predict.collective import bus_factor, collective
from weft.predict.collective_parameters import collective_parameters
from weft.predict.collective_rigs import Rig, rig_of
from weft.predict.gemm import GemmPlan, gemm, gemm_options, gemm_plan
from weft.predict.gemm_parameters import GEMM_PARAMETERS
from weft.predict.layer import LayerPrediction, layer
from weft.predict.operators import OPERATORS, least_bytes, operator
from weft.predict.prediction import Bound, Parameter, Prediction

__all__ = [
    "GEMM_PARAMETERS",
    "OPERATORS",
    "Bound",
    "GemmPlan",
    "LayerPrediction",
    "Parameter",
    "Prediction",
    "Rig",
    "bus_factor",
    "collective",
    "collective_parameters",
    "gemm",
    "gemm_options",
    "gemm_plan",
    "layer",
    "least_bytes",
    "operator",
    "rig_of",
]
