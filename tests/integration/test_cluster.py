"""Sweeps on a real Dask cluster: workers that die, a scheduler that is not there or ends, workers of other sources."""

import os
import signal
import subprocess
import sys

import pytest

from weft.core.errors import InputError, SimulationError
from weft.core.store import fingerprint
from weft.sweep.run import sweep_file

pytest.importorskip("distributed", reason="Dask is missing: pip install 'weft[dask]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]

STEP = {"run": "step", "model": "gpt-3", "system": "64xa100", "fidelity": "estimate", "tp": 8, "pp": 8}
BATCHES = {"batch": list(range(64, 64 * 31, 64))}


@pytest.fixture
def cluster():
    """A scheduler and two workers, each a process that is started again if it dies."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as found:
        yield found


def test_a_worker_that_is_killed_in_the_middle_loses_nothing(cluster, tmp_path):
    victims = [worker.pid for worker in cluster.workers.values()][:1]
    killed = []

    def kill(done, total, what):
        if done >= 5 and victims:
            killed.append(victims.pop())
            os.kill(killed[0], signal.SIGKILL)

    sweep_file(STEP, BATCHES, dask=cluster.scheduler_address, out=tmp_path / "dask.csv", cache=False, progress=kill)
    sweep_file(STEP, BATCHES, out=tmp_path / "serial.csv", cache=False)
    assert killed
    assert (tmp_path / "dask.csv").read_bytes() == (tmp_path / "serial.csv").read_bytes()


def test_workers_of_other_sources_are_refused_and_nothing_is_written(cluster, tmp_path, monkeypatch):
    here = os.getpid()
    monkeypatch.setattr("weft.sweep.cluster.sources", lambda: str(os.getpid() == here))
    with pytest.raises(InputError, match="has other sources of Weft, or another Python"):
        sweep_file(STEP, BATCHES, dask=cluster.scheduler_address, out=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_a_worker_checks_each_question(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprint, "fingerprint_of", lambda file: "0" * 64)
    monkeypatch.setattr("weft.core.store.task.fingerprint_of", lambda file: "0" * 64)
    with pytest.raises(InputError, match=r"the worker on .* has other sources of Weft"):
        sweep_file(STEP, BATCHES, dask=cluster.scheduler_address, cache=False)


def test_a_scheduler_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:1' .*; start one by"):
        sweep_file(STEP, BATCHES, dask="tcp://127.0.0.1:1", out=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_a_scheduler_that_ends_in_the_middle_is_one_sentence_and_the_sweep_resumes(tmp_path):
    address, processes = _started(tmp_path)

    def end(done, total, what):
        if done >= 5:
            for process in processes:
                process.kill()

    try:
        with pytest.raises(SimulationError, match=r"the Dask scheduler at .*run"):
            sweep_file(STEP, BATCHES, dask=address, out=tmp_path / "runs", progress=end)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    told = []
    found = sweep_file(STEP, BATCHES, out=tmp_path / "runs", progress=lambda *said: told.append(said))
    assert told[0][0] >= 5
    assert told[0][2].endswith("cached")
    assert len(found) == len(BATCHES["batch"])


def _started(folder):
    """A scheduler and a worker as processes of their own, and the scheduler's file."""
    file = folder / "scheduler.json"
    run = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    scheduler = subprocess.Popen([*run, "--scheduler-file", str(file)], **quiet)
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    return str(file), [scheduler, subprocess.Popen([*worker, "--scheduler-file", str(file)], **quiet)]
