"""Parts in a row on one rank whose weights are gathered before each and whose gradients are scattered after."""

import pytest

from weft.graph import Collective
from weft.step.chunks import TimedCollective, WeightGathers, chain_passes
from weft.step.result.step import PartTimes, Pass

MOVE = Collective("all_gather", 1 << 20, 8)


def moving(gather: list[float], scatter: list[float], **options) -> WeightGathers:
    return WeightGathers(
        *([TimedCollective(MOVE, seconds) for seconds in times] for times in (gather, scatter)), **options
    )


def parts(count: int, forward: float = 2.0, backward: float = 4.0) -> list[PartTimes]:
    return [PartTimes("layer", Pass(forward, {"gemm": forward}), Pass(backward, {"gemm": backward}))] * count


def test_without_gathering_passes_add_up():
    found = chain_passes(parts(3))
    assert (found.forward.seconds, found.backward.seconds) == (6.0, 12.0)


def test_gathers_hide_behind_the_layer_before_but_for_the_first():
    found = chain_passes(parts(3), moving([1.0] * 3, [0.0] * 3))
    assert found.forward.seconds == 1.0 + 6.0
    assert found.forward.parts == {"gemm": 6.0, "exposed dp": 1.0}
    assert found.forward.hidden == {"dp": 2.0}


def test_slow_gathers_set_the_pace():
    found = chain_passes(parts(3), moving([5.0] * 3, [0.0] * 3))
    assert found.forward.seconds == 3 * 5.0 + 2.0


def test_no_more_than_two_layers_are_whole_at_once():
    # The third gather waits for the end of the first layer, though the link is free at 1 s.
    found = chain_passes(parts(3, forward=10.0), moving([0.5, 0.5, 12.0], [0.0] * 3))
    assert found.forward.seconds == 10.5 + 12.0 + 10.0


def test_last_gradients_are_scattered_after_the_backward_pass():
    found = chain_passes(parts(3), moving([1.0] * 3, [1.5] * 3))
    assert found.backward.seconds == 12.0 + 1.5
    assert found.backward.parts["exposed dp"] == pytest.approx(1.5)


def test_weights_that_are_kept_are_not_gathered_again():
    gathering = moving([9.0] * 3, [1.0] * 3, keep=True)
    assert chain_passes(parts(3), gathering).backward.seconds == 12.0 + 1.0


def test_gathers_beside_a_layer_lengthen_both_and_that_is_contention():
    slow = moving([1.0] * 3, [0.0] * 3, slowdown=lambda passes, moved: (1.5, 2.0))
    found = chain_passes(parts(3), slow)
    # Two gathers of 1 s run beside two layers of 2 s: 2 s each, in which a layer does 2 / 1.5 s of its work.
    assert found.forward.parts["exposed dp"] == pytest.approx(1.0)
    assert found.forward.parts["contention"] == pytest.approx(2 * (2 - 2 / 1.5))
    assert sum(found.forward.parts.values()) == pytest.approx(found.forward.seconds)


def test_a_host_that_waits_for_every_kernel_exposes_all_its_launches():
    """CUDA_LAUNCH_BLOCKING=1: kernels and launches take turns; without it the longer of both counts."""
    one = PartTimes("layer", Pass(1.0, {"gemm": 1.0}, launches=5), Pass(2.0, {"gemm": 2.0}, launches=10))
    ahead, waits = (chain_passes([one], launch=0.01, synchronous=way).forward for way in (False, True))
    assert ahead.seconds == 1.0
    assert waits.seconds == pytest.approx(1.0 + 5 * 0.01)
    assert waits.parts["launch gaps"] == pytest.approx(5 * 0.01)
