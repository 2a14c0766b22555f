"""Measured plans against predicted ones: which pairs count, which order is right, and what the chosen plan costs."""

import pytest
from step_rows import validated

from weft.lab.ranking import ranking

FULL = {"gbs_seq": "64", "recompute": "full"}
FAST, SLOW = {**FULL, "mbs_seq": "4", "tp": "8", "dp": "1"}, {**FULL, "mbs_seq": "1", "tp": "8", "dp": "1"}


def ranked(folder, *rows):
    return ranking(validated(folder, *rows).predictions, "megatron-2022")


def test_a_pair_in_the_measured_order_is_right_and_its_choice_has_no_regret(tmp_path):
    predicted = {
        name: found.predictions[0].seconds[0]
        for name, row in (("fast", FAST), ("slow", SLOW))
        if (found := validated(tmp_path, row))
    }
    assert predicted["fast"] < predicted["slow"]
    found = ranked(tmp_path, {**FAST, "step_time_s": "10"}, {**SLOW, "step_time_s": "12"})
    assert (found.pairs, found.right, found.regrets) == (1, 1, (0.0,))


def test_a_pair_in_the_other_order_is_wrong_and_costs_what_was_measured(tmp_path):
    found = ranked(tmp_path, {**FAST, "step_time_s": "12"}, {**SLOW, "step_time_s": "10"})
    assert (found.pairs, found.right) == (1, 0)
    assert found.regret == pytest.approx(0.2)


@pytest.mark.parametrize(
    "other",
    [{"step_time_s": "10.1"}, {"step_time_s": "12", "gbs_seq": "32"}, {"step_time_s": "12", "notes": "era B"}],
    ids=["equal times", "another batch", "another era"],
)
def test_rows_that_cannot_be_told_apart_or_differ_in_more_than_the_plan_are_no_pair(tmp_path, other):
    assert ranked(tmp_path, {**FAST, "step_time_s": "10"}, {**SLOW, **other}) is None
