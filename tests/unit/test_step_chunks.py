"""Parts in a row on one rank whose weights are gathered before each and whose gradients are scattered after."""

import pytest

from weft.result.step import PartTimes, Pass
from weft.run.step.chunks import Gathering, chunk


def parts(count: int, forward: float = 2.0, backward: float = 4.0) -> list[PartTimes]:
    return [PartTimes("layer", Pass(forward, {"gemm": forward}), Pass(backward, {"gemm": backward}))] * count


def test_without_gathering_passes_add_up():
    found = chunk(parts(3))
    assert (found.forward.seconds, found.backward.seconds) == (6.0, 12.0)


def test_gathers_hide_behind_the_layer_before_but_for_the_first():
    found = chunk(parts(3), Gathering([1.0] * 3, [0.0] * 3))
    assert found.forward.seconds == 1.0 + 6.0
    assert found.forward.parts == {"gemm": 6.0, "exposed dp": 1.0}
    assert found.forward.hidden == {"dp": 2.0}


def test_slow_gathers_set_the_pace():
    found = chunk(parts(3), Gathering([5.0] * 3, [0.0] * 3))
    assert found.forward.seconds == 3 * 5.0 + 2.0


def test_no_more_than_two_layers_are_whole_at_once():
    # The third gather waits for the end of the first layer, though the link is free at 1 s.
    found = chunk(parts(3, forward=10.0), Gathering([0.5, 0.5, 12.0], [0.0] * 3))
    assert found.forward.seconds == 10.5 + 12.0 + 10.0


def test_last_gradients_are_scattered_after_the_backward_pass():
    found = chunk(parts(3), Gathering([1.0] * 3, [1.5] * 3))
    assert found.backward.seconds == 12.0 + 1.5
    assert found.backward.parts["exposed dp"] == pytest.approx(1.5)


def test_weights_that_are_kept_are_not_gathered_again():
    gathering = Gathering([9.0] * 3, [1.0] * 3, keep=True)
    assert chunk(parts(3), gathering).backward.seconds == 12.0 + 1.0
