"""Plans that are timed together take as long, and hold as much, as the clock and the memory of a single one say."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from weft.core.options import SUSTAINED
from weft.hardware import system
from weft.models import load_model
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.plan.space import space
from weft.step.clock import many, train
from weft.step.durations import DurationCache
from weft.step.memory import memory

CASES = {
    "dense": ("gpt-3", "64xa100", "megatron-core", 64, 2048, {}),
    "many nodes": ("gpt-3", "1024xa100", "megatron-core", 1536, 2048, {}),
    "sharded": ("gpt-3", "64xa100", "torchtitan", 128, 2048, {}),
    "kept weights": ("llama-3-8b", "16xh100", "megatron-fsdp", 64, 8192, {"zero": 3}),
    "experts": ("mixtral-8x7b", "64xh100", "megatron-core", 256, 4096, {}),
    "unequal layers": ("deepseek-v3", "256xh100", "megatron-core", 1024, 4096, {"tp": [1, 2], "cp": 1}),
    "lighter ends": (
        "llama-3.1-405b", "1024xh100", "megatron-core", 1024, 8192, {"tp": 8, "cp": [1, 2], "pp": [8, 16]}
    ),
    "blocking sends": ("gpt-3", "64xa100", "megatron-2021", 64, 2048, {"zero": [0, 1], "dtype": "fp16"}),
    "bound by the host": ("gpt-3", "64xa100", "vtrain", 64, 2048, {"zero": 0, "dtype": "fp16"}),
    "gpipe": ("gpt-3", "64xa100", "megascale", 64, 2048, {"schedule": "gpipe"}),
    "methods": ("gpt-3", "64xa100", "megatron-core", 64, 2048, {
        "overlap": [{"tp": "sequential"}, {"tp": "userbuffers"}, {"dp": "sequential"}, {"dp": "dma"}]
    }),
    "on the host": (
        "gpt-3", "64xa100", "megatron-core", 64, 2048, {"offload": ["activations", "optimizer"], "cp": 1}
    ),
    "by operator": (
        "gpt-3", "64xa100", "megatron-core", 64, 2048, {"recompute": ["none", ("norm1", "activation")], "cp": 1}
    ),
    "searched order": ("gpt-3", "64xa100", "megatron-core", 64, 2048, {
        "schedule": ["1f1b", "zb-h1", "zb-2p"], "tp": 8, "pp": 8, "sp": True
    }),
    "fp8, sharded": ("llama-3-70b", "64xh100", "torchtitan", 256, 8192, {"precision": "fp8-tensorwise"}),
    "fp8": ("llama-3-70b", "64xh100", "megatron-bridge", 256, 8192, {"precision": "fp8-tensorwise"}),
}  # fmt: skip


def sampled(case, count):
    """Plans of a case, drawn at random, with what they run on."""
    name, where, used, batch, sequence, fix = CASES[case]
    model, on, with_ = load_model(name), system(where), framework(used)
    plans = list(space(model, on, with_, batch, sequence, fix).candidates(Counter()))
    return model, on, with_, random.Random(0).sample(plans, min(count, len(plans)))


def check(case, count):
    """Compare times and peaks of plans of a case."""
    model, on, used, plans = sampled(case, count)
    found = many(model, on, plans, used)
    for plan, seconds, peak in zip(plans, found.seconds, found.peak_bytes, strict=True):
        assert seconds == pytest.approx(train(model, on, plan, used, SUSTAINED, "estimate").seconds, rel=1e-9)
        assert peak == pytest.approx(memory(model, on, plan, used).peak, rel=1e-9)


@pytest.mark.parametrize("case", ["dense", "experts", "sharded", "on the host"])
def test_plans_timed_together_are_timed_as_each_alone(case):
    check(case, 5)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_plans_of_every_kind_timed_together_are_timed_as_each_alone(case):
    check(case, 25)


def test_parts_of_a_step_add_up_to_it():
    model, on, used, plans = sampled("dense", 10)
    found = many(model, on, plans, used)
    assert found.seconds == pytest.approx(found.pipeline + found.reduce + found.update)
    assert (found.update > 0).all()


def test_a_schedule_without_slots_is_timed_alone():
    model, on, used, _ = sampled("dense", 1)
    plan = TrainingPlan(tp=8, pp=8, batch=64, sp=True, schedule="zb-h1")
    (seconds,) = many(model, on, [plan], used).seconds
    assert seconds == train(model, on, plan, used, SUSTAINED, "estimate").seconds


@pytest.mark.parametrize("zero", [0, 3])
def test_stages_of_one_device_are_timed_one_after_another(zero):
    model, on, used = load_model("llama-3-8b"), system("8xh100"), framework("torchtitan")
    plan = TrainingPlan(dp=8, batch=16, sequence=2048, zero=zero, schedule="interleaved:2")
    (seconds,) = many(model, on, [plan], used).seconds
    assert seconds == pytest.approx(train(model, on, plan, used, SUSTAINED, "estimate").seconds, rel=1e-9)
    whole = train(model, on, replace(plan, schedule="1f1b"), used, SUSTAINED, "estimate")
    assert 0.8 * whole.seconds < seconds < 1.05 * whole.seconds  # gradients are complete, and travel, earlier


def test_what_calls_share_changes_no_answer():
    model, on, used, plans = sampled("dense", 6)
    cache = DurationCache(on)
    many(model, on, [replace(plan, recompute="full") for plan in plans], used, cache=cache)
    again = many(model, on, plans, used, cache=cache)
    assert again.seconds.tolist() == many(model, on, plans, used).seconds.tolist()


def test_no_plans_take_no_time():
    assert many(load_model("gpt-3"), system("64xa100"), []).seconds.shape == (0,)
