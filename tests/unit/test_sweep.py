"""Sweeps: every task once, the same answers however many processes, nothing left behind."""

import json
import math
import multiprocessing
import subprocess
import sys

import pytest
from sweep_tasks import Echo, SmallRun

from weft.core.errors import InputError
from weft.core.store import Store
from weft.sweep.tasks import results, run_tasks

SIZES = (128, 512, 256)
UNGUARDED = """
import sys
from dataclasses import dataclass
from pathlib import Path
from weft.core.store import Store
from weft.sweep.tasks import run_tasks

folder, log = map(Path, sys.argv[1:])
log.write_text("")

@dataclass(frozen=True)
class Square:
    of: int
    title = "square"
    weight = 1.0
    def inputs(self): return {"of": self.of}
    def run(self):
        with log.open("a") as made: made.write("x")
        return {"is": self.of**2}

found = {task.of: record["is"] for task, record in run_tasks(map(Square, range(4)), jobs=2, store=Store(folder))}
print(*(found[of] for of in range(4)), len(log.read_text()))
"""


@pytest.fixture
def tasks():
    return [SmallRun(k) for k in SIZES]


def records(tasks, **options):
    return dict(run_tasks(tasks, **options))


def test_the_heaviest_task_comes_first(tasks):
    assert [task.k for task, _ in run_tasks(tasks)] == [512, 256, 128]


def test_two_processes_give_the_bytes_that_one_gives(tasks, tmp_path):
    alone = records(tasks, store=Store(tmp_path / "one"))
    shared = records(tasks, jobs=2, store=Store(tmp_path / "two"))
    assert json.dumps([alone[task] for task in tasks]) == json.dumps([shared[task] for task in tasks])
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.gz")} for name in ("one", "two"))
    assert len(one) == len(tasks)
    assert one == two


def test_a_kept_record_is_not_made_again_and_is_the_same(tasks, tmp_path):
    log = tmp_path / "log"
    logged = [SmallRun(k, str(log)) for k in SIZES]
    cold = records(logged, store=Store(tmp_path / "runs"))
    lines = log.read_text()
    assert records(logged, store=Store(tmp_path / "runs")) == cold
    assert log.read_text() == lines
    assert records(logged[:1]) == {logged[0]: cold[logged[0]]}
    assert len(log.read_text().splitlines()) == len(lines.splitlines()) + 2


def test_equal_tasks_are_run_once_and_each_is_answered(tmp_path):
    log = tmp_path / "log"
    tasks = [SmallRun(128, str(log)), SmallRun(128, str(log)), SmallRun(64, str(log))]
    assert len(list(run_tasks(tasks))) == 3
    assert sorted(log.read_text().split("\n")) == ["", "begin 128", "begin 64", "end 128", "end 64"]


def test_results_are_read_of_records_in_the_order_of_the_tasks():
    tasks = [Echo(value, asked=value) for value in (3, 1, 2, 1)]
    assert list(results(tasks, lambda record: record["value"] * 10).items()) == [
        (tasks[0], 30),
        (tasks[1], 10),
        (tasks[2], 20),
    ]


def test_progress_counts_what_is_kept(tasks, tmp_path):
    seen = []
    store = Store(tmp_path)
    records(tasks[:2], store=store)
    records(tasks, store=store, progress=lambda *told: seen.append(told))
    assert seen == [(2, 3, "2 cached"), (3, 3, "K 256")]


@pytest.mark.parametrize("value", [0.1 + 0.2, 5e-324, 1.7976931348623157e308, math.pi, 2**70, "é", None])
def test_a_value_comes_back_exactly(value, tmp_path):
    for _ in range(2):
        ((_, record),) = run_tasks([Echo(value)], store=Store(tmp_path))
        assert record == {"value": value}


def test_a_record_is_what_json_gives_back_also_the_first_time(tmp_path):
    for _ in range(2):
        ((_, record),) = run_tasks([Echo({1: (2, 3)})], store=Store(tmp_path))
        assert record == {"value": {"1": [2, 3]}}


def test_an_answer_that_is_no_plain_data_is_refused():
    with pytest.raises(InputError, match=r"the record of 'echo .*' cannot be kept as JSON"):
        list(run_tasks([Echo(object())]))
    with pytest.raises(InputError, match=r"the inputs of 'echo 1' cannot be kept as JSON"):
        run_tasks([Echo(1, asked=object())])


def test_a_task_that_stands_in_no_file_is_refused():
    found = type("Typed", (Echo,), {"__module__": "nowhere"})
    with pytest.raises(InputError, match="the task 'Typed' is defined in no file"):
        run_tasks([found(1)])


def test_a_task_of_a_script_that_was_piped_is_refused(monkeypatch):
    monkeypatch.setattr(sys.modules[Echo.__module__], "__file__", "<stdin>")
    with pytest.raises(InputError, match="the task 'Echo' is defined in no file"):
        run_tasks([Echo(1)])


def test_no_process_is_left_when_a_sweep_is_interrupted(tasks):
    def interrupted():
        for _ in run_tasks(tasks, jobs=2):
            assert multiprocessing.active_children()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert multiprocessing.active_children() == []


def test_an_error_of_a_task_reaches_the_caller_and_leaves_no_process():
    with pytest.raises(InputError, match="cannot be kept as JSON"):
        list(run_tasks([Echo({1, 2}), Echo(2, asked=1)], jobs=2))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("end", [GeneratorExit, KeyboardInterrupt])
def test_tasks_and_answers_longer_than_a_pipe_do_not_keep_a_sweep_from_ending(end):
    running = run_tasks([Echo("x" * 300_000, asked=i) for i in range(6)], jobs=2)
    assert len(next(running)[1]["value"]) == 300_000
    with pytest.raises(end):
        running.throw(end)
    assert multiprocessing.active_children() == []


def test_a_script_may_define_its_tasks_and_needs_no_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    for made in ("4", "0"):
        done = subprocess.run(
            [sys.executable, script, tmp_path / "runs", tmp_path / "log"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert (done.stdout.split(), done.stderr) == (["0", "1", "4", "9", made], "")


def test_a_sweep_needs_a_process(tasks):
    with pytest.raises(InputError, match="0 processes cannot run anything"):
        run_tasks(tasks, jobs=0)


def test_nothing_to_do_is_done_at_once():
    assert list(run_tasks([], jobs=2)) == []
