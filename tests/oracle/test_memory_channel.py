"""A memory channel written again, in SimPy and from command histories, beside the engine's."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import NS, MemoryBench, gpu

from weft.engine import layout as y
from weft.schedule.arbiters import POLICIES, ArbiterView

READ, WRITE, UPDATE = y.READ, y.WRITE, y.UPDATE


@dataclass
class Request:
    kind: int
    at: int
    bank: int
    row: int
    bytes: int
    stream: int
    chosen: int = -1
    first: int = -1
    last: int = -1


@dataclass
class Oracle:
    """Keeps every command ever given and asks of each new one whether all earlier ones allow it."""

    env: simpy.Environment
    t: dict[str, int]
    groups: int
    capacity: int
    threshold: int
    rule: Any
    waiting: tuple[deque[Request], deque[Request]] = field(default_factory=lambda: (deque(), deque()))
    queue: list[Request] = field(default_factory=list)
    columns: list[Request] = field(default_factory=list)
    activates: list[tuple[int, int]] = field(default_factory=list)
    open_row: dict[int, int] = field(default_factory=dict)
    served: int = 0
    last_stream: int = 0
    communicated: int = 0
    bell: simpy.Event | None = None

    def moment(self, delay: int = 0) -> simpy.Event:
        """An event after everything else that happens at its time."""
        event = self.env.event()
        event._ok, event._value = True, None
        self.env.schedule(event, priority=2, delay=delay)
        return event

    def arrival(self, request: Request) -> Any:
        yield self.env.timeout(request.at)
        self.waiting[request.stream].append(request)
        if self.bell is not None and not self.bell.triggered:
            self.bell.succeed()

    def controller(self, total: int) -> Any:
        while self.served < total:
            if not self.queue:  # a request that meets an empty queue enters at once, though the bus be busy
                self.bell = self.env.event()
                again = [self.moment(self.bus_free() - self.env.now)] if any(self.waiting) else []
                yield self.env.any_of([self.bell, *again])
                yield self.moment()
                self.admit()
            if self.bus_free() > self.env.now:
                yield self.moment(self.bus_free() - self.env.now)
                self.admit()
            self.serve()
            if self.queue:
                yield self.moment(self.bus_free() - self.env.now)
                self.admit()

    def bus_free(self) -> int:
        return max((c.first + self.bursts(c) * self.t["burst"] for c in self.columns[-1:]), default=0)

    @staticmethod
    def bursts(request: Request) -> int:
        return -(-request.bytes // 32)

    def admit(self) -> None:
        while any(self.waiting):
            compute, communication = self.waiting
            used = sum(r.bytes for r in self.queue)
            waited = self.env.now - max(communication[0].at, self.communicated) if communication else 0
            view = ArbiterView(
                self.env.now,
                len(compute),
                len(communication),
                used // 64,
                self.capacity // 64,
                self.threshold,
                self.last_stream,
                waited,
                self.t["starvation"],
            )
            stream = self.rule(view)
            if stream < 0 or not self.waiting[stream]:
                return
            if self.queue and used + self.waiting[stream][0].bytes > self.capacity:
                return
            self.queue.append(self.waiting[stream].popleft())
            self.last_stream = stream
            if stream == 1:
                self.communicated = self.env.now

    def serve(self) -> None:
        self.open_rows()
        ready = [r for r in self.queue if self.open_row.get(r.bank) == r.row]
        chosen = min(ready, key=self.earliest_column)  # the oldest among equals
        first = self.earliest_column(chosen)
        chosen.chosen, chosen.first = self.env.now, first
        chosen.last = first + (self.bursts(chosen) - 1) * self.gap(chosen)
        self.queue.remove(chosen)
        self.columns.append(chosen)
        self.served += 1

    def gap(self, request: Request) -> int:
        return self.t["update"] if request.kind == UPDATE else self.t["long"]

    def open_rows(self) -> None:
        needed = {r.bank for r in self.queue if self.open_row.get(r.bank) == r.row}
        for request in self.queue:
            if request.bank not in needed:
                needed.add(request.bank)
                self.activate(request)

    def activate(self, request: Request) -> None:
        t, bank = self.t, request.bank
        bounds = [self.env.now]
        bounds += [at + t["rrd"] for at, _ in self.activates]
        bounds += [at + t["rc"] for at, other in self.activates if other == bank]
        if bank in self.open_row:
            closing = [self.env.now]
            closing += [at + t["ras"] for at, other in self.activates if other == bank]
            to_precharge = {
                READ: t["read_to_precharge"],
                WRITE: t["write_to_precharge"],
                UPDATE: t["write_to_precharge"],
            }
            closing += [c.last + to_precharge[c.kind] for c in self.columns if c.bank == bank]
            bounds.append(max(closing) + t["rp"])
        self.activates.append((max(bounds), bank))
        self.open_row[bank] = request.row

    def earliest_column(self, request: Request) -> int:
        t = self.t
        bounds = [self.env.now, self.bus_free()]
        bounds.append(max(at for at, bank in self.activates if bank == request.bank) + t["rcd"])
        for c in self.columns:
            if c.bank % self.groups == request.bank % self.groups:
                bounds.append(c.last + self.gap(c))
            if c.kind == READ and request.kind != READ:
                bounds.append(c.last + t["read_to_write"])
            if c.kind != READ and request.kind == READ:
                bounds.append(c.last + t["write_to_read"])
        return max(bounds)


CONSTANTS = {
    "burst": y.GPU_T_BURST, "long": y.GPU_T_LONG, "update": y.GPU_T_UPDATE, "rrd": y.GPU_T_RRD, "rcd": y.GPU_T_RCD,
    "ras": y.GPU_T_RAS, "rp": y.GPU_T_RP, "rc": y.GPU_T_RC, "read_to_write": y.GPU_T_READ_TO_WRITE,
    "write_to_read": y.GPU_T_WRITE_TO_READ, "read_to_precharge": y.GPU_T_READ_TO_PRECHARGE,
    "write_to_precharge": y.GPU_T_WRITE_TO_PRECHARGE, "starvation": y.GPU_STARVATION,
}  # fmt: skip


def by_oracle(bench: MemoryBench, requests: list[Request], rule: Any) -> list[tuple[int, int]]:
    env = simpy.Environment()
    m = bench.machine
    oracle = Oracle(
        env,
        {name: bench[column] for name, column in CONSTANTS.items()},
        groups=int(m.shape[y.SIZE_GROUPS]),
        capacity=bench[y.GPU_QUEUE_BYTES],
        threshold=int(m.flow[0, y.FLOW_THRESHOLD]) // 64,
        rule=rule,
    )
    for request in requests:
        env.process(oracle.arrival(request))
    env.run(until=env.process(oracle.controller(len(requests))))
    return [(r.chosen, r.first) for r in requests]


requests_of_a_channel = st.lists(
    st.builds(
        Request,
        kind=st.sampled_from([READ, READ, WRITE, UPDATE]),
        at=st.integers(0, 400).map(lambda t: t * NS // 2),
        bank=st.integers(0, 7),
        row=st.integers(0, 2),
        bytes=st.sampled_from([32, 64, 256, 512]),
        stream=st.integers(0, 1),
    ),
    min_size=1,
    max_size=40,
).map(lambda requests: sorted(requests, key=lambda r: r.at))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda p: p.name)
@pytest.mark.parametrize("queue", [8, 64])
@settings(max_examples=25, deadline=None)
@given(requests=requests_of_a_channel)
def test_every_request_is_chosen_and_begins_when_the_oracle_says(policy, queue, requests):
    bench = MemoryBench(gpu(memory__channels=1, memory__bandwidth="32 GB/s", memory__queue_entries=queue))
    for r in requests:
        bench.request(r.kind, r.at, r.bank, r.row, r.bytes, r.stream)
    engine = [(chosen, first) for chosen, first, _ in bench.run(policy)]
    assert engine == by_oracle(bench, requests, policy.rule)
