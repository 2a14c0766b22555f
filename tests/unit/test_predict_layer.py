"""A layer operator by operator: the right work, each operator's own model, and totals."""

import pytest

from weft.errors import InputError, UnknownNameError
from weft.hardware import load
from weft.predict.collective import collective
from weft.predict.gemm import gemm
from weft.predict.layer import layer
from weft.predict.operators import operator
from weft.workload import load_model

A100 = load("a100-sxm-80gb")


def gpt3(**changes):
    return layer("gpt-3", "hgx-a100-4", **{"tp": 4, "batch": 8, "sequence": 2048} | changes)


def named(found):
    return {entry.name: entry for entry in found.operators}


def test_a_layer_is_its_operators_in_the_order_in_which_they_run():
    found = gpt3()
    names = [entry.name for entry in found.operators]
    assert names[:6] == ["LayerNorm_MHA", "Q_K_V", "Q_mul_K", "Softmax", "A_mul_V", "Wo_proj"]
    assert names[6:] == ["AllReduce_MHA", "LayerNorm_FFN", "W1_proj", "GeLU", "W2_proj", "AllReduce_FFN"]
    assert found.seconds == pytest.approx(sum(entry.seconds for entry in found.operators))


def test_each_operator_is_the_share_of_one_gpu_by_its_own_model():
    entries = named(gpt3())
    tokens, hidden = 8 * 2048, 12288
    assert entries["Q_K_V"].about == f"GEMM {tokens} x {3 * hidden // 4} x {hidden}"
    assert entries["Wo_proj"].seconds == pytest.approx(
        float(gemm(tokens, hidden, hidden // 4, "fp16", A100).seconds)
    )
    assert entries["W1_proj"].about == f"GEMM {tokens} x {hidden} x {hidden}"
    assert entries["Q_mul_K"].about == "192 GEMMs 2048 x 2048 x 128"
    softmax = operator("softmax", A100, rows=192 * 2048, columns=2048)
    assert entries["Softmax"].seconds == pytest.approx(float(softmax.seconds))
    reduced = collective("all_reduce", 2 * tokens * hidden, 4, "hgx-a100-4")
    assert entries["AllReduce_MHA"].seconds == pytest.approx(float(reduced.seconds))
    assert entries["AllReduce_MHA"].seconds == entries["AllReduce_FFN"].seconds


def test_a_gpu_by_itself_reduces_nothing_and_more_gpus_take_less_time_each():
    alone = named(gpt3(tp=1))
    assert not any(name.startswith("AllReduce") for name in alone)
    shared = named(gpt3(tp=4))
    for name in ("Q_K_V", "Q_mul_K", "W1_proj", "GeLU"):
        assert 3.5 < alone[name].seconds / shared[name].seconds < 4.5, name
    assert alone["LayerNorm_MHA"].seconds == shared["LayerNorm_MHA"].seconds


def test_decoding_reads_weights_and_context_and_multiplies_little():
    entries = named(gpt3(phase="decode", sequence=3072))
    weights = 2 * 12288 * 12288
    assert weights / entries["W1_proj"].seconds > 0.6 * A100.memory.bandwidth
    keys = 2 * 192 * 3072 * 128
    assert keys / entries["Q_mul_K"].seconds > 0.5 * A100.memory.bandwidth
    assert gpt3(phase="decode", sequence=3072).seconds < 0.05 * gpt3().seconds


def test_fused_attention_replaces_its_three_kernels():
    fused = named(gpt3(attention="fused"))
    assert {"Q_mul_K", "Softmax", "A_mul_V"} & set(fused) == set()
    assert gpt3(attention="fused").seconds < gpt3().seconds


def test_heads_that_do_not_divide_leave_one_gpu_with_more():
    model = load_model("t-nlg")
    entries = named(layer(model, "mi300x-x8", 8, batch=1, sequence=1024))
    assert entries["Q_mul_K"].about == "4 GEMMs 1024 x 1024 x 152"


def test_a_host_that_waits_for_each_operator_costs_most_where_operators_are_short():
    device, host = (gpt3(phase="decode", timed=timed) for timed in ("device", "host"))
    wait = A100.achieved.gemm_host
    short, long = named(host)["GeLU"], named(host)["W1_proj"]
    assert short.seconds == pytest.approx(named(device)["GeLU"].seconds + wait - A100.compute.launch_latency)
    assert str(short.prediction.bound_names()) == "launch"
    assert str(long.prediction.bound_names()) == "memory"
    assert sum(short.prediction.parts.values()) == pytest.approx(short.seconds)
    assert named(host)["AllReduce_MHA"].seconds == named(device)["AllReduce_MHA"].seconds


def test_a_clock_that_is_held_speeds_up_what_computes_and_nothing_else():
    short, boost = named(gpt3()), named(gpt3(clock="boost"))
    assert A100.achieved.matrix_fp16 < 0.94
    for name in ("Q_K_V", "W1_proj"):
        assert boost[name].seconds < 0.99 * short[name].seconds
    for name in ("LayerNorm_FFN", "GeLU", "AllReduce_MHA"):
        assert boost[name].seconds == short[name].seconds


def test_the_record_is_plain_data():
    record = gpt3().record()
    first = record["operators"][0]
    assert first["name"] == "LayerNorm_MHA"
    parts = [value for name, value in first.items() if name.endswith("_us") and name != "time_us"]
    assert sum(parts) == pytest.approx(first["time_us"])
    assert record["time_us"] == pytest.approx(sum(entry["time_us"] for entry in record["operators"]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 0}, "TP is 0; it must be at least 1"),
        ({"tp": 97}, "TP 97 cannot split gpt-3: it has 96 attention heads; choose at most 96"),
        ({"batch": 0}, "batch is 0"),
        ({"sequence": -1}, "sequence is -1"),
        ({"batch": 2**20, "sequence": 2**12}, "too many tokens; give at most 2147483647"),
    ],
)
def test_sizes_that_do_not_fit_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        gpt3(**changes)


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
