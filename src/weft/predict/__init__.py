"""Closed-form times of operators and collectives: vectorised, in microseconds, with the bound that was hit."""

from weft.predict.prediction import Bound, Parameter, Prediction

__all__ = ["Bound", "Parameter", "Prediction"]
