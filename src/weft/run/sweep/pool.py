"""Run tasks on several processes: heaviest first, each record stored as soon as made, a clean end on Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import Any

from weft.errors import OutputError, SimulationError
from weft.run.sweep.code import cache_at, compile_here, is_shared, stand_in
from weft.run.sweep.fingerprint import fingerprint_of
from weft.run.sweep.store import Store
from weft.run.sweep.task import Question, Record, answer

Answer = tuple[Record, str]
"""A record, and why it could not be stored (empty: it was, or there is no store)."""


def answers(asked: Sequence[Question], processes: int, store: Store | None) -> Iterator[tuple[Question, Answer]]:
    """Yield every question with its answer as it is made; with one process, or one question, all in this process.

    The work also stays in this process where each other one would have to compile the engine for itself.

    Raises SimulationError if a process dies, and what the tasks raise.
    """
    heaviest_first = sorted(asked, key=lambda one: one.task.weight, reverse=True)
    # One question joins the others' machine code if that is not this process's own.
    if processes == 1 or not asked or not is_shared() or (len(asked) == 1 and stand_in() is None):
        return ((one, _answer(one, store)) for one in heaviest_first)
    return _in_processes(heaviest_first, min(processes, len(heaviest_first)), store)


def _answer(asked: Question, store: Store | None) -> Answer:
    """The answer to a question: stored by another process meanwhile, or made here and stored."""
    if store is None or not store.keeps:
        return answer(asked.task), ""
    found = store.get(asked)
    if found is not None:
        return found, ""
    made = answer(asked.task)
    if fingerprint_of(asked.home) != asked.code:
        return made, "Weft's own sources changed since the sweep began"
    try:
        store.put(asked, made)
    except OutputError as error:
        return made, str(error)
    return made, ""


def _in_processes(asked: Sequence[Question], processes: int, store: Store | None) -> Iterator[tuple[Question, Answer]]:
    folder = stand_in()
    if folder is None:
        compile_here()
    # Loky starts fresh processes instead of forking, and survives their end at any time; the executor of the standard
    # library waits for ever when a process is stopped while it receives a long task or sends a long record.
    from loky import ProcessPoolExecutor

    executor = ProcessPoolExecutor(processes, initializer=_prepare_worker, initargs=(os.getpid(),))
    try:
        with cache_at(folder):
            _start(executor)
            if folder is not None:
                executor.submit(compile_here).result()  # by one process, while the others have nothing to do
            waiting = {executor.submit(_answer, one, store): one for one in asked}
        for future in as_completed(waiting):
            yield waiting.pop(future), future.result()
    except BrokenProcessPool as error:
        raise SimulationError(
            "a process of the sweep ended by itself, perhaps out of memory; try it with 1 job"
        ) from error
    finally:
        # Only after an error or Ctrl-C are tasks still running; their records are not needed.
        executor.shutdown(wait=True, kill_workers=True)


def _start(executor: Any) -> None:
    """Start the processes with Ctrl-C blocked: it must not reach them before they ignore it."""
    resource_tracker.ensure_running()  # by itself, as it would let Ctrl-C through again
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        executor.submit(os.getpid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _prepare_worker(parent: int) -> None:
    """Leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)
