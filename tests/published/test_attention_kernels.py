"""Rates of fused attention beside those that its authors publish; causal FLOPs are counted as half, as they do."""

import pytest

import weft
from weft.core.options import RunOptions
from weft.graph import Attention

SHORT = RunOptions(clock="short")
PUBLISHED = {
    # 73 % and 63 % of 312 TFLOP/s, the largest that arXiv:2307.08691 reports.
    "FlashAttention-2": ("a100-sxm", Attention(1, 16, 16384, 16384, 128, dtype="bf16"), 228, 196),
    # pytorch/benchmark pull request 2391.
    "FlashAttention-3": ("h100-sxm", Attention(1, 16, 16384, 16384, 128, dtype="bf16"), 621, None),
    "FlashAttention-3, 2048": ("h100-sxm", Attention(8, 16, 2048, 2048, 128, dtype="bf16"), 566, None),
    # Dao-AILab/flash-attention pull requests 2280 (one workgroup to a cluster) and 2270 (values of 128).
    "FlashAttention-4": ("b200", Attention(4, 16, 8192, 8192, 128, dtype="bf16"), 1535, 1248),
    "FlashAttention-4, causal": ("b200", Attention(4, 16, 8192, 8192, 128, causal=1, dtype="bf16"), 1418, 1118),
    # Dao-AILab/flash-attention pull request 2605: 1.84 and 1.02 ms (cuDNN: 1.92 and 1.03).
    "FlashAttention-4, heads of 64": ("b200", Attention(4, 32, 8192, 8192, 64, dtype="bf16"), 1195, None),
    "FlashAttention-4, heads of 64, causal": (
        "b200",
        Attention(4, 32, 8192, 8192, 64, causal=1, dtype="bf16"),
        1078,
        None,
    ),
    "FlashAttention-4, latent": ("b200", Attention(4, 16, 8192, 8192, 192, dtype="bf16", value=128), 1556, 1073),
}


def rate(op, gpu):
    """Published FLOPs per second [TFLOP/s]."""
    half = op.query * op.keys / 2 / op.pairs if op.causal else 1
    return op.flops * half / weft.estimate(op, gpu, SHORT).seconds / 1e12


@pytest.mark.parametrize("case", PUBLISHED)
def test_fused_attention_reaches_its_published_rate(case):
    gpu, op, forward, _ = PUBLISHED[case]
    assert rate(op, gpu) == pytest.approx(forward, rel=0.11)


@pytest.mark.parametrize("case", [name for name, row in PUBLISHED.items() if row[3]])
def test_the_gradient_of_fused_attention_reaches_its_published_rate(case):
    gpu, op, _, backward = PUBLISHED[case]
    (gradient,) = op.backward.inputs
    assert rate(gradient, gpu) == pytest.approx(backward, rel=0.12)


@pytest.mark.parametrize("gpu", ["a100-sxm", "h100-sxm", "b200", "mi300x"])
def test_a_gradient_takes_more_than_its_five_products_for_the_forward_two(gpu):
    op = Attention(4, 16, 4096, 4096, 128, causal=1, dtype="bf16")
    (gradient,) = op.backward.inputs
    forward, backward = (weft.estimate(one, gpu, SHORT).seconds for one in (op, gradient))
    assert 2.5 * forward < backward < 4 * forward


def test_a_window_saves_all_but_its_tiles():
    whole = Attention(1, 64, 16384, 16384, 64, causal=1, dtype="bf16")
    near = Attention(1, 64, 16384, 16384, 64, causal=1, dtype="bf16", window=128)
    times = [weft.estimate(op, "h100-sxm", SHORT).seconds for op in (whole, near)]
    assert times[0] / 40 < times[1] < times[0] / 10


@pytest.mark.parametrize(("gpu", "queries"), [("h100-sxm", 128), ("b200", 256)])
def test_a_causal_mask_saves_no_tile_that_any_query_of_a_workgroup_sees(gpu, queries):
    """FlashAttention-4 takes two tiles of 128 queries through the same keys (flash_fwd_sm100.py, q_stage)."""
    whole, masked = (Attention(8, 64, 1024, 1024, 128, causal=causal, dtype="bf16") for causal in (0, 1))
    share = weft.estimate(masked, gpu).seconds / weft.estimate(whole, gpu).seconds
    assert share == pytest.approx((1024 + queries) / (2 * 1024), abs=0.04)
