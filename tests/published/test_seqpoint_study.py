"""The SeqPoint study in whole, against the published figures and its own bars."""

import pytest
from measured import measurements

from published import broken
from weft.papers.seqpoint import SeqPointStudy


@pytest.mark.slow
def test_every_published_figure_is_met_or_off_as_the_deviations_say():
    measurements()
    assert broken(SeqPointStudy.run(jobs=1).headline(), SeqPointStudy.DECLARED.claims) == []
