"""Memory arbitration: policies that choose which stream enters a channel's command queue, built in or user-defined."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, cast

from weft.core.errors import InputError, check_name, check_type, show_value
from weft.core.options import Arbiter

COMPUTE = 0
COMMUNICATION = 1
NOBODY = -1
READ = 0
WRITE = 1
UPDATE = 2
"""What a request does: it reads, writes, or updates near memory."""


class ArbiterView(NamedTuple):
    """What a policy sees when a channel asks which stream goes next.

    `now`: the time [fs]; `compute` and `communication`: number of waiting requests of each stream, `compute_bytes` and
    `communication_bytes`: the size of the first of each [bytes]; `lead`: how much more compute has been admitted than
    communication since both wait [bytes]; `occupancy`, `capacity` and `threshold` of the command queue [32-B accesses],
    the threshold being the one chosen by the kernel's first stage; `last`: the stream served last; `waited`: how long
    communication has waited since it was last served, `limit`: the starvation limit [fs]; `critical`: the stream that
    is expected to end later. `compute_kind` and `communication_kind`: what the first request of each stream does, READ,
    WRITE, UPDATE or NOBODY; `compute_hit` and `communication_hit`: 1 if its DRAM row is open, else 0. If the queue is
    empty and a policy selects neither stream, it is called again when `waited` exceeds `limit`; if it selects neither
    stream then, the run stops with an error.
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
    compute_kind: int
    communication_kind: int
    compute_hit: int
    communication_hit: int


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
        try:
            return _compile(self.rule)
        except _UntranslatableError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = next((line for line in lines if not line.startswith("Failed in")), "no reason given")
            raise InputError(
                f"arbiter policy '{self.name}' cannot be compiled by numba: {reason}; use only numbers, comparisons, "
                "loops and the fields of the view, and return 0, 1 or -1"
            ) from error


class _UntranslatableError(Exception):
    """numba cannot translate a rule."""


def find_policy(policy: str | Arbiter) -> ArbiterPolicy:
    """Return the policy itself, or the built-in one of that name; UnknownNameError lists the built-in ones."""
    if not isinstance(policy, str):
        check_type("the arbiter", policy, ArbiterPolicy, "give what weft.arbiter makes of a function")
        return cast("ArbiterPolicy", policy)
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
            f"the rule of an arbiter is {show_value(rule)}; give a function of one view that returns 0, 1 or -1"
        )
    return ArbiterPolicy(name=getattr(rule, "__name__", "policy"), rule=rule)


def _compile(rule: Rule) -> Any:
    from weft.engine.jit import is_plain

    return (lambda *fields: rule(ArbiterView(*fields))) if is_plain() else _machine_code(rule)


@functools.lru_cache(maxsize=64)
def _machine_code(rule: Rule) -> Any:
    """Return the machine code of a rule, which is made once for all processes if all that decides it can be told."""
    from weft.engine.code import load

    digest = digest_of(rule)
    return load(f"policy-{digest or 'unnamed'}", lambda: _module(rule, f"policy-{digest or 'unnamed'}"), bool(digest))


def _module(rule: Rule, name: str) -> Any:
    """Translate a rule with numba, as a function of the fields of an ArbiterView."""
    from numba import types
    from numba.core.errors import NumbaError, UnsupportedBytecodeError

    from weft.engine.compiler import Session

    session = Session()
    inner = session.function(rule)

    def adapter(  # type: ignore[no-untyped-def]
        now, compute, communication, compute_bytes, communication_bytes, lead, occupancy, capacity, threshold, last,
        waited, limit, critical, compute_kind, communication_kind, compute_hit, communication_hit,
    ):  # fmt: skip
        view = ArbiterView(
            now, compute, communication, compute_bytes, communication_bytes, lead, occupancy, capacity, threshold, last,
            waited, limit, critical, compute_kind, communication_kind, compute_hit, communication_hit,
        )  # fmt: skip
        return int(inner(view))

    try:
        module = session.module(session.function(adapter), [types.int64] * len(ArbiterView._fields), name)
    except (NumbaError, UnsupportedBytecodeError) as error:
        raise _UntranslatableError(str(error)) from error
    returned = inner.nopython_signatures[0].return_type
    if not isinstance(returned, types.Integer | types.Boolean):
        raise InputError(
            f"arbiter policy '{inner.__name__}' returns {returned}, not whole numbers; return 0, 1 or -1 at the end of "
            "every branch"
        )
    return module


def digest_of(rule: Rule) -> str:
    """A hash of all that decides what a rule does: its code, and the numbers and functions that it refers to.

    Empty if it refers to anything else, whose value a hash could miss.
    """
    parts: list[str] = []
    try:
        _describe(rule, parts, [])
    except TypeError:
        return ""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _describe(value: Any, parts: list[str], within: list[Any]) -> None:
    """Append a description of a value to `parts`; TypeError if it is no number, no string, and no function of these."""
    if isinstance(value, FunctionType):
        if value in within:
            parts.append(f"again {within.index(value)}")
            return
        within.append(value)
        parts.append(f"function {value.__defaults__} {value.__kwdefaults__}")
        _describe(value.__code__, parts, within)
        for cell in value.__closure__ or ():
            _describe(cell.cell_contents, parts, within)
        for name in _names(value.__code__):
            if name in value.__globals__:
                parts.append(name)
                _describe(value.__globals__[name], parts, within)
    elif isinstance(value, CodeType):
        parts.append(f"{value.co_code.hex()} {value.co_names} {value.co_varnames} {value.co_argcount} {value.co_flags}")
        for constant in value.co_consts:
            _describe(constant, parts, within)
    elif isinstance(value, tuple | frozenset):
        parts.append(f"{type(value).__name__} {len(value)}")
        for each in sorted(value, key=repr) if isinstance(value, frozenset) else value:
            _describe(each, parts, within)
    elif value is None or type(value) in (bool, int, float, complex, str, bytes):
        parts.append(f"{type(value).__name__} {value!r}")
    elif value is ArbiterView:
        parts.append(f"view {value._fields}")
    elif isinstance(value, BuiltinFunctionType):
        parts.append(f"{value.__module__}.{value.__qualname__}")
    elif isinstance(value, ModuleType) and value.__name__ in ("math", "builtins"):
        parts.append(f"module {value.__name__}")
    else:
        raise TypeError(f"{show_value(value)} has no description")


def _names(code: CodeType) -> list[str]:
    """Return the names that a function's code, and the functions within it, look up."""
    return [
        *code.co_names,
        *(name for inner in code.co_consts if isinstance(inner, CodeType) for name in _names(inner)),
    ]


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
"""The streams take turns by bytes: the stream with fewer admitted bytes is next, or whichever has requests."""
COMPUTE_FIRST = ArbiterPolicy("compute-first", _compute_first)
"""T3-MCA: compute always goes first; communication enters only a queue below the threshold, or when it starves."""
COMMUNICATION_FIRST = ArbiterPolicy("communication-first", _communication_first)
"""Communication always goes first."""
CRITICAL_FIRST = ArbiterPolicy("critical-first", _critical_first)
"""As T3-MCA while the GEMM is expected to end last, communication first while the reduce-scatter is."""

_BUILT_IN = (ROUND_ROBIN, COMPUTE_FIRST, COMMUNICATION_FIRST, CRITICAL_FIRST)
POLICIES: Mapping[str, ArbiterPolicy] = {policy.name: policy for policy in _BUILT_IN}
"""The built-in policies by name."""
