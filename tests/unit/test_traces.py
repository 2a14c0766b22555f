"""Traces of PyTorch's profiler: what kernels compute, what they wait for, how long they would take elsewhere."""

import gzip
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from kineto import Recorded

import weft
from weft.cli.main import main
from weft.core.errors import ConfigError, InputError
from weft.graph import Attention, Call, Collective, Convolution, Gemm
from weft.torch.traces import events as reading
from weft.torch.traces import read_trace
from weft.torch.traces.operators import RecordedCall, operator_of

SAMPLES = Path(__file__).parents[1] / "traces"
MM = [[1024, 256], [256, 512]]


def ops(trace):
    return [trace.op(piece) for piece in range(len(trace))]


def one(name, shapes, types=None, values=()):
    return operator_of(
        RecordedCall(name, shapes, types or tuple("float" if shape else "Scalar" for shape in shapes), values)
    )


def test_a_kernel_is_what_the_innermost_call_with_shapes_around_its_launch_computes(tmp_path):
    made = Recorded()
    made.call("aten::linear", 0, 50, [[1024, 256], [512, 256], [512]])
    made.call("aten::addmm", 5, 30, [[512], *MM])
    made.call("aten::empty", 6, 2)
    made.kernel("ampere_sgemm", 10, 100, 20)
    made.kernel("vectorized_elementwise_kernel", 60, 130, 20)
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert ops(trace) == [Gemm(1024, 512, 256, "fp32"), None]
    assert trace.found.products == trace.found.products_mapped == 1


def test_calls_of_other_threads_do_not_explain_a_launch(tmp_path):
    made = Recorded()
    made.call("aten::mm", 0, 50, MM, tid=2)
    made.kernel("ampere_sgemm", 10, 100, 20, tid=1)
    assert ops(read_trace(made.write(tmp_path / "t.json"))) == [None]


@pytest.mark.parametrize(
    ("name", "shapes", "values", "op"),
    [
        ("aten::mm", ((8, 16), (16, 32)), (), Gemm(8, 32, 16, "fp32")),
        ("aten::baddbmm", ((4, 8, 32), (4, 8, 16), (4, 16, 32)), (), Gemm(8, 32, 16, "fp32", 4)),
        ("aten::linear", ((2, 8, 16), (32, 16), (32,)), (), Gemm(16, 32, 16, "fp32")),
        (
            "aten::cudnn_convolution",
            ((16, 3, 32, 32), (8, 3, 5, 5), (), (), (), (), (), (), ()),
            ("", "", "[2, 2]", "[1, 1]", "[1, 1]", "1", "False", "True", "True"),
            Convolution(16, 3, 8, 32, 32, 5, 1, 2, "fp32", 5, 1, 2),
        ),
        (
            "aten::_scaled_dot_product_flash_attention",
            ((2, 8, 128, 64), (2, 2, 256, 64), (2, 2, 256, 64), (), ()),
            ("", "", "", "0.", "True"),
            Attention(2, 8, 128, 256, 64, kv_heads=2, causal=1, dtype="fp32"),
        ),
        (
            "aten::_cudnn_attention_forward",
            ((2, 8, 128, 64), (2, 2, 128, 64), (2, 2, 128, 64), *[()] * 10),
            (*[""] * 6, "128", "128", "True", "0.", "True", "False", "0.125"),
            Attention(2, 8, 128, 128, 64, kv_heads=2, causal=1, dtype="fp32"),
        ),
        (
            "aten::_cudnn_attention_backward",
            ((2, 8, 128, 64), (2, 8, 128, 64), (2, 2, 128, 64), (2, 2, 128, 64), *[()] * 12),
            (*[""] * 11, "128", "128", "0.", "True", "0.125"),
            Attention(2, 8, 128, 128, 64, kv_heads=2, causal=1, dtype="fp32", gradient=True),
        ),
        (
            "aten::_flash_attention_forward",
            ((2, 128, 8, 64), (2, 256, 2, 64), (2, 256, 2, 64), *[()] * 7),
            (*[""] * 5, "128", "256", "0.", "False", "False"),
            Attention(2, 8, 128, 256, 64, kv_heads=2, causal=0, dtype="fp32"),
        ),
    ],
)
def test_products_convolutions_and_attention_are_known_by_their_shapes(name, shapes, values, op):
    assert one(name, shapes, values=values) == op


def test_both_gradients_of_a_convolution_are_two_products():
    values = ("", "", "", "[0]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]")
    shapes = ((16, 8, 32, 32), (16, 3, 32, 32), (8, 3, 3, 3), *[()] * 8)
    found = one("aten::convolution_backward", shapes, values=values)
    forward = Convolution(16, 3, 8, 32, 32, dtype="fp32")
    assert found.flops == pytest.approx(2 * forward.flops, rel=0.02)


@pytest.mark.parametrize(
    ("name", "shapes", "least"),
    [
        ("aten::add", ((1024, 64), (1024, 64), ()), 3 * 4 * 65536),
        ("aten::copy_", ((1024, 64), (1024, 64), ()), 2 * 4 * 65536),
        ("aten::zero_", ((1024, 64),), 4 * 65536),
        ("aten::sum", ((1024, 64), (), ()), 4 * 65536),
        ("aten::embedding", ((50000, 64), (128,), (), (), ()), 4 * 128 + 2 * 4 * 128 * 64),
    ],
)
def test_other_calls_move_their_tensors(name, shapes, least):
    found = one(name, shapes)
    assert isinstance(found, Call)
    assert found.least_bytes == least


def test_calls_of_other_libraries_and_compiled_regions_stay_unmapped():
    for name in ("fbgemm::split_embedding", "CompiledFunctionBackward", "flash_attn::_flash_attn_forward"):
        assert one(name, ((1024, 64), (1024, 64))) is None


def test_a_product_in_tf32_is_one_where_the_kernel_says_so(tmp_path):
    made = Recorded()
    made.gemm(0)
    made.gemm(100, kernel="cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4")
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert [op.dtype for op in ops(trace)] == ["fp32", "tf32"]


def test_collectives_are_known_by_nccls_metadata_only(tmp_path):
    made = Recorded()
    sizes = {"Collective name": "_allgather_base", "In msg nelems": 256, "Out msg nelems": 2048, "Group size": 8,
             "dtype": "BFloat16"}  # fmt: skip
    made.kernel("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", 0, 10, 5, stream=20, **sizes)
    made.call("c10d::_allgather_base_", 20, 10, [[256], [2048]])
    made.kernel("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", 22, 30, 5, stream=20)
    assert ops(read_trace(made.write(tmp_path / "t.json"))) == [Collective("all_gather", 4096, 8, "bf16"), None]


def waits_on_event(made, record_at=31, wait_at=40, start=60):
    made.gemm(0)
    record = made.host("cudaEventRecord", record_at)
    wait = made.host("cudaStreamWaitEvent", wait_at)
    made.event("cuda_sync", "Stream Wait Event", wait_at, 0, tid=20, device=0, stream=20, wait_on_stream=7,
               wait_on_cuda_event_record_corr_id=record, correlation=wait)  # fmt: skip
    made.kernel("add", wait_at + 2, start, 10, stream=20)
    return made


def test_a_recorded_wait_for_an_event_joins_two_streams(tmp_path):
    trace = read_trace(waits_on_event(Recorded()).write(tmp_path / "t.json"))
    assert trace.edges.tolist() == [[0, 1]]
    assert (trace.found.recorded, trace.found.inferred, trace.found.dropped) == (1, 0, 0)
    slower = trace.seconds * [3.0, 1.0]
    assert trace.replay(slower) == pytest.approx(70e-6)


def test_a_wait_that_contradicts_the_clock_is_dropped_and_counted(tmp_path):
    trace = read_trace(waits_on_event(Recorded(), start=20).write(tmp_path / "t.json"))
    assert not len(trace.edges)
    assert trace.found.dropped == 1


def test_without_records_of_events_collectives_wait_in_the_order_of_launches(tmp_path):
    made = Recorded()
    made.gemm(0)
    made.kernel("ncclKernel_AllReduce", 20, 40, 50, stream=20)
    made.host("cudaStreamWaitEvent", 25)
    made.kernel("add", 30, 95, 5)
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert trace.edges.tolist() == [[0, 1], [1, 2]]
    assert trace.found.inferred == 2


@pytest.mark.parametrize("seed", range(8))
def test_replay_with_the_measured_times_takes_the_measured_time(tmp_path, seed):
    """Kernels on three streams with random gaps, joined by waits for events that were all recorded in time."""
    draw, made = random.Random(seed), Recorded()
    free, now = dict.fromkeys((7, 20, 24), 0.0), 0.0
    for _ in range(60):
        stream, now = draw.choice([*free]), now + draw.uniform(1, 20)
        start = max(free[stream], now + 3) + draw.choice([0, draw.uniform(0, 30)])
        free[stream] = start + draw.uniform(1, 40)
        made.kernel(draw.choice(["add", "ncclKernel_AllReduce"]), now, start, free[stream] - start, stream=stream)
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert trace.replay() == pytest.approx(trace.makespan, rel=1e-9)
    assert trace.busy <= trace.makespan * (1 + 1e-9)


def test_exposed_communication_is_what_no_compute_on_any_stream_covers(tmp_path):
    """Two collectives of 100 and 60 us overlap for 20; kernels cover 50 of the 140, a copy to the host none of it."""
    made = Recorded()
    made.kernel("ampere_sgemm", 0, 100, 30)  # covers 100 to 130 of the all-gather
    made.kernel("ncclDevKernel_AllGather_RING_LL", 1, 100, 100, stream=20)
    made.kernel("Memcpy DtoH (Device -> Pinned)", 2, 140, 20, stream=30, cat="gpu_memcpy")
    made.kernel("Memcpy DtoD (Device -> Device)", 3, 170, 10, cat="gpu_memcpy")
    made.kernel("ncclDevKernel_ReduceScatter_RING_LL", 4, 180, 60, stream=24)
    made.kernel("add", 5, 190, 5, stream=7)
    made.kernel("mul", 6, 193, 7, stream=8)  # with the last one, covers 190 to 200
    trace = read_trace(made.write(tmp_path / "t.json"))
    assert trace.seconds[trace.communicates].sum() == pytest.approx(160e-6)
    assert trace.communication == pytest.approx(140e-6)
    assert trace.exposed == pytest.approx(90e-6)
    assert "Exposed communication: 90 us" in str(trace)
    assert trace.to_dict()["exposed_s"] == trace.exposed


def test_copies_between_gpus_are_communication_and_a_trace_without_any_says_nothing(tmp_path):
    made = Recorded()
    made.kernel("add", 0, 10, 20)
    assert "communication" not in str(read_trace(made.write(tmp_path / "alone.json")))
    made.kernel("Memcpy PtoP (Device -> Device)", 1, 20, 30, stream=9, cat="gpu_memcpy")
    assert read_trace(made.write(tmp_path / "t.json")).exposed == pytest.approx(20e-6)


def test_what_is_not_known_keeps_its_measured_time(tmp_path):
    made = Recorded()
    made.gemm(0)
    made.kernel("my_kernel", 8, 30, 500)
    answer = weft.compare_trace(read_trace(made.write(tmp_path / "t.json")), "a100-sxm")
    assert answer.unmapped == pytest.approx(500e-6)
    (row,) = answer.rows
    assert row.measured == pytest.approx(20e-6)
    assert answer.ahead == pytest.approx(row.predicted + 500e-6)
    assert answer.seconds >= answer.ahead


def test_the_time_of_a_call_is_spread_over_its_kernels(tmp_path):
    made = Recorded()
    made.call("aten::mm", 0, 50, MM)
    made.kernel("ampere_sgemm_splitK", 1, 60, 30)
    made.kernel("splitKreduce_kernel", 2, 90, 10)
    answer = weft.compare_trace(read_trace(made.write(tmp_path / "t.json")), "a100-sxm")
    (row,) = answer.rows
    assert (row.calls, row.kernels) == (1, 2)
    assert row.measured == pytest.approx(40e-6)
    assert answer.ahead == pytest.approx(row.predicted)


def test_a_collective_is_timed_over_the_gpus_that_it_was_recorded_on(tmp_path):
    made = Recorded()
    sizes = {"Collective name": "allreduce", "In msg nelems": 1 << 24, "Group size": 4, "dtype": "Float"}
    made.kernel("ncclKernel_AllReduce", 0, 10, 5000, stream=20, **sizes)
    (row,) = weft.compare_trace(read_trace(made.write(tmp_path / "t.json")), "h100-sxm").rows
    op = Collective("all_reduce", 1 << 26, 4, "fp32")
    assert row.predicted == pytest.approx(weft.estimate(op, "4xh100-sxm").seconds, rel=0.05)


def test_a_trace_of_any_size_passes_through_a_small_window(tmp_path, monkeypatch):
    path = waits_on_event(Recorded(deviceProperties=[{"name": "NVIDIA A100"}])).write(tmp_path / "t.json.gz")
    whole = read_trace(path)
    monkeypatch.setattr(reading, "CHUNK", 7)
    piecewise = read_trace(path)
    assert piecewise.device == whole.device == "NVIDIA A100"
    assert np.array_equal(piecewise.start, whole.start)
    assert piecewise.found == whole.found


def test_large_integers_and_broken_text_do_no_harm(tmp_path):
    made = Recorded()
    made.gemm(0)
    text = json.dumps({"traceEvents": made.events}).replace("cudaLaunchKernel", "cuda\\ud800Launch")
    text = text.replace('"correlation": 1', '"correlation": 1, "address": 18446744073709551615999')
    (tmp_path / "t.json").write_bytes(text.encode().replace(b"ampere", b"am\xff\xfepere"))
    assert ops(read_trace(tmp_path / "t.json")) == [Gemm(1024, 512, 256, "fp32")]


def test_a_list_of_events_without_a_head_is_a_trace_too(tmp_path):
    made = Recorded()
    made.gemm(0)
    (tmp_path / "t.json").write_text(json.dumps(made.events))
    assert len(read_trace(tmp_path / "t.json")) == 1


def _cut(path, made):
    path.write_bytes(json.dumps({"traceEvents": made.events}).encode()[:-40])


def _cut_packed(path, made):
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": made.events}).encode())[:-30])


@pytest.mark.parametrize(
    ("write", "error", "words"),
    [
        (_cut, ConfigError, "cut off"),
        (_cut_packed, ConfigError, "cannot be read to its end"),
        (lambda path, made: path.write_text('{"a": 1}'), ConfigError, "it has no traceEvents"),
        (lambda path, made: path.write_text("graph"), ConfigError, "it begins with neither"),
        (lambda path, made: path.write_text('{"traceEvents": []}'), InputError, "0 events and none on a GPU; profile"),
    ],
)
def test_what_is_no_whole_trace_is_refused_in_one_sentence(tmp_path, write, error, words):
    made = Recorded()
    made.gemm(0)
    write(tmp_path / "t.json", made)
    with pytest.raises(error, match=words):
        read_trace(tmp_path / "t.json")


@pytest.mark.parametrize(
    "fields",
    [
        {"ts": None},
        {"ts": float("nan")},
        {"ts": "now"},
        {"ts": []},
        {"ts": 1e300},
        {"dur": float("inf")},
        {"dur": -1},
        {"args": 1},
        {"tid": [], "args": {}},
        {"args": {"correlation": 2**64}},
        {"args": {"correlation": float("inf")}},
    ],
)
def test_an_event_with_a_field_of_another_type_is_named(tmp_path, fields):
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0, "tid": 7, "args": {"correlation": 1}}
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [event, event | fields]}))
    with pytest.raises(ConfigError, match="event 2 of the trace is not as the profiler writes it"):
        read_trace(tmp_path / "t.json")


def test_types_that_are_no_list_leave_a_call_unknown(tmp_path):
    made = Recorded()
    made.call("aten::mm", 0, 50, MM)
    made.kernel("ampere_sgemm", 10, 100, 20)
    for event in made.events:
        if event["cat"] == "cpu_op":
            event["args"]["Input type"] = True
    assert ops(read_trace(made.write(tmp_path / "t.json"))) == [None]


@pytest.mark.parametrize("read", [read_trace, weft.read_execution_trace, weft.read_graph])
def test_a_pipe_without_a_writer_is_refused_at_once(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is a folder, a pipe or a device; save its content to a file"):
        read(tmp_path / "pipe")


def test_a_long_value_is_given_up_after_reading_it_a_few_times(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "CHUNK", 16)
    monkeypatch.setattr(reading, "LONGEST", 1 << 14)
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [{"name": "' + b"a" * (1 << 20)))
    with pytest.raises(ConfigError, match="it holds what is no event"):
        read_trace(tmp_path / "t.json.gz")


def test_a_file_that_is_not_there_is_named():
    for read in (read_trace, weft.read_execution_trace, weft.read_graph):
        with pytest.raises(InputError, match=r"'gone\.json' does not exist"):
            read("gone.json")


def test_every_kernel_of_a_public_training_step_on_an_amd_gpu_is_found():
    trace = read_trace(SAMPLES / "mi250_train.json.gz")
    found = trace.found
    assert found.in_calls == found.with_shapes == found.kernels == 14
    assert found.products_mapped == found.products == 2
    assert trace.replay() == pytest.approx(trace.makespan, rel=1e-3)


def test_a_whole_step_on_an_h100_takes_what_the_closed_forms_say():
    """4 layers of Llama-3-8B, eager: all products and attentions are known, and their sum is met."""
    trace = read_trace(SAMPLES / "h100_llama.json.gz")
    assert trace.found.products_mapped == trace.found.products == 88
    found = weft.compare_trace(trace, "h100-sxm")
    assert found.predicted == pytest.approx(found.measured, rel=0.05)
    assert found.to_dict()["system"] == "dgx-h100"


def test_an_attention_that_reads_a_mask_is_what_a_compiled_step_loses_most_in():
    found = weft.compare_trace(read_trace(SAMPLES / "h100_llama_compiled.json.gz"), "h100-sxm")
    worst = max(found.rows, key=lambda row: row.lost)
    assert worst.phase == "backward"
    assert worst.bound == "compute"
    assert worst.measured / worst.predicted > 1.5


def test_waits_of_a_public_trace_with_records_of_events_are_read():
    trace = read_trace(SAMPLES / "event_sync.json.gz")
    assert trace.found.recorded == 1
    assert trace.replay() == pytest.approx(trace.makespan, rel=1e-3)


def test_a_trace_is_read_as_a_graph_that_a_gpu_can_be_asked_about(tmp_path):
    made = Recorded()
    made.gemm(0)
    made.kernel("my_kernel", 8, 30, 500)
    graph = weft.read_graph(made.write(tmp_path / "t.json.gz"))
    assert [str(node.op) for node in graph] == ["1024 x 512 x 256 fp32", "my_kernel"]
    answer = weft.step(graph, "h100-sxm")
    assert any("1 of 2 pieces of work are unmapped and keep" in note for note in answer.notes)
    assert answer.seconds == pytest.approx(
        weft.estimate(Gemm(1024, 512, 256, "fp32"), "h100-sxm").seconds + 500e-6, rel=0.02
    )
    weft.write_graph(graph, tmp_path / "graph.jsonl")
    assert weft.read_graph(tmp_path / "graph.jsonl") == graph


@pytest.mark.parametrize("system", ["h100-sxm", "mi300x"])
@pytest.mark.parametrize("name", ["event_sync", "h100_llama", "h100_llama_compiled", "mi250_train"])
def test_a_step_of_a_traces_graph_takes_what_the_comparison_says(name, system):
    """The comparison with a host that is always ahead of the GPU, as the step assumes."""
    trace = read_trace(SAMPLES / f"{name}.json.gz")
    compared = weft.compare_trace(trace, system)
    assert weft.step(trace.graph, system).seconds == pytest.approx(compared.ahead, rel=0.02)


def test_the_graph_of_a_trace_counts_each_call_once():
    """The gradient of attention runs as five kernels of cuDNN a call, in four layers."""
    trace = read_trace(SAMPLES / "h100_llama.json.gz")
    attentions = [node for node in trace.graph if isinstance(node.op, Attention) and node.op.gradient]
    (group,) = [one for one in trace.groups if isinstance(one.op, Attention) and one.op.gradient]
    assert (group.kernels, len(attentions)) == (20, 4)


def test_a_call_whose_kernels_run_on_two_streams_is_counted_once_and_its_waits_remain(tmp_path):
    made = Recorded()
    made.call("aten::mm", 0, 50, MM)
    made.kernel("ampere_sgemm", 10, 100, 20)
    record = made.host("cudaEventRecord", 12)
    wait = made.host("cudaStreamWaitEvent", 14)
    made.event("cuda_sync", "Stream Wait Event", 14, 0, tid=20, device=0, stream=20, wait_on_stream=7,
               wait_on_cuda_event_record_corr_id=record, correlation=wait)  # fmt: skip
    made.kernel("splitKreduce_kernel", 16, 125, 10, stream=20)
    made.kernel("add", 60, 140, 30, stream=20)
    trace = read_trace(made.write(tmp_path / "t.json"))
    graph = trace.graph
    assert [(str(node.op), node.after) for node in graph] == [
        ("1024 x 512 x 256 fp32", ()), ("splitKreduce_kernel", ("work0",)), ("add", ())
    ]  # fmt: skip
    compared = weft.compare_trace(trace, "a100-sxm")
    assert weft.step(graph, "a100-sxm").seconds == pytest.approx(compared.ahead, rel=0.02)


def test_categories_of_older_pytorch_are_read_as_todays(tmp_path):
    """PyTorch 1.8 to 1.11 wrote Kernel, Memcpy, Runtime and Operator."""
    older = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime", "cpu_op": "Operator"}
    made = Recorded()
    made.gemm(0)
    made.event("gpu_memcpy", "Memcpy HtoD", 200, 5, tid=7, device=0, stream=7, correlation=99)
    today = read_trace(made.write(tmp_path / "today.json"))
    for event in made.events:
        event["cat"] = older.get(event["cat"], event["cat"])
    old = read_trace(made.write(tmp_path / "old.json"))
    assert old.found == today.found
    assert (old.found.kernels, old.found.copies, ops(old)[0]) == (1, 1, Gemm(1024, 512, 256, "fp32"))


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: path.write_text('{"schema": "1.0.1", "pid": 1, "nodes": []}'), "this is an execution trace"),
        (
            lambda path: weft.write_graph(weft.Graph((weft.Node(weft.gemm(64, 64, 64), "a"),)), path),
            "a graph that Weft",
        ),
        (lambda path: path.write_text('{"model_type": "llama", "hidden_size": 64}'), "the configuration of a model"),
    ],
)
def test_a_file_that_holds_something_else_is_named(tmp_path, write, words):
    write(tmp_path / "t.json")
    with pytest.raises(ConfigError, match=f"{words}.*weft step FILE"):
        read_trace(tmp_path / "t.json")


def test_a_short_trace_is_shown_in_its_own_unit(tmp_path, capsys):
    made = Recorded()
    made.kernel("add", 0, 10, 2)
    assert "2 us was recorded" in run(capsys, "import", made.write(tmp_path / "t.json"))


def run(capsys, *arguments):
    with pytest.raises(SystemExit):
        main([str(one) for one in arguments])
    return capsys.readouterr().out


def test_import_shows_the_trace_and_the_comparison(tmp_path, capsys):
    made = Recorded(deviceProperties=[{"name": "NVIDIA A100-SXM4-80GB"}])
    for start in range(0, 400, 100):
        made.gemm(start)
    path = made.write(tmp_path / "t.json")
    assert "the GPU worked 25% of the time" in run(capsys, "import", path)
    told = run(capsys, "import", path, "--compare", "a100-sxm", "--json", "-")
    assert json.loads(told)["rows"][0]["calls"] == 4
    run(capsys, "import", path, "--compare", "a100-sxm", "--out", tmp_path / "out")
    assert "Where is the trace slower than NVIDIA A100" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("name", ["g.jsonl", "g.jsonl.gz", "g.graph", "g"])
def test_a_graph_that_import_wrote_is_timed_by_step(tmp_path, capsys, name):
    made = Recorded()
    made.gemm(0)
    run(capsys, "import", made.write(tmp_path / "t.json"), "--graph", tmp_path / name)
    answer = json.loads(run(capsys, "step", tmp_path / name, "--system", "a100-sxm", "--json", "-"))
    assert answer["seconds"] > 0


@pytest.mark.parametrize("command", ["step", "memory", "decode"])
def test_a_trace_instead_of_a_model_is_recognised_by_its_content(tmp_path, capsys, command):
    made = Recorded()
    made.gemm(0)
    with pytest.raises(SystemExit):
        main([command, str(made.write(tmp_path / "model.json")), "--system", "8xh100"])
    told = capsys.readouterr().err
    assert "this is a trace of PyTorch's profiler, not a model; 'weft import TRACE --graph step.jsonl.gz'" in told


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_early(tmp_path):
    bomb = gzip.compress(b'{"traceEvents": [' + b" " * (80 << 20))
    (tmp_path / "t.json.gz").write_bytes(bomb)
    for read in (read_trace, weft.read_graph):
        with pytest.raises(ConfigError, match="unpacks to more than 64 MiB, over 100 times its size"):
            read(tmp_path / "t.json.gz")
