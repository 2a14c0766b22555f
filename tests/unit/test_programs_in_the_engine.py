"""Programs in the engine: operators one after another, on the tensors of their graph."""

from __future__ import annotations

import pytest

import weft
from weft.core.errors import InputError
from weft.graph import Attention, Call, Convolution, Gemm, Gemv, Graph, Node, Pooling, Recurrent, Streaming, Tensor

GPU = "v100-sxm2-32gb"
ROWS = Tensor((4096, 1024), "fp32")


def alone(op: weft.Op, gpu: str = GPU, **options: object) -> float:
    """Time of an operator in the engine over that of its closed form, each with its launch."""
    short = weft.RunOptions(clock="short", **options)
    run = weft.simulate(Graph((Node(op, "op"),)), gpu, options=short)
    return run.seconds / float(weft.estimate(op, gpu, short).seconds)


@pytest.mark.parametrize(
    "op",
    [
        Streaming("elementwise", 1 << 25, dtype="fp32", inputs=2),
        Streaming("layernorm", 16384, 1024, "fp32"),
        Streaming("softmax", 16384, 1024, "fp32"),
        Streaming("adam", 1 << 24),
        Call("aten.relu.default", (ROWS,), (ROWS,), operations=4096 * 1024),
        Gemv(16384, 4096),
        Pooling(64, 64, 112, 112, dtype="fp32"),
        Pooling(64, 64, 112, 112, window=3, dtype="fp32", gradient=True),
        Gemm(4096, 4096, 1024, "fp32"),
        Gemm(512, 512, 64, "fp32", 64),
        Convolution(32, 64, 64, dtype="fp32"),
        Recurrent("lstm", 1024, 64, 8, inputs=1024, dtype="fp32", computes="weights"),
        Attention(8, 16, 512, 512, 64, dtype="fp32"),
        Attention(8, 16, 512, 512, 64, dtype="fp32", gradient=True),
        Attention(2, 32, 1024, 1024, 128, kv_heads=8, causal=1, dtype="fp16"),
        Convolution(32, 64, 128, stride=2, dtype="fp32", computes="weights"),
    ],
    ids=str,
)
def test_an_operator_takes_about_as_long_as_its_closed_form_says(op):
    assert 0.6 < alone(op) < 1.6


def test_operators_follow_one_another():
    nodes = (
        Node(Gemm(1024, 1024, 1024, "fp32"), "gemm"),
        Node(Streaming("gelu", 1 << 20, dtype="fp32"), "gelu", after=("gemm",)),
    )
    run = weft.simulate(Graph(nodes), GPU)
    assert run.overlap == "in-order"
    first, second = (next(span for span in run.spans if span.operator == name) for name in ("gemm", "gelu"))
    assert second.start_fs >= first.end_fs
    assert run.seconds == pytest.approx(run.duration("gemm") + run.duration("gelu"), rel=0.02)


def test_what_the_cache_still_holds_is_not_read_from_memory_again():
    small = Tensor((256, 1024), "fp32")  # 1 MiB of the 6 MiB of cache

    def chain(shared: bool) -> float:
        names = ("a", "b", "c") if shared else ("a", "b", "x", "c")
        nodes = (
            Node(Call("one", (small,), (small,)), "one", inputs=("a",), outputs=("b",)),
            Node(Call("two", (small,), (small,)), "two", after=("one",), inputs=(names[-2],), outputs=("c",)),
        )
        given = {name: small for name in ("a", "x") if name == "a" or not shared}
        return weft.simulate(Graph(nodes, tensors=given), GPU).traffic.get(("two", "read"), 0)

    assert chain(shared=True) < 0.1 * chain(shared=False)


def test_overlapping_windows_of_an_image_are_read_from_the_cache():
    conv = Convolution(16, 64, 64, dtype="fp32")
    run = weft.simulate(Graph((Node(conv, "conv"),)), GPU)
    read = sum(amount for (_, kind), amount in run.traffic.items() if kind == "read")
    images, filters = (tensor.bytes for tensor in conv.reads)
    assert images + filters <= read < 2 * (images + filters)  # nine windows hold each element


def test_every_gemm_of_a_batch_stores_its_output():
    batch = Gemm(256, 256, 64, "fp32", 512)
    run = weft.simulate(Graph((Node(batch, "bmm"),)), GPU)
    stored = sum(amount for (_, kind), amount in run.traffic.items() if kind == "write")
    assert stored == pytest.approx(batch.output_bytes, abs=2 * weft.gpu(GPU).cache.capacity)


def test_an_operator_without_a_kernel_is_named():
    with pytest.raises(InputError, match="the engine has no kernel for 'send'"):
        weft.simulate(Graph((Node(weft.graph.Send(1 << 20), "send"), Node(Gemv(64, 64), "gemv"))), GPU)


def test_the_steps_of_a_recurrent_layer_follow_one_another():
    few, many = (
        weft.simulate(Graph((Node(Recurrent("gru", 512, 32, steps, dtype="fp32"), "gru"),)), GPU).seconds
        for steps in (4, 16)
    )
    assert many == pytest.approx(4 * few, rel=0.1)


def test_a_persistent_recurrent_layer_is_refused():
    layer = Recurrent("gru", 512, 32, 4, dtype="fp32", persistent=True)
    with pytest.raises(InputError, match="keeps its weights in registers"):
        weft.simulate(Graph((Node(layer, "gru"),)), GPU)


def test_a_way_to_share_a_gpu_takes_no_program():
    with pytest.raises(InputError, match="shares a GPU between GEMMs and collectives"):
        weft.simulate(Graph((Node(Gemv(64, 64), "gemv"),)), GPU, "priority")


def test_a_program_with_a_collective_is_refused_in_order():
    with pytest.raises(InputError, match="is a collective"):
        weft.simulate(weft.sublayer("t-nlg", "fc2", tp=8), "t3-paper", "in-order")
