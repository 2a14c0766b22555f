"""Schedulers of serving frameworks: which requests get how many tokens of the next step. See `POLICIES`.

A policy is called with a `Replica` before every iteration. The policy reads `running` (in the order in which requests
started) and `waiting` (in the order of arrival, preempted ones first), and calls `schedule_tokens` and `preempt`. A
policy of one's own is a function:

    def shortest_first(server):
        running_first(server)
        for request in sorted(server.waiting, key=lambda request: request.uncomputed_tokens):
            if not server.schedule_tokens(request, request.uncomputed_tokens):
                break
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from weft.core.errors import InputError
from weft.serving.replica import Replica

Schedule = Callable[[Replica], None]
"""Gives requests their tokens of the next step."""


class Maker(Protocol):
    """Makes the schedule of a replica, with a state of its own."""

    def __call__(self) -> Schedule:
        """A new schedule."""


@dataclass(frozen=True)
class Policy:
    """A scheduling policy: its factory and a one-line description.

    A `steady` policy that admits no waiting request now admits none until a request finishes or arrives. Consecutive
    decode iterations can then be timed in one batch.
    """

    make: Maker
    about: str
    steady: bool = False


def check_schedule(schedule: Schedule) -> Schedule:
    """Return a schedule that raises InputError where it changes a request, or gives tokens to one of another replica.

    For schedules of a user's own: what a request asks for, and what has been computed of it, are facts to them.
    """

    def run(server: Replica) -> None:
        before = {request: _facts(request) for request in (*server.running, *server.waiting)}
        schedule(server)
        for request, facts in before.items():
            changed = [
                name for name, old, new in zip(_FACTS, facts, _facts(request), strict=True) if not _is_same(old, new)
            ]
            if changed:
                raise InputError(
                    f"the policy changed request.{changed[0]} of request {request.id}; a policy reads requests, and "
                    "calls server.schedule_tokens and server.preempt"
                )
        running = set(server.running)
        if stranger := next((request for request, _ in server.batch if request not in running), None):
            raise InputError(
                f"the policy gave tokens to request {stranger.id}, which neither runs nor waits on replica "
                f"{server.number}; give tokens to requests of server.running and server.waiting"
            )

    return run


_FACTS = (
    "id", "asked", "arrival", "reached", "input", "output", "blocks", "generated", "passes", "replica", "started",
    "first", "done",
)  # fmt: skip
"""What a policy must not change of a request."""
_facts = attrgetter(*_FACTS)


def _is_same(old: object, new: object) -> bool:
    return old is new or (type(old) is type(new) and old == new)


def running_first(server: Replica) -> bool:
    """Schedule the uncomputed tokens of running requests in order, and preempt the last ones if memory runs out.

    Returns whether no request was preempted.
    """
    before, at = len(server.running), server.schedule_decodes(preempts=True)
    while at < len(server.running) and server.budget:
        request = server.running[at]
        if server.has_tokens(request) or server.schedule_tokens(request, request.uncomputed_tokens):
            at += 1
        else:
            server.preempt(server.running[-1])
    return len(server.running) == before


def first_come(server: Replica, *, whole: bool = False, reserve: bool = False) -> None:
    """Start waiting requests in order while the step has tokens and memory for them.

    `whole` prompts are divided only where running requests leave no step with room for them; with `reserve`, memory is
    kept for all of the answer.
    """
    if not server.waiting:
        return
    prompts = sum(tokens for _, tokens in server.batch if tokens > 1)
    while server.waiting and server.budget:
        request = server.waiting[0]
        if whole and server.budget < request.uncomputed_tokens <= server.budget + prompts:
            server.blocked_on("max_num_batched_tokens")
            return
        before = server.budget
        if not server.schedule_tokens(request, request.uncomputed_tokens, request.total if reserve else 0):
            return
        prompts += before - server.budget


def vllm(server: Replica) -> None:
    """Schedule running requests, then waiting ones in chunks of the remaining budget; none after a preemption."""
    if running_first(server):
        first_come(server)


def no_evict(server: Replica) -> None:
    """Admit a request once its whole prompt and answer fit with those of the others; never preempt it."""
    running_first(server)
    first_come(server, whole=True, reserve=True)


def max_utilization(server: Replica) -> None:
    """A request starts once its prompt fits; the last ones to start are paused when the others need their memory."""
    if running_first(server):
        first_come(server, whole=True)


class SGLang:
    """Prefill before decode; a request starts if its tokens and a share of the running requests' remaining output fit.

    The share falls from 0.7 by the step, and rises when memory runs out and requests are retracted.

    Source: sgl-project/sglang python/sglang/srt/managers (schedule_policy.py, schedule_batch.py) and environ.py.
    """

    most, least, steps, clip, ahead = 0.7, 0.7 * 0.14, 600, 4096, 20

    def __init__(self) -> None:
        self.share = self.most

    def __call__(self, server: Replica) -> None:
        """Prompts, if any may run; else the next token of every running request."""
        self.prompts(server)
        if not server.batch:
            self.next_tokens(server)

    def prompts(self, server: Replica) -> None:
        """Chunks of prompts up to the budget of a step."""
        owed = 0.0
        for request in server.running:
            if not request.generated or request.uncomputed_tokens > 1:
                server.schedule_tokens(request, request.uncomputed_tokens)
                owed += request.uncomputed_tokens - sum(tokens for one, tokens in server.batch if one is request)
            owed += self.share * min(request.output - request.generated, self.clip)
        while server.waiting and server.budget:
            request = server.waiting[0]
            later = min(request.output - request.generated, self.clip)
            if server.running and request.uncomputed_tokens + later >= server.free_tokens - owed:
                server.blocked_on("KV cache")
                return
            before = server.budget
            if not server.schedule_tokens(request, request.uncomputed_tokens):
                return
            owed += later + max(request.uncomputed_tokens - (before - server.budget), 0)

    def next_tokens(self, server: Replica) -> None:
        """The next token of every running request; without memory for all, those with the fewest are retracted."""
        if server.schedule_decodes(all_or_none=True):
            self.share = max(self.share - (self.most - self.least) / self.steps, self.least)
            return
        running = [one for one in server.running if one.generated and one.uncomputed_tokens == 1]
        running.sort(key=lambda one: (one.generated, -one.input), reverse=True)
        retracted = False
        while len(running) > 1 and sum(server.bytes_short(one, 1) for one in running) > server.free:
            server.preempt(running.pop(), last=True)
            retracted = True
        for request in running:
            server.schedule_tokens(request, 1)
        if retracted:
            came, all_of = (sum(getattr(one, name) for one in running) for name in ("generated", "output"))
            self.share = min((came + self.ahead * len(running)) / all_of, 1.0)
        else:
            self.share = max(self.share - (self.most - self.least) / self.steps, self.least)


POLICIES: Mapping[str, Policy] = {
    "vllm": Policy(lambda: vllm, "running requests first, waiting ones in chunks, the last preempted", steady=True),
    "sglang": Policy(SGLang, "prefill before decode, admitted by an estimate of the tokens to come"),
    "trtllm-no-evict": Policy(lambda: no_evict, "memory reserved for the whole answer, no preemption", steady=True),
    "trtllm-max-utilization": Policy(lambda: max_utilization, "by the present length, the last paused", steady=True),
}
"""The schedulers by name. Sources: `serving_frameworks.toml`, NVIDIA/TensorRT-LLM docs (capacity
scheduler policies)."""
