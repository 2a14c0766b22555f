"""The CU-split study in whole, against the published figures."""

import pytest

from published import broken
from weft.studies import cu_split

BARS = {
    "cu_split.72_8.ar_slowdown": 0.08,
    "cu_split.72_8.speedup": 0.06,
    "cu_split.64_16.ar_slowdown": 0.05,
    "cu_split.64_16.gemm_slowdown": 0.05,
    "cu_split.64_16.speedup": 0.08,
    "cu_split.ideal.speedup": 0.06,
}
# Outside their intervals, with the causes in docs/deviations.md; whoever closes one takes it off this list.
KNOWN_GAPS = {"cu_split.64_16.ar_slowdown": 0.019, "cu_split.ideal.speedup": 1.559}


def test_every_published_figure_has_an_interval():
    assert set(BARS) == set(cu_split.PUBLISHED)


@pytest.mark.slow
def test_every_published_figure_is_met_or_off_as_the_deviations_say():
    assert broken(cu_split.run().headline(), BARS, KNOWN_GAPS) == []
