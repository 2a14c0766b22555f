"""The study of PyTorch on a simulator in whole, against measured kernels and its own bars."""

import pytest
from measured import measurements

from published import broken
from weft.papers.pytorch_on_simulator import PyTorchOnSimulatorStudy


@pytest.mark.slow
def test_every_published_figure_is_met_or_off_as_the_deviations_say():
    measurements()
    assert broken(PyTorchOnSimulatorStudy.run(jobs=1).headline(), PyTorchOnSimulatorStudy.DECLARED.claims) == []
