"""A sweep that is killed goes on where it stopped: nothing is run twice but what was in flight."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from sweep_script import SIZES

from weft.core.store import Store

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "support" / "sweep_script.py"
PROCESSES = 2


def begin(folder, name):
    arguments = [folder / "runs", folder / "log", folder / f"{name}.json"]
    return subprocess.Popen(
        [sys.executable, SCRIPT, *arguments],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )


def lines(folder, what):
    log = folder / "log"
    return [line for line in log.read_text().splitlines() if line.startswith(what)] if log.exists() else []


def kept(folder):
    files = sorted((folder / "runs").glob("??/*.json.gz"))
    return [json.loads(gzip.decompress(path.read_bytes()))["inputs"]["k"] for path in files]


def wait_for(true, seconds=60):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert begin(folder, "answers").wait() == 0
    assert len(lines(folder, "begin")) == len(SIZES)
    return (folder / "answers.json").read_bytes()


def stopped(folder, stop):
    """What the store holds of a sweep that was stopped by `stop` in the middle, once nothing of it runs any more."""
    first = begin(folder, "first")
    wait_for(lambda: len(lines(folder, "end")) >= 3)
    stop(first)
    assert first.wait() != 0
    wait_for(lambda: not group_lives(first.pid))
    assert not (folder / "first.json").exists()
    held = kept(folder)
    assert 0 < len(held) < len(SIZES)
    return held


def test_what_was_done_before_a_kill_is_not_done_again(tmp_path, uninterrupted):
    before = stopped(tmp_path, lambda first: os.killpg(first.pid, signal.SIGKILL))
    assert begin(tmp_path, "second").wait() == 0
    assert (tmp_path / "second.json").read_bytes() == uninterrupted
    times = Counter(int(line.split()[1]) for line in lines(tmp_path, "begin"))
    assert set(times) == set(SIZES)
    assert {k for k in before if times[k] > 1} == set()
    assert sum(times.values()) <= len(SIZES) + PROCESSES
    assert Store(tmp_path / "runs").contents().entries == len(SIZES)


def test_processes_end_with_the_one_that_began_them(tmp_path):
    stopped(tmp_path, lambda first: first.kill())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_and_leaves_whole_entries(tmp_path, number):
    stopped(tmp_path, lambda first: os.killpg(first.pid, number))
    assert not list((tmp_path / "runs").rglob("*.part"))


def test_two_processes_share_a_store(tmp_path, uninterrupted):
    both = [begin(tmp_path, name) for name in ("one", "two")]
    assert [process.wait() for process in both] == [0, 0]
    assert {(tmp_path / f"{name}.json").read_bytes() for name in ("one", "two")} == {uninterrupted}
    assert sorted(kept(tmp_path)) == sorted(SIZES)
    assert not list((tmp_path / "runs").rglob("*.part"))


def group_lives(group):
    """Whether a process of the group still runs; killed ones that nobody has waited for do not count."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = status.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(its_group) == group and state != "Z":
            return True
    return False
