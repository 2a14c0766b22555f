"""The study of PyTorch on a simulator in whole, against measured kernels and its own bars."""

import pytest

from published import broken
from weft.errors import InputError
from weft.studies.pytorch_on_simulator import PyTorchOnSimulatorStudy
from weft.validation.tables import data_folder


@pytest.mark.slow
def test_every_published_figure_is_met_or_off_as_the_deviations_say():
    try:
        data_folder()
    except InputError:
        pytest.skip("no measured kernels here: set WEFT_DATA")
    assert broken(PyTorchOnSimulatorStudy.run(jobs=1).headline(), PyTorchOnSimulatorStudy.DECLARED.claims) == []
