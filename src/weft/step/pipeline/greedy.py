"""Orders found by list scheduling with nominal durations: each device runs the ready task that it prefers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

import numpy as np

from weft.step.pipeline.orders import BACKWARD, FORWARD, Ints

Preference = Callable[[int, int, int, int], tuple[int, ...]]
"""From kind, stage, micro-batch and time of arrival to a key; the smallest one runs first."""
Queue = list[tuple[tuple[int, ...], int, int]]
"""Ready tasks of one kind on one device: key, stage, micro-batch."""


def list_schedule(
    placement: Ints, replica: Ints, backward: int, window: Sequence[int], prefer: Preference
) -> list[Ints]:
    """The order of each device if a forward takes 1 and a whole backward `backward`, without sends.

    A device starts no forward while it holds `window[device]` micro-batches.
    """
    run = _Run(placement[replica].tolist(), backward, window, prefer)
    awake, now = {run.arrive(FORWARD, 0, micro_batch, 0) for micro_batch in range(len(replica))}, 0
    while awake:
        for device in sorted(awake):
            run.start(device, now)
        awake, now = run.next_ends(now)
    return [np.array(order) for order in run.orders]


class _Run:
    """The state of a list schedule: what is ready, what runs, and what has been started in which order."""

    def __init__(self, route: list[list[int]], backward: int, window: Sequence[int], prefer: Preference) -> None:
        self.route, self.backward, self.window, self.prefer = route, backward, window, prefer
        self.stages = len(route[0])
        self.ready: list[tuple[Queue, Queue]] = [([], []) for _ in window]
        self.orders: list[list[int]] = [[] for _ in window]
        self.held, self.free = [0] * len(window), [0] * len(window)
        self.running: list[tuple[int, int, int, int]] = []

    def arrive(self, kind: int, stage: int, micro_batch: int, now: int) -> int:
        """Make a task ready; its device."""
        device = self.route[micro_batch][stage]
        heappush(self.ready[device][kind], (self.prefer(kind, stage, micro_batch, now), stage, micro_batch))
        return device

    def start(self, device: int, now: int) -> None:
        """Start the task that a device prefers, if it is free and one is ready."""
        forwards, backwards = self.ready[device]
        allowed = [(FORWARD, forwards)] if self.held[device] < self.window[device] else []
        waiting = [(queue[0], kind) for kind, queue in (*allowed, (BACKWARD, backwards)) if queue]
        if self.free[device] > now or not waiting:
            return
        (_, stage, micro_batch), kind = min(waiting)
        heappop(self.ready[device][kind])
        self.held[device] += kind == FORWARD
        self.free[device] = now + (1 if kind == FORWARD else self.backward)
        self.orders[device].append((kind * self.stages + stage) * len(self.route) + micro_batch)
        heappush(self.running, (self.free[device], kind, stage, micro_batch))

    def next_ends(self, now: int) -> tuple[set[int], int]:
        """End what ends next; the devices that may now start, and the time."""
        awake: set[int] = set()
        now = self.running[0][0] if self.running else now
        while self.running and self.running[0][0] == now:
            _, kind, stage, micro_batch = heappop(self.running)
            here = self.route[micro_batch][stage]
            awake.add(here)
            self.held[here] -= kind == BACKWARD
            if kind == FORWARD:
                following = (FORWARD, stage + 1) if stage + 1 < self.stages else (BACKWARD, stage)
                awake.add(self.arrive(*following, micro_batch, now))
            elif stage:
                awake.add(self.arrive(BACKWARD, stage - 1, micro_batch, now))
        return awake, now
