"""Deployments, serving plans, loads and limits: their fields, ranges, combinations, and the options made from them."""

from __future__ import annotations

import dataclasses

import pytest

import weft
from weft.core.errors import InputError, UnknownNameError
from weft.core.fields import describe_fields, from_options, stated_fields
from weft.serving.cluster import ROUTERS
from weft.step.serving_plan import ServingPlan


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: weft.ServingPlan(tpp=4),
            "unknown field of ServingPlan 'tpp'; known: tp, pp, ep, .* did you mean 'tp'",
        ),
        (lambda: weft.Load(rat=4), "unknown field of Load 'rat'.*did you mean 'rate'"),
        (lambda: weft.Limits(ttf="1 s"), "unknown field of Limits 'ttf'.*did you mean 'ttft'"),
        (lambda: weft.TrainingPlan(micro_batches=2), "unknown field of TrainingPlan.*did you mean 'micro_batch'"),
        (lambda: dataclasses.replace(weft.ServingPlan(), max_num_seq=3), "did you mean 'max_num_seqs'"),
    ],
)
def test_a_misspelt_field_is_refused_with_the_nearest_names(make, words):
    with pytest.raises(UnknownNameError, match=words):
        make()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tp": 0}, "tp is 0; it must be a whole number of at least 1"),
        ({"tp": 4, "ep": 2}, "ep 2 is neither 1 nor tp 4"),
        ({"ep": 8, "pp": 2}, "pp is 2; leave one of them out"),
        ({"two_batch_overlap": True}, "give ep, or leave out two_batch_overlap"),
        ({"ep": 8, "two_batch_overlap": True, "overlap": "ep=t3-all-to-all"}, "leave out one of them"),
        ({"dtype": "fp7"}, "unknown number format 'fp7'.*'fp"),
        ({"weights": "int3"}, "unknown format 'int3'"),
        ({"kv_dtype": "fp4"}, "unknown number format of the KV cache 'fp4'"),
        ({"library": "vlm"}, "unknown library of a step 'vlm'.*'vllm'"),
        ({"framework": "vllm@99"}, "unknown version of vllm '99'"),
        ({"scheduler": "vlm"}, "unknown scheduling policy 'vlm'.*'vllm'"),
        ({"scheduler": 3}, "scheduler is 3; give one of vllm, .* or a function of a replica"),
        ({"router": "random"}, "unknown router 'random'; known: round-robin, least-loaded"),
        ({"num_speculative_tokens": 3}, "acceptance_rate is not given"),
        ({"num_speculative_tokens": 99, "acceptance_rate": 0.5}, "num_speculative_tokens is 99; it must be at most 16"),
        ({"acceptance_rate": 0.5}, "no token is drafted; give num_speculative_tokens"),
        ({"num_speculative_tokens": 1, "acceptance_rate": 1.5}, "acceptance_rate is 1.5; give a number of 0 to 1"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5; give a number of 0.01 to 1, such as 0.9"),
        ({"gpu_memory_utilization": True}, "gpu_memory_utilization is True"),
        ({"replicas": 2, "prefill_replicas": 2}, "2 of 2 replicas only prefill, so that none decodes"),
        ({"ep": 8, "replicas": 12}, "12 replicas of one GPU do not fill groups of ep 8"),
        ({"cpu_overhead": 3}, "cpu_overhead is 3; give a text"),
        ({"cpu_overhead": "3 GB"}, "3 GB"),
        ({"dispatcher": "deepep"}, "give ep above tp 1, or leave it out"),
        ({"enforce_eager": 1}, "enforce_eager is 1; give True or False"),
    ],
)
def test_a_serving_plan_that_contradicts_itself_cannot_be_made(given, words):
    with pytest.raises(InputError, match=words):
        weft.ServingPlan(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "nothing says when requests arrive; give rate"),
        ({"rate": 4, "concurrency": 2}, "rate and concurrency exclude each other"),
        ({"rate": 0}, "rate is 0; give a number of 1e-06 to 1e\\+06, such as 4"),
        ({"rate": 4, "requests": 0}, "requests is 0"),
        ({"rate": 4, "requests": 10**7}, "requests is 10000000; it must be at most 1000000"),
        ({"rate": 4, "burstiness": 2}, "give arrivals='gamma', too"),
        ({"rate": 4, "arrivals": "evn"}, "unknown kind of arrivals 'evn'.*'even'"),
        ({"concurrency": 4, "arrivals": "even"}, "clients ask when they are answered, and arrivals is 'even'"),
        ({"concurrency": 4, "seed": 1}, "nothing is drawn, and seed is 1"),
        ({"trace": "a.csv", "input_len": 4}, "a trace has lengths of its own, and input_len is 4"),
        ({"rate": 4, "input_len": (9, 3)}, "give a number of tokens, or the least and the most"),
        ({"rate": 4, "output_len": 0}, "output_len is 0; it must be a whole number of at least 1"),
    ],
)
def test_a_load_that_contradicts_itself_cannot_be_made(given, words):
    with pytest.raises(InputError, match=words):
        weft.Load(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ttft": 2}, "ttft is 2; give a text"),
        ({"ttft": "2"}, "unit"),
        ({"tpot": "-1 s"}, "tpot is '-1 s'; give a time of 0 or more"),
        ({"attainment": 2}, "attainment is 2; give a number of 0.01 to 1, such as 0.9"),
    ],
)
def test_limits_are_times_and_a_share(given, words):
    with pytest.raises(InputError, match=words):
        weft.Limits(**given)


def test_objects_of_fields_survive_copies_and_serve_as_keys():
    plan = weft.ServingPlan(tp=4, overlap="tp=t3-mca", max_num_seqs=16)
    assert plan.overlap == {"tp": "t3-mca"}
    assert dataclasses.replace(plan, tp=4) == plan
    assert hash(dataclasses.replace(plan)) == hash(plan)
    load = weft.Load(rate=4, input_len=[100, 200])
    assert load.input_len == (100, 200)
    assert {load: 1}[dataclasses.replace(load)] == 1


def test_a_pass_is_decided_by_the_fields_that_are_no_rules_of_a_server():
    plan = weft.ServingPlan(tp=4, kv_dtype="fp8", max_num_seqs=16, replicas=2, scheduler="sglang", cpu_overhead="1 ms")
    assert plan.of_pass == weft.ServingPlan(tp=4, kv_dtype="fp8")
    with pytest.raises(InputError, match=r"replicas is 2, which is a rule of a server, and weft.decode times one pass"):
        plan.refuse_server("weft.decode")


def test_options_have_the_names_that_fields_declare():
    plan = from_options(ServingPlan, {"max_num_batched_tokens": 512, "prefill_replicas": 1, "tp": None, "elsewhere": 3})
    assert stated_fields(plan) == {"max_num_batched_tokens": 512, "prefill_replicas": 1}
    load = from_options(weft.Load, {"rate": 4, "input_len": [8, 9], "shared_prefix": 4})
    assert (load.input_len, load.shared_prefix) == ((8, 9), 4)


def test_every_field_says_what_it_means_and_every_name_is_known():
    for owner in (weft.ServingPlan, weft.Load, weft.Limits):
        names = {one.name for one in dataclasses.fields(owner)}
        assert names == describe_fields(owner).keys()
    assert set(describe_fields(ServingPlan)["router"].choices) == set(ROUTERS)


def test_training_and_serving_share_the_fields_of_a_deployment():
    shared = {one.name for one in dataclasses.fields(weft.Deployment)}
    for owner in (weft.ServingPlan, weft.TrainingPlan):
        assert issubclass(owner, weft.Deployment)
        assert shared <= {one.name for one in dataclasses.fields(owner)}
