"""Processes of this machine that answer questions: each record is stored at once, and Ctrl-C ends all cleanly."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing import resource_tracker
from typing import Any, Self

from weft.core.store.records import Answer, Store, answer_here
from weft.core.store.task import Question
from weft.sweep.code import cache_at, compile_here, is_shared, stand_in
from weft.sweep.dispatch import AnsweredBatch, Dispatch, WorkerPool, answer_batch


def answers(
    asked: Sequence[Question], processes: int, store: Store | None, workers: WorkerPool | None = None
) -> Iterator[tuple[Question, Answer]]:
    """Yield every question with its answer as it is made; with one process, or one question, all in this process.

    The work also stays in this process if each process would have to compile the engine for itself. `workers` that run
    already are used instead of new processes.

    Raises SimulationError for a question that ends process after process, and what the tasks raise.
    """
    heaviest_first = sorted(asked, key=lambda one: one.task.weight, reverse=True)
    if workers is not None:
        return Dispatch(heaviest_first, workers, store).answers()
    # A single question also loads the shared machine code if this process cannot cache its own.
    if processes == 1 or not asked or not is_shared() or (len(asked) == 1 and stand_in() is None):
        return ((one, answer_here(one, store)) for one in heaviest_first)
    return _in_processes(heaviest_first, min(processes, len(heaviest_first)), store)


def _in_processes(asked: Sequence[Question], processes: int, store: Store | None) -> Iterator[tuple[Question, Answer]]:
    with Processes(processes) as workers:
        yield from Dispatch(asked, workers, store).answers()


_MOST_PROCESSES = 4096
"""Processes that one machine is asked for at most: semaphores count no further on some."""


class Processes:
    """Processes of this machine.

    Loky starts fresh processes instead of forking, and survives their death at any time; the standard library's
    executor hangs if a process is killed while it receives a long task or sends a long record.
    """

    name = "the processes of the sweep"
    stores = True
    deaths = 3
    broken = (BrokenProcessPool,)

    def __init__(self, processes: int) -> None:
        self.slots = min(processes, _MOST_PROCESSES)
        self._executor: Any = None
        self._context = ExitStack()

    def __enter__(self) -> Self:
        """The processes, which start when they are first asked something."""
        return self

    def __exit__(self, *problem: object) -> None:
        """End the processes; only after an error or Ctrl-C do tasks still run, whose records are not needed."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=True)
        self._context.close()

    def submit(self, batch: Sequence[Question], store: Store | None) -> Future[AnsweredBatch]:
        """Begin to answer a batch; the process stores its records."""
        if self._executor is None:
            self._prepare()
        try:
            future: Future[AnsweredBatch] = self._executor.submit(answer_batch, batch, store)
        except BrokenProcessPool as error:  # a process died before it was asked anything
            future = Future()
            future.set_exception(error)
        return future

    def restart(self) -> None:
        """Start new processes; the executor ends all of them if one dies."""
        self._executor.shutdown(wait=True, kill_workers=True)
        self._begin()

    def check(self) -> None:
        """Nothing to check: loky notices when a process dies."""

    def _prepare(self) -> None:
        """Start the processes, once the engine is compiled for all of them."""
        folder = stand_in()
        if folder is None:
            compile_here()
        self._context.enter_context(cache_at(folder))
        self._begin()
        if folder is not None:
            self._executor.submit(compile_here).result()  # compiled by one process while the others wait

    def _begin(self) -> None:
        from loky import ProcessPoolExecutor

        self._executor = ProcessPoolExecutor(self.slots, initializer=_prepare_worker, initargs=(os.getpid(),))
        _start(self._executor)


def _start(executor: Any) -> None:
    """Start the processes with signals blocked: they must not reach them before they ignore them."""
    resource_tracker.ensure_running()  # started explicitly: an automatic start would unblock Ctrl-C
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        executor.submit(os.getpid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _prepare_worker(parent: int) -> None:
    """Ignore Ctrl-C and SIGTERM in a worker process, which the parent handles, and end when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)
