"""Memory of a pipeline with many chunks beside Megatron-LM's own estimate.

That is megatron/training/theoretical_memory_usage.py @00caa53. GPT-3 on 1,024 GPUs, TP 2, PP 8, DP 64, 12 chunks a
stage: Weft needs 122.7 GB, Calculon 69.2 GB. Megatron's estimate is 69.2 GB for weights, fp32 gradients and optimizer
states alone, and 44 GB of activations more.
"""

import pytest

import weft

TP, PP, DP, LAYERS, HIDDEN, SEQUENCE, VOCABULARY = 2, 8, 64, 96, 12288, 2048, 51200


def megatron(chunks):
    """Weights, gradients and optimizer states, and activations of the first stage [bytes], by its formulas."""
    block = LAYERS * (4 * HIDDEN**2 + 2 * HIDDEN * (4 * HIDDEN + 2)) + 2 * HIDDEN
    states = (block / PP + VOCABULARY * HIDDEN) / TP * (6 + 12 / DP)
    kept = SEQUENCE * HIDDEN * (18 + 4 * 4) * LAYERS + (8 + HIDDEN) * SEQUENCE * PP
    in_flight = 1 + (PP - 1) / (PP * chunks) if chunks > 1 else 1
    return states, kept * in_flight / TP


@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 6, 12])
def test_states_and_activations_are_those_of_megatrons_estimate(chunks):
    found = weft.memory(
        "gpt-3", "1024xa100", tp=TP, pp=PP, batch=1536, sequence=SEQUENCE, zero=1, framework="megatron-core",
        recompute="selective", schedule=f"interleaved:{chunks}" if chunks > 1 else "1f1b",
    )  # fmt: skip
    holders = found.devices[0].holders
    states, activations = megatron(chunks)
    assert sum(holders[name] for name in ("weights", "gradients", "optimizer")) == pytest.approx(states, rel=0.01)
    assert holders["activations"] == pytest.approx(activations, rel=0.1)


def test_the_states_alone_take_what_calculon_states_for_all():
    states, activations = megatron(12)
    assert states / 1e9 == pytest.approx(69.2, abs=0.1)
    assert (states + activations) / 1e9 > 110
