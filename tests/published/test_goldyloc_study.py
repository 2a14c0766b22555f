"""The GOLDYLOC study in whole, against the published figures."""

import pytest

from published import broken
from weft.papers import goldyloc


@pytest.mark.slow
def test_every_published_figure_is_met_or_off_as_the_deviations_say():
    rows = goldyloc.run(jobs=2).headline()
    assert broken(rows, goldyloc.STUDY.DECLARED.claims) == []
    (oracle,) = (row.weft for row in rows if row.id == "goldyloc.of_oracle")
    assert oracle >= 0.95
