import json
import shlex

import pytest

from weft.cli import main as cli
from weft.core.options import RunOptions
from weft.core.store import Store, records
from weft.models import SubLayer
from weft.models.parallel import split
from weft.overlaps.arbiters import POLICIES, arbiter
from weft.simulate.single import simulate

SMALL = ("--gemm", "1024,1024,1024", "--tp", "4")


@pytest.fixture
def weft(capsys):
    """Runs `weft simulate sublayer ARGUMENTS`: exit status, output and error output."""

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            cli.main(["simulate", "sublayer", *map(str, arguments)])
        return left.value.code, *capsys.readouterr()

    return run


def test_one_run_shows_times_and_traffic_and_folds_waits_and_counters(weft):
    _, short, _ = weft(*SMALL)
    assert "RS updates near memory" in short
    assert "link: time that it was busy" not in short
    assert "--details shows more: what workgroups spent their time on, or waited for [%], hardware counters." in short
    status, out, _ = weft(*SMALL, "--details")
    assert status == 0
    assert "--details" not in out
    for words in (
        "1024 x 1024 x 256 bf16",
        "t3-mca",
        "gemm",
        "RS updates near memory",
        "link: time that it was busy",
        "events in",
    ):
        assert words in out
    assert "speedup" not in out


def test_comparing_sets_speedups_over_sequential_beside_each_other(weft, tmp_path):
    status, out, _ = weft(*SMALL, "--compare", "t3,ideal-overlap", "--json", tmp_path / "runs.json")
    assert status == 0
    assert "speedup" in out
    runs = json.loads((tmp_path / "runs.json").read_text())["runs"]
    assert [run["overlap"] for run in runs] == ["sequential", "t3", "ideal-overlap"]
    assert runs[0]["speedup"] == 1
    assert all(run["total_us"] > 0 for run in runs)


def test_interference_is_recorded_on_request(weft, tmp_path):
    files = ("--json", tmp_path / "runs.json", "--out", tmp_path / "page")
    status, out, _ = weft(*SMALL, "--compare", "t3,t3-mca", "--interference", *files)
    assert status == 0
    for words in ("Latency of loads", "What a request finds at its memory channel", "Who delays whom"):
        assert words in out
    runs = json.loads((tmp_path / "runs.json").read_text())["runs"]
    for run in runs:
        compute, communication = run["interference"]["streams"]
        assert compute["load_latency_s"]["p50"] <= compute["load_latency_s"]["p99"]
        assert communication["served_bytes"] > 0
    assert "Who delays whom" in (tmp_path / "page" / "report.html").read_text()


def test_interference_is_not_recorded_otherwise(weft, tmp_path):
    _, out, _ = weft(*SMALL, "--json", tmp_path / "runs.json")
    assert "Who delays whom" not in out
    assert "interference" not in (tmp_path / "runs.json").read_text()


def test_the_overlap_stands_beside_what_it_is_compared_with(weft, tmp_path):
    files = ("--json", tmp_path / "runs.json", "--trace", tmp_path / "trace.json")
    assert weft(*SMALL, "--compare", "sequential", "--overlap", "t3", *files)[0] == 0
    assert [run["overlap"] for run in json.loads((tmp_path / "runs.json").read_text())["runs"]] == ["sequential", "t3"]
    assert weft(*SMALL, "--compare", "sequential,t3", *files)[0] == 0
    assert [run["overlap"] for run in json.loads((tmp_path / "runs.json").read_text())["runs"]] == ["sequential", "t3"]
    assert (tmp_path / "trace.json").exists()


def test_a_policy_that_starves_a_stream_ends_the_command_with_one_sentence(weft, monkeypatch):
    never = arbiter(lambda view: 0 if view.compute > 0 else -1)
    monkeypatch.setitem(POLICIES, "never", never)
    status, _, error = weft(*SMALL, "--overlap", "t3", "--arbiter", "never")
    assert status != 0
    assert error.count("\n") == 1
    assert "has starved the communication stream of channel" in error
    assert "of GPU 0" in error


def test_a_run_alone_has_no_speedup_in_its_json(weft, tmp_path):
    weft(*SMALL, "--overlap", "sequential", "--json", tmp_path / "runs.json")
    (run,) = json.loads((tmp_path / "runs.json").read_text())["runs"]
    assert "speedup" not in run


def test_values_of_the_node_can_be_changed(weft, tmp_path):
    two_nodes = ("--gemm", "2048,1024,1024", "--tp", "16", "--gpu", "h100-sxm", "--overlap", "sequential")

    def rs_us(*changes):
        assert weft(*two_nodes, *changes, "--json", tmp_path / "runs.json")[0] == 0
        return json.loads((tmp_path / "runs.json").read_text())["runs"][0]

    slow = rs_us("--set", "network.latency=50 us")
    assert slow["changed"] == ["network.latency = 50 us"]
    assert slow["rs_us"] > rs_us()["rs_us"] + 15 * 4


def test_a_changed_value_is_named_and_matters(weft, tmp_path):
    def total_us(*changes):
        assert weft(*SMALL, *changes, "--json", tmp_path / "runs.json")[0] == 0
        return json.loads((tmp_path / "runs.json").read_text())["runs"][0]["total_us"]

    _, out, _ = weft(*SMALL, "--set", 'link.bandwidth="75 GB/s"')
    assert "link.bandwidth = 75 GB/s" in out
    assert total_us("--set", "link.bandwidth=75 GB/s") > total_us() > total_us("--set", "link.bandwidth=600 GB/s")


def test_the_time_on_the_unchanged_machine_stands_beside_a_changed_value(weft, tmp_path):
    total = {}
    for name, change in (("plain", ()), ("slow", ("--set", "link.bandwidth=75 GB/s"))):
        code, out, _ = weft(*SMALL, *change, "--json", tmp_path / "runs.json")
        assert code == 0
        total[name] = json.loads((tmp_path / "runs.json").read_text())
    slow, plain = total["slow"], total["plain"]
    assert slow["unchanged"]["total_us"] == plain["runs"][-1]["total_us"]
    assert "unchanged" not in plain
    ratio = slow["runs"][-1]["total_us"] / plain["runs"][-1]["total_us"]
    assert f"as catalogued: {ratio:.2f} times as long." in out


def test_arbiter_mode_and_request_size_are_recorded(weft, tmp_path):
    chosen = ("--arbiter", "communication-first", "--mode", "explicit", "--request-bytes", 256)
    assert weft(*SMALL, *chosen, "--json", tmp_path / "runs.json")[0] == 0
    run = json.loads((tmp_path / "runs.json").read_text())["runs"][0]
    assert (run["arbiter"], run["mode"], run["request_bytes"]) == (
        "communication-first",
        "explicit",
        256,
    )


def test_trace_and_report_are_written_and_named(weft, tmp_path):
    status, out, _ = weft(*SMALL, "--trace", tmp_path / "trace.json", "--out", tmp_path / "out")
    assert status == 0
    assert f"trace:   {tmp_path / 'trace.json'}" in out
    assert f"report:  {tmp_path / 'out' / 'report.html'}" in out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert "<figure" in (tmp_path / "out" / "report.html").read_text()


def test_every_gpu_of_an_explicit_run_has_its_trace(weft, tmp_path):
    assert weft(*SMALL, "--mode", "explicit", "--trace", tmp_path / "trace.json")[0] == 0
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "t-nlgg"], "unknown model 't-nlgg'"),
        (["--sublayer", "fc3"], "unknown sub-layer 'fc3'"),
        (["--tp", "9"], "TP 9 cannot split t-nlg fc2"),
        (["--gemm", "1024,1024"], "'1024,1024' has 2 dimensions"),
        (["--gemm", "a,b,c"], "'a' is no whole number"),
        (["--gemm", "0,8,8"], "GEMM dimension M is 0"),
        (["--gemm", "512,512,512", "--model", "t-nlg"], "give one or the other"),
        (["--overlap", "t4"], "unknown overlap 't4'"),
        (["--compare", "t3,t5"], "unknown overlap 't5'"),
        (["--compare", ","], "names nothing"),
        (["--arbiter", "fair"], "unknown arbiter 'fair'; known: round-robin"),
        (["--mode", "both"], "invalid value for '--mode'"),
        (["--gpu", "tpu-v5"], "unknown GPU 'tpu-v5'"),
        (["--set", "memory.bandwidth"], "does not assign a value"),
        (["--set", "link.latnecy=1 us"], "unknown key; did you mean 'link.latency'?"),
        (["--set", "memory=2 TB/s"], "this is a table; name one of its values, like 'memory.bandwidth'"),
        (["--set", "wires=2"], "unknown key; known keys begin with compute, rates"),
        (["--set", "network.latency=1 us"], "unknown key; "),
        (["--set", "memory.bandwidth=2"], "'2' has no unit"),
        (["--set", "link.latency=2"], "'2' has no unit, but seconds are expected; write it like '2 s' or '500 ns'"),
        (["--set", "tracker.entries=1024"], "tracker.entries: unknown key; 'tracker' has sets, ways, spill_bytes"),
        (["--set", "memory.bandwidth=-2 TB/s"], "memory.bandwidth"),
        (["--request-bytes", "100"], "multiple of 64 B"),
        (["--overlap", "ideal-overlap", "--trace", "trace.json"], "it has no trace"),
        (["--json", "."], "it is a folder"),
        (["--out", __file__], "name a folder"),
    ],
)
def test_bad_input_is_one_sentence_before_the_simulation(weft, monkeypatch, arguments, sentence):
    monkeypatch.setattr("weft.engine.run.execute", None)
    status, out, err = weft(*arguments)
    assert (status, out) == (2, "")
    assert sentence in err
    assert err.startswith("weft: ")
    assert err.count("\n") == 1


def test_an_identical_simulation_is_read_from_the_store_and_says_so(weft, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "runs_folder", lambda: tmp_path)
    _, first, said = weft(*SMALL, "--interference")
    assert "cached" not in said
    _, again, said = weft(*SMALL, "--interference")
    assert again == first
    assert "weft: 1 of the runs was cached; --no-cache reruns them" in said
    _, _, said = weft(*SMALL, "--interference", "--no-cache")
    assert "cached" not in said


def test_a_kept_run_is_equal_to_the_run_with_all_that_it_recorded(tmp_path):
    store, options = Store(tmp_path), RunOptions(interference=True, heatmap="channel", updates=True)
    graph = split(SubLayer.custom(512, 512, 128), 4)
    made, kept = (simulate(graph, "t3-paper", "t3-mca", options, store=store) for _ in range(2))
    assert store.found == 1
    assert kept.to_dict() == made.to_dict()
    assert (kept.spans, kept.graph, kept.system) == (made.spans, made.graph, made.system)
    assert kept.series.traffic.keys() == made.series.traffic.keys()


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("--model t-nlg --set 'memory.bandwidth=2 TB/s'", "sublayer --model t-nlg --set 'memory.bandwidth=2 TB/s'"),
        ("--gemm 64,64,64 --corun all_gather:1MiB", "corun --gemm 64,64,64 --corun all_gather:1MiB"),
        ("--gemm=64,64,64 --collective plan.json:1MiB", "corun --gemm 64,64,64 --corun plan.json:1MiB"),
        ("--gpu h100-sxm --collective plan.json:1MiB", "collective plan.json:1MiB --gpu h100-sxm"),
        ("--ep 4 --experts 64x64x64,top2/8", "moe 64x64x64,top2/8 --ep 4"),
        ("--op gemv:rows=2,columns=2 --dtype fp16", "op gemv --shape rows=2,columns=2 --dtype fp16"),
        ("--graph a.jsonl", "graph a.jsonl"),
    ],
)
def test_options_without_a_kind_of_work_are_answered_with_the_command_to_type(capsys, typed, suggested):
    with pytest.raises(SystemExit) as left:
        cli.main(["simulate", *shlex.split(typed)])
    printed = capsys.readouterr()
    assert (left.value.code, printed.out) == (2, "")
    assert printed.err.endswith(f"run: weft simulate {suggested}\n")
