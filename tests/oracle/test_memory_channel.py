"""A memory channel written again, in SimPy and from command histories, beside the engine's."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import NS, MemoryBench, gpu

from weft.engine import layout as y
from weft.overlaps.arbiters import COMMUNICATION, COMPUTE, NOBODY, POLICIES, ArbiterView, arbiter

READ, WRITE, UPDATE = y.READ, y.WRITE, y.UPDATE


@arbiter
def reads_first(view):
    if view.compute > 0 and view.communication > 0 and view.compute_kind != view.communication_kind:
        return COMPUTE if view.compute_kind == 0 else COMMUNICATION
    return COMPUTE if view.compute > 0 else COMMUNICATION


@arbiter
def open_rows_first(view):
    if view.compute_hit != view.communication_hit:
        return COMPUTE if view.compute_hit else COMMUNICATION
    return COMPUTE if view.compute > 0 else COMMUNICATION


RULES = (*POLICIES.values(), reads_first, open_rows_first)


@dataclass(eq=False)
class Request:
    kind: int
    at: int
    bank: int
    row: int
    bytes: int
    stream: int
    ticket: int = -1
    first: int = -1
    last: int = -1


@dataclass
class Oracle:
    """Keeps every command ever given and asks of each new one, at every moment, whether all earlier ones allow it."""

    env: simpy.Environment
    t: dict[str, int]
    banks: int
    groups: int
    capacity: int
    threshold: int
    rule: Any
    waiting: tuple[deque[Request], deque[Request]] = field(default_factory=lambda: (deque(), deque()))
    queue: list[Request] = field(default_factory=list)
    columns: list[Request] = field(default_factory=list)
    activates: list[tuple[int, int]] = field(default_factory=list)
    refreshes: list[tuple[int, set[int]]] = field(default_factory=list)
    open_row: dict[int, int] = field(default_factory=dict)
    closing: dict[int, int] = field(default_factory=dict)
    needed_since: dict[int, int] = field(default_factory=dict)
    admitted: int = 0
    lead: int = 0
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
        while len(self.columns) < total:
            self.bell = self.env.event()
            moments = [at for at in self.next_moments() if at > self.env.now]
            yield self.env.any_of([self.bell, *(self.moment(min(moments) - self.env.now) for _ in moments[:1])])
            yield self.moment()
            self.act()

    def next_moments(self) -> list[int]:
        """When something could happen unless another request arrives."""
        refused = (max(s[0].at, self.communicated) + self.t["starvation"] + 1 for s in self.waiting if s)
        rows = (self.earliest_activate(r) for r in self.oldest_misses())
        return [*refused, *rows, *map(self.earliest_column, self.hits()), self.next_refresh()]

    def act(self) -> None:
        issued = False
        while True:
            self.open_rows()
            ready = [r for r in self.hits() if self.earliest_column(r) <= self.env.now]
            go = bool(ready) and not issued
            if go:
                self.issue(min(ready, key=lambda r: r.ticket))
                issued = True
            if not self.admit() and not go:
                return

    def now_closed(self, bank: int) -> bool:
        return self.closing.get(bank, self.env.now + 1) <= self.env.now

    def is_hit(self, r: Request) -> bool:
        return self.open_row.get(r.bank) == r.row and not self.now_closed(r.bank)

    def hits(self) -> list[Request]:
        """The oldest read and the oldest write or update of each bank among those of its open row."""
        found: dict[tuple[int, bool], Request] = {}
        for r in self.queue:
            if self.is_hit(r):
                found.setdefault((r.bank, r.kind == READ), r)
        return list(found.values())

    def oldest_misses(self) -> list[Request]:
        used = {r.bank for r in self.hits()}
        found: dict[int, Request] = {}
        for r in self.queue:
            if r.bank not in used:
                found.setdefault(r.bank, r)
        return list(found.values())

    def note_needs(self) -> None:
        """Since when a bank has only misses, and when its row is closed for them."""
        needed = {r.bank for r in self.oldest_misses()}
        self.closing = {bank: at for bank, at in self.closing.items() if bank in needed}
        self.needed_since = {bank: at for bank, at in self.needed_since.items() if bank in needed}
        for bank in needed - self.needed_since.keys():
            self.needed_since[bank] = self.env.now
            if bank in self.open_row:
                self.closing[bank] = max(self.env.now, self.earliest_precharge(bank))

    def admit(self) -> bool:
        any_admitted = False
        while True:
            compute, communication = self.waiting
            used = sum(r.bytes for r in self.queue)
            fits = [bool(s) and (not self.queue or used + s[0].bytes <= self.capacity) for s in self.waiting]
            if not any(fits):
                return any_admitted
            if not all(self.waiting):
                self.lead = 0
            view = ArbiterView(
                now=self.env.now,
                compute=len(compute),
                communication=len(communication),
                compute_bytes=compute[0].bytes if compute else 0,
                communication_bytes=communication[0].bytes if communication else 0,
                lead=self.lead,
                occupancy=used // ENTRY,
                capacity=self.capacity // ENTRY,
                threshold=self.threshold,
                last=self.last_stream,
                waited=self.env.now - max(communication[0].at, self.communicated) if communication else 0,
                limit=self.t["starvation"],
                critical=y.COMPUTE_STREAM,
                compute_kind=compute[0].kind if compute else NOBODY,
                communication_kind=communication[0].kind if communication else NOBODY,
                compute_hit=int(bool(compute) and self.is_hit(compute[0])),
                communication_hit=int(bool(communication) and self.is_hit(communication[0])),
            )
            stream = self.rule(view)
            if stream < 0 or not fits[stream]:
                return any_admitted
            r = self.waiting[stream].popleft()
            self.queue.append(r)
            r.ticket = self.admitted = self.admitted + 1
            self.last_stream = stream
            self.lead += -r.bytes if stream else r.bytes
            if stream == 1:
                self.communicated = self.env.now
            any_admitted = True
            self.note_needs()

    def issue(self, r: Request) -> None:
        r.first = self.env.now
        r.last = r.first + (self.bursts(r) - 1) * self.gap(r)
        self.queue.remove(r)
        self.columns.append(r)
        self.note_needs()

    def open_rows(self) -> None:
        while True:
            if self.next_refresh() <= self.env.now:
                self.refresh()
                continue
            ready = [r for r in self.oldest_misses() if self.earliest_activate(r) <= self.env.now]
            if not ready:
                return
            r = min(ready, key=lambda r: r.ticket)
            self.activates.append((self.env.now, r.bank))
            self.open_row[r.bank] = r.row
            del self.needed_since[r.bank]
            self.closing.pop(r.bank, None)

    def next_refresh(self) -> int:
        return (len(self.refreshes) + 1) * self.t["refresh_every"] if self.t["refresh_every"] else 1 << 62

    def refresh(self) -> None:
        due, count = self.next_refresh(), self.t["refresh_banks"]
        turn = len(self.refreshes) * count % self.banks
        banks = set(range(turn, turn + count))
        closing = (max(due, self.earliest_precharge(b)) + self.t["rp"] for b in banks if b in self.open_row)
        self.refreshes.append((max([due, *closing]) + self.t["rfc"], banks))
        for b in banks:
            self.open_row.pop(b, None)
            self.closing.pop(b, None)
        self.note_needs()

    @staticmethod
    def bursts(request: Request) -> int:
        return -(-request.bytes // 32)

    def gap(self, request: Request) -> int:
        return self.t["update"] if request.kind == UPDATE else self.t["long"]

    def earliest_precharge(self, bank: int) -> int:
        t = self.t
        bounds = [at + t["ras"] for at, other in self.activates if other == bank]
        after = {READ: t["read_to_precharge"], WRITE: t["write_to_precharge"], UPDATE: t["write_to_precharge"]}
        return max(bounds + [c.last + after[c.kind] for c in self.columns if c.bank == bank])

    def earliest_activate(self, request: Request) -> int:
        t, bank = self.t, request.bank
        bounds = [self.needed_since[bank]]
        bounds += [at + t["rrd"] for at, _ in self.activates]
        bounds += [at + t["faw"] for at, _ in self.activates[:-3]]
        bounds += [at + t["rc"] for at, other in self.activates if other == bank]
        bounds += [end for end, banks in self.refreshes if bank in banks]
        if bank in self.closing:
            bounds.append(self.closing[bank] + t["rp"])
        return max(bounds)

    def earliest_column(self, request: Request) -> int:
        t = self.t
        bounds = [self.bus_free(request)]
        bounds.append(max(at for at, bank in self.activates if bank == request.bank) + t["rcd"])
        for c in self.columns:
            if c.bank % self.groups == request.bank % self.groups:
                bounds.append(c.last + self.gap(c))
            if c.kind == READ and request.kind != READ:
                bounds.append(c.last + t["read_to_write"])
            if c.kind != READ and request.kind == READ:
                bounds.append(c.last + t["write_to_read"])
        return max(bounds)

    def share(self, request: Request) -> Fraction:
        """The part of the bus's slots that a request takes while it lasts."""
        return Fraction(1, -(-self.gap(request) // self.t["burst"]))

    def bus_free(self, request: Request) -> int:
        """The first moment from which the requests in progress leave the slots that one more takes."""
        if not self.columns:
            return 0
        floor = self.columns[-1].first + self.t["burst"]
        ends = {c: c.last + self.gap(c) for c in self.columns[-2 * self.banks :]}
        for moment in sorted({floor, *(end for end in ends.values() if end > floor)}):
            busy = sum(self.share(c) for c, end in ends.items() if end > moment)
            if busy + self.share(request) <= 1:
                return moment
        raise AssertionError("the last end leaves the whole bus")


ENTRY = y.QUEUE_ENTRY
CONSTANTS = {
    "burst": y.GPU_T_BURST, "long": y.GPU_T_LONG, "update": y.GPU_T_UPDATE, "rrd": y.GPU_T_RRD, "rcd": y.GPU_T_RCD,
    "ras": y.GPU_T_RAS, "rp": y.GPU_T_RP, "rc": y.GPU_T_RC, "read_to_write": y.GPU_T_READ_TO_WRITE,
    "write_to_read": y.GPU_T_WRITE_TO_READ, "read_to_precharge": y.GPU_T_READ_TO_PRECHARGE,
    "write_to_precharge": y.GPU_T_WRITE_TO_PRECHARGE, "starvation": y.GPU_STARVATION, "faw": y.GPU_T_FAW,
    "rfc": y.GPU_T_RFC, "refresh_every": y.GPU_REFRESH_EVERY, "refresh_banks": y.GPU_REFRESH_BANKS,
}  # fmt: skip


def by_oracle(bench: MemoryBench, requests: list[Request], rule: Any) -> list[tuple[int, int]]:
    env = simpy.Environment()
    m = bench.machine
    oracle = Oracle(
        env,
        {name: bench[column] for name, column in CONSTANTS.items()},
        banks=int(m.shape[y.SIZE_BANKS]),
        groups=int(m.shape[y.SIZE_GROUPS]),
        capacity=bench[y.GPU_QUEUE_BYTES],
        threshold=int(m.flow[0, y.FLOW_THRESHOLD]) // ENTRY,
        rule=rule,
    )
    for request in requests:
        env.process(oracle.arrival(request))
    env.run(until=env.process(oracle.controller(len(requests))))
    return [r.first for r in requests]


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


REFRESH = {"memory__timing__refi": "400 ns", "memory__timing__rfc": "40 ns"}
MACHINES = {
    "no refresh": {},
    "all banks refreshed, four activates in a window": {
        **REFRESH, "memory__refresh_banks": 16, "memory__timing__faw": "25 ns",
    },
    "banks refreshed one by one": {**REFRESH, "memory__refresh_banks": 1},
    "one server without banks": {},
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("policy", RULES, ids=lambda p: p.name)
@pytest.mark.parametrize("queue", [8, 64])
@settings(max_examples=25, deadline=None)
@given(requests=requests_of_a_channel)
def test_every_request_begins_when_the_oracle_says(machine, policy, queue, requests):
    one = {"memory__channels": 1, "memory__bandwidth": "32 GB/s", "memory__queue_entries": queue}
    bench = MemoryBench(gpu(**one, **MACHINES[machine]), memory="bandwidth" if "server" in machine else "banks")
    if "server" in machine:
        requests = [replace(r, bank=0, row=0) for r in requests]
    for r in requests:
        bench.request(r.kind, r.at, r.bank, r.row, r.bytes, r.stream)
    assert [first for _, first, _ in bench.run(policy)] == by_oracle(bench, requests, policy.rule)
