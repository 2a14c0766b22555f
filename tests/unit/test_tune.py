"""Lists of GEMMs, kernel libraries and `weft tune`: what is read, what is written, what is refused."""

import json

import pytest
from click.testing import CliRunner
from shown import check_shown
from small_gemms import small_mi100

from weft.cli.main import weft
from weft.core.errors import ConfigError, InputError
from weft.graph import Gemm
from weft.plan.tune.lists import load_library, read_gemms, tune

HEADS = "name,m,n,k,dtype,count\n"


@pytest.fixture
def listed(tmp_path):
    def write(text):
        file = tmp_path / "gemms.csv"
        file.write_text(text)
        return file

    return write


def test_a_list_is_read_with_names_or_without(listed):
    first, second = read_gemms(listed(HEADS + "head,128,64,128,FP16,4\n,64,64,64,bf16,1\n"))
    assert (first.name, first.gemm, first.count) == ("head", Gemm(128, 64, 128, "fp16"), 4)
    assert second.name == "64x64x64"


def test_heads_may_be_capitals_in_any_order(listed):
    (only,) = read_gemms(listed("Count, DType, M, N, K\n2, bf16, 64, 128, 256\n"))
    assert (only.gemm, only.count) == (Gemm(64, 128, 256, "bf16"), 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEADS + "a,0,64,64,fp16,2\n", "line 2: m is '0'; it must be a whole number above zero"),
        (HEADS + "a,64,64,64,fp16,2\nb,64,6.5,64,fp16,2\n", "line 3: n is '6.5'"),
        (HEADS + "a,64,64,64,fp12,2\n", "line 2: unknown dtype 'fp12'"),
        (HEADS + "a,64,64,64,fp16,99\n", "line 2: count is 99; at most 16"),
        (HEADS + "a,64,64,64,fp16\n", "line 2: the line has 5 cells, the heads are 6"),
        (HEADS + "a,64,64,64,,2\n", "line 2: dtype is empty; write name,m,n,k,dtype,count"),
        ("M;N;K;dtype;count\n64;64;64;fp16;2\n", "line 1: the list is separated by semicolons"),
        ("m,n,k,dtype,count,M\n", "line 1: the list has the column 'm' twice"),
        ("m,n,k,count\n", "line 1: the list misses dtype"),
        ("m,n,k,dtype,count,colour\n", "line 1: the list has the unknown column 'colour'"),
        (HEADS, "there is no GEMM below the heads"),
        ("", "line 1: the list misses m, n, k, dtype, count"),
    ],
)
def test_bad_lists_are_told_by_file_and_line(listed, text, words):
    with pytest.raises(InputError) as error:
        read_gemms(listed(text))
    assert words in str(error.value)
    assert "gemms.csv" in str(error.value)


def test_a_list_that_does_not_exist_is_told(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_gemms(tmp_path / "none.csv")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    file = tmp_path_factory.mktemp("tuned") / "gemms.csv"
    file.write_text(HEADS + "head,128,64,128,fp16,3\n")
    return tune(read_gemms(file), small_mi100())


def test_a_tuned_list_is_shown_in_every_way(tuned, tmp_path):
    check_shown(tuned, tmp_path)


def test_a_tuned_line_says_how_many_together_and_what_it_gains(tuned):
    (row,) = tuned.rows
    assert row.degree in (1, 2, 3)
    assert row.over_default.low <= row.over_default.value <= row.over_default.high
    assert row.over_sequential.value >= 1
    assert set(row.degrees) == {1, 2, 3}


def test_a_library_comes_back_from_its_file(tuned, tmp_path):
    library = load_library(tuned.library.save(tmp_path / "kernels.json"))
    (row,) = tuned.rows
    assert library.choose(row.wanted.gemm, 3) == (row.degree, row.kernel)
    assert library.choose(row.wanted.gemm, 1) == (1, row.kernels.fastest_alone)
    assert library.choose(row.wanted.gemm, 50) == (row.degree, row.kernel)


def test_a_library_refuses_what_it_does_not_hold(tuned):
    with pytest.raises(InputError, match="weft tune"):
        tuned.library.choose(Gemm(1, 2, 3), 4)
    with pytest.raises(InputError, match="0 GEMMs are queued"):
        tuned.library.choose(tuned.rows[0].wanted.gemm, 0)


def spoiled(content, **changes):
    return json.dumps({**content, **changes})


def test_a_spoiled_library_is_refused(tuned, tmp_path):
    file = tuned.library.save(tmp_path / "kernels.json")
    content = json.loads(file.read_text())
    entry = content["gemms"][0]
    for text, words in (
        ("{", "no JSON"),
        ("[]", "no kernel library"),
        (spoiled(content, weft_kernel_library=2), "version is 2"),
        (spoiled(content, colour="red"), "colour"),
        (spoiled(content, gemms=[{**entry, "degrees": {"1": 9}}]), "degree 9 has no kernel"),
        (spoiled(content, gemms=[{**entry, "degrees": {"2": 1}}]), "nothing is chosen"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=words):
            load_library(file)
    with pytest.raises(InputError, match="does not exist"):
        load_library(tmp_path / "none.json")


def test_the_command_prints_a_line_and_writes_the_library(listed, tmp_path):
    file, out = listed(HEADS + "head,64,64,64,fp16,2\n"), tmp_path / "kernels.json"
    command = ["tune", str(file), "--gpu", "mi100", "--set", "compute.compute_units=8", "--jobs", "1"]
    trace = tmp_path / "trace.json"
    command += ["--no-cache", "--out", str(out), "--page", str(tmp_path / "page"), "--trace", str(trace)]
    done = CliRunner().invoke(weft, command, catch_exceptions=False)
    assert done.exit_code == 0
    assert "head: 64 x 64 x 64 fp16" in done.output
    assert load_library(out).gpu == "mi100"
    page = (tmp_path / "page" / "report.html").read_text()
    assert "head: 2 of 64 x 64 x 64 fp16" in page
    assert page.count("<figure") == page.count('<div class="still"><svg') > 0
    spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") == "kernel"]
    assert len({span["tid"] for span in spans}) == len(spans) > 0
    assert {span["name"] for span in spans} <= {"gemm0_fp16_64x64x64", "gemm1_fp16_64x64x64"}


def test_a_trace_of_what_runs_alone_is_refused(listed, tmp_path):
    command = ["tune", str(listed(HEADS + "head,64,64,64,fp16,1\n")), "--gpu", "mi100", "--trace"]
    with pytest.raises(InputError, match="a count of 2 or more"):
        CliRunner().invoke(weft, [*command, str(tmp_path / "t.json")], catch_exceptions=False)
