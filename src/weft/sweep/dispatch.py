"""Dispatch questions to workers in batches, and repeat what was in flight when a worker died.

A batch lasts about half a second: many tiny tasks share a message, and long ones travel alone. Two batches per worker
are in flight, so that none is idle and memory does not grow with the number of questions.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass
from typing import Protocol, Self

from weft.core.errors import SimulationError
from weft.core.store.records import Answer, Store, answer_here, store_record
from weft.core.store.task import Question

_BATCH_S = 0.5
"""How long a batch should take [s]: a message costs about a millisecond."""
_LARGEST_BATCH = 512
_AHEAD = 2
"""Batches in flight for each worker: one that it works on, and one that waits for it."""
_CHECK_S = 10.0
"""Time without an answer after which the workers are checked [s]."""
_TOGETHER = 2
"""Deaths of workers after which a question is asked alone, with nothing else in flight that could be the cause."""


@dataclass(frozen=True)
class AnsweredBatch:
    """The answers of a batch, in order, and how long the worker took for them [s]."""

    answers: Sequence[Answer]
    seconds: float


class WorkerPool(Protocol):
    """Processes that answer batches of questions, here or on other machines."""

    name: str
    """Who they are, for messages."""
    stores: bool
    """Whether workers write to the store; otherwise this process does."""
    deaths: int
    """How many workers a question may lose before the sweep gives up."""

    @property
    def broken(self) -> tuple[type[BaseException], ...]:
        """What a batch raises if its worker died."""

    @property
    def slots(self) -> int:
        """How many batches are worked on at once."""

    def __enter__(self) -> Self:
        """Start, if the workers are not running yet."""

    def __exit__(self, *problem: object) -> None:
        """End all work."""

    def submit(self, batch: Sequence[Question], store: Store | None) -> Future[AnsweredBatch]:
        """Begin to answer a batch."""

    def restart(self) -> None:
        """Replace workers that died."""

    def check(self) -> None:
        """Called when nothing was answered for ten seconds; SimulationError if nothing ever will be."""


def answer_batch(batch: Sequence[Question], store: Store | None) -> AnsweredBatch:
    """Return the answers to a batch in this process, each stored as soon as it is made."""
    begin = time.perf_counter()
    return AnsweredBatch([answer_here(asked, store) for asked in batch], time.perf_counter() - begin)


class Dispatch:
    """One pass of questions through workers, in the order given."""

    def __init__(self, asked: Sequence[Question], workers: WorkerPool, store: Store | None) -> None:
        self.workers, self.store = workers, store
        self.waiting, self.again = deque(asked), deque[Question]()
        self.flying: dict[Future[AnsweredBatch], Sequence[Question]] = {}
        self.deaths = Counter[Question]()
        self.each_s = _BATCH_S

    def answers(self) -> Iterator[tuple[Question, Answer]]:
        """Yield every question with its answer, as they are made.

        Raises SimulationError for a question that ends worker after worker, and what tasks raise.
        """
        while self.waiting or self.again or self.flying:
            self._fill()
            done, _ = wait(self.flying, _CHECK_S, FIRST_COMPLETED)
            if not done:
                self.workers.check()
            for future in done:
                if future in self.flying:  # else it was lost with another one's worker
                    yield from self._yield_answers(future)

    def _fill(self) -> None:
        while batch := self._next():
            self.flying[self.workers.submit(batch, self.store)] = batch

    def _next(self) -> Sequence[Question]:
        """Return the next batch; empty while nothing more can be in flight."""
        if len(self.flying) >= _AHEAD * self.workers.slots:
            return ()
        if self.again and self.deaths[self.again[0]] >= _TOGETHER:
            return () if self.flying else (self.again.popleft(),)
        if self.again:
            return (self.again.popleft(),)
        if any(self.deaths[one] >= _TOGETHER for batch in self.flying.values() for one in batch):
            return ()
        return [self.waiting.popleft() for _ in range(min(self._size(), len(self.waiting)))]

    def _size(self) -> int:
        """Questions of a batch: as many as last `_BATCH_S`, fewer towards the end, so that workers end together."""
        left = math.ceil(len(self.waiting) / (2 * _AHEAD * self.workers.slots))
        return max(min(int(_BATCH_S / self.each_s), left, _LARGEST_BATCH), 1)

    def _yield_answers(self, future: Future[AnsweredBatch]) -> Iterator[tuple[Question, Answer]]:
        batch = self.flying.pop(future)
        try:
            worked = future.result()
        except self.workers.broken as error:
            yield from self._ask_again(batch, error)
            return
        except CancelledError:
            raise SimulationError(
                f"{self.workers.name} ended before the sweep did; run it again: what is stored is not run twice"
            ) from None
        self.each_s = max((self.each_s + worked.seconds / len(batch)) / 2, 1e-9)
        yield from self._store_answers(batch, worked)

    def _store_answers(self, batch: Sequence[Question], worked: AnsweredBatch) -> Iterator[tuple[Question, Answer]]:
        """Yield the answers of a batch, stored here unless the workers did so."""
        here = None if self.workers.stores or self.store is None or not self.store.keeps else self.store
        for asked, (record, why) in zip(batch, worked.answers, strict=True):
            yield asked, (record, why if here is None else store_record(asked, record, here))

    def _ask_again(self, batch: Sequence[Question], error: BaseException) -> Iterator[tuple[Question, Answer]]:
        """Ask again what was lost with a worker; answers that were complete when it died are yielded."""
        self.workers.restart()
        lost = [*batch]
        for future in [one for one in self.flying if one.done()]:
            other = self.flying.pop(future)
            if isinstance(future.exception(), self.workers.broken):
                lost += other
            else:
                yield from self._store_answers(other, future.result())
        self.deaths.update(lost)
        for one in lost:
            if self.deaths[one] >= self.workers.deaths:
                raise SimulationError(
                    f"'{one.task.title}' ended its process {self.deaths[one]} times, perhaps out of memory; run it "
                    "alone to see why, or leave it out"
                ) from error
        self.again.extend(lost)
        self.again = deque(sorted(self.again, key=self.deaths.__getitem__))
