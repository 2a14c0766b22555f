"""What runs mean beside each other, by hand."""

import pytest

from weft.simulate.result.metrics import class_of, ideal_speedup, share_of_ideal


def test_the_ideal_hides_the_shorter_one():
    assert ideal_speedup(3.0, 2.0) == pytest.approx(5 / 3)
    assert ideal_speedup(2.0, 2.0) == pytest.approx(2)


def test_half_of_what_could_be_gained_is_less_than_half_of_what_could_be_hidden():
    # 5 s in a row; 4 s together is 1.25 times faster, of an ideal 1.667 times.
    assert share_of_ideal(5 / 4, ideal_speedup(3.0, 2.0)) == pytest.approx(0.25 / (5 / 3 - 1))


def test_serial_execution_has_no_share_the_ideal_all_and_a_loss_less_than_none():
    ideal = ideal_speedup(3.0, 2.0)
    assert share_of_ideal(1.0, ideal) == 0
    assert share_of_ideal(ideal, ideal) == 1
    assert share_of_ideal(0.9, ideal) < 0


@pytest.mark.parametrize(
    ("gemm", "collective", "kind"), [(1.2, 1.0, "G-long"), (1.1, 1.0, "GC-equal"), (1.0, 1.2, "C-long")]
)
def test_one_is_the_long_one_from_fifteen_percent_on(gemm, collective, kind):
    assert class_of(gemm, collective) == kind
