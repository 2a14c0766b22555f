"""The models against measurements: errors per machine, and parameters fitted to a machine's own rows.

`validate` sets every measured row of a folder beside its prediction; `calibrated` fits a machine to part of its rows
and finds the errors on the others. `weft validate` and `weft calibrate` are the same on the command line.
"""

from weft.validation.calibration import Calibrated, Fit, Fitted, calibrated, fit, hold_out, leave_one_out
from weft.validation.run import Validation, validate
from weft.validation.subjects import Predicted, Subject
from weft.validation.tables import data_folder

__all__ = [
    "Calibrated",
    "Fit",
    "Fitted",
    "Predicted",
    "Subject",
    "Validation",
    "calibrated",
    "data_folder",
    "fit",
    "hold_out",
    "leave_one_out",
    "validate",
]
