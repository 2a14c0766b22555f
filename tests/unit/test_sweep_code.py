"""The engine is compiled once for all processes of a command, also where the user's cache cannot be written."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "support" / "shared_code_script.py"


def sweeps(cache, temporary):
    temporary.mkdir()
    path = ":".join([str(SCRIPT.parent), *sys.path])
    environment = {"WEFT_CACHE": str(cache), "TMPDIR": str(temporary), "PYTHONPATH": path}
    return subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=True)


def test_without_a_cache_all_processes_share_a_temporary_one_that_is_removed(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    done = sweeps(blocked, tmp_path / "temporary")
    *runs, cache = [line.split() for line in done.stdout.splitlines()]
    assert len({tuple(run) for run in runs}) == 1
    folder, keeps, made, here = runs[0]
    assert (keeps, made, here) == ("True", "1", "False")
    assert Path(folder).parents[1] == tmp_path / "temporary"
    assert cache == [str(blocked)]
    assert done.stderr.count("the engine is compiled into a temporary folder") == 1
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_cache_that_can_be_written_serves_alone(tmp_path):
    done = sweeps(tmp_path / "cache", tmp_path / "temporary")
    *runs, _ = [line.split() for line in done.stdout.splitlines()]
    assert {Path(run[0]).parent for run in runs} == {tmp_path / "cache"}
    assert [run[2] for run in runs] == ["1", "1", "1"]
    assert done.stderr == ""
