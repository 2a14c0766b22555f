"""Replicas behind a router: arrivals, iterations and KV-cache transfers in the order of time."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from weft.serving.replica import Replica
from weft.serving.requests import STATE, Request, RequestStream
from weft.serving.result import Iteration

Route = Callable[[Sequence[Replica]], Replica]
"""Chooses the replica of the next request."""
_reached = attrgetter("reached")
Watch = Callable[[Request], None]
"""Called with each request that has been answered; may raise `GivenUp`."""


class GivenUp(Exception):
    """The rest of a load is not served, since what was asked of it is known."""


class _RoundRobin:
    def __init__(self) -> None:
        self._turn = -1

    def __call__(self, replicas: Sequence[Replica]) -> Replica:
        self._turn += 1
        return replicas[self._turn % len(replicas)]


def _least_loaded(replicas: Sequence[Replica]) -> Replica:
    best, least = replicas[0], replicas[0].load
    for one in replicas:
        if not least:
            break  # the first of those with none
        if one.load < least:
            best, least = one, one.load
    return best


ROUTERS: Mapping[str, Callable[[], Route]] = {"round-robin": _RoundRobin, "least-loaded": lambda: _least_loaded}
"""Routers by name: in turn, or to the replica with the fewest requests (the first of equals)."""


Row = TypeVar("Row", bound=NamedTuple)


def columns(name: str, some: Sequence[NamedTuple]) -> dict[str, Any]:
    """Return rows of numbers and short texts as an array of each column."""
    fields = type(some[0])._fields if some else ()
    return {f"{name}.{field}": np.array(column) for field, column in zip(fields, zip(*some, strict=True), strict=True)}


def rows(name: str, state: Mapping[str, Any], of: type[Row]) -> list[Row]:
    """Return the rows that `columns` wrote; none where it wrote none."""
    found = [state[f"{name}.{field}"].tolist() for field in of._fields if f"{name}.{field}" in state]
    return [of(*values) for values in zip(*found, strict=True)]


def _set_own(item: object, values: Mapping[str, Any]) -> None:
    """Set the attributes of a router or a scheduler that has some."""
    for name, value in values.items():
        if type(value) not in (int, float) or name not in vars(item):
            raise ValueError(name)
        setattr(item, name, value)


class Cluster:
    """Replicas that answer the requests of a load.

    With `decoders`, `replicas` are prefill workers, and `decoders` write answers once the KV cache has been sent, which
    takes `transfer(request)` seconds. A request reaches a replica `outside(tokens of its prompt)` seconds after its
    arrival. Where a proxy asks one server after the other, the second takes `asked_again(tokens of its prompt)`
    seconds, and computes the last token of the prompt again, for the first token that a client sees. Events at the same
    time: steps end in the order of replicas, then transfers, then requests arrive, then idle replicas start a step.
    """

    def __init__(
        self, replicas: Sequence[Replica], router: str, decoders: Sequence[Replica] = (),
        transfer: Callable[[Request], float] = lambda _: 0.0, outside: Callable[[int], float] = lambda _: 0.0,
        asked_again: Callable[[int], float] | None = None,
    ) -> None:  # fmt: skip
        self.replicas, self.decoders, self._transfer, self._outside = replicas, decoders, transfer, outside
        self._asked_again = asked_again
        self._every = [*replicas, *decoders]
        self._route, self._route_answer = ROUTERS[router](), ROUTERS[router]()
        self._events: list[tuple[float, int, int, Request | None]] = []
        self._versions = [0] * len(self._every)
        self._idle: set[int] = set()
        self.answered = 0

    def run(
        self, load: RequestStream, watch: Watch | None = None, between: Callable[[Cluster], None] | None = None
    ) -> list[Request]:
        """Serve every request of a load; returns them in the order of arrival. Raises what `watch` raises.

        `between` sees the cluster between events, when all of its state could be copied.
        """
        self._watch = watch
        self._requests = requests = [Request(at, asked) for at, asked in enumerate(load.asked)]
        for request in requests:
            request.reached = request.arrival + self._outside(request.input)
        self._arrivals = deque(sorted(requests[: load.clients or None], key=_reached))
        self._later = load.clients or len(requests)
        return self.resume(between)

    def state(self) -> dict[str, Any]:
        """Return the state between two events, as plain data and arrays that `restore` reads."""
        events = [(*event[:3], -1 if event[3] is None else event[3].id) for event in self._events]
        found: dict[str, Any] = {
            "arrivals": [request.id for request in self._arrivals], "later": self._later, "events": events,
            "versions": self._versions, "idle": sorted(self._idle), "answered": self.answered,
            "routers": [getattr(one, "__dict__", {}) for one in (self._route, self._route_answer)],
            "replicas": [replica.state() for replica in self._every],
        }  # fmt: skip
        found |= {name: np.array([getattr(one, name) for one in self._requests]) for name in STATE}
        iterations = [iteration for replica in self._every for iteration in replica.iterations]
        return found | columns("turns", iterations)

    def restore(self, load: RequestStream, state: Mapping[str, Any]) -> None:
        """Take the place of a cluster that wrote a state of this load; raises what wrong data raise."""
        self._watch = None
        self._requests = requests = [Request(at, asked) for at, asked in enumerate(load.asked)]
        for name, kind in STATE.items():
            if state[name].dtype.kind != kind:
                raise ValueError(name)
            for request, value in zip(requests, state[name].tolist(), strict=True):
                setattr(request, name, value)
        self._arrivals = deque(requests[at] for at in state["arrivals"])
        self._later, self.answered = int(state["later"]), int(state["answered"])
        self._events = [(float(at), *whole, None if who < 0 else requests[who]) for at, *whole, who in state["events"]]
        self._versions, self._idle = list(map(int, state["versions"])), set(map(int, state["idle"]))
        for router, own in zip((self._route, self._route_answer), state["routers"], strict=True):
            _set_own(router, own)
        for replica, own in zip(self._every, state["replicas"], strict=True):
            replica.restore(own, requests)
        for iteration in rows("turns", state, Iteration):
            self._every[iteration.replica].iterations.append(iteration)

    def resume(self, between: Callable[[Cluster], None] | None = None) -> list[Request]:
        """Serve the rest of the load, from the state between two events."""
        while (now := self._next()) < float("inf"):
            for event in self._due(now):
                self._happen(*event)
            while self._arrivals and self._arrivals[0].reached <= now:
                self._arrive(self._arrivals.popleft(), self._route(self.replicas), now)
            until = self._next_arrival()
            for replica in map(self._every.__getitem__, sorted(self._idle)):
                if replica.load and not replica.busy and (end := replica.start(now, until)) is not None:
                    self._push(replica, end)
            self._idle.clear()
            if between:
                between(self)
        return self._requests

    def _next_arrival(self) -> float:
        """Return when a replica may expect its next request: one that comes earlier interrupts its steps."""
        ahead = min(len(self.replicas), len(self._arrivals))
        return self._arrivals[ahead - 1].reached if ahead else float("inf")

    def _next(self) -> float:
        """The time of the next event, infinity behind the last: steps that were cut short leave a later end behind."""
        while self._events and self._is_stale(self._events[0]):
            heapq.heappop(self._events)
        event = self._events[0][0] if self._events else float("inf")
        return min(event, self._arrivals[0].reached) if self._arrivals else event

    def _due(self, now: float) -> Iterator[tuple[float, int, int, Request | None]]:
        while self._events and self._events[0][0] <= now:
            event = heapq.heappop(self._events)
            if not self._is_stale(event):
                yield event

    def _is_stale(self, event: tuple[float, int, int, Request | None]) -> bool:
        _, place, version, request = event
        return request is None and version != self._versions[place]

    def _push(self, replica: Replica, end: float) -> None:
        place = replica.number
        self._versions[place] += 1
        heapq.heappush(self._events, (end, place, self._versions[place], None))

    def _happen(self, now: float, place: int, _: int, sent: Request | None) -> None:
        if sent is not None:
            self._every[sent.replica].pool.release(sent)
            self._idle.add(sent.replica)
            self._arrive(sent, self._route_answer(self.decoders), now)
            return
        replica = self._every[place]
        self._idle.add(place)
        for request in replica.finish():
            if replica.answers or request.generated >= request.output:
                replica.pool.release(request)
                request.done = now
                if self._watch:
                    self._watch(request)
                self._count_answer(now)
            else:
                at = now + self._transfer(request)
                if self._asked_again:
                    at += self._asked_again(request.input)
                    request.computed, request.generated, request.first = request.input - 1, 0, float("nan")
                heapq.heappush(self._events, (at, len(self._every) + request.id, 0, request))

    def _arrive(self, request: Request, replica: Replica, now: float) -> None:
        request.replica = replica.number
        replica.enqueue(request, at=now)
        self._idle.add(replica.number)
        if replica.busy and len(replica.ends) > 1:
            end = replica.ends[-1]
            if replica.interrupt(now) < end:
                self._push(replica, replica.ends[-1])

    def _count_answer(self, now: float) -> None:
        """Count an answer; a client sends its next request."""
        self.answered += 1
        if self._later < len(self._requests):
            request = self._requests[self._later]
            self._later += 1
            request.arrival, request.reached = now, now + self._outside(request.input)
            insort(self._arrivals, request, key=_reached)
