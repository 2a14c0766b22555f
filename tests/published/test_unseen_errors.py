"""Public rows of sources that no table of Weft's holds: the error that an answer states covers what is found there.

Rows are as their source measured them. No value of Weft is fitted to them but those of exchanges between nodes, to
which other sources' rows went as well.
"""

import numpy as np
import pytest

import weft
from weft.estimate.errors import UNSEEN, collective_error, fused_attention_error, gemm_error
from weft.graph import Attention, Collective, Gemm

MIB = 1 << 20
GEMMS = (
    # M, N, K, dtype, us: vLLM pull requests 19566 and 20071, B200, in a CUDA graph.
    (16, 4096, 4096, "bf16", 7.37),
    (128, 4096, 4096, "bf16", 7.65),
    (512, 4096, 4096, "bf16", 12.86),
    (64, 8192, 2048, "bf16", 6.01),
    (192, 8192, 2048, "bf16", 7.19),
    (256, 4096, 4096, "fp8", 8.65),
    (1024, 4096, 4096, "fp8", 16.55),
)
EXCHANGES = (
    # System, GPUs, bytes, GB/s of bus bandwidth: awslabs/awsome-distributed-ai ep-backend-comparison, NCCL over EFA.
    ("p5", 32, 64 * MIB, 45.1),
    ("p5", 64, 64 * MIB, 40.4),
    ("hgx-b300", 16, 56 * MIB, 104.9),
    ("hgx-b300", 32, 56 * MIB, 94.0),
    ("hgx-b300", 64, 56 * MIB, 74.0),
    ("hgx-b300", 256, 56 * MIB, 54.7),
)
ATTENTIONS = (
    # Batch, heads, tokens, head, causal, ms of the faster of cuDNN and FlashAttention-4 (Dao-AILab/flash-attention
    # pull request 2605), Blackwell.
    (4, 32, 8192, 64, 0, 1.84),
    (2, 32, 16384, 64, 0, 3.59),
    (8, 32, 4096, 64, 1, 0.56),
    (4, 32, 8192, 64, 1, 1.02),
    (32, 32, 1024, 64, 1, 0.22),
    (32, 16, 1024, 128, 0, 0.19),
)


def off(predicted, measured):
    """The mean of the absolute errors."""
    return float(np.mean(np.abs(np.array(predicted) / np.array(measured) - 1)))


def test_small_gemms_of_b200_state_what_is_found_in_a_cuda_graph():
    predicted = [weft.estimate(Gemm(*shape), "b200").seconds for *shape, _ in GEMMS]
    stated = gemm_error("b200", 10e-6)
    assert off(predicted, [us * 1e-6 for *_, us in GEMMS]) <= stated.value
    assert "from 7 rows that no fit saw, off by 26% (vLLM pull requests" in stated.why
    assert gemm_error("b200", 1e-3).value < stated.value / 2


def test_an_all_to_all_over_nodes_states_what_is_found_over_efa():
    predicted = [
        weft.estimate(Collective("all_to_all", size, gpus), f"{gpus}x{system}").seconds
        for system, gpus, size, _ in EXCHANGES
    ]
    measured = [size * (gpus - 1) / gpus / (rate * 1e9) for _, gpus, size, rate in EXCHANGES]
    stated = collective_error("h100-sxm", "all_to_all", 64 * MIB, nodes=4)
    assert off(predicted, measured) <= stated.value
    assert "26 rows, their source or GPU left out of the fit" in stated.why
    assert "over EFA" in stated.why
    assert "over EFA" not in collective_error("h100-sxm", "all_to_all", 64 * MIB).why


def test_fused_attention_of_blackwell_states_what_is_found():
    ops = [
        Attention(batch, heads, tokens, tokens, head, causal=causal)
        for batch, heads, tokens, head, causal, _ in ATTENTIONS
    ]
    predicted = [weft.estimate(op, "b200").seconds for op in ops]
    stated = fused_attention_error(weft.gpu("b200"))
    assert off(predicted, [ms * 1e-3 for *_, ms in ATTENTIONS]) <= stated.value
    assert "12 published rates" in stated.why


def test_fused_attention_without_published_rates_is_no_surer_than_with_them():
    stated = fused_attention_error(weft.gpu("mi300x"))
    assert stated.value > max(one["mean"] for one in UNSEEN["attention"])
    assert "no rate is public for cdna3; 80 % interval" in stated.why
    assert "rows of long GEMMs of machines left out of the fits" in stated.why


@pytest.mark.parametrize("kind", UNSEEN)
def test_every_row_of_unseen_errors_names_its_source(kind):
    for one in UNSEEN[kind]:
        assert 0 < one["mean"] < 1
        assert one["rows"] >= 1
        assert len(one["source"]) > 10
