"""The BERT study in whole, against measured layers and steps."""

import pytest
from measured import measurements

from published import broken
from weft.papers import bert
from weft.papers.bert.study import DECLARED, measured_rows


@pytest.mark.slow
def test_every_published_figure_is_met_or_off_as_the_deviations_say():
    assert broken(bert.run().headline(), DECLARED.claims) == []


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True, reason="known gap: BERT's steps take less than the calibration residual that all frameworks share"
)
def test_every_measured_step_of_phase_1_is_predicted_within_a_tenth():
    off = {row.id: row.error for row in measured_rows(measurements()) if abs(row.error) > 0.1}
    assert off == {}


@pytest.mark.slow
def test_no_measured_step_of_phase_1_is_off_by_more_than_a_fifth():
    assert {row.id: row.error for row in measured_rows(measurements()) if abs(row.error) > 0.2} == {}
