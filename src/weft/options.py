"""How a run is made: one set of options for the engine and for closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from weft.errors import InputError, check_name, check_whole, is_whole, shown

if TYPE_CHECKING:
    from weft.schedule.arbiters import ArbiterPolicy

Clock = Literal["short", "sustained", "boost"]
"""What compute units run at: the highest clock for a short run, what a long one holds at the power limit, or the boost
clock throughout."""
Mode = Literal["auto", "mirrored", "explicit"]
"""Whether one GPU represents all, or each is simulated; auto: one wherever all are alike."""


@dataclass(frozen=True)
class RunOptions:
    """How a run is made.

    `clock` is what the compute units run at. `request_bytes` is the size of memory requests [bytes] (64 is exact,
    larger ones faster; None: as suits graph and GPU). `event_budget` ends a run that takes more events. `arbiter`
    replaces the memory arbitration that the overlap brings: a policy, or the name of a built-in one.
    `progress(events, now_fs, end_fs)` is called about every million events, with the time that the run has reached
    [fs] and a function that answers when closed forms expect its end [fs] (0: they cannot).

    Raises UnknownNameError for an unknown clock or mode, InputError for a size or a budget that cannot be.
    """

    clock: Clock = "sustained"
    request_bytes: int | None = None
    mode: Mode = "auto"
    event_budget: int | None = None
    arbiter: ArbiterPolicy | str | None = None
    progress: Callable[[int, int, Callable[[], int]], None] | None = None

    def __post_init__(self) -> None:
        check_name("clock", self.clock, get_args(Clock))
        check_name("mode", self.mode, get_args(Mode))
        if self.request_bytes is not None and not (is_whole(self.request_bytes) and 0 < self.request_bytes < 2**40):
            raise InputError(f"request_bytes is {shown(self.request_bytes)}; give a multiple of 64 B, such as 512")
        if self.event_budget is not None:
            check_whole("event_budget", self.event_budget, 0, 10**9)
        if not (self.arbiter is None or isinstance(self.arbiter, str) or hasattr(self.arbiter, "compiled")):
            raise InputError(f"arbiter is {shown(self.arbiter)}; give what weft.arbiter makes of a function")
        if self.progress is not None and not callable(self.progress):
            raise InputError(f"progress is {shown(self.progress)}; give a function of events and time")


SUSTAINED = RunOptions()
"""What a run is unless options say otherwise: long enough for the power limit."""
