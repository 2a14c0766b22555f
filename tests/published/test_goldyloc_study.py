"""The GOLDYLOC study in whole, against the published figures."""

from math import inf

import pytest

from published import broken
from weft.studies import goldyloc

BARS = {
    "goldyloc.over_default.geomean": 0.05,
    "goldyloc.over_default.max": 0.25,
    "goldyloc.over_sequential.geomean": 0.08,
    "goldyloc.over_sequential.max": 0.3,
    "goldyloc.default_over_sequential.geomean": inf,  # follows from two of the others
    "goldyloc.loss_on_half": inf,  # published for another GPU
    "goldyloc.loss_on_quarter": inf,
    "goldyloc.changed_tiles": inf,
}
# Outside their intervals, with the causes in docs/deviations.md; whoever closes one takes it off this list.
KNOWN_GAPS = {
    "goldyloc.over_sequential.max": 2.8716,
}


@pytest.mark.slow
def test_every_published_figure_is_met_or_off_as_the_deviations_say():
    rows = goldyloc.run(jobs=2).headline()
    assert broken(rows, BARS, KNOWN_GAPS) == []
    (oracle,) = (row.weft for row in rows if row.id == "goldyloc.of_oracle")
    assert oracle >= 0.95
