"""The command in rough surroundings: full, closed and narrow streams, Ctrl-C, damaged caches and those of others."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.engine import code

WEFT = [sys.executable, "-m", "weft"]
LISTED = ["hardware", "list"]
SMALL = ["simulate", "sublayer", "--gemm", "512,512,128", "--tp", "2"]


pytestmark = pytest.mark.usefixtures("heard")


def environment(**more):
    return {**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)), **more}


def ran(arguments, **options):
    more = options.pop("env", {})
    return subprocess.run(
        [*WEFT, *arguments], stderr=subprocess.PIPE, text=True, env=environment(**more), check=False, **options
    )


@pytest.mark.parametrize(
    "arguments",
    [["predict", "gemm", "8192,8192,8192"], ["memory", "llama-3-8b", "--system", "8xh100", "--tp", "8"]],
)
def test_a_reader_that_has_gone_does_not_cost_the_files(arguments, tmp_path):
    reads, writes = os.pipe()
    os.close(reads)
    to = ["--json", str(tmp_path / "answer.json")]
    done = ran([*arguments, *to], stdout=writes, env={"PYTHONUNBUFFERED": ""})
    os.close(writes)
    assert done.returncode == 1
    assert json.loads((tmp_path / "answer.json").read_text())


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


@pytest.mark.parametrize(("stream", "ends"), [(1, 2), (2, 0)])
def test_a_closed_stream_is_told_on_the_other(stream, ends):
    script = f'exec "$@" {stream}>&-'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *WEFT, *LISTED], capture_output=True, env=environment(), check=False
    )
    told = (
        b"weft: cannot write to standard output: it is closed; send it elsewhere, or write files by --json or --out\n"
    )
    assert (done.returncode, done.stderr) == (ends, told if stream == 1 else b"")


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


ENDS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
"""Signals that end a command, its exit status, and the word for it."""


def listens(pid):
    """Whether a process has a handler of SIGTERM, which Python alone has not."""
    status = Path(f"/proc/{pid}/status")
    caught = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught[0], 16) >> signal.SIGTERM - 1 & 1)


def interrupted(arguments, after_s, number=signal.SIGINT, **more):
    """Exit status, standard error, and how long a command took to end that a signal hits some time after it listens."""
    process = subprocess.Popen(
        [*WEFT, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
        start_new_session=True,
    )
    while process.poll() is None and not listens(process.pid):
        time.sleep(0.01)
    time.sleep(after_s)
    begin = time.monotonic()
    os.killpg(process.pid, number)
    _, told = process.communicate(timeout=30)
    return process.returncode, told, time.monotonic() - begin


@pytest.mark.parametrize(("number", "ends", "word"), ENDS)
@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.6])
def test_a_signal_ends_a_command_while_it_loads(after_s, number, ends, word):
    status, told, _ = interrupted(["study", "t3", "--no-cache"], after_s, number)
    assert status == ends
    assert "Traceback" not in told
    assert told.count(f"weft: {word}; nothing was left half-written") == 1


TURNED = """
import signal
from weft.__main__ import main
from weft.cli import main as cli

def command():
    try:
        signal.raise_signal(signal.{name})
    except KeyboardInterrupt:
        raise RuntimeError("Error calling __set_name__ on a property")  # as Python does while it makes a class

signal.signal(signal.{name}, {handler})
cli.main = command
main()
"""
"""A command in which an interrupt turns into another error."""


@pytest.mark.parametrize(("number", "ends", "word"), ENDS)
def test_a_signal_that_turns_into_another_error_still_ends_in_a_sentence(number, ends, word):
    handler = "signal.default_int_handler" if number is signal.SIGINT else "signal.SIG_DFL"  # as at a terminal
    code = TURNED.format(name=number.name, handler=handler)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (ends, f"weft: {word}; nothing was left half-written\n")


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [1.0, 2.0, 3.5, 5.0])
@pytest.mark.parametrize("arguments", [SMALL, ["study", "t3", "--no-cache", "--models", "t-nlg"]])
def test_ctrl_c_ends_a_command_while_the_engine_is_compiled(arguments, after_s, tmp_path):
    status, told, took = interrupted(arguments, after_s, WEFT_CACHE=str(tmp_path))
    assert status == 130
    assert "Traceback" not in told
    assert took < 5  # two seconds on a computer that does nothing else


@pytest.mark.slow
@pytest.mark.parametrize(("number", "ends", "word"), ENDS)
@pytest.mark.parametrize("after_s", [0.8, 1.1, 1.4, 1.7, 2.0, 2.5, 3.0, 6.0])
def test_a_signal_ends_a_study_and_its_processes(after_s, number, ends, word):
    status, told, took = interrupted(["study", "t3", "--no-cache", "--jobs", "2"], after_s, number)
    assert status == ends
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


def few_addresses():
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))


def test_a_page_says_how_many_addresses_its_pictures_take(tmp_path):
    told = ["memory", "llama-3-8b", "--system", "8xh100", "--tp", "8", "--out", str(tmp_path / "out")]
    done = ran(told, stdout=subprocess.PIPE, preexec_fn=few_addresses)
    assert done.returncode == 2
    assert "pictures take addresses for 105 GiB, of which little is memory, but the limit is 64 GiB" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after_s", [0.2, 0.5, 0.8, 1.1, 1.4, 1.8, 2.3])
def test_a_signal_at_any_moment_leaves_the_whole_answer_or_what_stood_there(after_s, number, tmp_path):
    before = {"memory.json": "before", "report.html": "before"}
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    told = ["memory", "llama-3-8b", "--system", "8xh100", "--tp", "8", "--out", str(tmp_path)]
    status, said, _ = interrupted(told, after_s, number)
    assert "Traceback" not in said
    assert status in (0, 128 + number, -number)
    after = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(after) == set(before)
    assert after == before or all(text != "before" for text in after.values())


def simulated(**more):
    done = ran([*SMALL, "--json", "-"], stdout=subprocess.PIPE, env=more)
    assert done.returncode == 0, done.stderr
    return but_for_cpu(done.stdout), done.stderr


def but_for_cpu(printed):
    """The lines of an answer without the processor time, which differs from run to run."""
    return [line for line in printed.splitlines() if "cpu_s" not in line]


@pytest.mark.slow
def test_two_processes_on_one_new_cache_answer_alike(tmp_path):
    variables = environment(WEFT_CACHE=str(tmp_path / "cache"))
    commands = [
        subprocess.Popen([*WEFT, *SMALL, "--json", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=600) for process in commands]
    assert [process.returncode for process in commands] == [0, 0], answers
    one, other = (but_for_cpu(printed.decode()) for printed, _ in answers)
    assert one == other
    answer, said = simulated(WEFT_CACHE=str(tmp_path / "cache"))
    assert answer == one
    assert "damaged" not in said
    assert list(tmp_path.rglob("*.part")) == []


@pytest.fixture
def filled(tmp_path):
    """A new cache that holds a run; the engine is compiled already, in the cache of this user."""
    variables = {"WEFT_CACHE": str(tmp_path), "WEFT_ENGINE": str(code.cache_root())}
    answer, _ = simulated(**variables)
    entries = list((tmp_path / "runs").rglob("*.json.gz"))
    assert entries
    return variables, entries, answer


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_cut_off_entries_of_the_cache_are_made_again(share, filled):
    variables, entries, whole = filled
    for path in entries:
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
    again, said = simulated(**variables)
    assert again == whole
    assert "damaged" in said
    assert simulated(**variables)[1].count("damaged") == 0


@pytest.mark.parametrize("moved_s", [-(10**9), 10**9])
def test_a_clock_that_jumped_hides_and_loses_no_entries(moved_s, filled):
    variables, entries, _ = filled
    for path in entries:
        os.utime(path, (time.time() + moved_s,) * 2)
    shown = ran(["cache", "show"], stdout=subprocess.PIPE, env=variables)
    assert shown.returncode == 0
    assert "-" not in shown.stdout.split("simulated runs", 1)[1].splitlines()[0].replace("—", "")
    ran(["cache", "clear", "--older-than", "1d"], stdout=subprocess.DEVNULL, env=variables)
    assert [path.exists() for path in entries] == [moved_s > 0] * len(entries)


def test_a_home_that_cannot_be_written_to_costs_only_the_cache():
    more = {"HOME": "/proc/none", "XDG_CACHE_HOME": "", "WEFT_CACHE": ""}
    done = ran(["predict", "gemm", "512,512,512"], stdout=subprocess.PIPE, env=more)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


CLOSED = [
    ["predict", "gemm", "4096,4096,4096"],
    ["predict", "collective", "all_reduce:64MiB", "--ranks", "8", "--system", "dgx-h100"],
    ["step", "mega-gpt-2", "--system", "8xa100", "--tp", "2", "--pp", "2", "--batch", "8", "--fidelity", "estimate"],
]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", CLOSED)
def test_closed_forms_are_the_same_without_compiling(arguments):
    answers = [
        ran([*arguments, "--json", "-"], stdout=subprocess.PIPE, env={"NUMBA_DISABLE_JIT": off}).stdout
        for off in ("0", "1")
    ]
    assert answers[0]
    assert json.loads(answers[0]) == json.loads(answers[1])


MANY = [
    ["advise", "corun", "--gemm", "512,512,512", "--corun", "all_gather:1MiB", "--gpu", "mi300x", "--quick"],
    ["tune", "gemms.csv", "--gpu", "mi100"],
    ["study", "t3", "--models", "t-nlg", "--tp", "8"],
    ["sweep", "run", "sweep.toml"],
]


def without_times(data):
    """Plain data without how long its runs took on this computer."""
    if isinstance(data, dict):
        return {key: without_times(value) for key, value in data.items() if key not in ("cpu_s", "wall_s", "figures_s")}
    return [without_times(value) for value in data] if isinstance(data, list) else data


@pytest.mark.slow
@pytest.mark.parametrize("arguments", MANY)
def test_one_process_and_two_answer_alike(arguments, tmp_path):
    (tmp_path / "gemms.csv").write_text("m,n,k,dtype,count\n512,512,512,fp16,4\n")
    (tmp_path / "sweep.toml").write_text(
        'run = "simulate"\nwork = "t-nlg/op"\nsystem = "t3-paper"\ntp = 8\n[vary]\noverlap = ["sequential", "t3"]\n'
    )
    answers = [
        ran([*arguments, "--no-cache", "--jobs", jobs, "--json", "-"], stdout=subprocess.PIPE, cwd=tmp_path)
        for jobs in ("1", "2")
    ]
    assert [done.returncode for done in answers] == [0, 0], answers
    assert without_times(json.loads(answers[0].stdout)) == without_times(json.loads(answers[1].stdout))
