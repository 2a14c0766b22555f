"""Many runs on several processes; each record is cached on disk by a hash of its inputs, so that runs resume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from weft.core.errors import InputError
from weft.core.store import Record, Store, Task
from weft.core.store.task import Question, question
from weft.sweep.dispatch import WorkerPool
from weft.sweep.pool import answers

T = TypeVar("T", bound=Task)
R = TypeVar("R")
Progress = Callable[[int, int, str], None]
"""Called with the number of finished runs, their total, and the title of the last one.

If it has a method `expect`, that is called before with the finished share of the work that is not kept, from 0 to 1, by
the weights of its runs.
"""


def run_tasks(
    tasks: Iterable[T],
    jobs: int = 1,
    progress: Progress | None = None,
    store: Store | None = None,
    workers: WorkerPool | None = None,
) -> Iterator[tuple[T, Record]]:
    """Yield every task with its record, in any order, run on `jobs` processes; equal tasks are run once.

    `workers` replace the processes: those of a cluster, or processes that several sweeps use in turn.

    Records found in `store` are yielded first and not run again; a new record is stored as soon as it is made, so that
    an interrupted or killed sweep resumes. Records do not depend on `jobs`.

    The tasks of a process that dies are run again. Raises InputError for fewer than one process or for a task that JSON
    cannot represent, SimulationError for a task that ends process after process, and what the tasks raise.
    """
    if jobs < 1:
        raise InputError(f"{jobs} processes cannot run anything; choose 1 or more jobs")
    alike: dict[Question, list[T]] = {}
    for task in tasks:
        alike.setdefault(question(task), []).append(task)
    return _answer_tasks(alike, jobs, progress or (lambda done, total, what: None), store, workers)


def results(
    tasks: Iterable[T],
    read: Callable[[Record], R],
    jobs: int = 1,
    progress: Progress | None = None,
    store: Store | None = None,
) -> dict[T, R]:
    """Return every task with `read` applied to its record, in the order of the tasks; else as `run_tasks`."""
    unique = list(dict.fromkeys(tasks))
    found = {task: read(record) for task, record in run_tasks(unique, jobs, progress, store)}
    return {task: found[task] for task in unique}


def _answer_tasks(
    alike: dict[Question, list[T]], jobs: int, progress: Progress, store: Store | None, workers: WorkerPool | None
) -> Iterator[tuple[T, Record]]:
    found = {} if store is None else {asked: store.get(asked) for asked in alike}
    kept = {asked: record for asked, record in found.items() if record is not None}
    done = len(kept)
    progress(done, len(alike), f"{done} cached" if done else "starting")
    for asked, record in kept.items():
        yield from ((task, record) for task in alike[asked])
    missing = [asked for asked in alike if asked not in kept]
    expect: Callable[[float], None] = getattr(progress, "expect", lambda share: None)
    whole, finished = sum(asked.task.weight for asked in missing), 0.0
    for asked, (record, complaint) in answers(missing, jobs, store, workers):
        done, finished = done + 1, finished + asked.task.weight
        expect(finished / whole if whole else done / len(alike))
        progress(done, len(alike), asked.task.title)
        if complaint and store is not None:
            store.give_up(complaint)
        yield from ((task, record) for task in alike[asked])
