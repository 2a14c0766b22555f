"""The contract of a scheduling policy of a server: what it must keep under every load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import weft
from weft.serving.load import Load
from weft.serving.policies import Schedule
from weft.serving.result import Limits, Serving
from weft.step.serving_plan import ServingPlan
from weft.testing.laws import Law, check_laws, runs_to_the_end

LOADS: Mapping[str, tuple[ServingPlan, Load]] = {
    "light": (ServingPlan(), Load(rate=5.0, requests=120, input_len=(20, 2000), output_len=(1, 200), seed=3)),
    "bursts": (
        ServingPlan(),
        Load(rate=20.0, arrivals="gamma", burstiness=8.0, requests=200, input_len=900, output_len=(1, 60), seed=3),
    ),
    "clients": (
        ServingPlan(),
        Load(concurrency=24, requests=150, input_len=(20, 2000), output_len=(1, 200), seed=3),
    ),
    "scarce KV cache": (
        ServingPlan(gpu_memory_utilization=0.255, max_num_batched_tokens=1024, max_num_seqs=64),
        Load(concurrency=40, requests=150, input_len=(20, 2000), output_len=(100, 600), seed=3),
    ),
    "few sequences": (
        ServingPlan(max_num_seqs=8),
        Load(concurrency=32, requests=120, input_len=(20, 900), output_len=(20, 90), seed=3),
    ),
}
"""The cases. Of the scarce KV cache some 12,000 tokens fit, so that requests wait for it or are preempted."""
_MODEL, _SYSTEM = "llama-3-8b", "1xh100"
_SERVED = "It serves every request to its end, within the rules"
_PLAN = ServingPlan()
_REPEATED = Load(rate=10.0, requests=60, input_len=(20, 2000), output_len=(1, 100), seed=1)
_GOALS = Load(rate=16.0, requests=250, input_len=(200, 3000), output_len=(10, 200))
_LIMITS = Limits(ttft="400 ms", tpot="25 ms")
_LITTLE, _GOODPUT = 0.01, 0.995
"""How far both sides of Little's law may lie apart, as samples end with requests inside, and the share of the goodput
that a faster GPU keeps, as another batching may lose a request at the objective."""


def check_policy(policy: str | Schedule) -> None:
    """Raise ContractError unless a scheduling policy of `weft.serve` keeps every law, under loads that strain it.

    The loads serve Llama 3 8B on one H100: light, bursts, clients without pause, a scarce KV cache, few sequences. Two
    runs with one seed, and runs on a GPU of more bandwidth and of a higher clock, follow. `policy` is what
    `ServingPlan(scheduler=...)` takes: a name, a function of a `Replica`, or a class whose objects are such functions.
    """
    member = f"policy '{policy if isinstance(policy, str) else getattr(policy, '__name__', policy)}'"
    for case, (plan, load) in LOADS.items():
        answer = _serve(member, case, policy, plan, load)
        check_laws(member, case, LAWS, answer, plan.max_num_seqs or math.inf)
    first, again = (_serve(member, "the same seed twice", policy, _PLAN, _REPEATED) for _ in range(2))
    check_laws(member, "the same seed twice", (answers_repeat,), first, again)
    gpu = weft.system(_SYSTEM)
    slow = _serve(member, "an H100", policy, _PLAN, _GOALS, gpu)
    for case, changes in _FASTER.items():
        faster = _serve(member, case, policy, _PLAN, _GOALS, gpu.replace(changes))
        check_laws(member, case, (faster_gpus_serve_more,), slow, faster)


_FASTER: Mapping[str, Mapping[str, str]] = {
    "4.5 TB/s of memory bandwidth": {"memory.bandwidth": "4.5 TB/s"},
    "a clock of 2.2 GHz": {"compute.clock": "2.2 GHz", "clocks.sustained": "2.1 GHz"},
}


def _serve(
    member: str, case: str, policy: str | Schedule, plan: ServingPlan, load: Load, where: Any = _SYSTEM
) -> Serving:
    with runs_to_the_end(member, _SERVED, case):
        return weft.serve(_MODEL, where, replace(plan, scheduler=policy), load, _LIMITS)


def tokens_are_computed_once(answer: Serving, sequences: float) -> str | None:
    """Every answer has its tokens: prompts are computed once, and again only after a preemption."""
    prompts = sum(iteration.prompt for iteration in answer.iterations)
    tokens = sum(iteration.decodes * iteration.steps for iteration in answer.iterations)
    asked, written = (sum(getattr(one, name) for one in answer.requests) for name in ("input", "output"))
    least = asked + written - len(answer.requests)  # the first token of an answer comes with its prompt
    if prompts + tokens < least or (not answer.preemptions and prompts + tokens != least):
        return f"{prompts} prompt tokens and {tokens} decode tokens of {least}, {answer.preemptions} preemptions"
    for one in answer.requests:
        if not one.done >= one.first > one.start >= one.reached > one.arrival:
            return f"a request arrives at {one.arrival}, starts at {one.start} and has ended at {one.done} s"
    return None


def sequences_are_bounded(answer: Serving, sequences: float) -> str | None:
    """No more requests run at once than sequences are allowed."""
    most = max(iteration.running for iteration in answer.iterations)
    return f"{most} requests run, {sequences} may" if most > sequences else None


def kv_cache_is_bounded(answer: Serving, sequences: float) -> str | None:
    """The requests that run never hold more than the KV cache."""
    most = max(iteration.used for iteration in answer.iterations)
    return f"{most} bytes of {answer.cache} are in use" if most > answer.cache else None


def replicas_work_while_requests_wait(answer: Serving, sequences: float) -> str | None:
    """A replica is never idle while a request is in it."""
    for iteration, after in pairwise(answer.iterations):
        if after.start < iteration.end - 1e-12:
            return f"an engine iteration starts at {after.start} s, before the one that ends at {iteration.end} s"
        idle = after.start > iteration.end + 1e-9
        inside = [
            one for one in answer.requests if one.reached < iteration.end - 1e-9 and one.done > iteration.end + 1e-9
        ]
        if idle and inside:
            return f"{len(inside)} requests are there from {iteration.end} to {after.start} s, and nothing runs"
    return None


def littles_law_holds(answer: Serving, sequences: float) -> str | None:
    """Little's law holds: the mean number of requests is the rate of answers times their mean time there."""
    inside = (
        sum(
            (iteration.running + iteration.waiting) * (iteration.end - iteration.start)
            for iteration in answer.iterations
        )
        / answer.span
    )
    there = sum(one.done - one.reached for one in answer.requests) / len(answer.requests)
    expected = answer.completed / answer.span * there
    return None if abs(inside - expected) <= _LITTLE * expected else f"{inside:.6g} requests instead of {expected:.6g}"


def answers_repeat(first: Serving, again: Serving) -> str | None:
    """The same seed gives the same answer."""
    return None if first.to_dict() == again.to_dict() else f"{first.span} s, then {again.span} s"


def faster_gpus_serve_more(slow: Serving, fast: Serving) -> str | None:
    """A faster GPU does not lower the goodput."""
    before, after = slow.goodput or 0.0, fast.goodput or 0.0
    return f"{after:.6g} requests/s instead of {before:.6g}" if after < _GOODPUT * before else None


LAWS: Sequence[Law] = (
    tokens_are_computed_once,
    sequences_are_bounded,
    kv_cache_is_bounded,
    replicas_work_while_requests_wait,
    littles_law_holds,
)
"""Laws of the answer to a load, and the most sequences that may run at once."""
