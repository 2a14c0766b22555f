"""The contract of an arbiter: what it may answer to a memory channel, and what its runs keep."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from weft.core.errors import show_value
from weft.core.options import RunOptions
from weft.models import SubLayer
from weft.models.parallel import split
from weft.overlaps import SEQUENTIAL
from weft.overlaps.arbiters import (
    COMMUNICATION,
    COMPUTE,
    NOBODY,
    READ,
    ROUND_ROBIN,
    UPDATE,
    WRITE,
    ArbiterPolicy,
    ArbiterView,
    find_policy,
)
from weft.simulate.result import Timeline
from weft.simulate.single import simulate
from weft.testing.laws import ContractError, Law, check_laws, runs_to_the_end

_CAPACITY, _LIMIT_FS, _VIEWS = 64, 2_000_000_000, 5000
"""Entries of the command queue and the starvation limit of the drawn views, and their number."""
_GPU, _LAYER = "t3-paper", (1024, 1024, 512)
"""The machine of the runs, and the GEMM (M, N, K) that four GPUs share."""
_CODED = "Its machine code answers as its Python function does"
_SERVES = "Every request that waits is served"


def check_arbiter(arbiter: ArbiterPolicy | str) -> None:
    """Raise ContractError unless an arbiter keeps every law: of its answers to views, and of the runs that it decides.

    The answers are to 5000 drawn views of a channel, asked of the Python function and of the machine code that the
    engine calls. The runs are a small sub-layer on `t3-paper`, sequential and under T3. `arbiter` is what
    `RunOptions(arbiter=...)` takes; InputError for anything else, and for a rule that numba cannot compile.

    >>> check_arbiter("round-robin")
    """
    policy = find_policy(arbiter)
    member = f"arbiter '{policy.name}'"
    with runs_to_the_end(member, "It answers every view", "views of a channel"):
        views = draw_views()
        plain = [policy.rule(view) for view in views]
        again = [policy.rule(view) for view in reversed(views)][::-1]
    check_laws(member, "views of a channel", ANSWERS, views, plain)
    for view, first, second in zip(views, plain, again, strict=True):
        if first != second:
            raise ContractError(
                member, "It has no state", "views of a channel", f"{first}, asked again {second}, to {view}"
            )
    with runs_to_the_end(member, _CODED, "views of a channel"):
        coded = list(map(_machine_code(policy), views))
    for view, first, other in zip(views, plain, coded, strict=True):
        if other != first:
            raise ContractError(member, _CODED, "views of a channel", f"{other} instead of {first} to {view}")
    for overlap in (SEQUENTIAL, "t3"):
        case = f"a sub-layer under '{overlap}'"
        with runs_to_the_end(member, _SERVES, case):
            run, same = (_run(overlap, policy) for _ in range(2))
        check_laws(member, case, RUNS, run, same, _run(overlap, ROUND_ROBIN))


def draw_views() -> list[ArbiterView]:
    """Return views of a channel with a request that waits and room in the queue, the same ones every time."""
    rng = np.random.default_rng(0)

    def pick(*values: int) -> list[int]:
        return [int(value) for value in rng.choice(values, _VIEWS)]

    compute, communication = pick(0, 1, 7), pick(0, 1, 7)
    compute = [one or int(not other) for one, other in zip(compute, communication, strict=True)]
    columns = (
        compute, communication, pick(64, 512), pick(64, 512), pick(-4096, -512, 0, 512, 4096),
        pick(0, 0, 7, 8, 9, _CAPACITY - 1), pick(8, 16, _CAPACITY), pick(COMPUTE, COMMUNICATION),
        pick(0, _LIMIT_FS, _LIMIT_FS + 1, 3 * _LIMIT_FS), pick(COMPUTE, COMMUNICATION), pick(READ, WRITE, UPDATE),
        pick(READ, WRITE, UPDATE), pick(0, 1), pick(0, 1), pick(10**6, 10**12, 10**15),
    )  # fmt: skip
    return [_view(*values) for values in zip(*columns, strict=True)]


def _view(
    compute: int, communication: int, compute_bytes: int, communication_bytes: int, lead: int, occupancy: int,
    threshold: int, last: int, waited: int, critical: int, compute_kind: int, communication_kind: int,
    compute_hit: int, communication_hit: int, now: int,
) -> ArbiterView:  # fmt: skip
    """A view in which what an empty stream has no request for is 0, or NOBODY, as the engine writes it."""
    return ArbiterView(
        now=now, compute=compute, communication=communication, compute_bytes=compute_bytes * bool(compute),
        communication_bytes=communication_bytes * bool(communication),
        lead=lead if compute and communication else 0, occupancy=occupancy, capacity=_CAPACITY, threshold=threshold,
        last=last, waited=waited if communication else 0, limit=_LIMIT_FS, critical=critical,
        compute_kind=compute_kind if compute else NOBODY,
        communication_kind=communication_kind if communication else NOBODY,
        compute_hit=compute_hit * bool(compute), communication_hit=communication_hit * bool(communication),
    )  # fmt: skip


def answers_are_streams(views: Sequence[ArbiterView], answers: Sequence[int]) -> str | None:
    """It answers COMPUTE (0), COMMUNICATION (1) or NOBODY (-1)."""
    for view, answer in zip(views, answers, strict=True):
        if answer not in (COMPUTE, COMMUNICATION, NOBODY):
            return f"{show_value(answer)} to {view}"
    return None


def chosen_streams_wait(views: Sequence[ArbiterView], answers: Sequence[int]) -> str | None:
    """It chooses a stream that has a request.

    For an empty stream the engine admits nobody, which a policy says by NOBODY.
    """
    for view, answer in zip(views, answers, strict=True):
        if answer != NOBODY and not (view.compute, view.communication)[answer]:
            return f"{('COMPUTE', 'COMMUNICATION')[answer]}, where no such request waits, to {view}"
    return None


def an_empty_queue_is_filled(views: Sequence[ArbiterView], answers: Sequence[int]) -> str | None:
    """It admits somebody to an empty queue where compute waits alone, or communication past the starvation limit.

    A channel asks again at every arrival, after every request that it serves, and when the limit expires: a policy that
    then still says NOBODY holds the channel forever.
    """
    for view, answer in zip(views, answers, strict=True):
        must = view.occupancy == 0 and (not view.communication or view.waited > view.limit)
        if must and answer == NOBODY:
            return f"NOBODY to {view}"
    return None


def traffic_is_kept(run: Timeline, again: Timeline, round_robin: Timeline) -> str | None:
    """It loses no request and repeats none: every operator moves the bytes that it moves under round-robin."""
    kept, found = dict(round_robin.traffic), dict(run.traffic)
    for cause in sorted(kept.keys() | found.keys(), key=str):
        if kept.get(cause, 0) != found.get(cause, 0):
            return f"{found.get(cause, 0)} bytes instead of {kept.get(cause, 0)} of {cause}"
    return None


def a_gemm_alone_is_not_held_up(run: Timeline, again: Timeline, round_robin: Timeline) -> str | None:
    """It orders streams that meet: a GEMM beside which nothing communicates takes as long as under round-robin."""
    if run.overlap != SEQUENTIAL:
        return None
    found, kept = run.duration("gemm"), round_robin.duration("gemm")
    return None if found == kept else f"the GEMM takes {found:.9g} s instead of {kept:.9g} s"


def runs_repeat(run: Timeline, again: Timeline, round_robin: Timeline) -> str | None:
    """The same run gives the same times."""
    return None if run.durations == again.durations else f"{run.seconds:.9g} s, then {again.seconds:.9g} s"


ANSWERS: Sequence[Law] = (answers_are_streams, chosen_streams_wait, an_empty_queue_is_filled)
"""Laws of the answers to views."""
RUNS: Sequence[Law] = (traffic_is_kept, a_gemm_alone_is_not_held_up, runs_repeat)
"""Laws of a run, the same run again, and the run under round-robin."""


def _run(overlap: str, policy: ArbiterPolicy) -> Timeline:
    return simulate(split(SubLayer.custom(*_LAYER), 4), _GPU, overlap, RunOptions(arbiter=policy))


def _machine_code(policy: ArbiterPolicy) -> Callable[[ArbiterView], int]:
    """The function that the engine calls, as a function of a view."""
    compiled = policy.compiled
    if callable(compiled):  # plain Python, where compilation is switched off
        return lambda view: int(compiled(*view))
    fields = [ctypes.c_int64] * len(ArbiterView._fields)
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *fields)(compiled.address)

    def call(view: ArbiterView) -> int:
        answer, reason = ctypes.c_int64(), ctypes.c_void_p()
        if function(ctypes.addressof(answer), ctypes.addressof(reason), *view):
            raise ArithmeticError(f"the machine code raised an exception, such as a division by zero, for {view}")
        return answer.value

    return call
