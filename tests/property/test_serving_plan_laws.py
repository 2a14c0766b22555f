"""Laws of plans of serving: bounds never exceed what simulations say, so that pruning cannot lose the best layout."""

from __future__ import annotations

import math

import numpy as np
import pytest
from deployments import plan_with, ready_with, serve_with
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.plan.serving import time_per_token
from weft.plan.serving_bounds import Bounds, Work
from weft.serving.step_times import Shape, StepTimes

MODEL, SYSTEM = "llama-3-8b", "4xh100"
LOADS = st.fixed_dictionaries(
    {
        "rate": st.sampled_from([2.0, 10.0, 30.0, 60.0, 120.0]),
        "requests": st.integers(5, 60),
        "input_len": st.sampled_from([64, 512, (100, 4000)]),
        "output_len": st.sampled_from([2, 32, (1, 120)]),
        "seed": st.integers(0, 20),
        "framework": st.sampled_from(["vllm", "sglang", "trtllm"]),
    }
)


def fields(tp, replicas, prefill_replicas=0, tokens=None, **more):
    stated = {"tp": tp, "replicas": replicas, "prefill_replicas": prefill_replicas, **more}
    return stated | ({"max_num_batched_tokens": tokens} if tokens else {})


CHOICES = st.sampled_from(
    [fields(tp, replicas, readers, tokens) for tp in (1, 2) for replicas in (1, 2) for readers in range(replicas)
     for tokens in (None, 512)]
)  # fmt: skip
STAGED = st.sampled_from(
    [fields(tp, 4 // tp, readers, tokens, pp=pp) for tp, pp in ((1, 2), (2, 2), (1, 4))
     for readers in range(0, 4 // tp, pp) for tokens in (None, 512)]
)  # fmt: skip
DRAFTED = st.sampled_from(
    [fields(1, 2, readers, tokens, num_speculative_tokens=count, speculative_method=draft) for readers in (0, 1)
     for tokens in (None, 512) for count in (1, 4) for draft in ("none", "eagle")]
)  # fmt: skip
EXPERTS, NODE = "qwen3-30b-a3b", "8xh100"
WIDE = st.sampled_from(
    [fields(1, 8, 0, tokens, ep=ep, two_batch_overlap=halves, num_speculative_tokens=count) for tokens in (None, 512)
     for ep in (4, 8) for halves in (False, True) for count in (0, 3)]
)  # fmt: skip
TTFT = st.sampled_from([0.05, 0.3, 2.0])
ATTAINMENT = st.sampled_from([0.5, 0.9, 1.0])
ACCEPT = st.sampled_from([0.0, 0.6, 1.0])


@settings(max_examples=40, deadline=None)
@given(load=LOADS, choice=CHOICES, ttft=TTFT, attainment=ATTAINMENT)
def test_a_bound_never_exceeds_the_simulated_time_per_token(load, choice, ttft, attainment):
    check_bound(MODEL, SYSTEM, load, choice, ttft, attainment)


@settings(max_examples=25, deadline=None)
@given(load=LOADS, choice=STAGED, ttft=TTFT, attainment=ATTAINMENT)
def test_a_bound_holds_for_stages_of_a_pipeline(load, choice, ttft, attainment):
    check_bound(MODEL, SYSTEM, load, choice, ttft, attainment)


@settings(max_examples=25, deadline=None)
@given(load=LOADS, choice=DRAFTED, accept=ACCEPT, ttft=TTFT, attainment=ATTAINMENT)
def test_a_bound_holds_for_steps_that_verify_drafts(load, choice, accept, ttft, attainment):
    check_bound(MODEL, SYSTEM, {**load, "acceptance_rate": accept}, choice, ttft, attainment)


@settings(max_examples=25, deadline=None)
@given(load=LOADS, choice=WIDE, accept=ACCEPT, ttft=TTFT, attainment=ATTAINMENT)
def test_a_bound_holds_for_batches_in_halves(load, choice, accept, ttft, attainment):
    check_bound(EXPERTS, NODE, {**load, "acceptance_rate": accept}, choice, ttft, attainment)


@pytest.mark.parametrize(
    ("model", "system", "how"),
    [
        (MODEL, SYSTEM, {"tp": 2, "pp": 2}),
        (MODEL, SYSTEM, {"num_speculative_tokens": 3, "acceptance_rate": 0.7, "speculative_method": "eagle"}),
        (EXPERTS, NODE, {"ep": 8, "two_batch_overlap": True}),
        (EXPERTS, NODE, {"ep": 8, "two_batch_overlap": True, "num_speculative_tokens": 2, "acceptance_rate": 0.8}),
    ],
)
def test_no_step_is_faster_than_what_steps_take_at_least(model, system, how):
    times, keys = ready_with(model, system, rate=1.0, **how).server.times, (100, 3000)
    least = times.least(2048, 256, keys)
    for decodes, new in [(1, 0), (3, 0), (32, 0), (200, 0), (0, 7), (0, 900), (5, 64), (60, 1000), (256, 500)]:
        for mean in keys:
            step = Shape(decodes, decodes * mean, min(new, 1), new, new * (new + 1) // 2)
            at = int(np.searchsorted(least.tokens, decodes * times.queries + new, "right")) - 1
            some = int(np.searchsorted(least.sequences, decodes, "right")) - 1
            layers = max(least.shared[at] + least.attention * decodes * mean, least.alone[at])
            assert (layers + least.logits[some]) * 0.98 <= times.seconds(step)


@pytest.mark.parametrize(
    "how", [{"tp": 2, "pp": 2}, {"num_speculative_tokens": 3, "acceptance_rate": 0.7, "speculative_method": "eagle"}]
)
def test_steps_take_as_long_whatever_has_been_timed_before(how):
    server = ready_with(MODEL, SYSTEM, rate=1.0, **how).server
    times = server.times
    alone = StepTimes(times.forward).with_launches(server.how.launch, server.how.graphed)
    for step in (Shape(3, 1000), Shape(0, 0, 1, 700, 245350), Shape(40, 40000, 2, 900, 300000)):
        assert times.seconds(step) == pytest.approx(alone.seconds(step), rel=1e-12)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"num_speculative_tokens": 3, "acceptance_rate": 0.7, "speculative_method": "eagle"},
        {"num_speculative_tokens": 2, "acceptance_rate": 1.0, "speculative_method": "none"},
    ],
)
def test_steps_ahead_take_as_long_as_each_alone(how):
    times = ready_with(MODEL, SYSTEM, rate=1.0, **how).server.times
    each = times.forward.speculation.expected_tokens
    for at, seconds in enumerate(times.next_tokens(12, 12 * 700, 64)):
        assert seconds == pytest.approx(times.seconds(Shape(12, round(12 * (700 + each * at)))), rel=1e-5)


def check_bound(model, system, load, choice, ttft, attainment):
    made = ready_with(model, system, **load, **choice, ttft=f"{ttft} s", tpot="1 s")
    good = math.ceil(attainment * len(made.asked.asked))
    bounds = Bounds(made.server.times, made.server.how, Work.of(made.asked.asked, made.limits.objective, good, 0))
    answered, _ = made.server.run(made.asked)
    found = time_per_token(answered, ttft, good)
    if found < math.inf:
        assert bounds.ttft <= ttft
        if found > 0:
            assert bounds.time_per_token(choice["replicas"], choice["prefill_replicas"]) <= found


@pytest.mark.parametrize(
    ("model", "system", "fewer", "more"),
    [
        (MODEL, SYSTEM, {"pp": 1}, {}),
        (
            MODEL,
            SYSTEM,
            {"pp": 1, "num_speculative_tokens": 0, "acceptance_rate": 0.8},
            {"pp": 1, "acceptance_rate": 0.8},
        ),
        (EXPERTS, "4xh100", {"ep": 4, "two_batch_overlap": False}, {"ep": 4}),
    ],
)
@pytest.mark.parametrize("rate", [4.0, 30.0])
def test_a_front_stays_or_improves_when_more_is_searched(model, system, fewer, more, rate):
    load = {
        "rate": rate,
        "requests": 40,
        "input_len": 700,
        "output_len": 24,
        "ttft": "1 s",
        "tpot": "25 ms",
        "budget_s": 1e9,
    }
    less, found = (plan_with(model, system, **load, **choices) for choices in (fewer, more))
    assert found.searched > less.searched
    for one in less.front:
        if one.meets:
            assert any(other.gpus <= one.gpus and other.tpot * 0.98 <= one.tpot for other in found.front)


@settings(max_examples=4, deadline=None)
@given(
    rate=st.sampled_from([5.0, 25.0, 60.0]), tpot=st.sampled_from(["8 ms", "12 ms", "30 ms"]), seed=st.integers(0, 5)
)
def test_a_search_finds_the_fewest_gpus_that_trying_all_finds(rate, tpot, seed):
    load = {
        "rate": rate,
        "requests": 40,
        "input_len": 700,
        "output_len": 24,
        "seed": seed,
        "ttft": "300 ms",
        "tpot": tpot,
    }
    found = plan_with(MODEL, "2xh100", **load, budget_s=1e9)
    meets = set()
    for tp in (1, 2):
        for replicas in range(1, 2 // tp + 1):
            for readers in range(replicas):
                for tokens in (None, 2048, 512):
                    for pp in (1, 2) if tp == 1 and replicas == 2 and not readers else (1,):
                        one = serve_with(MODEL, "2xh100", **load, **fields(tp, replicas, readers, tokens, pp=pp))
                        if not one.overloaded and one.slo_attainment >= 0.9:
                            meets.add(tp * replicas)
    assert (found.best.gpus if found.best else None) == min(meets, default=None)
