"""The CU-split study in whole, against the published figures."""

import pytest

from published import broken
from weft.papers import cu_split


@pytest.mark.slow
def test_every_published_figure_is_met_or_off_as_the_deviations_say():
    assert broken(cu_split.run().headline(), cu_split.DECLARED.claims) == []
