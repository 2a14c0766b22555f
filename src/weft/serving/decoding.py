"""The requests of a replica that decode together, whose states change alike and are counted once."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count

from weft.serving.requests import Request


class DecodeGroup:
    """`members` that each decode one token in every engine iteration of the group, in the order in which they joined.

    What a member has `generated` and `computed` follows from the `steps` of the group, the engine iterations so far.
    `context` counts the tokens of all members whose KV cache is there. Two heaps tell which member's answer ends next,
    and which one next needs more KV-cache blocks.
    """

    def __init__(self) -> None:
        self.members: list[Request] = []
        self.steps = self.context = 0
        self._numbers = count()
        self._ends: list[tuple[int, int, Request]] = []
        self._rooms: list[tuple[int, int, Request]] = []

    def join(self, request: Request) -> None:
        """Add a request that has generated a token, and lacks only the KV cache of its last one."""
        self.members.append(request)
        self.context += request.computed
        request.join(self, next(self._numbers))
        heappush(self._ends, (self.steps + request.output - request.generated, request.number, request))
        self._track_room(request)

    def leave(self, request: Request) -> None:
        """Remove a member."""
        self.members.remove(request)
        self._release(request)

    def dissolve(self) -> None:
        """Remove all members."""
        for request in self.members:
            self._release(request)
        self.members = []

    def _release(self, request: Request) -> None:
        self.context -= request.computed
        request.leave()

    def advance(self, steps: int) -> None:
        """Decode `steps` tokens of each member."""
        self.steps += steps
        self.context += steps * len(self.members)

    def steps_left(self) -> int:
        """Return the engine iterations after which the first answer ends."""
        while not self._is_member(*self._ends[0][1:]):
            heappop(self._ends)
        return self._ends[0][0] - self.steps

    def pop_ended(self) -> list[Request]:
        """Remove the members whose answers have ended, and return them."""
        found = self._pop(self._ends, self.steps)
        for request in found:
            self._release(request)
        if found:
            self.members = [one for one in self.members if one.group is self]
        return found

    def pop_full(self, tokens: int) -> list[Request]:
        """Return the members whose KV-cache blocks do not hold `tokens` more tokens; they must be `refilled`."""
        return self._pop(self._rooms, self.steps + tokens - 1)

    def refill(self, some: Iterable[Request]) -> None:
        """Track the room of requests that `pop_full` returned, again."""
        for request in some:
            self._track_room(request)

    def _track_room(self, request: Request) -> None:
        heappush(self._rooms, (self.steps + request.kv_capacity - request.computed, request.number, request))

    def _pop(self, heap: list[tuple[int, int, Request]], most: int) -> list[Request]:
        """Remove the members with keys up to `most`, and return them in the order in which they joined."""
        found: list[Request] = []
        while heap and heap[0][0] <= most:
            _, number, request = heappop(heap)
            if self._is_member(number, request):
                found.append(request)
        if len(found) > 1:
            found.sort(key=lambda one: one.number)
        return found

    def _is_member(self, number: int, request: Request) -> bool:
        return request.group is self and request.number == number
