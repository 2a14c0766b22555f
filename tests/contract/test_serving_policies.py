"""Contract of every scheduling policy: nothing is lost, memory suffices, work is conserved, Little's law holds."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest

import weft
from weft.errors import InputError
from weft.serving.policies import POLICIES, first_come, running_first


def own(server):
    """A policy of one's own: running requests first, the youngest waiting one after them."""
    if running_first(server) and server.waiting:
        server.give(server.waiting[-1], server.waiting[-1].missing)
        first_come(server)


LOADS = {
    "light": {"rate": 5.0, "requests": 120, "input": (20, 2000), "output": (1, 200)},
    "bursts": {"rate": 20.0, "arrivals": "gamma", "burstiness": 8.0, "requests": 200, "input": 900, "output": (1, 60)},
    "clients": {"concurrency": 24, "requests": 150, "input": (20, 2000), "output": (1, 200)},
    "scarce": {"concurrency": 40, "requests": 150, "input": (20, 2000), "output": (100, 600), "memory_share": 0.255,
               "step_tokens": 1024, "sequences": 64},
    "few at once": {"concurrency": 32, "requests": 120, "input": (20, 900), "output": (20, 90), "sequences": 8},
}  # fmt: skip
"""Loads; the scarce one has memory for some 12,000 tokens, so that requests wait for it or are preempted."""


@pytest.fixture(scope="module", params=[*POLICIES, own], ids=[*POLICIES, "own"])
def policy(request):
    return request.param


@pytest.fixture(scope="module", params=LOADS)
def answer(request, policy):
    return weft.serve("llama-3-8b", "1xh100", policy=policy, seed=3, **LOADS[request.param])


def test_no_token_is_lost(answer):
    """Every answer has its tokens: prompts are computed once and again after each preemption, tokens one by one."""
    prompts = sum(turn.prompt for turn in answer.turns)
    tokens = sum(turn.decodes * turn.steps for turn in answer.turns)
    asked, written = (sum(getattr(one, name) for one in answer.requests) for name in ("input", "output"))
    assert all(one.done >= one.first > one.start >= one.reached > one.arrival for one in answer.requests)
    if not answer.preemptions:
        assert prompts == asked
        assert tokens == written - len(answer.requests)
    assert prompts + tokens >= asked + written - len(answer.requests)


def test_no_more_requests_run_than_sequences_may(answer, request):
    most = LOADS[request.node.callspec.params["answer"]].get("sequences", math.inf)
    assert max(turn.running for turn in answer.turns) <= most


def test_memory_is_never_exceeded(answer):
    assert max(turn.used for turn in answer.turns) <= answer.cache


def test_a_replica_is_never_idle_while_a_request_is_in_it(answer):
    for turn, after in pairwise(answer.turns):
        assert after.start >= turn.end - 1e-12
        if after.start > turn.end + 1e-9:
            assert not [one for one in answer.requests if one.reached < turn.end - 1e-9 and one.done > turn.end + 1e-9]


def test_littles_law_holds(answer):
    """Mean number at the replica = rate of answers in the whole run x mean time there."""
    inside = sum((turn.running + turn.waiting) * (turn.end - turn.start) for turn in answer.turns) / answer.span
    there = np.mean([one.done - one.reached for one in answer.requests])
    assert there < np.mean([one.done - one.arrival for one in answer.requests])
    assert inside == pytest.approx(answer.completed / answer.span * there, rel=0.01)


def test_the_load_over_time_adds_up_to_the_load(answer):
    moments = answer.over_time()
    written = sum(one.answers * (one.end - one.start) for one in moments)
    assert written == pytest.approx(sum(turn.decodes * turn.steps for turn in answer.turns))
    running = sum(turn.running * (turn.end - turn.start) for turn in answer.turns) / answer.span
    assert np.average([one.running for one in moments]) == pytest.approx(running, rel=1e-6)


def test_the_same_seed_gives_the_same_answer(policy):
    asked = {"policy": policy, "rate": 10.0, "requests": 60, "input": (20, 2000), "output": (1, 100)}
    first, again, other = (weft.serve("llama-3-8b", "1xh100", seed=seed, **asked).to_dict() for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("change", [{"memory.bandwidth": "4.5 TB/s"}, {"compute.clock": "2.4 GHz"}])
def test_a_faster_gpu_never_lowers_goodput(policy, change):
    gpu = weft.system("1xh100")
    if "compute.clock" in change:
        change = {"compute.clock": "2.2 GHz", "clocks.sustained": "2.1 GHz"}
    asked = {"policy": policy, "rate": 16.0, "requests": 250, "input": (200, 3000), "output": (10, 200)}
    slow, fast = (
        weft.serve("llama-3-8b", where, ttft="400 ms", tpot="25 ms", **asked) for where in (gpu, gpu.replace(change))
    )
    assert fast.goodput >= 0.995 * slow.goodput


def test_answers_are_reserved_or_paid_for(policy):
    """Without preemption, all of an answer is reserved; others preempt where memory is scarce, and admit more."""
    found = weft.serve("llama-3-8b", "1xh100", policy=policy, seed=3, **LOADS["scarce"])
    if policy == "trtllm-no-evict":
        assert found.preemptions == 0
    assert found.peak_memory > 0.9


def twice(server):
    running_first(server)
    first_come(server)
    for request in list(server.running):
        server.give(request, 1)


def shorten(server):
    for request in server.waiting:
        request.output = 1
    first_come(server)


def hurry(server):
    for request in server.waiting:
        request.arrival = 0.5
    first_come(server)


def words(server):
    server.give(server.waiting[0], "5")


class Mute:
    """Its objects cannot be called."""


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (twice, "twice in one engine iteration"),
        (shorten, "changed request.output of request 0"),
        (hurry, "changed request.arrival of request 0"),
        (words, "is '5'; it must be a whole number"),
        (Mute, "cannot be called"),
    ],
)
def test_a_policy_that_breaks_a_rule_is_an_error(policy, said):
    with pytest.raises(InputError, match=said):
        weft.serve("llama-3-8b", "1xh100", policy=policy, rate=10, requests=20, output=8)


def test_a_class_is_a_policy_with_a_state_of_each_replica():
    class Own:
        made: ClassVar[list] = []

        def __init__(self):
            self.servers = []
            Own.made.append(self)

        def __call__(self, server):
            self.servers.append(server)
            first_come(server)
            running_first(server)

    own = weft.serve("llama-3-8b", "2xh100", policy=Own, rate=10, requests=20, output=8)
    assert own.policy == "Own"
    assert len(Own.made) >= 2
    assert all(one.servers[0] is server for one in Own.made for server in one.servers)
    assert len({id(one.servers[0]) for one in Own.made if one.servers}) >= 2
