"""Every scheduling policy keeps the laws of `weft.testing`, and a policy that breaks a rule is an error."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

import weft
from weft.core.errors import InputError
from weft.serving.policies import POLICIES, first_come, running_first
from weft.testing import check_policy
from weft.testing.policies import LOADS


def own(server):
    """A policy of one's own: running requests first, the youngest waiting one after them."""
    if running_first(server) and server.waiting:
        server.schedule_tokens(server.waiting[-1], server.waiting[-1].uncomputed_tokens)
        first_come(server)


@pytest.mark.parametrize("policy", [*POLICIES, own], ids=[*POLICIES, "own"])
def test_a_policy_keeps_every_law_of_its_contract(policy):
    check_policy(policy)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_load_over_time_adds_up_to_the_load(policy, load):
    plan, load = LOADS[load]
    answer = weft.serve("llama-3-8b", "1xh100", replace(plan, scheduler=policy), load)
    moments = answer.over_time()
    written = sum(one.answers * (one.end - one.start) for one in moments)
    assert written == pytest.approx(sum(iteration.decodes * iteration.steps for iteration in answer.iterations))
    running = (
        sum(iteration.running * (iteration.end - iteration.start) for iteration in answer.iterations) / answer.span
    )
    assert np.average([one.running for one in moments]) == pytest.approx(running, rel=1e-6)


@pytest.mark.parametrize("policy", [*POLICIES, own], ids=[*POLICIES, "own"])
def test_answers_are_reserved_or_paid_for(policy):
    """Without preemption, all of an answer is reserved; others preempt where memory is scarce, and admit more."""
    plan, load = LOADS["scarce KV cache"]
    found = weft.serve("llama-3-8b", "1xh100", replace(plan, scheduler=policy), load)
    if policy == "trtllm-no-evict":
        assert found.preemptions == 0
    assert found.peak_memory > 0.9


def twice(server):
    running_first(server)
    first_come(server)
    for request in list(server.running):
        server.schedule_tokens(request, 1)


def shorten(server):
    for request in server.waiting:
        request.output = 1
    first_come(server)


def hurry(server):
    for request in server.waiting:
        request.arrival = 0.5
    first_come(server)


def words(server):
    server.schedule_tokens(server.waiting[0], "5")


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
        weft.serve(
            "llama-3-8b", "1xh100", weft.ServingPlan(scheduler=policy), weft.Load(rate=10, requests=20, output_len=8)
        )


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

    own = weft.serve(
        "llama-3-8b", "2xh100", weft.ServingPlan(scheduler=Own), weft.Load(rate=10, requests=20, output_len=8)
    )
    assert own.policy == "Own"
    assert len(Own.made) >= 2
    assert all(one.servers[0] is server for one in Own.made for server in one.servers)
    assert len({id(one.servers[0]) for one in Own.made if one.servers}) >= 2
