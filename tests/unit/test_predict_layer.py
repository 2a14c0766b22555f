"""A layer operator by operator: the right work, each operator's own model, and totals."""

import numpy as np
import pytest
from estimates import collective, gemm, time_of

from weft import hardware
from weft.core.errors import InputError, UnknownNameError
from weft.core.options import RunOptions
from weft.estimate import BenchmarkProtocol, estimate
from weft.graph import Copy, Gemm, Graph, Node, Opaque, Send
from weft.models.parallel import layer

A100 = hardware.gpu("a100-sxm-80gb")


def graph(**changes):
    return layer("gpt-3", **{"tp": 4, "batch": 8, "sequence": 2048, "attention": "batched"} | changes)


def gpt3(clock="short", timed="device", **changes):
    return estimate(graph(**changes), "hgx-a100-4", RunOptions(clock), BenchmarkProtocol(timed=timed))


def test_a_layer_is_its_operators_in_the_order_in_which_they_run():
    found = gpt3()
    names = list(found.operators)
    assert names[:6] == ["LayerNorm_MHA", "Q_K_V", "Q_mul_K", "Softmax", "A_mul_V", "Wo_proj"]
    assert names[6:] == ["AllReduce_MHA", "LayerNorm_FFN", "W1_proj", "GeLU", "W2_proj", "AllReduce_FFN"]
    assert found.seconds == pytest.approx(sum(entry.seconds for entry in found.operators.values()))
    assert sum(found.parts.values()) == pytest.approx(found.seconds)


def test_each_operator_is_the_share_of_one_gpu_by_its_own_model():
    work, entries = graph(), gpt3().operators
    tokens, hidden = 8 * 2048, 12288
    assert str(work["Q_K_V"].op) == f"{tokens} x {3 * hidden // 4} x {hidden} bf16"
    assert entries["Wo_proj"].seconds == gemm(tokens, hidden, hidden // 4, "bf16", A100).seconds
    assert str(work["W1_proj"].op) == f"{tokens} x {hidden} x {hidden} bf16"
    assert str(work["Q_mul_K"].op) == "192 x 2048 x 2048 x 128 bf16"
    assert entries["Softmax"].seconds == time_of("softmax", A100, rows=192 * 2048, columns=2048).seconds
    reduced = collective("all_reduce", 2 * tokens * hidden, 4, "hgx-a100-4")
    assert entries["AllReduce_MHA"].seconds == reduced.seconds == entries["AllReduce_FFN"].seconds


def test_a_gpu_by_itself_reduces_nothing_and_more_gpus_take_less_time_each():
    alone = gpt3(tp=1).operators
    assert not any(name.startswith("AllReduce") for name in alone)
    shared = gpt3(tp=4).operators
    for name in ("Q_K_V", "Q_mul_K", "W1_proj", "GeLU"):
        assert 3.5 < alone[name].seconds / shared[name].seconds < 4.5, name
    assert alone["LayerNorm_MHA"].seconds == shared["LayerNorm_MHA"].seconds


def test_decoding_reads_weights_and_context_and_multiplies_little():
    entries = gpt3(phase="decode", sequence=3072).operators
    weights = 2 * 12288 * 12288
    assert weights / entries["W1_proj"].seconds > 0.6 * A100.memory.bandwidth
    keys = 2 * 192 * 3072 * 128
    assert keys / entries["Q_mul_K"].seconds > 0.5 * A100.memory.bandwidth
    assert gpt3(phase="decode", sequence=3072).seconds < 0.05 * gpt3().seconds


def test_fused_attention_replaces_its_three_kernels():
    fused = gpt3(attention="fused")
    assert {"Q_mul_K", "Softmax", "A_mul_V"} & set(fused.operators) == set()
    assert fused.seconds < gpt3().seconds


def test_heads_that_do_not_divide_leave_one_gpu_with_more():
    work = layer("t-nlg", tp=8, sequence=1024, attention="batched")
    assert str(work["Q_mul_K"].op) == "4 x 1024 x 1024 x 152 bf16"
    assert work.labels["heads"].startswith("28 heads do not divide by TP 8: the times are those of a GPU with 4")


def test_a_host_that_waits_for_each_operator_costs_most_where_operators_are_short():
    device, host = (gpt3(phase="decode", timed=timed).operators for timed in ("device", "host"))
    wait = A100.achieved.gemm_host
    short, long = host["GeLU"], host["W1_proj"]
    assert short.seconds == pytest.approx(device["GeLU"].seconds + wait - A100.compute.launch_latency)
    assert str(short.bound) == "launch"
    assert str(long.bound) == "memory"
    assert sum(short.parts.values()) == pytest.approx(short.seconds)
    assert host["AllReduce_MHA"].seconds == device["AllReduce_MHA"].seconds


def test_a_clock_that_is_held_speeds_up_what_computes_and_nothing_else():
    short, boost = gpt3().operators, gpt3(clock="boost").operators
    assert A100.achieved.matrix_fp16 < 0.94
    for name in ("Q_K_V", "W1_proj"):
        assert boost[name].seconds < 0.99 * short[name].seconds
    for name in ("LayerNorm_FFN", "GeLU", "AllReduce_MHA"):
        assert boost[name].seconds == short[name].seconds


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 0}, "TP is 0; it must be a whole number of at least 1"),
        ({"tp": 97}, "TP 97 cannot split gpt-3: it has 96 attention heads; choose at most 96"),
        ({"batch": 0}, "batch is 0"),
        ({"sequence": -1}, "sequence is -1"),
        ({"batch": 2**20, "sequence": 2**12}, "too many tokens; give at most 2147483647"),
    ],
)
def test_sizes_that_do_not_fit_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        graph(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "training"},
        {"attention": "flash"},
        {"dtype": "fp17"},
        {"timed": "abroad"},
        {"clock": "high"},
    ],
)
def test_unknown_choices_list_the_known(changes):
    with pytest.raises(UnknownNameError, match=r"unknown .*; known: "):
        gpt3(**changes)


# Any graph, any operator


def test_streams_of_a_graph_run_side_by_side_and_what_waits_runs_after():
    one = Gemm(4096, 4096, 4096, "bf16")
    alone = estimate(one, "h100-sxm").seconds
    both = Graph((Node(one, "a"), Node(one, "b", stream="other")))
    after = Graph((Node(one, "a"), Node(one, "b", stream="other", after=("a",))))
    assert estimate(both, "h100-sxm").seconds == alone
    assert estimate(after, "h100-sxm").seconds == estimate([one, one], "h100-sxm").seconds == 2 * alone


def test_several_systems_are_a_leading_axis():
    sizes = np.array([2**20, 2**26, 2**30])
    found = collective("all_reduce", sizes, np.array([[4], [8]]), ["dgx-h100", "mi300x-x8"])
    assert found.seconds.shape == found.bound.shape == found.by.shape == (2, 2, 3)
    one = collective("all_reduce", 2**26, 8, "mi300x-x8")
    assert found.seconds[1, 1, 1] == one.seconds
    assert found.by[1, 1, 1] == one.by == "ring-simple"


@pytest.mark.parametrize(
    ("op", "least", "bound"),
    [
        (Copy(1 << 30), lambda gpu: 2 * 2**30 / gpu.memory.bandwidth, "memory"),
        (Opaque("sort", flops=10**9, bytes=1 << 30), lambda gpu: 2**30 / gpu.memory.bandwidth, "memory"),
        (Opaque("fft", flops=10**12, bytes=1 << 20), lambda gpu: 1e12 / gpu.matrix_rate("fp32"), "compute"),
        (
            Opaque("conv", flops=10**12, bytes=1 << 20, matrix_dtype="bf16"),
            lambda gpu: 1e12 / gpu.matrix_rate("bf16"),
            "compute",
        ),
        (Send(1 << 30), lambda gpu: 2**30 / gpu.link.bandwidth, "link"),
    ],
)
def test_what_has_no_model_of_its_own_takes_what_its_flops_and_bytes_take(op, least, bound):
    gpu = hardware.gpu("h100-sxm")
    found = estimate(op, gpu)
    assert least(gpu) < found.seconds < 1.7 * least(gpu)
    assert str(found.bound) == bound
