"""The engine's interface: run a program to its end, in slices between which it can be watched and interrupted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.engine import layout as y
from weft.engine.loop import run
from weft.engine.state import Machine, Tables, allocate, grow, margin_events, margin_requests

SLICE = 1_000_000
"""Events per slice, between which progress is reported and interrupts are handled."""


def execute(
    tables: Tables,
    policy: Any,
    bin_fs: int,
    event_budget: int | None = None,
    watch: Callable[[int, int], None] | None = None,
    interference: bool = False,
    heat: str | None = None,
    updates: bool = False,
) -> tuple[int, Machine]:
    """Run `tables` under a compiled arbiter policy; returns the status and the final state.

    `watch(events, now_fs)` is called between slices. The status is RUNNING when the budget is exhausted.
    `interference` records what the streams of a channel cost each other, `heat` what each "channel" or "bank" does,
    `updates` when memory updated each tile.
    """
    return resume(allocate(tables, bin_fs, interference, heat, updates), policy, event_budget, watch)


def resume(
    machine: Machine,
    policy: Any,
    event_budget: int | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> tuple[int, Machine]:
    """Run a machine from its present state; arguments and answer are those of `execute`."""
    spare_events, spare_requests = margin_events(machine.shape), margin_requests(machine.shape)
    while True:
        done = int(machine.clock[y.CLOCK_EVENTS])
        events = SLICE if event_budget is None else min(SLICE, event_budget - done)
        status = int(run(machine, policy, events, spare_events, spare_requests))
        if watch is not None:
            watch(int(machine.clock[y.CLOCK_EVENTS]), int(machine.clock[y.CLOCK_NOW]))
        if status in (y.GROW_HEAP, y.GROW_REQUESTS, y.GROW_WAITERS):
            machine = grow(machine, status)
        elif status != y.RUNNING or (event_budget is not None and machine.clock[y.CLOCK_EVENTS] >= event_budget):
            return status, machine
