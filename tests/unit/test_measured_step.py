"""A measured step beside the predicted one."""

import pytest

import weft
from weft.core.errors import InputError
from weft.step.measured import Measured

ASKED = {"tp": 8, "pp": 8, "batch": 64, "fidelity": "estimate", "recompute": "full"}


@pytest.fixture(scope="module")
def step():
    return weft.step("gpt-3", "64xa100", **ASKED)


@pytest.mark.parametrize("times", [0.6, 1.0, 1.6])
def test_a_measured_time_lies_in_the_range_or_beyond_an_end(step, times):
    said = weft.step("gpt-3", "64xa100", measured=f"{times * step.seconds} s", **ASKED).needs
    wanted = {0.6: "below the 80 % interval", 1.0: "within the 80 % interval", 1.6: "beyond the 80 % interval"}[times]
    assert wanted in next(line for line in said if line.startswith("Measured "))
    assert any(line.startswith("Where time may be lost: ") and "recompute" in line for line in said)


def test_rates_are_of_each_gpu_and_count_the_models_operations(step):
    by_tokens = Measured.of(f"{step.tokens_per_s_per_gpu} tokens/s").seconds(step)
    by_flops = Measured.of(f"{step.flops() / step.seconds / 64 / 1e12} TFLOP/s").seconds(step)
    assert by_tokens == pytest.approx(step.seconds)
    assert by_flops == pytest.approx(step.seconds)
    assert Measured.of("1,500 ms").seconds(step) == 1.5


def test_the_changes_that_gain_most_are_faster_and_fit(step):
    said = weft.step("gpt-3", "64xa100", measured="20 s", **ASKED).needs[-1]
    assert said.startswith("What would gain most, one change at a time: ")
    changed = weft.step("gpt-3", "64xa100", **{**ASKED, "schedule": "interleaved:6"})
    assert changed.seconds < step.seconds
    assert "interleaved 1F1B" in said or "recomputation" in said


def test_the_changes_that_gain_most_need_no_measured_time(step):
    improved = weft.step("gpt-3", "64xa100", improve=True, **ASKED)
    assert improved.needs == (*step.needs, weft.step("gpt-3", "64xa100", measured="20 s", **ASKED).needs[-1])


@pytest.mark.parametrize("text", ["", "3", "fast", "-1 s", "0 s", "nan s", "1 2 s", "1e400 s", "9.3 hours", "1 s s"])
def test_what_is_no_measured_step_is_refused(text):
    with pytest.raises(
        InputError, match=r"is no measured step; write it like '9.3 s', '1400 tokens/s' or '412 TFLOP/s'"
    ):
        weft.step("gpt-3", "64xa100", measured=text, **ASKED)
