"""One replica of a model that serves: its queue, what runs, its KV cache, and its iterations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from weft.core.errors import InputError, check_whole, show_value
from weft.serving.decoding import DecodeGroup
from weft.serving.pool import Pool
from weft.serving.requests import Request
from weft.serving.result import Iteration
from weft.serving.step_times import Shape, StepTimes


class Pipeline:
    """Stages that pass on the batches of several replicas in turn, each one at a time, in the order of their starts."""

    def __init__(self, stages: int) -> None:
        self.free = [0.0] * stages

    def end(self, start: float, seconds: Sequence[float]) -> float:
        """Return when a batch that starts at `start` has passed all stages, which take `seconds` each."""
        at = start
        for stage, took in enumerate(seconds):
            at = self.free[stage] = max(at, self.free[stage]) + took
        return at


_MOST_AT_ONCE = 64
"""Steps of decode tokens that are timed at a time."""


class Replica:
    """A server of a model, as its policy sees it.

    Of the step that is being formed, `budget` tokens are left, and `batch` holds what was given. Requests wait in
    `waiting` and run in `running`; at most `sequences` run at once. A request that writes counts with its next token
    and its drafts, for which memory is taken, too. The first running requests that decode, without drafts, are a group
    (`DecodeGroup`), as long as the policy gives them tokens together.
    """

    def __init__(
        self, number: int, times: StepTimes, pool: Pool, schedule: Callable[[Replica], None], *, tokens: int,
        sequences: int, host: float = 0.0, steady: bool = False, answers: bool = True,
        pipeline: Pipeline | None = None,
    ) -> None:  # fmt: skip
        self.number, self.pool, self.answers = number, pool, answers
        self.tokens, self.sequences, self.host = tokens, sequences, host
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.budget = 0
        self.iterations: list[Iteration] = []
        self.ends: list[float] = []
        self.busy = False
        self._times, self._schedule, self._steady = times, schedule, steady
        self._pipeline = pipeline
        self._drafts = times.forward.speculation
        self._waits: set[int] = set()
        self._given: set[int] = set()
        self._apart: list[tuple[Request, int]] = []
        self._group, self._decodes = DecodeGroup(), False
        self._joined: list[float] = []
        self._blocked_on = ""
        self._shape, self._started, self._active, self._queue = Shape(), 0.0, 0, 0

    def state(self) -> dict[str, Any]:
        """Return the state between two events but for `iterations`, as plain data that `restore` reads."""
        return {
            "running": [one.id for one in self.running],
            "waiting": [one.id for one in self.waiting],
            "batch": [(one.id, tokens) for one, tokens in self._apart],
            "waits": sorted(self._waits),
            "group": [one.id for one in self._group.members] if self._decodes else [],
            "budget": self.budget,
            "ends": self.ends,
            "busy": self.busy,
            "joined": self._joined,
            "lacks": self._blocked_on,
            "shape": astuple(self._shape),
            "started": self._started,
            "active": self._active,
            "queue": self._queue,
            "pool": self.pool.state(),
            "policy": getattr(self._schedule, "__dict__", {}),
            "stages": self._pipeline.free if self._pipeline else [],
        }

    def restore(self, state: Mapping[str, Any], requests: Sequence[Request]) -> None:
        """Take the place of the replica that wrote a state."""
        self.running = [requests[at] for at in state["running"]]
        self.waiting = deque(requests[at] for at in state["waiting"])
        self._apart = [(requests[at], int(tokens)) for at, tokens in state["batch"]]
        self._decodes = len(state["group"]) > 0
        for at in state["group"]:
            self._group.join(requests[at])
        self._waits, self.budget = set(map(int, state["waits"])), int(state["budget"])
        self.ends, self.busy = list(map(float, state["ends"])), state["busy"] is True
        self._joined, self._blocked_on = list(map(float, state["joined"])), str(state["lacks"])
        self._shape, self._started = Shape(*map(int, state["shape"])), float(state["started"])
        self._active, self._queue = int(state["active"]), int(state["queue"])
        self.pool.restore(state["pool"])
        for name, value in state["policy"].items():
            if type(value) not in (int, float) or name not in vars(self._schedule):
                raise ValueError(name)
            setattr(self._schedule, name, value)
        if self._pipeline:
            self._pipeline.free = list(map(float, state["stages"]))

    @property
    def batch(self) -> list[tuple[Request, int]]:
        """Requests with their tokens of the engine iteration that is being formed."""
        together = self._group.members if self._decodes else []
        return [*[(request, 1) for request in together], *self._apart]

    @property
    def free(self) -> int:
        """Free KV-cache bytes of each GPU."""
        return self.pool.free

    @property
    def free_tokens(self) -> int:
        """Tokens of one sequence whose KV cache would fit."""
        return self.pool.free // self.pool.bytes(self.pool.block) * self.pool.block

    @property
    def load(self) -> int:
        """Requests that run and wait."""
        return len(self.running) + len(self.waiting)

    def bytes_short(self, request: Request, tokens: int) -> int:
        """Return the bytes that a request lacks for `tokens` more tokens."""
        return self.pool.bytes_short(request, request.computed + tokens)

    def blocked_on(self, what: str) -> None:
        """Note what the first waiting request lacks."""
        self._blocked_on = self._blocked_on or what

    def has_tokens(self, request: Request) -> bool:
        """Return whether a request has tokens of the engine iteration that is being formed."""
        return request.id in self._given or (self._decodes and request.group is self._group)

    def schedule_tokens(self, request: Request, tokens: int, reserve: int = 0) -> bool:
        """Compute up to `tokens` of a request in this step, which starts a waiting one; False if there is no room.

        Memory is taken for them, or for `reserve` tokens of the request if those are more.
        """
        if type(request) is not Request:
            raise _no_request(request)
        if self.has_tokens(request):
            raise InputError(
                f"the policy gave tokens to request {request.id} twice in one engine iteration, which computes each "
                "token once; give all of its tokens at once, or preempt it first"
            )
        if type(tokens) is not int:
            check_whole("the number of tokens that the policy gives", tokens, 0, 1)
            tokens = int(tokens)
        if request.group:  # from now on they differ
            self._group.dissolve()
        waits = request.id in self._waits
        if waits and len(self.running) >= self.sequences:
            self.blocked_on("max_num_seqs")
            return False
        kept = self.pool.match(request) if waits and not request.computed else 0
        request.computed += kept
        tokens, drafts = (
            min(tokens, request.uncomputed_tokens, self.budget),
            self._drafts.tokens * (request.generated > 0),
        )
        if request.uncomputed_tokens > 1:  # recomputed
            drafts = 0
        if tokens <= 0 or not self.pool.allocate_blocks(request, max(request.computed + tokens + drafts, reserve)):
            self.blocked_on("KV cache" if tokens > 0 else "max_num_batched_tokens")
            if kept:
                self.pool.release(request)
                request.computed = 0
            return False
        self.budget -= tokens + drafts
        self._apart.append((request, tokens))
        self._given.add(request.id)
        if waits:
            self._waits.remove(request.id)
            if self.waiting[0] is request:
                self.waiting.popleft()
            else:
                self.waiting.remove(request)
            self.running.append(request)
        return True

    def schedule_decodes(self, all_or_none: bool = False, preempts: bool = False) -> int:
        """Schedule decode tokens of the leading running requests, up to the first in prefill; return their number.

        Returns 0 and changes nothing if the token budget or memory does not suffice for them or, with `all_or_none`,
        for the others. With `preempts`, the last running requests are preempted first when memory runs out.
        """
        drafts, running = self._drafts.tokens, self.running
        if self._decodes:
            return 0
        count = len(self._group.members)
        if self.running[:count] != self._group.members:  # a policy has put them into another order
            self._group.dissolve()
            count = 0
        while count < len(running) and self._is_decoding(running[count]):
            if not drafts:
                self._group.join(running[count])
            count += 1
        if drafts:
            full = [one for one in running[:count] if one.computed + drafts >= one.kv_capacity]
        else:
            full = self._group.pop_full(1)
        while preempts and not drafts and count <= self.budget and self._is_short(full, 1):
            last = running[-1]
            count -= last.group is self._group
            full = [one for one in full if one is not last]
            self.blocked_on("KV cache")
            self.preempt(last)
        lacks = count * (1 + drafts) > self.budget or self._is_short(full, 1 + drafts)
        if lacks or (all_or_none and count < len(running)):
            count = 0
        else:
            for request in full:
                self.pool.allocate_blocks(request, request.computed + 1 + drafts)
            self.budget -= count * (1 + drafts)
        if drafts:
            self._apart += [(request, 1) for request in running[:count]]
            self._given.update(request.id for request in running[:count])
        else:
            self._group.refill(full)
            self._decodes = count > 0
        return count

    def _is_short(self, some: Sequence[Request], tokens: int) -> bool:
        """Return whether the KV cache is too small for `tokens` more tokens of each request."""
        if not some:
            return False
        free = self.pool.free
        return len(some) * self.pool.most_bytes_short(tokens) > free and self.pool.needs(some, tokens) > free

    def _is_decoding(self, request: Request) -> bool:
        """Return whether a request lacks one token behind those of its answer, and has none of this iteration."""
        return request.generated > 0 and request.uncomputed_tokens == 1 and request.id not in self._given

    def preempt(self, request: Request, last: bool = False) -> None:
        """Preempt a running request: free its KV cache and queue it first or last; its tokens are recomputed."""
        if type(request) is not Request:
            raise _no_request(request)
        try:
            self.running.remove(request)
        except ValueError:
            raise InputError(
                f"the policy preempted request {request.id}, which does not run; preempt requests of server.running"
            ) from None
        if request.group:
            self._group.leave(request)
            self._decodes = self._decodes and bool(self._group.members)
        self._apart = [one for one in self._apart if one[0] is not request]
        self._given.discard(request.id)
        request.preemptions += 1
        self.pool.release(request)
        request.computed = 0
        self.enqueue(request, first=not last)

    def enqueue(self, request: Request, first: bool = False, at: float | None = None) -> None:
        """Let a request wait, one that comes while a step runs from that time on."""
        if at is not None and self.busy:
            self._joined.append(at)
        (self.waiting.appendleft if first else self.waiting.append)(request)
        self._waits.add(request.id)

    def start(self, now: float, until: float) -> float | None:
        """Form the next step, or several equal ones up to one that ends at `until` or later; return when they end.

        Return None where a prefill worker waits for KV cache that it is sending to a decode worker.
        """
        self._apart, self._decodes, self.budget, self._blocked_on = [], False, self.tokens, ""
        self._given.clear()
        self._schedule(self)
        if not self._apart and not self._decodes:
            if self.pool.used and not self.running and not self.answers:
                return None
            raise InputError(
                f"the policy gave no tokens to any of {self.load} requests, {len(self.running)} of them running; it "
                "must give some, or preempt and then give some"
            )
        self.busy = True
        self._shape = shape = self._form()
        for request, _ in self._apart:
            if request.started != request.started:
                request.started = now
        most = 1
        if (
            not self._pipeline
            and not shape.prefills
            and shape.decodes == len(self.running)
            and (self._steady or not self.waiting)
        ):
            most = self._steps_ahead()
        ends: list[float] = []
        self.ends, end, host = ends, now, self.host
        if self._pipeline:
            took: Iterable[float] = [self._pipeline.end(now, self._times.stages(shape)) - now]
        elif most > 1:
            took = self._times.next_tokens(shape.decodes, shape.context, most)
        else:
            took = [self._times.seconds(shape)]
        for seconds in took:
            end += seconds + host
            ends.append(end)
            if end >= until:
                break
        self._started, self._active, self._queue = now, len(self.running), len(self.waiting)
        return end

    def interrupt(self, now: float) -> float:
        """Let the steps end with the one that runs now; returns when it ends."""
        while len(self.ends) > 1 and self.ends[-2] >= now:
            self.ends.pop()
        return self.ends[-1]

    def finish(self) -> list[Request]:
        """End the steps that were started: returns the requests that are done here."""
        self.busy = False
        steps, end, shape = len(self.ends), self.ends[-1], self._shape
        queue = self._queue + (sum(end - at for at in self._joined) / (end - self._started) if self._joined else 0)
        self._joined.clear()
        done, written, drafts = [], 0, self._drafts.tokens
        if self._decodes:
            written = steps * len(self._group.members)
            self._group.advance(steps)
            if full := self._group.pop_full(0):
                for request in full:
                    self.pool.allocate_blocks(request, request.computed)
                self._group.refill(full)
            done = self._group.pop_ended()
        for request, tokens in self._apart:
            generated = request.generated
            more = steps
            if tokens == 1 and generated and drafts:
                more = self._drafts.written_tokens(request.passes + steps) - self._drafts.written_tokens(request.passes)
                more, request.passes = min(more, request.output - request.generated), request.passes + steps
            request.computed += tokens + more - 1
            if request.computed > request.kv_capacity:
                self.pool.allocate_blocks(request, request.computed)
            if request.computed < request.num_tokens + more - 1:
                continue  # a chunk that is not the last
            if not request.generated:
                request.first = end
                self.pool.publish(request)
            request.generated += more
            written += more * (tokens == 1 and request.generated > more)
            if request.generated >= request.output or not self.answers:
                done.append(request)
        self.iterations.append(
            Iteration(
                replica=self.number,
                start=self._started,
                end=end,
                steps=steps,
                decodes=shape.decodes,
                prefills=shape.prefills,
                prompt=shape.new,
                running=self._active,
                waiting=queue,
                blocked_on=self._blocked_on if self._queue else "",
                used=self.pool.used,
                context=shape.context,
                pairs=shape.pairs,
                written=written,
            )
        )
        if done:
            gone = {request.id for request in done}
            self.running = [request for request in self.running if request.id not in gone]
        return done

    def _form(self) -> Shape:
        """Return the shape of the batch."""
        decodes, context, prefills, new, pairs = 0, 0, 0, 0, 0
        if self._decodes:
            decodes = len(self._group.members)
            context = self._group.context + decodes
        for request, tokens in self._apart:
            if tokens == 1 and request.generated:
                decodes += 1
                context += request.computed + 1
            else:
                prefills += 1
                new += tokens
                pairs += tokens * request.computed + tokens * (tokens + 1) // 2
        return Shape(decodes, context, prefills, new, pairs)

    def _steps_ahead(self) -> int:
        """Steps of decode tokens for which no request ends before the last of them, and memory suffices."""
        left = [request.output - request.generated for request, _ in self._apart]
        least = min([*left, self._group.steps_left()] if self._decodes else left)
        most = min(
            max(int((least - 1) / self._drafts.expected_tokens), 1) if self._drafts.tokens else least, _MOST_AT_ONCE
        )
        low, high = 1, most
        tokens = self._drafts.written_tokens(most) + self._drafts.tokens
        if len(self.running) * self.pool.most_bytes_short(tokens) <= self.free or self._needs(most) <= self.free:
            return most
        while low < high:
            middle = (low + high + 1) // 2
            if self._needs(middle) <= self.free:
                low = middle
            else:
                high = middle - 1
        return low

    def _needs(self, steps: int) -> int:
        """Return the bytes that `steps` iterations need beyond the allocated blocks; the first has been allocated."""
        return self.pool.needs(self.running, self._drafts.written_tokens(steps) + 2 * self._drafts.tokens)


def _no_request(value: object) -> InputError:
    return InputError(
        f"the policy named {show_value(value)} as a request; name one of server.running or server.waiting"
    )
