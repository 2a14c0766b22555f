"""Nothing bites: whatever is typed or handed over, Weft ends in one sentence that says what is wrong and what to do."""

import contextlib
import io
import os
import re
import shlex
import signal
from pathlib import Path

import bad_inputs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from weft.cli import main as cli
from weft.core.errors import WeftError

LONGEST_S = 20
UGLY = re.compile(r"Traceback|object at 0x|NoneType|pydantic|Errno|Input should|instance of|sys\.set_int")


class HangError(BaseException):
    """A command took longer than anyone would wait for a refusal."""


@pytest.fixture(scope="module", autouse=True)
def _engine_is_compiled():
    """Compile the engine before any command is timed."""
    weft.simulate(weft.sublayer("t-nlg", "op", tp=8), "t3-paper", "t3")


def _hang(number, frame):
    raise HangError


@contextlib.contextmanager
def in_time():
    before = signal.signal(signal.SIGALRM, _hang)
    signal.alarm(LONGEST_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def ran(command):
    """Exit status and the last line on standard error of a command line, run in this process."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with (
        in_time(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        cli.main(shlex.split(command))
    err.flush()
    told = err.buffer.getvalue().decode().strip()
    assert not UGLY.search(told), told
    return left.value.code, told.splitlines()[-1] if told else ""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The folder that declared command lines run in."""
    place, before = tmp_path_factory.mktemp("inputs"), Path.cwd()
    for name, content in bad_inputs.FILES.items():
        file = place / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    (place / "folder.toml").mkdir()
    for name in ("fifo.toml", "fifo.csv"):
        os.mkfifo(place / name)
    for name in ("huge.toml", "huge.csv"):
        with (place / name).open("wb") as file:
            file.truncate(1 << 30)
    patch = pytest.MonkeyPatch()
    patch.setattr("weft.core.files.SILENCE_S", 0.2)
    os.chdir(place)
    yield place
    os.chdir(before)
    patch.undo()


def commands():
    for beginning, ends in bad_inputs.COMMANDS.items():
        for end in ends.strip("\n").split("\n"):
            yield beginning if end == "(nothing)" else f"{beginning} {end}".strip()


def test_there_are_many_tries():
    assert len(list(commands())) + len(bad_inputs.CALLS) * len(bad_inputs.WRONG) > 400


@pytest.mark.parametrize("beginning", bad_inputs.COMMANDS)
def test_every_declared_command_line_is_refused_in_a_sentence(beginning):
    for end in bad_inputs.COMMANDS[beginning].strip("\n").split("\n"):
        command = beginning if end == "(nothing)" else f"{beginning} {end}".strip()
        status, told = ran(command)
        assert status == 2, f"{command}: {status}"
        assert told.startswith(("weft: ", "  ")), f"{command}: {told}"
        assert len(told) < 1000, command


@pytest.mark.parametrize("command", bad_inputs.SENTENCES)
def test_the_sentence_says_what_is_wrong(command):
    status, told = ran(command)
    assert status == 2
    assert bad_inputs.SENTENCES[command] in told


def test_what_is_too_large_is_not_called_too_small():
    for command in ("predict gemm 1e400,1,1", "simulate sublayer --gemm 2147483648,1,1", "tune tune31.csv --gpu mi100"):
        assert "above zero" not in ran(command)[1]


@pytest.mark.parametrize("name", bad_inputs.CALLS)
def test_wrong_values_of_public_functions_are_answered_by_weft(name):
    call, taken = bad_inputs.CALLS[name], bad_inputs.TAKEN.get(name, lambda _: False)
    for value in bad_inputs.WRONG:
        if taken(value):
            continue
        with in_time(), pytest.raises(WeftError) as caught:
            call(value)
        assert not UGLY.search(str(caught.value)), str(caught.value)


NUMBERS = st.one_of(
    st.sampled_from(
        ["0", "-1", "1", "8", "2147483647", "2147483648", "1e400", "nan", "inf", "1.5", "9" * 40, "0x10", "1_0"]
    ),
    st.integers(-(2**40), 2**40).map(str),
    st.floats().map(str),
)
TEXTS = st.one_of(
    st.sampled_from(["nope", ",", "=", "-", "--", "a=b", "é", "🦊", "/dev/null", "."]), st.text(max_size=8)
)
WORDS = st.one_of(NUMBERS, TEXTS).filter(lambda text: "\x00" not in text)
UNITS = st.sampled_from(["B", "KiB", "MiB", "GB/s", "s", "", "XB", "b"])
SHAPES = st.lists(NUMBERS, max_size=4).map(",".join)
TEMPLATES = st.sampled_from(
    [
        ("predict", "gemm", "{shape}"),
        ("predict", "gemm", "{shape}", "--batch", "{word}", "--dtype", "{word}"),
        ("predict", "gemm", "64,64,64", "--set", "memory.bandwidth={number}{unit}"),
        ("predict", "collective", "all_reduce:{number}{unit}", "--ranks", "{number}", "--system", "dgx-h100"),
        ("predict", "collective", "{word}", "--ranks", "8", "--system", "{word}"),
        ("predict", "collective", "all_gather:1MiB", "--ranks", "{number}", "--nodes", "{number}", "--system", "p5"),
        ("predict", "op", "softmax", "--shape", "rows={number},columns={number}"),
        ("predict", "op", "{word}", "--shape", "{word}"),
        ("predict", "layer", "--model", "gpt-3", "--system", "dgx-h100", "--tp", "{number}", "--batch", "{number}"),
        ("predict", "layer", "--model", "gpt-3", "--system", "dgx-h100", "--sequence", "{number}", "--phase", "decode"),
        ("hardware", "show", "{word}"),
        ("models", "show", "{word}"),
        ("simulate", "sublayer", "--gemm", "{shape}", "--overlap", "nope"),
        ("simulate", "sublayer", "--gemm", "64,64,64", "--tp", "{number}", "--overlap", "nope"),
        ("simulate", "sublayer", "--set", "{word}={word}", "--overlap", "nope"),
        ("simulate", "corun", "--gemm", "64,64,64", "--corun", "{word}:{number}{unit}", "--overlap", "nope"),
        ("tune", "{word}", "--gpu", "{word}"),
        ("cache", "clear", "--older-than", "{word}x"),
        ("{word}", "{word}"),
    ]
)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEMPLATES, st.data())
def test_generated_command_lines_end_in_an_answer_or_a_sentence(template, data):
    drawn = [
        part.format(shape=data.draw(SHAPES), word=data.draw(WORDS), number=data.draw(NUMBERS), unit=data.draw(UNITS))
        for part in template
    ]
    status, told = ran(shlex.join(drawn))
    assert status in (0, 2), (drawn, status, told)
    assert status == 0 or told, drawn
