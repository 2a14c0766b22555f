"""Laws of plans of serving: bounds never exceed what simulations say, so that pruning cannot lose the best layout."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.serving.bounds import Bounds, Work
from weft.serving.plans import Choice
from weft.serving.search import time_per_token
from weft.serving.serve import ready

MODEL, SYSTEM = "llama-3-8b", "4xh100"
LOADS = st.fixed_dictionaries(
    {
        "rate": st.sampled_from([2.0, 10.0, 30.0, 60.0, 120.0]),
        "requests": st.integers(5, 60),
        "input": st.sampled_from([64, 512, (100, 4000)]),
        "output": st.sampled_from([2, 32, (1, 120)]),
        "seed": st.integers(0, 20),
        "framework": st.sampled_from(["vllm", "sglang", "trtllm"]),
    }
)
CHOICES = st.sampled_from(
    [Choice(tp, replicas, readers, tokens) for tp in (1, 2) for replicas in (1, 2) for readers in range(replicas)
     for tokens in (None, 512)]
)  # fmt: skip
TTFT = st.sampled_from([0.05, 0.3, 2.0])


@settings(max_examples=40, deadline=None)
@given(load=LOADS, choice=CHOICES, ttft=TTFT, attainment=st.sampled_from([0.5, 0.9, 1.0]))
def test_a_bound_never_exceeds_the_simulated_time_per_token(load, choice, ttft, attainment):
    made = ready(MODEL, SYSTEM, **load, **choice.options, ttft=f"{ttft} s", tpot="1 s")
    good = math.ceil(attainment * len(made.asked.asked))
    bounds = Bounds(made.deploy.times, made.deploy.how, Work.of(made.asked.asked, made.objective, good, 0))
    answered, _ = made.deploy.run(made.asked)
    found = time_per_token(answered, ttft, good)
    if found < math.inf:
        assert bounds.ttft <= ttft
        if found > 0:
            assert bounds.time_per_token(choice.replicas, choice.readers) <= found


@settings(max_examples=4, deadline=None)
@given(
    rate=st.sampled_from([5.0, 25.0, 60.0]), tpot=st.sampled_from(["8 ms", "12 ms", "30 ms"]), seed=st.integers(0, 5)
)
def test_a_search_finds_the_fewest_gpus_that_trying_all_finds(rate, tpot, seed):
    load = {"rate": rate, "requests": 40, "input": 700, "output": 24, "seed": seed, "ttft": "300 ms", "tpot": tpot}
    found = weft.plan_serving(MODEL, "2xh100", **load, budget_s=1e9)
    meets = set()
    for tp in (1, 2):
        for replicas in range(1, 2 // tp + 1):
            for readers in range(replicas):
                for tokens in (None, 2048, 512):
                    choice = Choice(tp, replicas, readers, tokens)
                    one = weft.serve(MODEL, "2xh100", **load, **choice.options)
                    if not one.overloaded and one.good_share >= 0.9:
                        meets.add(choice.gpus)
    assert (found.best.gpus if found.best else None) == min(meets, default=None)
