"""Workers that die: their tasks are run again, and a task that ends worker after worker is named."""

import os
import threading
from concurrent.futures import Future

import pytest
from sweep_tasks import Deadly, Echo

from weft.core.errors import SimulationError
from weft.core.store import Store
from weft.core.store.task import question
from weft.sweep.dispatch import Dispatch, answer_batch
from weft.sweep.tasks import run_tasks


class Death(Exception):
    """A worker died."""


class Scripted:
    """Workers in this process that die of certain tasks, a given number of times, and of all that is in flight."""

    name, stores, deaths, broken, slots = "the script", False, 3, (Death,), 2

    def __init__(self, deadly):
        self.deadly, self.batches, self.pending, self.restarts = dict(deadly), [], {}, 0

    def submit(self, batch, store):
        self.batches.append([asked.task.value for asked in batch])
        self.pending[future := Future()] = batch
        if len(self.pending) == 1:
            threading.Timer(0.01, self._work).start()
        return future

    def _work(self):
        pending, self.pending = self.pending, {}
        dying = [one for batch in pending.values() for one in batch if self.deadly.get(one.task.value, 0) > 0]
        for one in dying:
            self.deadly[one.task.value] -= 1
        for future, batch in pending.items():
            future.set_exception(Death()) if dying else future.set_result(answer_batch(batch, None))

    def restart(self):
        self.restarts += 1

    def check(self):
        raise AssertionError


def answers_of(values, workers, store=None):
    asked = [question(Echo(value, asked=value)) for value in values]
    return {one.task.value: record["value"] for one, (record, _) in Dispatch(asked, workers, store).answers()}


def test_what_was_in_flight_when_a_worker_died_is_asked_again():
    workers = Scripted({3: 1})
    assert answers_of(range(20), workers) == {value: value for value in range(20)}
    assert workers.restarts == 1


def test_a_question_that_lost_two_workers_is_asked_alone():
    workers = Scripted({3: 2})
    assert answers_of(range(20), workers) == {value: value for value in range(20)}
    assert workers.batches.count([3]) == 3


def test_a_question_that_ends_worker_after_worker_is_named():
    with pytest.raises(
        SimulationError, match=r"'echo 3' ended its process 3 times, perhaps out of memory; run it alone"
    ):
        answers_of(range(20), Scripted({3: 9}))


def test_records_of_workers_without_the_folder_are_stored_here(tmp_path):
    answers_of(range(5), Scripted({}), Store(tmp_path))
    assert Store(tmp_path).contents().entries == 5


def test_a_killed_process_loses_nothing(tmp_path):
    """Real processes; one is killed in the middle of its task."""
    others = [Echo(value, asked=value) for value in range(6)]
    deadly = Deadly(7, os.getpid(), str(tmp_path / "mark"))
    found = dict(run_tasks([*others[:3], deadly, *others[3:]], jobs=2, store=Store(tmp_path / "runs")))
    assert [found[task]["value"] for task in (*others, deadly)] == [0, 1, 2, 3, 4, 5, 7]
    assert (tmp_path / "mark").exists()


@pytest.mark.slow
def test_a_task_that_kills_every_process_is_named_and_the_others_are_kept(tmp_path):
    tasks = [*(Echo(value, asked=value) for value in range(6)), Deadly(7, os.getpid())]
    with pytest.raises(SimulationError, match="'deadly 7' ended its process 3 times"):
        list(run_tasks(tasks, jobs=2, store=Store(tmp_path)))
    assert Store(tmp_path).contents().entries == 6
