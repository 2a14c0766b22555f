"""Kernels between the products of unfused attention, and biases that kernels of their own add."""

import weft
from weft.graph import Attention
from weft.models import load_model
from weft.models.block import FusionStyle, Tokens, layer

SIZES = {"batch": 2, "heads": 4, "query": 64, "keys": 64, "head": 32}
APART = FusionStyle(flash=False, dropout=True, fused=False, wide=True, apart=True)


def names(op):
    return [getattr(kernel, "name", "gemm") for kernel in op.kernels]


def test_wide_scores_are_scaled_masked_and_normalised_in_fp32():
    op = Attention(**SIZES, fused=False, dropout=True, wide=True)
    assert names(op) == ["gemm", "widen", "scale", "masked_fill", "eager_softmax", "cast", "dropout", "gemm"]
    assert [kernel.dtype for kernel in op.kernels[2:5]] == ["fp32"] * 3
    scores = 2 * 4 * 64 * 64
    assert sum(kernel.least_bytes for kernel in op.kernels[1:6]) == (6 + 8 + 8 + 8 + 6) * scores


def test_their_gradient_copies_before_it_masks():
    (gradient,) = Attention(**SIZES, fused=False, wide=True).backward.inputs
    found = names(gradient)
    assert found[2:7] == ["widen", "eager_softmax_backward", "masked_fill_backward", "scale", "cast"]


def test_wide_scores_are_kept_in_fp32_and_in_the_dtype():
    saved = Attention(**SIZES, fused=False, wide=True, dropout=True).saved
    assert [tensor.dtype for tensor in saved] == ["bf16"] * 3 + ["fp32", "bf16", "int8"]


def test_biases_apart_are_kernels_before_the_activation_and_the_dropouts():
    pieces = [piece.name for piece in layer(load_model("gpt-3"), "dense", Tokens(1, 128), APART, "fp16")]
    assert [name for name in pieces if name.endswith("_bias")] == [
        "residual1_bias", "activation_bias", "residual2_bias",
    ]  # fmt: skip
    llama = [piece.name for piece in layer(load_model("llama-3-8b"), "dense", Tokens(1, 128), APART, "bf16")]
    assert not [name for name in llama if name.endswith("_bias")]


def test_unfused_kernels_take_longer_than_one_between_the_products():
    times = [
        weft.estimate(Attention(8, 12, 2048, 2048, 128, fused=False, dropout=True, wide=wide), "a100-sxm").seconds
        for wide in (False, True)
    ]
    assert times[1] > 1.5 * times[0]
