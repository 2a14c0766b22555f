"""Memory arbitration: policies that choose which stream enters a channel's command queue, built in or a user's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from weft.errors import InputError, check_name, shown

COMPUTE = 0
COMMUNICATION = 1
NOBODY = -1


class ArbiterView(NamedTuple):
    """What a policy sees when a channel asks it who goes next.

    `now` [fs]; `compute` and `communication`: requests that wait in each stream; `occupancy`, `capacity` and
    `threshold` of the command queue [64-B accesses], the threshold being the one that the kernel's first stage chose;
    `last`: the stream served before; `waited`: for how long communication has waited since it was last served,
    `limit`: the starvation limit [fs]. A policy that refuses an empty queue is asked again when `waited` passes
    `limit`; one that refuses even then stops the run.
    """

    now: int
    compute: int
    communication: int
    occupancy: int
    capacity: int
    threshold: int
    last: int
    waited: int
    limit: int


Rule = Callable[[ArbiterView], int]


@dataclass(frozen=True)
class ArbiterPolicy:
    """A named policy: a function of an ArbiterView that returns COMPUTE, COMMUNICATION or NOBODY."""

    name: str
    rule: Rule

    def __getstate__(self) -> dict[str, Any]:
        """Machine code stays in the process that compiled it."""
        return {"name": self.name, "rule": self.rule}

    @functools.cached_property
    def compiled(self) -> Any:
        """What the engine calls: machine code, or the plain function when compilation is switched off.

        Raises InputError if numba cannot compile the rule.
        """
        from numba.core.errors import NumbaError

        try:
            return _compile(self.rule)
        except NumbaError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = next((line for line in lines if not line.startswith("Failed in")), "no reason given")
            raise InputError(
                f"arbiter policy '{self.name}' cannot be compiled by numba: {reason}; use only numbers, comparisons, "
                "loops and the fields of the view, and return 0, 1 or -1"
            ) from error


def find_policy(policy: str | ArbiterPolicy) -> ArbiterPolicy:
    """A policy itself, or the built-in one of that name; UnknownNameError lists these."""
    if isinstance(policy, ArbiterPolicy):
        return policy
    check_name("arbiter", policy, POLICIES)
    return POLICIES[policy]


def arbiter(rule: Rule) -> ArbiterPolicy:
    """Make a policy of a function; it is compiled by numba, so it may use numbers, comparisons and loops.

    >>> @arbiter
    ... def communication_first(view):
    ...     return 1 if view.communication > 0 else 0
    >>> communication_first.name
    'communication_first'
    """
    if not callable(rule):
        raise InputError(
            f"the rule of an arbiter is {shown(rule)}; give a function of one view that returns 0, 1 or -1"
        )
    return ArbiterPolicy(name=getattr(rule, "__name__", "policy"), rule=rule)


def _compile(rule: Rule) -> Any:
    import numba

    config: Any = numba.config
    return (lambda *fields: rule(ArbiterView(*fields))) if config.DISABLE_JIT else _machine_code(rule)


@functools.lru_cache(maxsize=64)
def _machine_code(rule: Rule) -> Any:
    """A rule's machine code, compiled once in a process: every task that comes from another one brings its policy."""
    import numba

    inner = numba.njit(rule)
    i8 = numba.types.int64

    def adapter(now, compute, communication, occupancy, capacity, threshold, last, waited, limit):  # type: ignore[no-untyped-def]
        view = ArbiterView(now, compute, communication, occupancy, capacity, threshold, last, waited, limit)
        return inner(view)

    return numba.cfunc(i8(i8, i8, i8, i8, i8, i8, i8, i8, i8))(adapter)


def _round_robin(view: ArbiterView) -> int:
    if view.compute > 0 and view.communication > 0:
        return 1 - view.last
    return 0 if view.compute > 0 else 1


def _compute_first(view: ArbiterView) -> int:
    if view.communication > 0 and view.waited > view.limit:
        return 1
    if view.compute > 0:
        return 0
    return 1 if view.occupancy < view.threshold else -1


def _communication_first(view: ArbiterView) -> int:
    return 1 if view.communication > 0 else 0


ROUND_ROBIN = ArbiterPolicy("round-robin", _round_robin)
"""The streams take turns; each goes alone when the other is empty."""
COMPUTE_FIRST = ArbiterPolicy("compute-first", _compute_first)
"""T3-MCA: compute always goes first; communication enters only a queue below the threshold, or when it starves."""
COMMUNICATION_FIRST = ArbiterPolicy("communication-first", _communication_first)
"""Communication always goes first."""

POLICIES: Mapping[str, ArbiterPolicy] = {p.name: p for p in (ROUND_ROBIN, COMPUTE_FIRST, COMMUNICATION_FIRST)}
"""The built-in policies by name."""
