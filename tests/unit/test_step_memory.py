"""The memory of a training step, against closed forms of arXiv:2205.05198 and ZeRO (arXiv:1910.02054)."""

from dataclasses import replace

import pytest

import weft
from weft.models import Transformer, load_model
from weft.models.block import FusionStyle
from weft.models.parallel.framework import Framework, framework
from weft.models.parallel.memory import gathered_bytes, states
from weft.models.parallel.plan import TrainingPlan
from weft.step.memory import memory
from weft.step.rank_parts import rank_parts

S, B, H, A = 2048, 4, 6144, 64
MODEL = Transformer(name="22b", title="22B", hidden=H, layers=48, heads=A, sequence_length=S, vocabulary=51200)
UNFUSED = Framework(style=FusionStyle(flash=False, dropout=True))
SCORES = 5 * A * S / H


def layer_bytes(framework: Framework = UNFUSED, **plan) -> float:
    """Bytes that a layer keeps, in units of sequence x batch x hidden size."""
    parts = rank_parts(MODEL, TrainingPlan(micro_batch=B, batch=B, sequence=S, **plan), framework)
    return parts["dense"].kept.bytes / (S * B * H)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({}, 34 + SCORES),
        ({"tp": 8}, 10 + 24 / 8 + SCORES / 8),
        ({"tp": 8, "sp": True}, (34 + SCORES) / 8),
        ({"tp": 8, "recompute": "selective"}, 10 + 24 / 8),
        ({"tp": 8, "sp": True, "recompute": "selective"}, 34 / 8),
        ({"recompute": "full"}, 2),
        ({"tp": 8, "sp": True, "recompute": "full"}, 2 / 8),
    ],
)
def test_layer_keeps_what_the_published_table_says(plan, expected):
    assert layer_bytes(**plan) == pytest.approx(expected, rel=1e-3)


def test_flash_attention_keeps_no_scores():
    flash = replace(UNFUSED, style=FusionStyle(flash=True, dropout=True))
    assert layer_bytes(flash) == pytest.approx(34, rel=0.003)


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_states_shrink_with_zero_stages(zero, gigabytes):
    plan = TrainingPlan(dp=64, batch=64, zero=zero)
    framework = Framework(gradients="fp16")
    assert sum(states(7_500_000_000, plan, framework).values()) == pytest.approx(gigabytes * 1e9, rel=0.005)


@pytest.mark.parametrize(("zero", "each"), [(0, 18), (1, 6 + 12 / 8)])
def test_distributed_optimizer_keeps_fp32_gradients_whole(zero, each):
    plan = TrainingPlan(dp=8, batch=8, zero=zero)
    assert sum(states(8_000_000, plan, Framework()).values()) == pytest.approx(each * 8_000_000)


def test_first_stage_holds_most_micro_batches_under_1f1b():
    plan = TrainingPlan(pp=8, batch=64, micro_batch=1, sequence=S, recompute="full")
    found = memory(MODEL, weft.system("dgx-a100"), plan, UNFUSED)
    held = [max(device.held) for device in found.devices]
    middle = held[1:-1]
    assert middle == sorted(middle, reverse=True)
    per_layer = 2 * S * H
    assert held[3] == pytest.approx((8 - 3) * 6 * per_layer)


def test_plan_that_does_not_fit_says_what_would():
    plan = TrainingPlan(dp=8, batch=8, sequence=S)
    found = memory(MODEL, weft.system("dgx-a100"), plan, UNFUSED)
    assert not found.fits
    assert found.remedies
    assert all(peak <= found.capacity for peak in found.remedies.values())


@pytest.mark.parametrize(
    ("loss", "tp", "saved", "gradient"),
    [
        ("eager_cross_entropy", 1, 4, 4 + 4 + 2),
        ("eager_cross_entropy", 8, 4, 4 + 4 + 4 + 2),  # DTensor's exponentials are a tensor of their own
        ("compiled_cross_entropy", 1, 2, 2),
        ("compiled_cross_entropy", 8, 2, 2),
    ],
)
def test_gradient_of_a_loss_holds_the_tensors_that_its_kernels_write(loss, tp, saved, gradient):
    framework = Framework(style=FusionStyle(loss=loss))
    head = rank_parts(MODEL, TrainingPlan(tp=tp, sequence=S), framework)["head"].kept
    logits = S * MODEL.vocabulary / tp
    assert head.saved["loss"] == saved * logits
    assert head.backward == max(gradient * logits, 2 * logits + 2 * S * H)


@pytest.mark.parametrize(
    ("schedule", "copies"),
    [("1f1b", [0, 0, 0, 0]), ("pipedream", [3, 2, 1, 0]), ("pipedream-2bw", [1, 1, 1, 1])],
)
def test_schedules_without_a_flush_keep_weights_for_passes_in_flight(schedule, copies):
    """Stage i of 4 holds min(m, 4 - i) versions under PipeDream, and two under 2BW (arXiv:2006.09503)."""
    found = memory(MODEL, weft.system("dgx-a100"), TrainingPlan(pp=4, dp=2, batch=16, schedule=schedule), UNFUSED)
    held = [device.fixed.get("weight versions", 0) for device in found.devices]
    assert held == [count * device.fixed["weights"] for count, device in zip(copies, found.devices, strict=True)]


def test_holders_add_up_to_the_peak():
    found = memory(MODEL, weft.system("dgx-a100"), TrainingPlan(tp=8, sequence=S), UNFUSED)
    device = found.devices[0]
    assert sum(device.holders.values()) == pytest.approx(device.peak)


GQA = Transformer(
    name="7b", title="7B", hidden=4096, layers=32, heads=32, kv_heads=8, ffn=16384, sequence_length=8192,
    vocabulary=131200, tied=False, positions="rotary",
)  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "peak", "static"),
    [
        (TrainingPlan(tp=4, dp=2, batch=8, micro_batch=2, sequence=8192, zero=1), 58.19e9, 20.63e9),
        (TrainingPlan(pp=4, dp=2, batch=8, sequence=8192, zero=1, schedule="interleaved:8"), 60.49e9, 24.51e9),
    ],
)
def test_peaks_of_megatron_cores_golden_runs(plan, peak, static):
    """Official golden values of Megatron-LM's functional tests, on the first pipeline device."""
    found = memory(GQA, weft.system("dgx-a100"), plan, Framework(style=FusionStyle(dropout=True)))
    device = found.devices[0]
    assert device.peak_allocated == pytest.approx(peak, rel=0.03)
    assert sum(device.fixed[name] for name in ("weights", "gradients", "optimizer")) == pytest.approx(static, rel=0.05)


@pytest.mark.parametrize("compiled", [True, False])
def test_checkpointing_by_operators_keeps_every_second_product_of_pytorch(compiled):
    """Of 7 products queries (1), values (3), half of the gated MLP (5) and what leaves it (7): torchtitan's policy."""
    llama, tokens = load_model("llama-3-8b"), 8192
    plan = TrainingPlan(dp=8, batch=8, sequence=tokens, zero=3, recompute="operators")
    used = framework("torchtitan")
    kept = rank_parts(llama, plan, replace(used, style=replace(used.style, fused=compiled)))["dense"].kept.saved
    wide, values = llama.hidden, llama.hidden // 4
    rows = 4 * llama.heads  # a sum of exponentials in fp32 for each row of scores
    down = 0 if compiled else 2 * wide  # nothing but the residual stream reads it, which the compiler sees
    assert sum(kept.values()) == tokens * (2 * (wide + wide + values + wide + llama.ffn) + rows + down)


def test_checkpointing_by_operators_repeats_experts_but_no_exchange_of_tokens():
    moe, plan = load_model("qwen3-30b-a3b"), TrainingPlan(dp=8, batch=8, sequence=4096, zero=3, recompute="operators")
    alone, spread = (rank_parts(moe, plan.alter(ep=ep), framework("torchtitan"))["moe"].kept for ep in (1, 8))
    assert not {"experts_fc1", "experts_fc2", "router"} & alone.saved.keys()
    assert spread.saved.keys() - alone.saved.keys() == {"permute", "unpermute"}
    assert spread.saved["permute"] == 2 * 4096 * moe.experts_per_token * moe.hidden


def test_a_chunk_of_a_pipeline_scatters_its_gradients_before_those_of_the_one_before():
    """With as many micro-batches as stages, the backward passes of the last chunk all come first."""
    count, used = 8_000_000, framework("torchtitan")
    plan = TrainingPlan(pp=4, dp=8, batch=32, zero=3)
    whole, parted, many = (
        gathered_bytes(1_000_000, count, plan.alter(schedule=name, batch=batch), used)
        for name, batch in (("1f1b", 32), ("interleaved:2", 32), ("interleaved:2", 64))
    )
    assert whole == count * (2 + 4) + 1_000_000 * (2 + 4)
    assert whole - parted == 4 * count // 2
    assert many == whole


def test_a_loss_in_chunks_keeps_the_logits_of_one_chunk():
    large = Transformer(
        name="wide", title="Wide", hidden=1024, layers=1, heads=8, sequence_length=4096, vocabulary=262_144
    )
    peaks = {}
    for chunks in (1, 4):
        plan = TrainingPlan(micro_batch=4, batch=4, sequence=4096, loss_chunks=chunks)
        peaks[chunks] = memory(
            large, weft.system("1xh100"), plan, Framework(style=FusionStyle(loss="eager_cross_entropy"))
        )
    logits = 4 * 4096 * 262_144
    whole, parted = (peaks[chunks].devices[0].dynamic for chunks in (1, 4))
    assert whole - parted > 0.75 * logits * (4 + 4)  # the logarithms that are kept, and their gradient, in fp32
    assert weft.step("llama-3-8b", "8xh100", fidelity="estimate", batch=8, loss_chunks=4).seconds == (
        weft.step("llama-3-8b", "8xh100", fidelity="estimate", batch=8).seconds
    )


def test_fsdp_keeps_of_weights_the_main_copy_only():
    plan = TrainingPlan(dp=8, batch=8, zero=3)
    count = 8_000_000
    usual, main = (states(count, plan, Framework(gathers_main=on)) for on in (False, True))
    assert sum(usual.values()) - sum(main.values()) == 2 * count // 8
    assert main["weights"] == 4 * count // 8
    whole = TrainingPlan(dp=8, batch=8, zero=2)
    assert states(count, whole, Framework(gathers_main=True)) == states(count, whole, Framework())


@pytest.mark.parametrize(
    ("model", "system", "plan", "gibibytes", "off"),
    [
        # mlc-ai/pith-train issue 79 and pytorch/torchtitan issue 1690: what the allocator reserved
        ("qwen3-30b-a3b", "8xb200", {"micro_batch": 8, "batch": 64, "sequence": 8192, "recompute": "operators",
                                     "loss_chunks": 8}, 141.79, 0.04),
        ("qwen3-32b", "8xh100", {"micro_batch": 2, "batch": 16, "sequence": 4096, "recompute": "full"}, 81.85, 0.04),
    ],
)  # fmt: skip
def test_peaks_of_torchtitans_runs(model, system, plan, gibibytes, off):
    found = weft.memory(model, system, framework="torchtitan", zero=3, **plan)
    assert found.devices[0].peak_reserved / 2**30 == pytest.approx(gibibytes, rel=off)
