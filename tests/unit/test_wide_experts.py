"""Data-parallel attention with wide expert parallelism, and two-batch overlap."""

import pytest
from deployments import decode_with, prefill_with, serve_with

from weft.core.errors import InputError

HOW = {"dtype": "fp8-block", "library": "sglang"}


def decoded(system="32xh100", ep=32, **how):
    return decode_with("deepseek-v3", system, ep=ep, **{"batch": 64, **HOW, **how})


def test_every_gpu_holds_attention_and_a_share_of_the_experts():
    few, many = decoded(ep=16), decoded(ep=32)
    experts = 58 * 256 * 3 * 7168 * 2048  # one byte each
    assert few.weights - many.weights == pytest.approx(experts / 32, rel=1e-3)
    assert few.cache == many.cache


def test_tokens_are_exchanged_over_the_network_longer_than_in_a_node():
    near, far = decoded("8xh200", ep=8, batch=16), decoded("16xh200", ep=16, batch=16)
    assert 0 < near.parts["exposed ep"] < far.parts["exposed ep"]


def test_two_batches_hide_exchanges_of_large_batches_and_slow_small_ones():
    for batch, faster in ((8, False), (256, True)):
        assert (decoded(batch=batch, two_batch_overlap=True).seconds < decoded(batch=batch).seconds) == faster


def test_two_batches_never_take_less_than_computing_both_or_exchanging_both():
    one, two = decoded(batch=128), decoded(batch=256, two_batch_overlap=True)
    exchange = one.parts["exposed ep"]
    assert two.seconds >= 2 * exchange
    assert two.seconds >= 1.97 * (one.seconds - exchange)  # the logits of both are one product


def test_parts_add_up_with_two_batches():
    found = decoded(batch=256, two_batch_overlap=True)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    prompt = prefill_with("deepseek-v3", "32xh100", ep=32, two_batch_overlap=True, batch=4, sequence=4096, **HOW)
    assert prompt.parts["contention"] > 0  # normal kernels take compute units


@pytest.mark.parametrize("two_batch", [False, True])
def test_a_served_step_is_what_decode_says(two_batch):
    load = {"concurrency": 32 * 16, "requests": 32 * 16, "input_len": 100, "output_len": 400}
    how = {
        "ep": 32,
        "two_batch_overlap": two_batch,
        "dtype": "fp8-block",
        "cpu_overhead": "0 ms",
        "framework": "sglang",
    }
    served = serve_with("deepseek-v3", "32xh100", **load, **how)
    assert served.replicas == 32
    decode = decoded(batch=16, context=300, two_batch_overlap=two_batch)
    assert min(one.tpot for one in served.requests) == pytest.approx(decode.seconds, rel=0.03)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"ep": 24}, r"ep 24 does not fill the 32 GPUs"),
        ({"ep": 1, "two_batch_overlap": True}, r"two_batch_overlap .* none are\s+without ep above tp 1"),
        ({"tp": 2, "ep": 32}, r"ep 32 is neither 1 nor tp 2.*tp 1 for attention by data parallelism"),
    ],
)
def test_ranks_that_cannot_share_are_refused(how, words):
    with pytest.raises(InputError, match=words):
        decoded(**{"ep": 32, **how})


def test_replicas_fill_groups_that_share_experts():
    with pytest.raises(InputError, match=r"24 replicas of one GPU do not fill groups of ep 16.*multiple of 16"):
        serve_with("deepseek-v3", "32xh100", ep=16, replicas=24, concurrency=24, dtype="fp8-block")
    with pytest.raises(InputError, match=r"5 prefill replicas of one GPU do not fill groups of ep 16.*multiple of 16"):
        serve_with("deepseek-v3", "32xh100", ep=16, prefill_replicas=5, concurrency=24, dtype="fp8-block")
