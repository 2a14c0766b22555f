"""Compare the models with measurements: errors per machine, and parameters fitted to a machine's own rows.

`validate` compares every measured row of a folder with its prediction; `calibrate` fits a machine to part of its rows,
measures the errors on the others and writes the machine. `weft validate` and `weft calibrate` do the same on the
command line.
"""

from typing import TYPE_CHECKING

from weft.core.callables import lazy_names

if TYPE_CHECKING:
    from weft.lab.calibration import Calibrated as Calibrated
    from weft.lab.calibration import Fit as Fit
    from weft.lab.calibration import Fitted as Fitted
    from weft.lab.calibration import calibrate_subject as calibrate_subject
    from weft.lab.calibration import fit as fit
    from weft.lab.calibration import hold_out as hold_out
    from weft.lab.calibration import leave_one_out as leave_one_out
    from weft.lab.catalog import Calibration as Calibration
    from weft.lab.catalog import calibrate as calibrate
    from weft.lab.run import Validation as Validation
    from weft.lab.run import validate as validate
    from weft.lab.subjects import Predicted as Predicted
    from weft.lab.subjects import Subject as Subject

__getattr__, __all__ = lazy_names(
    __name__,
    calibration="Calibrated Fit Fitted calibrate_subject fit hold_out leave_one_out",
    catalog="Calibration calibrate",
    run="Validation validate",
    subjects="Predicted Subject",
)
