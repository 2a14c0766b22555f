"""Compare the models with measurements: errors per machine, and parameters fitted to a machine's own rows.

`validate` compares every measured row of a folder with its prediction; `calibrate` fits a machine to part of its rows,
measures the errors on the others and writes the machine. `weft validate` and `weft calibrate` do the same on the
command line.
"""

from weft.lab.calibration import Calibrated, Fit, Fitted, calibrated, fit, hold_out, leave_one_out
from weft.lab.catalog import Calibration, calibrate
from weft.lab.run import Validation, validate
from weft.lab.subjects import Predicted, Subject
from weft.lab.tables import data_folder

__all__ = [
    "Calibrated",
    "Calibration",
    "Fit",
    "Fitted",
    "Predicted",
    "Subject",
    "Validation",
    "calibrate",
    "calibrated",
    "data_folder",
    "fit",
    "hold_out",
    "leave_one_out",
    "validate",
]
