"""Speculative decoding: a step verifies drafts, writes what is accepted, and takes longer for it."""

import pytest
from deployments import decode_with, serve_with

from weft.core.errors import InputError, UnknownNameError
from weft.step.drafts import Speculation

MACHINE = "8xh100"


def decoded(**how):
    return decode_with("llama-3-70b", MACHINE, tp=8, batch=16, context=1200, library="vllm", **how)


@pytest.mark.parametrize("accept", [0.0, 0.3, 0.85, 1.0])
def test_a_step_writes_the_accepted_drafts_and_one_more(accept):
    drafts = 3
    expected = (1 - accept ** (drafts + 1)) / (1 - accept) if accept < 1 else drafts + 1
    assert decoded(num_speculative_tokens=drafts, acceptance_rate=accept).tokens_per_step == pytest.approx(expected)


@pytest.mark.parametrize("draft", ["none", "eagle", "mtp", "llama-3-8b"])
@pytest.mark.parametrize("drafts", [1, 4])
def test_drafts_that_are_never_accepted_never_speed_a_token_up(draft, drafts):
    assert (
        decoded(num_speculative_tokens=drafts, acceptance_rate=0.0, speculative_method=draft).seconds
        >= decoded().seconds
    )


def test_more_accepted_drafts_mean_faster_tokens_and_equal_steps():
    found = [decoded(num_speculative_tokens=3, acceptance_rate=accept) for accept in (0.1, 0.5, 0.9)]
    assert [one.seconds for one in found] == sorted((one.seconds for one in found), reverse=True)
    assert len({round(one.step_s, 9) for one in found}) == 1


def test_a_larger_drafter_takes_longer_and_more_memory():
    lookup, layer, model = (
        decoded(num_speculative_tokens=3, acceptance_rate=0.8, speculative_method=name)
        for name in ("none", "eagle", "llama-3-8b")
    )
    assert lookup.seconds < layer.seconds < model.seconds
    assert lookup.weights < layer.weights < model.weights
    assert lookup.cache < layer.cache < model.cache
    assert "draft" not in lookup.parts


def test_drafts_share_one_read_of_the_cache():
    alone, drafted = (
        decode_with("llama-3-8b", "1xh100", batch=64, context=8000, **how).parts["attention"]
        for how in ({}, {"num_speculative_tokens": 3, "acceptance_rate": 0.8, "speculative_method": "none"})
    )
    assert alone <= drafted * 2.952 < 1.5 * alone  # tokens of a step


@pytest.mark.parametrize("framework", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(("accept", "draft"), [(0.0, "none"), (0.85, "eagle"), (1.0, "none")])
def test_a_lone_request_is_served_a_token_in_what_decode_says(framework, accept, draft):
    how = {"num_speculative_tokens": 2, "acceptance_rate": accept, "speculative_method": draft}
    long = {"requests": 1, "concurrency": 1, "input_len": 1000, "output_len": 2001}
    served = serve_with("llama-3-8b", "1xh100", framework=framework, cpu_overhead="0 ms", **long, **how)
    decode = decode_with("llama-3-8b", "1xh100", context=2000, library=framework, **how)
    assert served.tpot["mean"] == pytest.approx(decode.seconds, rel=0.03)


def test_no_token_is_lost_and_none_is_written_too_much():
    load = {"requests": 40, "rate": 20, "input_len": (50, 3000), "output_len": (1, 200), "seed": 3}
    served = serve_with(
        "llama-3-8b", "1xl40s", num_speculative_tokens=3, acceptance_rate=0.7, speculative_method="eagle", **load
    )
    assert sum(iteration.written for iteration in served.iterations) == sum(one.output - 1 for one in served.requests)
    assert max(iteration.used for iteration in served.iterations) <= served.cache


def test_deepseeks_own_layer_speeds_its_tokens_up_as_published():
    """1.8 times the tokens per second at 85 to 90 % accepted (arXiv:2412.19437, section 5.4.3)."""
    how = {"tp": 8, "dtype": "fp8-block", "library": "sglang", "batch": 32}
    plain = decode_with("deepseek-v3", "8xh200", **how)
    drafted = decode_with("deepseek-v3", "8xh200", num_speculative_tokens=1, acceptance_rate=0.875, **how)
    assert drafted.tokens_per_step == pytest.approx(1.875)
    assert plain.seconds / drafted.seconds == pytest.approx(1.8, rel=0.2)


def test_written_tokens_are_the_mean_of_many_steps():
    what = Speculation(3, 0.8)
    assert what.written_tokens(10_000) == pytest.approx(10_000 * what.expected_tokens, rel=1e-3)
    assert Speculation().written_tokens(7) == 7


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"num_speculative_tokens": 3}, r"acceptance_rate is not given.*0 to 1"),
        ({"num_speculative_tokens": 3, "acceptance_rate": 1.5}, r"acceptance_rate is 1.5; give a number of 0 to 1"),
        (
            {"num_speculative_tokens": 30, "acceptance_rate": 0.5},
            r"num_speculative_tokens is 30; it must be at most 16",
        ),
        ({"num_speculative_tokens": -1, "acceptance_rate": 0.5}, r"num_speculative_tokens.*-1"),
        ({"acceptance_rate": 0.5}, r"acceptance_rate is 0.5, and no token is drafted"),
        ({"speculative_method": "mtp"}, r"speculative_method is 'mtp', and no token is drafted"),
    ],
)
def test_contradicting_choices_are_refused(how, words):
    with pytest.raises(InputError, match=words):
        decoded(**how)


def test_a_step_that_does_not_hold_a_token_and_its_drafts_is_said_so():
    with pytest.raises(
        InputError, match=r"of 3 tokens does not hold .* 3 drafts; give max_num_batched_tokens 4 or more"
    ):
        serve_with(
            "llama-3-8b", "1xh100", rate=1, num_speculative_tokens=3, acceptance_rate=0.5, max_num_batched_tokens=3
        )


def test_an_unknown_drafter_is_named():
    with pytest.raises(UnknownNameError, match="lama"):
        decoded(num_speculative_tokens=1, acceptance_rate=0.5, speculative_method="lama")
