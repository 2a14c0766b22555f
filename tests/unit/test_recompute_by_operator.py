"""Recomputation of named operators, and what the memory of the host holds, in plans, memory and steps."""

from dataclasses import replace

import pytest

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.hardware import gpu
from weft.models.counts import forward_flops, hardware_flops
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.step.offload import hidden_and_exposed, seconds_to_host
from weft.step.rank_parts import rank_parts

FRAMEWORK = framework("torchtitan")
MODEL = weft.load_model("llama-3-8b")
TOKENS, HIDDEN, WIDE, KEYS = 2048, 4096, 14336, 1024


def layer(recompute, model=MODEL, **plan):
    plan = TrainingPlan(sequence=TOKENS, recompute=recompute, **plan)
    return next(one for name, one in rank_parts(model, plan, FRAMEWORK).items() if name not in ("embedding", "head"))


def dropped(recompute, model=MODEL, **plan):
    """Bytes for each element of 16 bits that a layer no longer keeps, in tokens."""
    return (layer("none", model, **plan).kept.bytes - layer(recompute, model, **plan).kept.bytes) / (2 * TOKENS)


@pytest.mark.parametrize(
    ("names", "elements"),
    [
        (("norm1",), HIDDEN),  # the input of the GEMM after it
        (("activation",), WIDE),
        (("fc1",), 2 * WIDE),
        (("fc1", "activation"), 3 * WIDE),
        (("norm1", "norm2", "activation"), 2 * HIDDEN + WIDE),
        (("rotary",), HIDDEN + KEYS),  # values are not rotated
        (("qkv",), HIDDEN + 2 * KEYS),
        (("qkv", "rotary"), 2 * (HIDDEN + KEYS) + KEYS),
        (("projection", "residual1"), HIDDEN),
        (("residual1",), 0),  # the projection's output is kept in the place of the sum
        (("residual2",), -HIDDEN),  # no other operator keeps what it reads
        (("projection",), 0),  # no operator keeps its output
    ],
)
def test_operators_that_run_again_do_not_keep_their_outputs(names, elements):
    assert dropped(names) == pytest.approx(elements)


def test_attention_that_runs_again_drops_its_output_and_its_sums_of_rows():
    heads = 32
    assert dropped(("attention",)) * 2 * TOKENS == 2 * TOKENS * HIDDEN + 4 * TOKENS * heads


def test_tensor_parallel_ranks_drop_their_share():
    assert dropped(("fc1", "activation"), tp=8, sp=True) == pytest.approx(3 * WIDE / 8)
    assert dropped(("norm1",), tp=8, sp=True) == pytest.approx(HIDDEN / 8)
    assert dropped(("norm1",), tp=8) == pytest.approx(HIDDEN)


def test_dropout_draws_its_mask_again():
    style = replace(FRAMEWORK.style, dropout=True, fused=True)
    plan = TrainingPlan(sequence=TOKENS)
    used = replace(FRAMEWORK, style=style)
    masks = [
        rank_parts(MODEL, replace(plan, recompute=how), used)["dense"].kept.saved["residual2"]
        for how in ("none", ("fc2", "residual2"))
    ]
    assert masks == [TOKENS * HIDDEN, 0]


def test_only_the_named_operators_run_again_with_their_collectives():
    again = layer(("fc1", "activation"), tp=8, sp=True).recompute
    assert [node.name for node in again] == ["fc1.gather", "fc1", "activation"]
    assert {node.phase for node in again} == {"recompute"}


def test_experts_run_again_without_the_exchange_of_tokens():
    mixtral = weft.load_model("mixtral-8x7b")
    found = dropped(("experts_activation",), mixtral)
    assert found == pytest.approx(2 * mixtral.expert_wide)  # two experts for each token
    with pytest.raises(InputError, match="'permute' takes part in the exchange"):
        layer(("permute",), mixtral)


def test_what_runs_again_and_what_is_kept_stay_at_most_what_a_pass_keeps():
    whole = layer("none").kept
    for names in (("norm1",), ("fc1", "activation"), ("qkv", "rotary", "attention")):
        found = layer(names).kept
        assert found.backward - whole.backward == whole.bytes - found.bytes


@pytest.mark.parametrize(
    ("recompute", "error", "words"),
    [
        ((), InputError, "names no operator"),
        ("norm1", UnknownNameError, "unknown recomputation 'norm1'"),
        (("norm3",), UnknownNameError, r"unknown recomputation 'norm3'; .*norm1"),
    ],
)
def test_operators_that_do_not_exist_are_named(recompute, error, words):
    with pytest.raises(error, match=words):
        layer(recompute)


def test_layers_whose_operators_do_not_follow_one_another_are_refused():
    with pytest.raises(InputError, match=r"not those with 'qkv_fc1'; say recompute='selective'"):
        layer(("norm1",), weft.load_model("megascale-175b"))


def test_up_projections_of_latent_attention_run_again_from_what_is_compressed():
    model = weft.load_model("deepseek-v3")
    again = "q_norm", "q_up", "kv_norm", "kv_up", "rotary"
    heads, rotated = model.attention_heads, model.rotary_head
    attended = heads * (2 * model.head_size + model.value_size)
    normed = model.query_rank + model.kv_rank
    assert dropped(again, model) == attended + normed + (heads + 1) * rotated


def test_selective_recomputation_runs_the_kernels_of_attentions_forward_pass():
    """The four kernels of attention that is not fused: both products, softmax and dropout (arXiv:2205.05198)."""
    plan = TrainingPlan(tp=8, batch=8, recompute="selective")
    parts = rank_parts(weft.load_model("gpt-3"), plan, framework("megatron-2022"))["dense"]
    forward = [node.op for node in parts.forward if node.name == "attention"]
    assert [node.op for node in parts.recompute] == forward
    assert [kernel.kind for kernel in forward[0].kernels] == ["gemm", "streaming", "streaming", "gemm"]
    assert rank_parts(MODEL, replace(plan, sequence=TOKENS), FRAMEWORK)["dense"].recompute is None


def test_a_step_pays_for_what_runs_again():
    plan = TrainingPlan(tp=8, pp=4, dp=2, batch=64, sequence=8192, sp=True)
    steps = {
        how: weft.step("llama-3-70b", "64xh100", replace(plan, recompute=how), fidelity="estimate")
        for how in ("none", ("norm1", "norm2", "activation"), "full")
    }
    none, some, full = steps.values()
    assert none.seconds < some.seconds < full.seconds
    assert none.memory.peak > some.memory.peak > full.memory.peak
    assert some.parts["recompute"] < 0.1 * full.parts["recompute"]
    assert none.hfu == pytest.approx(none.mfu)
    assert some.hfu == pytest.approx(some.mfu)  # operators without matrix products
    assert some.to_dict()["plan"]["recompute"] == ["norm1", "norm2", "activation"]


def test_a_plan_as_plain_data_is_the_same_plan():
    plan = TrainingPlan(recompute=["norm1", "activation"])
    assert plan == TrainingPlan(recompute=("norm1", "activation"))
    assert hash(plan) == hash(TrainingPlan(recompute=("norm1", "activation")))


def test_hardware_flops_count_the_named_products():
    gemms = forward_flops(MODEL, TOKENS)["layers"]
    again = hardware_flops(MODEL, TOKENS, ("fc1",)) - hardware_flops(MODEL, TOKENS, "none")
    assert again == 2 * TOKENS * HIDDEN * 2 * WIDE * MODEL.layers
    assert again < gemms


# -- the memory of the host

GPT3 = TrainingPlan(tp=8, pp=8, batch=64, sequence=2048, sp=True)


def offloaded(**changes):
    return weft.step("gpt-3", "64xa100", replace(GPT3, **changes), fidelity="estimate")


def test_layer_inputs_of_gpt3_hide_behind_a_layer_at_25_gb_per_s_and_not_at_10():
    """50 MB of 2,048 tokens of 12,288 elements; the forward GEMMs of a layer on 8 GPUs take 3.7 ms at 250 TFLOP/s."""
    size, computing = 2048 * 12288 * 2, 24 * 2048 * 12288**2 / 8 / 250e12
    assert computing == pytest.approx(3.7e-3, rel=0.01)
    for bandwidth, exposed in (("25 GB/s", 0.0), ("10 GB/s", 5.03e-3 - 3.71e-3)):
        found = gpu("a100-sxm-80gb").replace({"host.bandwidth": bandwidth})
        scale = 0.85  # a stated rate is one that copies reach: undo the share of the line rate
        assert seconds_to_host(size * scale, found) == pytest.approx(size / found.host.bandwidth)
        assert hidden_and_exposed(size * scale, computing, found)[1] == pytest.approx(exposed, abs=2e-5)


def test_activations_on_the_host_leave_the_gpu_but_for_two_layers():
    whole, away = offloaded(), offloaded(offload="activations")
    layer = whole.memory.devices[0].saved["dense: fc2"]
    assert away.memory.devices[0].holders["activations"] < layer
    assert away.memory.peak < whole.memory.peak - 9e9
    assert away.seconds == pytest.approx(whole.seconds)
    assert away.hidden["host"] > 1


def test_a_slow_link_to_the_host_exposes_what_does_not_fit_beside_computing():
    slow = weft.system("64xa100").replace({"host.bandwidth": "2 GB/s"})
    plan = replace(GPT3, offload="activations")
    found = weft.step("gpt-3", slow, plan, fidelity="estimate")
    busy = sum(found.rank_parts(0).get(name, 0.0) for name in ("exposed host",)) + found.work(0).hidden["host"]
    saved = sum(size for name, size in found.memory.devices[0].saved.items() if name.startswith("dense"))
    assert busy == pytest.approx(2 * saved * plan.micro_batches / (2e9 * 0.85), rel=1e-6)
    assert found.exposed["host"] > 0.3 * found.seconds
    assert sum(found.parts.values()) == pytest.approx(found.seconds)


def test_optimizer_states_on_the_host_pass_the_link_once_a_step():
    whole, away = offloaded(), offloaded(offload="optimizer")
    states = whole.memory.devices[0].fixed["optimizer"]
    most = states / (31.5e9 * 0.85)
    assert most * 0.5 < away.seconds - whole.seconds < most
    assert away.memory.devices[0].fixed["optimizer"] < states / 4


def test_a_plan_that_does_not_fit_may_offload():
    found = weft.memory("gpt-3", "64xa100", replace(GPT3, micro_batch=4))
    assert not found.fits
    assert "activations in the host's memory" in found.remedies
    assert "optimizer states in the host's memory" in found.remedies


def test_an_unknown_place_is_refused():
    with pytest.raises(UnknownNameError, match="unknown offload 'disk'; known: none, activations, optimizer"):
        TrainingPlan(offload="disk")
