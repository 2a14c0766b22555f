"""Memory arbitration: policies that choose which stream enters a channel's command queue, built in or user-defined."""

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
    """What a policy sees when a channel asks which stream goes next.

    `now`: the time [fs]; `compute` and `communication`: number of waiting requests of each stream, `compute_bytes` and
    `communication_bytes`: the size of the first of each [bytes]; `lead`: how much more compute has been admitted than
    communication since both wait [bytes]; `occupancy`, `capacity` and `threshold` of the command queue [32-B accesses],
    the threshold being the one chosen by the kernel's first stage; `last`: the stream served last; `waited`: how long
    communication has waited since it was last served, `limit`: the starvation limit [fs]; `critical`: the stream that
    is expected to end later. If the queue is empty and a policy selects neither stream, it is called again when
    `waited` exceeds `limit`; if it selects neither stream then, the run stops with an error.
    """

    now: int
    compute: int
    communication: int
    compute_bytes: int
    communication_bytes: int
    lead: int
    occupancy: int
    capacity: int
    threshold: int
    last: int
    waited: int
    limit: int
    critical: int


Rule = Callable[[ArbiterView], int]


@dataclass(frozen=True)
class ArbiterPolicy:
    """A named policy: a function of an ArbiterView that returns COMPUTE, COMMUNICATION or NOBODY."""

    name: str
    rule: Rule

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the machine code, which stays in the process that compiled it."""
        return {"name": self.name, "rule": self.rule}

    @functools.cached_property
    def compiled(self) -> Any:
        """The function that the engine calls: machine code, or plain Python if compilation is switched off.

        Raises InputError if numba cannot compile the rule, or if the rule can return anything but a whole number.
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
    """The policy itself, or the built-in one of that name; UnknownNameError lists the built-in ones."""
    if isinstance(policy, ArbiterPolicy):
        return policy
    check_name("arbiter", policy, POLICIES)
    return POLICIES[policy]


def arbiter(rule: Rule) -> ArbiterPolicy:
    """Make a policy from a function, which numba compiles: it may use numbers, comparisons and loops.

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
    """Compile a rule once per process: every task received from another process brings its policy along."""
    import numba

    inner: Any = numba.njit(rule)
    i8 = numba.types.int64

    def adapter(  # type: ignore[no-untyped-def]
        now, compute, communication, compute_bytes, communication_bytes, lead, occupancy, capacity, threshold, last,
        waited, limit, critical,
    ):  # fmt: skip
        view = ArbiterView(
            now, compute, communication, compute_bytes, communication_bytes, lead, occupancy, capacity, threshold, last,
            waited, limit, critical,
        )  # fmt: skip
        return inner(view)

    compiled = numba.cfunc(i8(*[i8] * len(ArbiterView._fields)))(adapter)
    returned = inner.nopython_signatures[0].return_type
    if not isinstance(returned, numba.types.Integer | numba.types.Boolean):
        raise InputError(
            f"arbiter policy '{inner.__name__}' returns {returned}, not whole numbers; return 0, 1 or -1 at the end of "
            "every branch"
        )
    return compiled


def _round_robin(view: ArbiterView) -> int:
    if view.compute > 0 and view.communication > 0:
        if view.lead == 0:
            return 1 - view.last
        return 1 if view.lead > 0 else 0
    return 0 if view.compute > 0 else 1


def _compute_first(view: ArbiterView) -> int:
    if view.communication > 0 and view.waited > view.limit:
        return 1
    if view.compute > 0:
        return 0
    return 1 if view.occupancy < view.threshold else -1


def _communication_first(view: ArbiterView) -> int:
    return 1 if view.communication > 0 else 0


def _critical_first(view: ArbiterView) -> int:
    if view.communication > 0 and (view.critical == COMMUNICATION or view.waited > view.limit):
        return 1
    if view.compute > 0:
        return 0
    return 1 if view.occupancy < view.threshold else -1


ROUND_ROBIN = ArbiterPolicy("round-robin", _round_robin)
"""The streams take turns by bytes: the one that was admitted fewer is next; each goes alone if the other is empty."""
COMPUTE_FIRST = ArbiterPolicy("compute-first", _compute_first)
"""T3-MCA: compute always goes first; communication enters only a queue below the threshold, or when it starves."""
COMMUNICATION_FIRST = ArbiterPolicy("communication-first", _communication_first)
"""Communication always goes first."""
CRITICAL_FIRST = ArbiterPolicy("critical-first", _critical_first)
"""As T3-MCA while the GEMM is expected to end last, communication first while the reduce-scatter is."""

_BUILT_IN = (ROUND_ROBIN, COMPUTE_FIRST, COMMUNICATION_FIRST, CRITICAL_FIRST)
POLICIES: Mapping[str, ArbiterPolicy] = {policy.name: policy for policy in _BUILT_IN}
"""The built-in policies by name."""
