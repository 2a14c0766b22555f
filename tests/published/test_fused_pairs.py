"""GEMMs with their collectives, fused and separate, as MORI and others publish them; none of the values is fitted."""

import pytest
from tests.support.measured import measurements

from weft.estimate.errors import UNSEEN
from weft.lab.fused import GIVEN, TIME, right_signs
from weft.lab.run import validate


@pytest.fixture(scope="module")
def rows():
    """The predictions of both files; without them the tests are skipped."""
    return validate(measurements("contention"), kinds=["fused"]).predictions


def errors(rows, quantity, *methods):
    found = [part.frame() for part in rows]
    chosen = [one[(one["quantity"] == quantity) & one["method"].isin(methods)] for one in found]
    return [abs(p / m - 1) for one in chosen for p, m in zip(one["predicted"], one["measured"], strict=True)]


def test_times_on_mi355x_are_within_15_percent_where_the_gemms_own_time_is_stated(rows):
    for methods in (("mori",), ("mori-split", "sequential")):
        found = errors(rows, GIVEN, *methods)
        assert len(found) > 20
        assert sum(found) / len(found) <= 0.15


def test_the_interval_of_a_pair_by_mori_covers_the_error_of_its_rows(rows):
    for one in UNSEEN["joined"]:
        found = errors(rows, TIME, *one["of"])
        assert sum(found) / len(found) <= one["mean"]
        assert len(found) >= one["rows"]


def test_fused_against_separate_has_the_right_sign_in_85_percent(rows):
    right, count = right_signs(rows)
    assert count > 90
    assert right / count >= 0.85
