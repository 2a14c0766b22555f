"""Scans of linear attention and state-space layers: operations, bytes, and times by a roofline of their kernels."""

from dataclasses import replace

import pytest

import weft
from weft.core.errors import InputError
from weft.estimate.errors import SCANS, Error, with_scans
from weft.graph import Scan

H200 = weft.gpu("h200-sxm")
TOKENS = 8192
MAMBA2 = Scan("mamba2", 1, TOKENS, heads=128, head=64, state=128, groups=8, chunk=128)
DELTA = Scan("gated_delta", 1, TOKENS, heads=32, head=128, state=128, groups=16, chunk=64)
LIGHTNING = Scan("lightning", 1, TOKENS, heads=64, head=128, state=128, chunk=256)
MAMBA = Scan("mamba", 1, TOKENS, heads=8192, head=1, state=16, groups=1)
EVERY = pytest.mark.parametrize("scan", [MAMBA2, DELTA, LIGHTNING, MAMBA], ids=lambda scan: scan.rule)


def seconds(op):
    return float(weft.estimate(op, "8xh200").seconds)


def changed(scan, **changes):

    return replace(scan, **changes)


def test_flops_of_mamba_2_are_those_of_its_block_decomposition():
    """arXiv:2405.21060, section 6: states and outputs of chunks, scores of groups, and scores times values, whose upper
    half of whole tiles is left out."""
    states = 2 * TOKENS * 128 * 128 * 64
    scores, inside = 2 * TOKENS * 128 * 8 * 128, 2 * TOKENS * 128 * 128 * 64 * 3 // 4
    assert MAMBA2.flops == 2 * states + scores + inside


def test_flops_of_gated_deltanet_are_those_of_its_chunkwise_form():
    """arXiv:2412.06464, section 3.3: products of keys, their inverse, T K and T V; those with the state; Q K^T
    and its product with values."""
    chunk, head, per_head = 64, 128, TOKENS * 32
    within = 2 * chunk * head * 5 + chunk**2 / 3
    assert pytest.approx(per_head * (within + 3 * 2 * head * head)) == DELTA.flops


def test_flops_of_lightning_attention_are_linear_in_tokens_with_a_square_per_block():
    block, head = 256, 128
    inside = 2 * 2 * block * head * 5 / 8  # four tiles of 64: ten of sixteen
    assert pytest.approx(TOKENS * 64 * (inside + 2 * 2 * head * head)) == LIGHTNING.flops


@EVERY
def test_a_prompt_of_twice_the_tokens_takes_twice_the_work_where_attention_takes_four_times(scan):
    longer = changed(scan, steps=2 * TOKENS)
    assert longer.flops == 2 * scan.flops
    assert seconds(longer) == pytest.approx(2 * seconds(scan), rel=0.15)


@EVERY
def test_a_decode_step_moves_each_state_once_in_each_direction_and_is_bound_by_memory(scan):
    step = changed(scan, batch=256, steps=1, chunk=0, stateful=True)
    state = 4 * 256 * scan.heads * scan.state * scan.head
    assert 2 * state < step.least_bytes < 2.2 * state
    least = 2 * state / H200.memory.bandwidth
    assert least < seconds(step) < 1.8 * least
    assert step.matrix_dtype is None


@EVERY
def test_drafts_that_may_be_refused_each_store_a_state(scan):
    one, three = (changed(scan, batch=64, steps=steps, chunk=0, stateful=True) for steps in (1, 3))
    state = one.states.bytes
    assert three.writes[1].bytes == 3 * state
    assert three.reads[-1].bytes == state


@EVERY
def test_the_backward_pass_does_twice_the_work_of_the_forward_and_computes_states_again(scan):
    (gradient,) = scan.backward.inputs
    assert 2 * scan.flops < gradient.flops <= 3 * scan.flops
    assert 1.4 < seconds(gradient) / seconds(scan) < 4
    inputs = sum(tensor.bytes for tensor in scan.reads)
    assert inputs <= sum(tensor.bytes for tensor in scan.saved) <= 2 * inputs


def test_states_of_inference_start_and_end_in_memory_and_those_of_training_do_not():
    assert changed(MAMBA2, stateful=True).least_bytes == MAMBA2.least_bytes + 2 * MAMBA2.states.bytes


def test_nothing_is_faster_than_the_bytes_of_its_kernels():
    for scan in (MAMBA2, DELTA, LIGHTNING):
        moved = sum(stage.read + stage.written for stage in scan.stages)
        assert moved > scan.least_bytes
        assert seconds(scan) > scan.least_bytes / H200.memory.bandwidth


def test_groups_divide_the_heads_and_inference_has_no_gradient():
    with pytest.raises(InputError, match="groups is 3; it must divide the 32 heads"):
        changed(DELTA, groups=3)
    with pytest.raises(InputError, match="stateful scan is one of inference"):
        changed(DELTA, stateful=True, gradient=True)


def test_an_interval_is_wider_for_scans_as_none_is_measured():
    known = Error(0.9, 1.2, "from steps")
    assert with_scans(known, 0.0) == known
    wide = with_scans(known, 0.2)
    assert wide.low == pytest.approx(0.9 * (1 - 0.2 * (1 - SCANS[0])))
    assert wide.high == pytest.approx(1.2 * (1 + 0.2 * (SCANS[1] - 1)))
    assert "20% of the time, no kernel of which is measured" in wide.why
