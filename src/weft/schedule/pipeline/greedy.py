"""Orders found by list scheduling with nominal durations: each device runs the ready task that it prefers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np

from weft.schedule.pipeline.orders import BACKWARD, FORWARD, Ints

Preference = Callable[[int, int, int, int], tuple[int, ...]]
"""From kind, stage, micro-batch and time of arrival to a key; the smallest one runs first."""


def list_schedule(
    placement: Ints, replica: Ints, backward: int, window: Sequence[int], prefer: Preference
) -> list[Ints]:
    """The order of each device if a forward takes 1 and a whole backward `backward`, without sends.

    A device starts no forward while it holds `window[device]` micro-batches.
    """
    stages, micro_batches = placement.shape[1], len(replica)
    route = placement[replica].tolist()
    ready: list[tuple[list[tuple[tuple[int, ...], int, int]], ...]] = [([], []) for _ in window]
    orders: list[list[int]] = [[] for _ in window]
    held, free = [0] * len(window), [0] * len(window)
    events: list[tuple[int, int, int, int]] = []

    def arrive(kind: int, stage: int, micro_batch: int, now: int) -> int:
        """Make a task ready; the device that may now start."""
        device = int(route[micro_batch][stage])
        heappush(ready[device][kind], (prefer(kind, stage, micro_batch, now), stage, micro_batch))
        return device

    def end(kind: int, stage: int, micro_batch: int, now: int) -> set[int]:
        """End a task; the devices that may now start."""
        here = int(route[micro_batch][stage])
        if kind == BACKWARD:
            held[here] -= 1
            return {here, arrive(kind, stage - 1, micro_batch, now)} if stage else {here}
        if stage + 1 < stages:
            return {here, arrive(kind, stage + 1, micro_batch, now)}
        return {here, arrive(BACKWARD, stage, micro_batch, now)}

    def start(device: int, now: int) -> None:
        """Start the preferred task of a device, if it is free and one is ready."""
        open_to = [ready[device][BACKWARD]] + [ready[device][FORWARD]] * (held[device] < window[device])
        waiting = [queue for queue in open_to if queue]
        if free[device] > now or not waiting:
            return
        queue = min(waiting)
        kind = BACKWARD if queue is ready[device][BACKWARD] else FORWARD
        _, stage, micro_batch = heappop(queue)
        held[device] += kind == FORWARD
        free[device] = now + (1 if kind == FORWARD else backward)
        orders[device].append((kind * stages + stage) * micro_batches + micro_batch)
        heappush(events, (free[device], kind, stage, micro_batch))

    awake = {arrive(FORWARD, 0, micro_batch, 0) for micro_batch in range(micro_batches)}
    now = 0
    while awake:
        for device in sorted(awake):
            start(device, now)
        awake, now = set(), events[0][0] if events else now
        while events and events[0][0] == now:
            awake |= end(*heappop(events)[1:], now)
    return [np.array(order) for order in orders]
