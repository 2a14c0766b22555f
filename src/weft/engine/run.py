"""The engine from outside: run a program to its end, in slices that can be watched, interrupted and resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.engine import layout as y
from weft.engine.loop import run
from weft.engine.state import Machine, Tables, allocate, grow, margin_events, margin_requests

SLICE = 1_000_000
"""Events between two looks at the outside world."""


def execute(
    tables: Tables,
    policy: Any,
    bin_fs: int,
    event_budget: int | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> tuple[int, Machine]:
    """Run `tables` under a compiled arbiter policy; returns the status and the final state.

    `watch(events, now_fs)` is called between slices. The status is RUNNING when the budget is exhausted.
    """
    machine = allocate(tables, bin_fs)
    spare_events, spare_requests = margin_events(tables.shape), margin_requests(tables.shape)
    while True:
        done = int(machine.clock[y.C_EVENTS])
        events = SLICE if event_budget is None else min(SLICE, event_budget - done)
        status = int(run(machine, policy, events, spare_events, spare_requests))
        if watch is not None:
            watch(int(machine.clock[y.C_EVENTS]), int(machine.clock[y.C_NOW]))
        if status in (y.GROW_HEAP, y.GROW_REQUESTS, y.GROW_WAITERS):
            machine = grow(machine, status)
        elif status != y.RUNNING or (event_budget is not None and machine.clock[y.C_EVENTS] >= event_budget):
            return status, machine
