"""Closed-form times of operators and collectives: vectorised, in microseconds, with the bound that was hit."""

from weft.predict.collective import bus_factor, collective
from weft.predict.collective_parameters import collective_parameters
from weft.predict.collective_rigs import Rig, rig_of
from weft.predict.prediction import Bound, Parameter, Prediction

__all__ = [
    "Bound",
    "Parameter",
    "Prediction",
    "Rig",
    "bus_factor",
    "collective",
    "collective_parameters",
    "rig_of",
]
