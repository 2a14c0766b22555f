"""Operators of training: what gradients compute and what they keep, grouped products, permutations, attention."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from weft.core.errors import InputError
from weft.graph import STREAMING, Attention, Gemm, GroupedGemm, Streaming

SIZE = st.integers(1, 300)


@given(SIZE, SIZE, SIZE)
def test_attention_counts_each_pair_of_a_query_and_a_key_that_it_sees(query, keys, window):
    op = Attention(1, 1, query, keys, 1, causal=1, window=window)
    asking = min(query, keys)
    assert op.pairs == sum(min(keys - asking + 1 + place, window) for place in range(asking))


def test_a_window_as_long_as_the_keys_changes_nothing():
    whole = Attention(2, 8, 512, 512, 64, causal=1)
    assert Attention(2, 8, 512, 512, 64, causal=1, window=512).flops == whole.flops
    assert Attention(2, 8, 512, 512, 64, causal=1, window=128).flops < whole.flops / 2


def test_a_window_without_a_causal_mask_is_refused():
    with pytest.raises(InputError, match="window goes with causal attention"):
        Attention(1, 1, 16, 16, 8, window=4)


def test_latent_attention_multiplies_by_values_of_their_own_width():
    op = Attention(1, 128, 4096, 4096, 192, value=128)
    pairs = 4096 * 4096 * 128
    assert op.flops == 2 * (192 + 128) * pairs
    (gradient,) = op.backward.inputs
    assert gradient.flops == 2 * (3 * 192 + 2 * 128) * pairs
    assert [tensor.shape[-1] for tensor in gradient.writes] == [192, 192, 128]


def test_a_grouped_product_and_its_gradients_do_the_work_of_single_ones():
    whole = GroupedGemm(groups=8, rows=4096, n=1024, k=512)
    one = Gemm(512, 1024, 512, "bf16")
    (inputs,), (weights,) = whole.backward
    assert whole.flops == inputs.flops == weights.flops == 8 * one.flops
    assert sum(tensor.bytes for tensor in whole.reads) == 8 * sum(tensor.bytes for tensor in one.reads)
    assert inputs.writes[0].shape == (4096, 512)
    assert weights.writes[0].shape == (8, 512, 1024)


def test_one_launch_of_all_groups_takes_no_longer_than_one_each():
    shape = {"groups": 16, "rows": 16 * 320, "n": 1536, "k": 2048}
    fused, single = (weft.estimate(GroupedGemm(**shape, fused=fused), "h100-sxm") for fused in (True, False))
    assert fused.seconds < single.seconds
    one = weft.estimate(Gemm(320, 1536, 2048, "bf16"), "h100-sxm")
    assert single.seconds == pytest.approx(16 * one.seconds)


def test_uneven_groups_take_at_least_as_long_as_even_ones():
    even = GroupedGemm(groups=8, rows=8 * 1024, n=4096, k=2048)
    uneven = GroupedGemm(groups=8, rows=8 * 1024, n=4096, k=2048, busiest=1900)
    assert weft.estimate(uneven, "h100-sxm").seconds >= 0.99 * weft.estimate(even, "h100-sxm").seconds


@pytest.mark.parametrize("busiest", [100, 5000])
def test_a_fullest_group_that_cannot_be_is_refused(busiest):
    with pytest.raises(InputError, match="the fullest of 8 groups has 512 to 4096 of 4096 rows"):
        GroupedGemm(groups=8, rows=4096, n=64, k=64, busiest=busiest)


def test_tokens_are_copied_to_each_of_their_experts_and_summed_on_return():
    sent = Streaming("permute", 100, 64, "bf16", outputs=8)
    assert sum(tensor.bytes for tensor in sent.writes) == 8 * 100 * 64 * 2
    (back,) = sent.backward.inputs
    assert (back.name, back.inputs, back.outputs) == ("unpermute", 8, 1)
    (spread,) = Streaming("unpermute", 100, 64, "bf16", inputs=8).backward.inputs
    assert (spread.name, len(spread.reads), len(spread.writes)) == ("permute", 2, 8)


@pytest.mark.parametrize("name", STREAMING)
def test_a_gradient_reads_no_more_than_what_was_kept_and_the_gradients_of_outputs(name):
    op = Streaming(name, 64, 128, "bf16", inputs=2, outputs=2)
    for gradient in op.backward.inputs:
        kept = sum(tensor.bytes for tensor in (*op.saved, *op.writes))
        assert sum(tensor.bytes for tensor in gradient.reads) <= kept + sum(t.bytes for t in op.writes)


def test_a_bias_has_a_gradient_that_sums_over_all_rows():
    (weights,) = Streaming("bias_gelu", 4096, 1, "bf16").backward.weights
    assert (weights.name, weights.writes) == ("bias_backward", ())
    assert weights.least_bytes == 2 * 4096


def test_arrays_of_rows_and_groups_broadcast():
    op = GroupedGemm(np.array([4, 8]), np.array([[512], [4096]]), 256, 128)
    assert weft.estimate(op, "a100-sxm").seconds.shape == (2, 2)


def seconds(name, dtype="bf16", rows=8192, columns=6144, **more):
    return weft.estimate(Streaming(name, rows, columns, dtype, **more), "a100-sxm").seconds


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
def test_a_gradient_of_rows_moves_three_tensors_where_the_forward_pass_moves_two(name):
    assert seconds(f"{name}_backward") / seconds(name) == pytest.approx(1.5, rel=0.12)


def test_a_norms_gradient_has_a_small_second_kernel_for_its_parameters():
    few = weft.estimate(Streaming("layernorm_backward", 8, 1024), "a100-sxm")
    one = weft.estimate(Streaming("layernorm", 8, 1024), "a100-sxm")
    assert few.parts["launch"] == pytest.approx(2 * one.parts["launch"])


def test_cross_entropy_in_six_kernels_takes_many_times_one():
    assert seconds("cross_entropy", columns=32000) > 5 * seconds("fused_cross_entropy", columns=32000)
    launches = weft.estimate(Streaming("cross_entropy", 8, 128), "a100-sxm").parts["launch"]
    assert launches == pytest.approx(6 * weft.estimate(Streaming("gelu", 8), "a100-sxm").parts["launch"])


def test_gradients_of_an_embedding_are_sorted_before_they_are_added():
    assert seconds("embedding_backward", rows=16) > 5 * seconds("embedding", rows=16)
    assert seconds("embedding_backward", rows=2**20, columns=1024) < 2 * seconds("embedding", rows=2**20, columns=1024)


def test_kernels_of_a_kind_move_what_its_tensors_say():
    for name in ("cross_entropy", "cross_entropy_backward", "eager_cross_entropy"):
        op = Streaming(name, 2**16, 2**15, "bf16")
        rate = op.least_bytes / weft.estimate(op, "a100-sxm").seconds
        peak = weft.gpu("a100-sxm").memory.bandwidth
        assert 0.75 * peak < rate < 0.9 * peak


def test_after_other_operators_only_the_first_tensor_is_found_in_the_cache():
    op = Streaming("layernorm_backward", 4096, 1024, "bf16")
    between = weft.BenchmarkProtocol(after_others=True)
    alone, later = weft.estimate(op, "h100-sxm").seconds, weft.estimate(op, "h100-sxm", harness=between).seconds
    assert later > 1.3 * alone
    assert later - alone < op.least_bytes / weft.gpu("h100-sxm").memory.bandwidth
    large = Streaming("layernorm_backward", 2**17, 8192, "bf16")
    assert weft.estimate(large, "h100-sxm", harness=between).seconds == weft.estimate(large, "h100-sxm").seconds


def test_eager_attention_scales_and_masks_its_scores_apart_and_its_gradient_multiplies_first():
    op = Attention(8, 16, 512, 512, 64, dtype="fp32", fused=False, dropout=True, eager=True)
    assert [getattr(one, "name", "gemm") for one in op.kernels] == [
        "gemm", "scale", "mask", "eager_softmax", "dropout", "gemm",
    ]  # fmt: skip
    (gradient,) = op.backward.inputs
    assert [getattr(one, "name", "gemm") for one in gradient.kernels] == [
        "gemm", "gemm", "dropout_backward", "eager_softmax_backward", "scale", "gemm", "gemm",
    ]  # fmt: skip


@pytest.mark.parametrize(("gpu", "measured"), [("a100-pcie-80gb", 494), ("h100-sxm", 272), ("mi210", 638)])
def test_the_eager_gradient_of_softmax_takes_as_long_as_measured(gpu, measured):
    """8 x 16 x 512 rows of 512 in fp32: sitar-lab/NeuSight scripts/asplos/label, bert_large-train-512-8 @6945927."""
    op = Streaming("eager_softmax_backward", 8 * 16 * 512, 512, "fp32")
    assert 1e6 * weft.estimate(op, gpu).seconds == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(("gpu", "forward", "backward"), [("a100-pcie-80gb", 93, 132), ("h100-sxm", 52, 73)])
def test_gelu_and_its_gradient_take_as_long_as_measured(gpu, forward, backward):
    """4096 x 4096 elements in fp32, from the same traces."""
    op = Streaming("gelu", 2**24, 1, "fp32")
    assert 1e6 * weft.estimate(op, gpu).seconds == pytest.approx(forward, rel=0.1)
    assert 1e6 * weft.estimate(op.backward.inputs[0], gpu).seconds == pytest.approx(backward, rel=0.1)
