"""A fit finds the parameters that made the rows, says how sure it is, and says what the rows cannot tell."""

import numpy as np
import pytest

from weft.core.errors import InputError
from weft.estimate import Parameter
from weft.lab.calibration import fit, sample, split

LATENCY = Parameter("latency", 1e-6, 1e-4, "s", 20, "of a message")
RATE = Parameter("rate", 1e9, 1e12, "B/s", 20, "of the link")
UNUSED = Parameter("unused", 0.1, 1.0, "", 20, "nothing")
SIZES = 2.0 ** np.random.default_rng(1).uniform(10, 30, 300)
TRUTH = {"latency": 9e-6, "rate": 2e11}
START = {"latency": 3e-6, "rate": 1e11, "unused": 0.5}


def model(values):
    return values["latency"] + SIZES / values["rate"]


def noisy(seed, spread=0.05):
    return model(TRUTH) * np.exp(np.random.default_rng(seed).normal(0, spread, len(SIZES)))


def by_path(found):
    return {one.parameter.path: one for one in found.parameters}


def test_known_parameters_are_recovered_with_an_interval_around_them():
    found = fit(model, noisy(0), [LATENCY, RATE], START)
    for path, one in by_path(found).items():
        assert one.state == "fitted"
        assert one.value == pytest.approx(TRUTH[path], rel=0.02)
        assert one.low < one.value < one.high
    before, after = (np.abs(np.log(model(values) / noisy(0))).mean() for values in (START, found.values()))
    assert after < before


def test_the_interval_covers_the_truth_as_often_as_it_says():
    covered = [
        one.low <= TRUTH[path] <= one.high
        for seed in range(40)
        for path, one in by_path(fit(model, noisy(seed), [LATENCY, RATE], START)).items()
    ]
    assert np.mean(covered) > 0.88  # 0.95 expected of 80; fewer than 71 in less than one of a hundred thousand


def test_a_few_odd_rows_pull_little():
    measured = noisy(0)
    measured[:10] *= 30
    found = by_path(fit(model, measured, [LATENCY, RATE], START))
    assert found["rate"].value == pytest.approx(TRUTH["rate"], rel=0.05)


def test_a_fit_at_a_bound_is_reported():
    narrow = Parameter("rate", 3e11, 1e12, "B/s", 20, "of the link")
    assert by_path(fit(model, noisy(0), [LATENCY, narrow], START))["rate"].state == "at low bound"


def test_a_parameter_that_no_row_depends_on_keeps_its_start():
    found = by_path(fit(model, noisy(0), [LATENCY, RATE, UNUSED], START))
    assert (found["unused"].state, found["unused"].value, found["unused"].rows) == ("no rows", 0.5, 0)
    again = fit(model, noisy(0), [LATENCY, RATE, UNUSED], START)
    assert "unused" not in again.firm()
    assert again.values()["unused"] == 0.5


def test_parameters_that_only_act_together_are_weak_and_their_product_is_right():
    twins = [Parameter(name, 0.1, 10.0, "", 5, "half of a product") for name in ("one", "two")]
    found = fit(lambda v: v["one"] * v["two"] * SIZES, 2 * SIZES, twins, {"one": 1.0, "two": 1.0})
    assert [one.state for one in found.parameters] == ["weak", "weak"]
    assert np.prod(list(found.values().values())) == pytest.approx(2, rel=1e-3)


def test_too_few_rows_say_how_many_each_parameter_needs():
    with pytest.raises(InputError, match=r"3 rows are too few .*'latency' needs 20 rows that depend on it and has \d"):
        fit(lambda values: model(values)[:3], noisy(0)[:3], [LATENCY, RATE], START)


def test_a_linear_parameter_may_be_zero():
    share = Parameter("share", 0.0, 1.0, "", 10, "of something")
    found = fit(lambda v: SIZES * (1 + v["share"]), SIZES * 1.25, [share], {"share": 0.9})
    assert found.parameters[0].value == pytest.approx(0.25, abs=1e-3)


def test_a_split_holds_out_the_share_of_every_group_and_is_reproducible():
    strata = ["a"] * 100 + ["b"] * 10
    held = split(strata, 0.3, seed=7)
    assert (held[:100].sum(), held[100:].sum()) == (30, 3)
    assert (held == split(strata, 0.3, seed=7)).all()
    assert (held != split(strata, 0.3, seed=8)).any()


@pytest.mark.parametrize("share", [0, 1, -0.2, 30])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(InputError, match="between 0 and 1"):
        split(["a"], share, 0)


def test_a_sample_keeps_order_and_takes_at_most_so_many_of_each_group():
    chosen = sample(["a"] * 50 + ["b"] * 3, 10, seed=0)
    assert (np.diff(chosen) > 0).all()
    assert ((chosen < 50).sum(), (chosen >= 50).sum()) == (10, 3)
