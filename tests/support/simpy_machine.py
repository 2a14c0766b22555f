"""Parts of a machine in SimPy whose only contended resource is its links, for oracles of whole programs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import simpy

from weft.engine import layout as y
from weft.engine.state import Tables
from weft.hardware.fabric import Fabric, Link, pairs

Event = Callable[[], Any]
FREE = (
    y.GPU_PORT64, y.GPU_SLICE64, y.GPU_CACHE_OUT, y.GPU_CACHE_BACK, y.GPU_T_BURST, y.GPU_T_LONG, y.GPU_T_UPDATE,
    y.GPU_T_RRD, y.GPU_T_RCD, y.GPU_T_RAS, y.GPU_T_RP, y.GPU_T_RC, y.GPU_T_CL, y.GPU_T_READ_TO_WRITE,
    y.GPU_T_WRITE_TO_READ, y.GPU_T_WRITE_TO_PRECHARGE, y.GPU_T_READ_TO_PRECHARGE, y.GPU_T_PATH,
)  # fmt: skip
"""Constants that are zero where ports, caches and memory take no time but a read's latency."""


def uncontended(tables: Tables, latency: int) -> Tables:
    """The same tables, changed in place: reads take `latency` [fs] each, writes, updates and launches no time.

    A channel is one server without banks, which takes requests in the order of their arrival.
    """
    tables.gpu[:, FREE] = 0
    tables.gpu[:, (y.GPU_SHARE_LONG, y.GPU_SHARE_UPDATE)] = y.WHOLE_BUS
    tables.shape[[y.SIZE_BANKS, y.SIZE_GROUPS, y.SIZE_ROW]] = 1, 1, 1 << 60
    tables.gpu[:, y.GPU_MEMORY_LATENCY] = latency
    tables.kernel[:, :, y.KERNEL_LAUNCH] = 0
    tables.access[:, :, y.ACCESS_CACHED] = 0
    return tables


def unequal(tables: Tables) -> Tables:
    """Tables in which each workgroup of the only kernel has a script of its own, so that no two compute as long.

    Things that happen at the same time would be in the order of the engine's own numbers.
    """
    count, each = int(tables.kernel[0, 0, y.KERNEL_WORKGROUPS]), int(tables.kernel[0, 0, y.KERNEL_PHASES])
    script = tables.work[:, :count, y.WORK_SCRIPT].copy()
    rows = (script[:, :, None] * each + np.arange(each)).reshape(len(script), -1)
    phase = np.take_along_axis(tables.phase, rows[:, :, None], axis=1)
    late = np.arange(len(script) * count).reshape(len(script), count) * 1_003
    phase[:, :, y.PHASE_CYCLES] += np.repeat(late, each, axis=1) * (phase[:, :, y.PHASE_CYCLES] > 0)
    tables.work[:, :count, y.WORK_SCRIPT] = np.arange(count)
    return tables._replace(phase=phase)


def joined(gpus: int, bandwidth: float, latency: float, *, mesh: bool) -> Fabric:
    """GPUs with a link to each peer (`mesh`; the further, the faster), or one link each for all peers."""
    if mesh:
        links = tuple(
            Link(f"to {(s - t) % gpus}", s, s, t, bandwidth * (1 + (s - t) % gpus / 7), latency, payload=1.0)
            for s, t in pairs(gpus)
        )
        return Fabric("mesh", gpus, links, {pair: (k,) for k, pair in enumerate(pairs(gpus))})
    links = tuple(Link("out", g, g, gpus, bandwidth, latency, payload=1.0) for g in range(gpus))
    return Fabric("one link each", gpus, links, {(s, t): (s,) for s, t in pairs(gpus)})


def after(env: simpy.Environment, delay: int, kind: int) -> simpy.Event:
    """An event `delay` [fs] from now, before SimPy's own at that time: the lower kind first, as in the engine."""
    event = simpy.Event(env)
    event._ok, event._value = True, None
    env.schedule(event, kind - y.EV_MERGE, delay)
    return event


class Wire:
    """A link that serves its senders in turns of `LINK_TURN` bytes, and whose messages arrive a latency later.

    `tied` says whether senders met at one instant: two messages came, or one came while another's left. Then either may
    be first, and the engine's order is as good as this one's.
    """

    def __init__(self, env: simpy.Environment, per_unit: int, latency: int) -> None:
        self.env, self.per_unit, self.latency = env, per_unit, latency
        self.bytes, self.busy = 0, False
        self.tied, self.seen = False, (-1, None)
        self.sender: Any = None
        self.served = 0
        self.turns: list[Any] = []
        self.queue: dict[Any, deque[tuple[int, Event, Event]]] = {}

    def send(self, sender: Any, bytes_: int, left: Event, arrived: Event) -> None:
        """Queue a message: `left` is called when the link has sent it, `arrived` when it is at its receiver."""
        self._see(sender)
        if not self.busy:
            self.sender, self.served = sender, bytes_
            self.env.process(self._transmit(bytes_, left, arrived))
            self.busy = True
            return
        waiting = self.queue.setdefault(sender, deque())
        if not waiting:
            self._queue(sender)
        waiting.append((bytes_, left, arrived))

    def _see(self, sender: Any) -> None:
        now, (before, other) = self.env.now, self.seen
        self.tied = self.tied or (now == before and sender != other)
        self.seen = now, sender

    def _queue(self, sender: Any) -> None:
        goes_on = sender == self.sender and self.served < y.LINK_TURN
        self.turns.insert(0 if goes_on else len(self.turns), sender)

    def _transmit(self, bytes_: int, left: Event, arrived: Event) -> Any:
        serving = self.sender
        yield after(self.env, bytes_ * self.per_unit // 64, y.EV_LINK)
        self.bytes += bytes_
        self._see(serving)
        self.env.process(self._travel(arrived))
        self.busy = False
        if self.turns:
            sender = self.turns.pop(0)
            following = self.queue[sender].popleft()
            if sender != self.sender or self.served >= y.LINK_TURN:
                self.sender, self.served = sender, 0
            self.served += following[0]
            if self.queue[sender]:
                self._queue(sender)
            self.busy = True
            self.env.process(self._transmit(*following))
        left()

    def _travel(self, arrived: Event) -> Any:
        yield after(self.env, self.latency, y.EV_ARRIVE)
        arrived()


def wires(env: simpy.Environment, tables: Tables, fabric: Fabric) -> dict[tuple[int, int], Wire]:
    """The links of a machine by (source, target), at the rates in its tables."""
    made = [
        Wire(env, int(tables.link[k, y.LINK_STORE64]), round(link.latency * 1e15))
        for k, link in enumerate(fabric.links)
    ]
    assert np.array_equal(tables.link[:, y.LINK_STORE64], tables.link[:, y.LINK_DMA64])
    return {pair: made[k] for pair, (k,) in fabric.routes.items()}
