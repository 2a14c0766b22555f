"""The command in rough surroundings: full, closed and narrow streams, Ctrl-C, damaged caches and those of others."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

WEFT = [sys.executable, "-m", "weft"]
LISTED = ["hardware", "list"]
SMALL = ["simulate", "--gemm", "512,512,128", "--tp", "2"]


@pytest.fixture(autouse=True)
def heard():
    """Commands hear an interrupt, also where these tests run in the background of a shell, which has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def environment(**more):
    return {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)), **more}


def ran(arguments, **options):
    more = options.pop("env", {})
    return subprocess.run(
        [*WEFT, *arguments], stderr=subprocess.PIPE, text=True, env=environment(**more), check=False, **options
    )


def test_a_full_disk_behind_standard_output_is_told():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = ran(LISTED, stdout=full)
    assert done.returncode == 2
    assert done.stderr.startswith("weft: cannot write to standard output: no space left on device")


def test_a_full_disk_behind_both_streams_leaves_the_exit_status():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run([*WEFT, *LISTED], stdout=full, stderr=full, env=environment(), check=False)
    assert done.returncode == 2


def test_a_reader_that_has_seen_enough_ends_the_command_silently():
    head = subprocess.Popen([*WEFT, *LISTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    head.stdout.close()
    _, told = head.communicate()
    assert (head.returncode, told) == (1, b"")


@pytest.mark.parametrize("stream", [1, 2])
def test_closed_streams_are_no_obstacle(stream):
    script = f'exec "$@" {stream}>&-'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *WEFT, *LISTED], capture_output=True, env=environment(), check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_data_for_a_closed_standard_output_is_an_error():
    script = 'exec "$@" >&-'
    command = [*WEFT, "predict", "gemm", "64,64,64", "--json", "-"]
    done = subprocess.run(
        ["sh", "-c", script, "sh", *command], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 2
    assert "standard output: it is closed" in done.stderr


def test_standard_output_that_knows_ascii_only_gets_marks():
    done = ran(["models", "show", "t-nlg"], stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


@pytest.mark.parametrize("flag", ["--json", "--csv"])
def test_data_on_standard_output_stands_alone_there(flag):
    done = ran(["predict", "gemm", "8192,8192,8192", flag, "-"], stdout=subprocess.PIPE)
    assert done.returncode == 0
    assert "GEMMs" in done.stderr
    if flag == "--json":
        assert json.loads(done.stdout)["predictions"][0]["m"] == 8192
    else:
        assert done.stdout.startswith("gpu,m,n,k,")
        assert done.stdout.count("\n") == 2


def interrupted(arguments, after_s, **more):
    """Exit status, standard error, and how long the command took to end, of one that Ctrl-C hits after a time."""
    process = subprocess.Popen(
        [*WEFT, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
        start_new_session=True,
    )
    time.sleep(after_s)
    begin = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=30)
    return process.returncode, told, time.monotonic() - begin


@pytest.mark.parametrize("after_s", [0.3, 0.6, 1.0])
def test_ctrl_c_ends_a_command_while_it_loads(after_s):
    status, told, _ = interrupted(["study", "t3", "--no-cache"], after_s)
    assert status == 130
    assert "Traceback" not in told
    assert told.count("weft: interrupted; nothing was left half-written") == 1


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [1.0, 2.0, 3.5, 5.0])
@pytest.mark.parametrize("arguments", [SMALL, ["study", "t3", "--no-cache", "--models", "t-nlg"]])
def test_ctrl_c_ends_a_command_while_the_engine_is_compiled(arguments, after_s, tmp_path):
    status, told, took = interrupted(arguments, after_s, WEFT_CACHE=str(tmp_path))
    assert status == 130
    assert "Traceback" not in told
    assert took < 5  # two seconds on a computer that does nothing else


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.8, 1.1, 1.4, 1.7, 2.0, 2.5, 3.0, 6.0])
def test_ctrl_c_ends_a_study_and_its_processes(after_s):
    status, told, took = interrupted(["study", "t3", "--no-cache", "--jobs", "2"], after_s)
    assert status == 130
    assert "Traceback" not in told
    assert took < 5


# What the engine's code cache does, on a function that is compiled at once.
KEPT = """
from weft.engine import code, jit

@jit.entry
def twice(x):
    return 2 * x

print(code.foreign() or twice(21))
"""


@pytest.fixture
def kept(tmp_path):
    """A script that compiles a little, and keeps that in a cache of its own."""
    (tmp_path / "kept.py").write_text(KEPT)
    cache = tmp_path / "cache"

    def run():
        script, variables = [sys.executable, str(tmp_path / "kept.py")], environment(WEFT_CACHE=str(cache))
        return subprocess.run(script, env=variables, capture_output=True, text=True, check=False)

    assert run().stdout == "42\n"
    return cache, run


@pytest.mark.parametrize("harm", [b"", b"no machine code", None])
def test_damaged_machine_code_is_compiled_again_and_said_so(kept, harm):
    cache, run = kept
    (file,) = cache.rglob("*.code")
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + b"\x00" + whole[101:-1] + b"\x01" if harm is None else harm)
    done = run()
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert f"is damaged: {file.name} is not what was written; it is compiled again" in done.stderr
    assert run().stderr == ""


def test_kept_machine_code_is_for_this_user_alone(kept):
    cache, _ = kept
    assert {path.stat().st_mode & 0o077 for path in (cache, *cache.rglob("*"))} == {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("what", ["cache", "file"])
def test_machine_code_of_another_user_is_not_run(kept, what):
    cache, run = kept
    target = cache if what == "cache" else next(cache.rglob("*.code"))
    os.chown(target, 12345, -1)
    assert "belongs to user 12345" in run().stdout


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_machine_code_that_others_may_write_is_not_run(kept, mode):
    cache, run = kept
    next(cache.glob("engine-*")).chmod(mode)
    assert "others may write to" in run().stdout


@pytest.mark.parametrize("arguments", [SMALL, ["cache", "show"], ["study", "t3", "--models", "t-nlg", "--tp", "8"]])
def test_a_cache_that_others_may_write_is_refused_with_the_cure(tmp_path, arguments):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs").chmod(0o777)
    done = ran(arguments, stdout=subprocess.DEVNULL, env={"WEFT_CACHE": str(tmp_path)})
    assert done.returncode == 2
    assert f"others may write to '{tmp_path}/runs'" in done.stderr
    assert f"chmod -R go-w {tmp_path}" in done.stderr


def limited_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_a_page_that_does_not_fit_takes_its_figures_with_it(tmp_path):
    told = ["memory", "llama-3-8b", "--system", "8xh100", "--tp", "8", "--out", str(tmp_path / "out")]
    done = ran(told, stdout=subprocess.PIPE, preexec_fn=limited_files)
    assert done.returncode == 2
    assert "report.html': file too large" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []
    assert ran(told, stdout=subprocess.PIPE).returncode == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["memory.json", "report.html"]
