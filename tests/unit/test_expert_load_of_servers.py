"""The expert load distribution of a server: which experts tokens visit, and the GPU that gets most rows."""

from dataclasses import replace

import numpy as np
import pytest
from deployments import decode_with, forward_with

import weft
from weft.core.errors import InputError
from weft.hardware import system
from weft.models import load_model
from weft.step.expert_calls import visit_experts
from weft.step.forward import Group

EVEN = ()


def seconds(name, on, batch, load, **how):
    forward = forward_with(load_model(name), system(on), expert_load=load, **how)
    return forward.batch([Group(batch, 1, 2000, writes=True)]).seconds


def test_even_load_visits_as_many_experts_as_balls_hit_bins():
    visited, rows, busiest = visit_experts(2, 8, 16, 1, EVEN)
    assert visited == round(8 * (1 - (1 - 2 / 8) ** 16))
    assert (rows, busiest) == (32, 0)


def test_skewed_load_visits_fewer_experts_and_fills_one_of_them():
    even, *_ = visit_experts(8, 256, 64, 1, EVEN)
    skewed, rows, busiest = visit_experts(8, 256, 64, 1, 1.2)
    assert skewed < even
    assert rows == 64 * 8
    assert busiest == 64  # no expert gets a token twice


def test_numbers_by_expert_crowd_the_gpu_that_holds_the_busy_ones():
    load = (3.0, 3.0, 1.0, 1.0)  # GPU 0 holds the first two
    assert visit_experts(1, 4, 800, 2, load) == (2, 600, 0)
    assert visit_experts(1, 4, 800, 2, (5.0, 1.0, 1.0, 1.0)) == (2, 600, 500)


def test_default_counts_balanced_gpus():
    visited, rows, busiest = visit_experts(8, 256, 4096, 32, None)
    assert (visited, rows, busiest) == (8, 1024, 0)


def test_decode_of_wide_expert_parallelism_waits_for_the_fullest_gpu():
    took = [seconds("deepseek-v3", "32xh200", 128, load, ep=32) for load in (EVEN, 0.4, "power:0.8")]
    assert took == sorted(took)
    assert took[2] > 1.3 * took[0]


def test_an_even_load_costs_what_the_default_does_once_all_experts_are_visited():
    assert seconds("mixtral-8x7b", "8xh100", 256, EVEN, ep=8) == seconds("mixtral-8x7b", "8xh100", 256, None, ep=8)


def test_a_stated_load_replaces_the_sentence_on_even_experts():
    even, skewed = (decode_with("deepseek-v3", "32xh200", ep=32, expert_load=load).notes for load in (None, 0.6))
    assert any("evenly" in sentence for sentence in even)
    assert not any("evenly" in sentence for sentence in skewed)
    skewed = [sentence for sentence in skewed if "Expert load" in sentence]
    assert skewed[0].startswith("Expert load: the busiest expert gets 12.2x the mean number of tokens")
    assert skewed[0].endswith("the fullest of 32 GPUs 2.21x the mean of all.")


def test_a_skewed_load_slows_a_server_and_never_speeds_it_up_once_all_experts_are_visited():
    load = weft.Load(concurrency=32 * 96, requests=32 * 96, input_len=16, output_len=24)
    plan = weft.ServingPlan(ep=32, framework="sglang")
    took = [
        weft.serve("deepseek-v3", "32xh200", replace(plan, expert_load=one), load).tpot["mean"]
        for one in ("even", 0.3, 0.6)
    ]
    assert took == sorted(took)
    assert took[-1] > 1.1 * took[0]


@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3-235b-a22b"])
def test_dispatchers_of_a_server_order_as_those_of_a_step(model):
    def exposed(name):
        prompt = weft.prefill(model, "32xh200", weft.ServingPlan(ep=32, dispatcher=name), sequence=4096)
        plan = weft.TrainingPlan(dp=32, ep=32, batch=32, sequence=4096, dispatcher=name)
        step = weft.step(model, "32xh200", plan=plan, fidelity="estimate")
        return prompt.parts["exposed ep"], step.parts["exposed ep"]

    prompts, steps = np.array([exposed(name) for name in ("nccl", "deepep", "hybridep")]).T
    assert np.argsort(prompts).tolist() == np.argsort(steps).tolist()
    assert prompts / prompts[0] == pytest.approx(steps / steps[0], rel=0.1)


@pytest.mark.parametrize(
    ("name", "load", "words"),
    [
        ("llama-3-8b", 0.6, "has no experts"),
        ("mixtral-8x7b", (1.0, 2.0), "2 loads for 8 experts"),
        ("mixtral-8x7b", "power:", "no loads"),
        ("mixtral-8x7b", -1.0, "finite numbers from zero|from zero on"),
    ],
)
def test_a_load_that_the_experts_cannot_have_is_named(name, load, words):
    with pytest.raises(InputError, match=words):
        forward_with(load_model(name), system("8xh100"), expert_load=load)
