"""Shares of the ideal, by hand."""

import pytest

from weft.result.sharing import Sharing
from weft.result.stream_run import StreamRun


def together(gemm_s, collective_s):
    return StreamRun(gemm_s, collective_s, max(gemm_s, collective_s))


def sharing(gemm_s=3.0, collective_s=2.0, **runs):
    return Sharing(StreamRun(gemm_s, None, gemm_s), StreamRun(None, collective_s, collective_s), runs)


def test_the_ideal_hides_the_shorter_one():
    assert sharing(3.0, 2.0).ideal == pytest.approx(5 / 3)
    assert sharing(2.0, 2.0).ideal == pytest.approx(2)


def test_half_of_what_could_be_gained_is_less_than_half_of_what_could_be_hidden():
    # 5 s in a row; 4 s together is 1.25 times faster, of an ideal 1.667 times.
    case = sharing(streams=together(4.0, 3.0))
    assert case.speedup("streams") == pytest.approx(1.25)
    assert case.share("streams") == pytest.approx(0.25 / (5 / 3 - 1))
    assert case.gemm_slowdown("streams") == pytest.approx(4 / 3)
    assert case.collective_slowdown("streams") == pytest.approx(1.5)


def test_serial_execution_has_no_share_and_the_ideal_all():
    case = sharing(none=together(5.0, 2.0), ideal=together(3.0, 2.0), worse=together(6.0, 2.0))
    assert case.share("none") == pytest.approx(0)
    assert case.share("ideal") == pytest.approx(1)
    assert case.share("worse") < 0


@pytest.mark.parametrize(
    ("gemm_s", "collective_s", "kind"),
    [(1.16, 1.0, "G-long"), (1.14, 1.0, "GC-equal"), (1.0, 1.14, "GC-equal"), (1.0, 1.16, "C-long")],
)
def test_one_is_long_from_15_percent_on(gemm_s, collective_s, kind):
    assert sharing(gemm_s, collective_s).kind == kind


def test_the_plain_data_say_what_each_strategy_makes_of_it():
    data = sharing(dma=together(3.0, 2.5)).as_json()
    assert data["class"] == "G-long"
    assert data["strategies"]["dma"]["share_of_ideal"] == pytest.approx(1)
