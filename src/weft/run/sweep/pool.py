"""Tasks on several processes: heaviest first, one answer at a time, kept as soon as made, a clean end on Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from weft.errors import OutputError, SimulationError
from weft.run.sweep.code import cache_at, compile_here, is_shared, stand_in
from weft.run.sweep.fingerprint import fingerprint_of
from weft.run.sweep.store import Store
from weft.run.sweep.task import Question, Record, Task, answer


@dataclass(frozen=True)
class Order:
    """A task to run, its question, and the file of its class, which is another process's when that is a script."""

    task: Task
    asked: Question
    home: Path


@dataclass(frozen=True)
class Answer:
    """A record, and why it could not be kept (empty: it was, or nobody wanted it)."""

    record: Record
    complaint: str = ""


def answers(orders: Sequence[Order], processes: int, store: Store | None) -> Iterator[tuple[Order, Answer]]:
    """Every order with its answer, as they end; with one process, or one order, all in this process.

    So it is, too, where each process would have to compile the engine for itself.

    Raises SimulationError if a process dies, and what the tasks raise.
    """
    heaviest_first = sorted(orders, key=lambda order: order.task.weight, reverse=True)
    # One order joins the others' machine code if that is not this process's own.
    if processes == 1 or not orders or not is_shared() or (len(orders) == 1 and stand_in() is None):
        return ((order, _answer(order, store)) for order in heaviest_first)
    return _in_processes(heaviest_first, min(processes, len(heaviest_first)), store)


def _answer(order: Order, store: Store | None) -> Answer:
    """The answer to an order: kept by another process meanwhile, or made here and kept."""
    if store is None or not store.keeps:
        return Answer(answer(order.task))
    found = store.get(order.asked)
    if found is not None:
        return Answer(found)
    made = answer(order.task)
    if fingerprint_of(order.home) != order.asked.code:
        return Answer(made, "Weft's own sources changed since the sweep began")
    try:
        store.put(order.asked, made)
    except OutputError as error:
        return Answer(made, str(error))
    return Answer(made)


def _in_processes(orders: Sequence[Order], processes: int, store: Store | None) -> Iterator[tuple[Order, Answer]]:
    folder = stand_in()
    if folder is None:
        compile_here()
    # Loky's processes are started afresh, not forked, and may be stopped at any time; those of the standard library
    # leave their executor waiting for ever when one is stopped while it takes a long task or hands in a long answer.
    from loky import ProcessPoolExecutor

    executor = ProcessPoolExecutor(processes, initializer=_prepare_worker, initargs=(os.getpid(),))
    try:
        with cache_at(folder):
            _start(executor)
            if folder is not None:
                executor.submit(compile_here).result()  # by one process, while the others have nothing to do
            waiting = {executor.submit(_answer, order, store): order for order in orders}
        for future in as_completed(waiting):
            yield waiting.pop(future), future.result()
    except BrokenProcessPool as error:
        raise SimulationError(
            "a process of the sweep ended by itself, perhaps out of memory; try it with 1 job"
        ) from error
    finally:
        # On an error or Ctrl-C nobody needs what is still running; on success nothing is.
        executor.shutdown(wait=True, kill_workers=True)


def _start(executor: Any) -> None:
    """Start the processes without Ctrl-C, which is left to this one: it could meet them before they ignore it."""
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
