"""Interference: what the two streams of a memory channel cost each other, as a run records it."""

import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import PLAIN
from machines import NS, MemoryBench, chiplets, finish, interpret, layer, program

import weft
from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.graph import Collective, Gemm, concurrent
from weft.overlaps.arbiters import COMPUTE_FIRST, POLICIES
from weft.simulate import alone
from weft.simulate.result import Percentiles, Timeline
from weft.simulate.result.interference import read_interference
from weft.simulate.result.metrics import stage_ends, stage_spreads
from weft.simulate.single import simulate
from weft.view.interference import bursts, interference_parts

WATCHED = RunOptions(interference=True)
COMPUTE, COMMUNICATION = y.COMPUTE_STREAM, y.COMMUNICATION_STREAM


@pytest.fixture(scope="module")
def runs():
    """A sub-layer whose GEMM has several stages, without MCA and with it."""
    graph = layer(m=2048, n=2048, k=512)
    return {name: simulate(graph, "t3-paper", name, WATCHED) for name in ("t3", "t3-mca")}


def distributions(one):
    """All distributions of a stream's figures."""
    return [getattr(one, each.name) for each in fields(one) if isinstance(getattr(one, each.name), Percentiles)]


def ahead(requests, served):
    """Of each request, the bytes of the other stream chosen from its arrival on, and before it was chosen itself."""
    order = sorted(range(len(requests)), key=lambda n: served[n])
    found = []
    for n, (_, at, _, _, _, stream) in enumerate(requests):
        before = order[: order.index(n)]
        found.append(sum(requests[k][4] for k in before if requests[k][5] != stream and served[k] >= at))
    return found


def check_channel(requests, policy, in_advance):
    """A channel under some requests records what their arrivals and services say."""
    bench = MemoryBench(interference=True)
    for request in requests:
        bench.request(*request)
    served = [chosen for chosen, _, _ in bench.run(POLICIES[policy], ahead=in_advance)]
    bytes_ahead = ahead(bench.requests, served)
    for stream in (COMPUTE, COMMUNICATION):
        own = [n for n, request in enumerate(bench.requests) if request[5] == stream]
        counted = bench.machine.stream[0, stream]
        assert counted[y.STREAM_REQUESTS] == len(own)
        assert counted[y.STREAM_BYTES] == sum(bench.requests[n][4] for n in own)
        assert counted[y.STREAM_AHEAD] == sum(bytes_ahead[n] for n in own)
        assert bench.machine.histogram[0, stream, y.HISTOGRAM_AHEAD, y.CLASSES] == max(
            (bytes_ahead[n] for n in own), default=0
        )
        assert counted[y.STREAM_DELAYING] <= bench.machine.stream[0, 1 - stream, y.STREAM_BYTES]
    return bench


@pytest.mark.parametrize("in_advance", [False, True])
@pytest.mark.parametrize("policy", ["round-robin", "compute-first", "communication-first"])
def test_four_requests_are_delayed_by_what_is_served_between_their_arrival_and_their_service(policy, in_advance):
    requests = [
        (y.READ, 0, 0, 0, 512, COMPUTE),
        (y.UPDATE, 1 * NS, 1, 0, 256, COMMUNICATION),
        (y.READ, 2 * NS, 2, 0, 512, COMPUTE),
        (y.READ, 3 * NS, 3, 0, 128, COMMUNICATION),
    ]
    bench = check_channel(requests, policy, in_advance)
    assert bench.machine.stream[0, COMMUNICATION, y.STREAM_AHEAD] > 0


REQUEST = st.tuples(
    st.sampled_from((y.READ, y.WRITE, y.UPDATE)), st.integers(0, 60), st.integers(0, 7), st.integers(0, 2),
    st.sampled_from((32, 64, 512)), st.sampled_from((COMPUTE, COMMUNICATION)),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(REQUEST, min_size=2, max_size=24), st.sampled_from(sorted(POLICIES)), st.booleans())
def test_any_requests_are_delayed_by_what_is_served_between_arrival_and_service(requests, policy, in_advance):
    in_order = sorted(((kind, at * NS, *rest) for kind, at, *rest in requests), key=lambda request: request[1])
    check_channel(in_order, policy, in_advance)


def test_a_request_finds_what_arrived_before_it_and_still_waits():
    bench = MemoryBench(interference=True)
    for _ in range(3):
        bench.request(y.READ, 0, 0, 0, 512, COMPUTE)
    bench.request(y.READ, 0, 1, 0, 512, COMMUNICATION)
    bench.run(ahead=True)
    found = bench.machine.histogram[0, :, :, y.CLASSES]
    assert found[COMPUTE, y.HISTOGRAM_OWN] == 2 * 512
    assert found[COMPUTE, y.HISTOGRAM_OTHER] == 0
    assert found[COMMUNICATION, y.HISTOGRAM_OTHER] == 3 * 512
    assert not found[:, y.HISTOGRAM_QUEUE].any()


def test_a_lone_gemm_is_delayed_by_no_one():
    run = simulate(alone(Gemm(1024, 1024, 1024, "fp16")), "t3-paper", "streams", WATCHED)
    compute, communication = (run.interference.stream(name) for name in ("compute", "communication"))
    assert communication.requests == communication.served_bytes == 0
    assert compute.ahead_sum_bytes == compute.delaying_bytes == 0
    assert compute.ahead_bytes.max == compute.other_waiting_bytes.max == 0
    assert run.interference.mean_delay(compute) == run.interference.delay_of(compute) == 0
    assert compute.load_latency_s.p50 >= run.gpu.cache.latency


@pytest.mark.parametrize(
    ("graph", "machine", "overlap"),
    [
        (layer(), "t3-paper", "sequential"),
        (layer(), "t3-paper", "t3-mca"),
        (concurrent(Gemm(512, 512, 512, "bf16"), Collective("all_gather", 1 << 20, 8), 1, 2), chiplets(), "streams"),
    ],
)
def test_recording_changes_nothing(graph, machine, overlap):
    one, other = (simulate(graph, machine, overlap, RunOptions(interference=on)) for on in (False, True))
    assert one.interference is None
    assert other.interference is not None
    for name in ("seconds", "durations", "traffic", "levels", "counters", "spans", "chunks", "events", "requests"):
        assert getattr(one, name) == getattr(other, name), name


def test_percentiles_are_ordered(runs):
    for run in runs.values():
        for one in run.interference.streams:
            for spread in distributions(one):
                assert 0 <= spread.p50 <= spread.p90 <= spread.p99 <= spread.max
                assert spread.mean <= spread.max


def test_a_stream_is_delayed_by_no_more_than_the_other_was_served(runs):
    for run in runs.values():
        compute, communication = (run.interference.stream(name) for name in ("compute", "communication"))
        for one, other in ((compute, communication), (communication, compute)):
            assert 0 < one.delaying_bytes <= other.served_bytes
            assert one.ahead_bytes.max <= one.ahead_sum_bytes
            assert one.ahead_bytes.max <= other.served_bytes
        assert compute.served_bytes + communication.served_bytes == run.total_bytes


def test_arbitration_that_prefers_compute_delays_compute_less(runs):
    plain, preferred = (runs[name].interference for name in ("t3", "t3-mca"))
    assert preferred.mean_delay(preferred.stream("compute")) < plain.mean_delay(plain.stream("compute"))


def test_latencies_over_time_lie_within_the_whole_runs(runs):
    for run in runs.values():
        met, bins = run.interference, run.series.link.shape[1]
        for name in ("compute", "communication"):
            mean, p99 = met.load_mean_fs[name], met.load_p99_fs[name]
            assert mean.shape == p99.shape == (1, bins)
            assert ((mean == 0) == (p99 == 0)).all()
            assert p99.max() * 1e-15 <= met.stream(name).load_latency_s.max * 1.03


def test_misses_of_operands_are_counted_by_chunk(runs):
    run = runs["t3"]
    assert len(run.interference.misses) == run.graph.ranks
    assert 0 < sum(run.interference.misses) <= run.counters["cache_misses"]


def test_every_value_is_within_a_class_of_a_few_percent():
    values = np.unique(np.geomspace(1, 1e7, 4000).astype(int))
    machine = MemoryBench(interference=True).machine
    for value in values.tolist():
        machine.histogram[:] = 0
        PLAIN._classify(machine.histogram, 0, 0, y.HISTOGRAM_AHEAD, value, y.UNIT_BYTES)
        (found,) = (one for one in read_interference(machine, 1).streams if one.stream == "compute")
        assert found.ahead_bytes.p50 == pytest.approx(value, rel=0.022)
        assert found.ahead_bytes.max == value


def test_several_gpus_are_recorded_apart():
    run = simulate(layer(), "t3-paper", "t3-mca", RunOptions(interference=True, mode="explicit"))
    assert [one.gpu for one in run.interference.streams] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(one.requests > 0 for one in run.interference.streams)
    assert "GPU 3" in str(interference_parts([run])[0].rows)


def test_plain_python_records_what_compiled_code_does():
    built = program(layer(m=256, n=256, k=64, tp=2), "t3")
    compiled = finish(built, COMPUTE_FIRST, interference=True)
    plain = interpret(built, COMPUTE_FIRST, interference=True)
    for name in ("stream", "histogram", "load_series", "misses"):
        assert np.array_equal(getattr(compiled, name), getattr(plain, name)), name


def test_ends_of_a_stages_workgroups_are_as_far_apart_as_the_residency_says(runs):
    for run in runs.values():
        ends, spreads = stage_ends(run), stage_spreads(run)
        sizes = [stage.workgroups for stage in run.stages if stage.kernel == run.spans[0].kernel]
        assert [len(each) for each in ends] == sizes
        assert [max(each) for each in ends] == [s.end_fs for s in run.stages if s.kernel == run.spans[0].kernel]
        assert spreads == pytest.approx([float(np.std(each)) * 1e-15 for each in ends])


def test_a_saved_timeline_keeps_its_interference(runs, tmp_path):
    run = runs["t3-mca"]
    again = Timeline.load(run.save(tmp_path / "run.json"))
    assert again.interference.to_dict() == run.interference.to_dict()
    assert np.array_equal(again.interference.load_p99_fs["compute"], run.interference.load_p99_fs["compute"])


def test_plain_data_holds_it_only_where_it_was_recorded(runs):
    assert len(json.loads(json.dumps(runs["t3"].to_dict()))["interference"]["streams"]) == 2
    assert "interference" not in simulate(layer(), "t3-paper", "t3").to_dict()


def test_tables_are_shown_only_where_it_was_recorded(runs):
    assert interference_parts([simulate(layer(), "t3-paper", "t3")]) == []
    latencies, queues, delays, *said = interference_parts(list(runs.values()))
    assert {row[0] for table in (latencies, queues, delays) for row in table.rows} == set(runs)
    assert len(said) == len(runs)


# -- the figure


def test_the_figure_shows_the_bytes_of_the_series_around_a_stage(runs):
    shown = bursts(runs, stage=0)
    for at, run in enumerate(runs.values()):
        table = shown.data[f"burst{at}_bytes"]
        first = int(stage_ends(run)[0].min()) * 1e-9
        begin, end = table.rows[0][0] + first, table.rows[-1][1] + first
        width = run.series.bin_fs * 1e-9
        kept = slice(round(begin / width), round(end / width))
        shown_mb = sum(sum(value for value in row[2:]) * (row[1] - row[0]) for row in table.rows) / 1e3
        moved_mb = sum(bins[0][kept].sum() for bins in run.series.traffic.values()) / 1e6
        assert shown_mb == pytest.approx(moved_mb, rel=1e-3)


def test_the_figure_marks_every_workgroup_of_the_stage(runs):
    shown = bursts(runs, stage=0)
    for at, run in enumerate(runs.values()):
        times = shown.data[f"burst{at}_latency_ticks"].column("time_us")
        assert len(times) == run.stages[0].workgroups
        assert min(times) == 0


def test_the_figure_refuses_runs_without_interference_and_stages_that_there_are_not(runs):
    with pytest.raises(InputError, match="interference=True"):
        bursts({"t3": simulate(layer(), "t3-paper", "t3")})
    with pytest.raises(InputError, match="has stages 0 to"):
        bursts(runs, stage=99)


def test_only_true_or_false_switches_it():
    with pytest.raises(InputError, match="interference is 1; give True or False"):
        weft.RunOptions(interference=1)
