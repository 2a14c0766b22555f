"""`weft simulate corun`: tables, JSON, trace and page of a GEMM co-run with a collective, and bad input."""

import json

import pytest

from weft.cli import main as cli

BESIDE = ["simulate", "corun", "--gemm", "2048,2048,1024", "--dtype", "bf16", "--gpu", "a100-sxm-80gb", "--ranks", "4"]
PARTED = [*BESIDE, "--corun", "all_gather:1MiB", "--overlap", "partition"]
COPIED = [*BESIDE, "--corun", "all_gather:1MiB", "--overlap", "dma"]
RUN = [*BESIDE, "--corun", "all_reduce:16MiB", "--loops", "3,2"]


@pytest.fixture
def weft(capsys):
    """Runs `weft ARGUMENTS`: exit status, output and error output."""

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            cli.main(list(map(str, arguments)))
        return left.value.code, *capsys.readouterr()

    return run


def test_interference_is_recorded_on_request(weft, tmp_path):
    file, folder = tmp_path / "runs.json", tmp_path / "page"
    status, out, _ = weft(*RUN, "--interference", "--json", file, "--out", folder)
    assert status == 0
    assert "Who delays whom" in out
    (run,) = json.loads(file.read_text())["runs"]
    assert {one["stream"] for one in run["interference"]["streams"]} == {"compute", "communication"}
    assert "How a burst meets" in (folder / "report.html").read_text()


def test_both_slowdowns_the_makespan_and_the_waits_are_shown_and_written(weft, tmp_path):
    file, trace, folder = tmp_path / "runs.json", tmp_path / "trace.json", tmp_path / "page"
    status, out, _ = weft(*RUN, "--details", "--json", file, "--trace", trace, "--out", folder)
    assert status == 0
    for words in (
        "slowdown",
        "while both run",
        "serial",
        "no compute unit free",
        "data from another GPU",
        "RS writes",
    ):
        assert words in out
    (run,) = json.loads(file.read_text())["runs"]
    assert (run["gemm"]["count"], run["collective"]["count"]) == (3, 2)
    assert run["makespan_us"] >= run["gemm"]["end_us"]
    assert run["serial_us"] == pytest.approx(3 * run["gemm"]["alone_us"] + 2 * run["collective"]["alone_us"])
    assert run["speedup"] == pytest.approx(run["serial_us"] / run["makespan_us"])
    assert list(tmp_path.glob("trace*"))
    assert (folder / "report.html").exists()


def test_an_answer_carries_the_errors_of_its_classes(weft):
    _, out, _ = weft(*RUN)
    assert "typical errors: GEMMs " in " ".join(out.split())
    assert "both side by side are off by" in " ".join(out.split())


def test_what_the_library_would_take_instead_of_the_ring_is_said(weft):
    shape = ("simulate", "corun", "--gemm", "1024,1024,1024", "--gpu", "h100-sxm", "--loops", "1,1")
    for size, asked, said in (("64MiB", "ring", True), ("64MiB", "auto", False), ("1MiB", "ring", False)):
        status, out, _ = weft(*shape, "--corun", f"all_reduce:{size}", "--algorithm", asked)
        assert status == 0
        assert ("the library would take the switch's reduction (nvls)" in out) is said


def test_an_all_to_all_by_compute_units_is_what_the_library_runs(weft, tmp_path):
    file = tmp_path / "runs.json"
    status, out, _ = weft(*BESIDE, "--corun", "all_to_all:4MiB", "--loops", "1,1", "--json", file)
    assert status == 0
    assert "the library would take" not in out
    assert json.loads(file.read_text())["runs"][0]["algorithm"] == "pairwise"


def test_traffic_of_a_collective_that_reduces_and_gathers_nothing_has_its_name(weft):
    status, out, _ = weft(*BESIDE, "--corun", "all_to_all:4MiB", "--overlap", "dma", "--loops", "1,1")
    assert status == 0
    assert "all_to_all reads" in out
    assert "AG " not in out


def test_copy_engines_drive_a_gather(weft):
    status, out, _ = weft(*BESIDE, "--corun", "all_gather:16MiB", "--overlap", "dma", "--loops", "2")
    assert status == 0
    assert "by DMA engines" in out


def test_copies_take_the_options_of_their_engines(weft, tmp_path):
    file = tmp_path / "runs.json"
    driven = [*BESIDE, "--corun", "all_gather:1MiB", "--overlap", "dma", "--loops", "1,1", "--json", file]
    ends = {}
    for copies in ("prelaunched", "engines=1"):
        status, out, _ = weft(*driven, "--copies", copies)
        assert status == 0
        assert f"by DMA engines, {copies.replace('=', ' = ')}" in out
        (run,) = json.loads(file.read_text())["runs"]
        ends[copies] = run["collective"]["end_us"]
    assert run["copies"] == {"engines": 1}
    assert ends["prelaunched"] < ends["engines=1"]


def test_a_split_gives_each_side_its_compute_units(weft, tmp_path):
    file = tmp_path / "runs.json"
    size = "all_gather:16MiB"
    arguments = [*BESIDE, "--corun", size, "--overlap", "partition", "--split", "92-16", "--loops", "1,1"]
    status, out, _ = weft(*arguments, "--json", file)
    assert status == 0
    assert "16 reserved compute units" in out
    (run,) = json.loads(file.read_text())["runs"]
    assert run["units_apart"] == run["units_held"]["collective"] == 16
    assert run["units_held"]["gemm"] <= 92


def test_a_split_with_more_channels_than_units_warns_and_names_the_number_that_fits(weft, tmp_path):
    file, folder = tmp_path / "runs.json", tmp_path / "page"
    split = [*BESIDE, "--corun", "all_gather:16MiB", "--overlap", "partition", "--split", "100-8", "--loops", "1,1"]
    for given, channels, rounds in (((), 24, 3), (("--channels", "8"), 8, 1)):
        status, out, _ = weft(*split, *given, "--json", file, "--out", folder)
        assert status == 0
        (run,) = json.loads(file.read_text())["runs"]
        assert (run["channels"], run["rounds"], bool(run["warning"])) == (channels, rounds, rounds > 1)
        for shown in (out, (folder / "report.html").read_text()):
            assert ("channels of the all_gather run in 3 rounds" in shown) is (rounds > 1)


def test_every_strategy_stands_beside_the_others_or_is_left_out_with_a_reason(weft, tmp_path):
    file, folder = tmp_path / "runs.json", tmp_path / "page"
    for collective, count in (("all_gather", 6), ("all_reduce", 4)):
        arguments = [*BESIDE, "--corun", f"{collective}:4MiB", "--overlap", "all", "--loops", "1,1"]
        status, out, _ = weft(*arguments, "--json", file, "--out", folder)
        assert status == 0
        found = json.loads(file.read_text())
        assert len(found["runs"]) == count
        assert len(found["refused"]) == 6 - count
        assert f"least time: {found['best']}" in out
        assert ("left out: dma, dma-partition: DMA engines cannot drive all_reduce" in out) is (count == 4)
        assert "of the ideal" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([*BESIDE, "--corun", "all_reduce"], "write it like all_reduce:256MiB"),
        ([*BESIDE, "--corun", "all_reduc:1MiB"], "did you mean 'all_reduce'"),
        ([*BESIDE, "--corun", "all_reduce:1 furlong"], "furlong"),
        ([*BESIDE, "--corun", "all_reduce:1MiB", "--overlap", "dma"], "cannot add"),
        ([*BESIDE, "--corun", "all_reduce:1MiB", "--loops", "1,2,3"], "--loops has 3 numbers"),
        ([*BESIDE, "--corun", "all_reduce:1MiB", "--loops", "0,1"], "--loops has 0 in it"),
        ([*BESIDE, "--corun", "all_reduce:1MiB", "--ranks", "1"], "'--ranks': 1 is not in the range"),
        ([*BESIDE, "--corun", "all_to_all:1MiB", "--ranks", "16"], "but no all_to_all; take the ranks of one node"),
        (
            [*BESIDE, "--corun", "all_reduce:1MiB", "--ranks", "16", "--nodes", "3"],
            "cannot be spread evenly over 3 nodes",
        ),
        ([*BESIDE, "--corun", "all_reduce:-1MiB"], "moves nothing; give a size above zero"),
        (["simulate", "corun", "--gemm", "64,64", "--corun", "all_reduce:1MiB"], "'64,64' has 2 dimensions"),
        ([*BESIDE, "--corun", "all_reduce:1MiB", "--compare", "t3"], "no such option '--compare'"),
        (["simulate", "corun", "--corun", "all_reduce:1MiB"], "missing option '--gemm'"),
        (
            [*BESIDE, "--corun", "all_gather:1MiB", "--overlap", "t3"],
            "joins a GEMM with the collective of its own",
        ),
        ([*BESIDE, "--corun", "all_gather:1MiB", "--overlap", "streamz"], "did you mean 'streams'"),
        ([*PARTED, "--split", "100-32"], "has 132 compute units, but a100-sxm-80gb has 108; write 76-32"),
        ([*PARTED, "--split", "108-0"], "each side needs at least one"),
        ([*PARTED, "--split", "0-108"], "each side needs at least one"),
        ([*PARTED, "--split", "32"], "write the GEMM's compute units and those reserved for the collective, like"),
        (
            [*BESIDE, "--corun", "all_gather:1MiB", "--split", "76-32"],
            "needs an overlap that reserves compute units",
        ),
        (
            ["simulate", "sublayer", "--overlap", "partition"],
            "those of a sub-layer do; run: weft simulate corun --gemm M,N,K --corun all_gather:896MiB --overlap",
        ),
        (["simulate", "sublayer", "--split", "76-32"], "no such option '--split'"),
        ([*COPIED, "--copies", "engines"], "needs a whole number; write it like engines=2"),
        ([*COPIED, "--copies", "swap=2"], "only engines, engines_per_peer and threads take a number"),
        ([*COPIED, "--copies", "swap"], "only an all_to_all has commands that swap"),
        ([*COPIED, "--copies", "engines=0"], "engines is 0; it must be a whole number of at least 1"),
        ([*COPIED, "--copies", "prelaunch"], "did you mean 'prelaunched'"),
        ([*PARTED, "--channels", "0"], "channels is 0; it must be a whole number of at least 1"),
        ([*PARTED, "--channels", "65"], "channels is 65, but NCCL has 1 to 64"),
        ([*COPIED, "--channels", "8"], "DMA engines, which have no channels, but channels is 8"),
        (
            ["simulate", "sublayer", "--algorithm", "nvls"],
            "but --overlap is t3-mca; add --compare sequential to set t3-mca beside",
        ),
        (
            ["simulate", "sublayer", "--overlap", "sequential", "--algorithm", "nvls"],
            "t3-paper has no switch that reduces",
        ),
        ([*PARTED, "--copies", "prelaunched"], "choose dma or dma-partition, or leave them out"),
    ],
)
def test_bad_input_is_one_sentence(weft, arguments, sentence):
    status, out, err = weft(*arguments)
    assert (status, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
