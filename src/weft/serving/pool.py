"""KV cache of a replica: blocks of requests, and of prompts that begin alike, kept for later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.serving.requests import Request


class Pool:
    """Keys and values on each GPU of a replica, in blocks of tokens (PagedAttention, arXiv:2309.06180) [bytes].

    `size(tokens)` is what a sequence holds. Whole blocks of prompts, of `shared` tokens each, that have ids are kept
    when their request ends, and serve those that begin alike; the ones used least recently make room (0: none is kept).
    """

    def __init__(self, capacity: int, block: int, size: Callable[[int], int], shared: int = 0) -> None:
        self.capacity, self.block, self.shared = capacity, block, shared
        self.used = self.idle = 0
        self._size = size
        self._bytes: dict[int, int] = {}
        self._users: dict[int, int] = {}
        self._idle: dict[int, None] = {}  # in the order of their last use
        self._of: dict[int, tuple[int, ...]] = {}

    def state(self) -> dict[str, Any]:
        """Return what is held and shared, as plain data that `restore` reads."""
        return {
            "used": self.used, "idle": self.idle, "users": list(self._users.items()), "kept": list(self._idle),
            "of": [(number, list(blocks)) for number, blocks in self._of.items()],
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Hold and share what a state says."""
        self.used, self.idle = int(state["used"]), int(state["idle"])
        self._users = {int(block): int(count) for block, count in state["users"]}
        self._idle = dict.fromkeys(map(int, state["kept"]))
        self._of = {int(number): tuple(map(int, blocks)) for number, blocks in state["of"]}

    @property
    def free(self) -> int:
        """Bytes that a request may take: those of blocks kept for later count as free."""
        return self.capacity - self.used

    def bytes(self, tokens: int) -> int:
        """Return the KV-cache bytes of `tokens` tokens of a sequence, in whole blocks."""
        blocks = -(-tokens // self.block)
        found = self._bytes.get(blocks)
        if found is None:
            found = self._bytes[blocks] = self._size(blocks * self.block)
        return found

    def bytes_short(self, request: Request, tokens: int) -> int:
        """Return the bytes that a request lacks for `tokens` tokens, beyond the blocks that it holds and shares."""
        borrowed = len(self._of.get(request.id, ())) * self._block_bytes if self.shared else 0
        return max(self.bytes(tokens) - borrowed - request.held, 0)

    def needs(self, some: Iterable[Request], tokens: int) -> int:
        """Return the bytes that requests lack for `tokens` more tokens each."""
        found = 0
        for request in some:
            then = request.computed + tokens
            if then > request.kv_capacity:
                found += self.bytes_short(request, then)
        return found

    def allocate_blocks(self, request: Request, tokens: int) -> bool:
        """Allocate the missing blocks for `tokens` tokens of a request; if they do not fit, change nothing: False."""
        more = self.bytes_short(request, tokens)
        if more > self.capacity - self.used:
            return False
        if more:
            request.held += more
            self.used += more
            while self.used + self.idle > self.capacity:
                self._forget(next(iter(self._idle)))
        request.kv_capacity = max(request.kv_capacity, -(-tokens // self.block) * self.block)
        return True

    def most_bytes_short(self, tokens: int) -> int:
        """Return an upper bound of the bytes that a request lacks for `tokens` more tokens."""
        return self.bytes(tokens + self.block - 1)

    def release(self, request: Request) -> None:
        """Free what a request holds; blocks that it shares stay until their room is needed."""
        self.used -= request.held
        request.held = request.kv_capacity = 0
        for block in self._of.pop(request.id, ()):
            self._users[block] -= 1
            if not self._users[block]:
                each = self._block_bytes
                self.used -= each
                self.idle += each
                self._idle[block] = None

    def match(self, request: Request) -> int:
        """Return tokens of a prompt, but its last, whose blocks are kept: the request uses them from now on."""
        if not self.shared or not request.blocks:
            return 0
        found: list[int] = []
        for block in request.blocks[: (request.input - 1) // self.shared]:
            if block not in self._users:
                break
            found.append(block)
        for block in found:
            self._use(block)
        self._of[request.id] = tuple(found)
        return len(found) * self.shared

    def publish(self, request: Request) -> None:
        """Share the whole blocks of a prompt that has been computed."""
        if not self.shared or not request.blocks:
            return
        own = request.blocks[: request.input // self.shared]
        used = self._of.get(request.id, ())
        for block in own[len(used) :]:
            if block in self._users:
                break  # another request computed it meanwhile: this one keeps its copy
            self._users[block] = 1
            request.held -= self._block_bytes
            used = (*used, block)
        self._of[request.id] = used

    @property
    def _block_bytes(self) -> int:
        return self.bytes(self.shared)

    def _use(self, block: int) -> None:
        if not self._users[block]:
            del self._idle[block]
            self.idle -= self._block_bytes
            self.used += self._block_bytes
        self._users[block] += 1

    def _forget(self, block: int) -> None:
        del self._idle[block], self._users[block]
        self.idle -= self._block_bytes
