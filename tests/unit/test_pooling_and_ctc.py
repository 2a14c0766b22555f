"""Pooling and the loss over alignments: what they move, and how long they take."""

from __future__ import annotations

import pytest

import weft
from weft.core.errors import InputError
from weft.graph import Ctc, Pooling


def test_pooling_keeps_the_places_of_the_largest_elements():
    op = Pooling(batch=64, channels=6, height=28, width=28, dtype="fp32")
    outputs = 64 * 6 * 14 * 14
    assert op.least_bytes == 4 * outputs * 4 + outputs * (4 + 8)
    (gradient,) = op.backward.inputs
    assert gradient.least_bytes == op.least_bytes
    assert Pooling(64, 6, dtype="fp32", mean=True).least_bytes == op.least_bytes - 8 * outputs


def test_overlapping_windows_compare_more_but_move_no_more():
    apart, over = Pooling(32, 64, 56, 56, 2, 2), Pooling(32, 64, 56, 56, 3, 2, padding=1)
    assert over.rows == apart.rows
    assert over.flops > apart.flops
    assert over.least_bytes == apart.least_bytes


def test_a_window_larger_than_its_image_is_refused():
    with pytest.raises(InputError, match="a window of 5 is larger than the image of 4 x 4"):
        Pooling(1, 1, 4, 4, window=5)


def test_steps_of_ctc_wait_for_each_other():
    short, long = (float(weft.estimate(Ctc(16, steps, 100, 29), "v100-sxm2-32gb").seconds) for steps in (200, 2000))
    wide = float(weft.estimate(Ctc(32, 200, 100, 29), "v100-sxm2-32gb").seconds)
    assert long > 5 * short
    assert wide < 1.5 * short  # more sequences run side by side


def test_the_gradient_of_ctc_reads_the_sums_of_the_loss():
    op = Ctc(64, 400, 150, 29)
    (gradient,) = op.backward.inputs
    assert op.saved[0] in gradient.reads
    assert gradient.writes[-1] == op.reads[0]
