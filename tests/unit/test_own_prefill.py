"""Disaggregated prefill whose workers have a layout of their own."""

import pytest
from deployments import plan_with, serve_with

import weft
from weft import read_server
from weft.core.errors import InputError
from weft.plan.launch import ENGINES, launch
from weft.serving.result import Serving

MODEL, SYSTEM = "llama-3-8b", "8xh100"
LOAD = {"rate": 4, "requests": 300, "input_len": 2048, "output_len": 64}
APART = {"tp": 2, "replicas": 3, "prefill_replicas": 1}


def served(**more) -> Serving:
    return serve_with(MODEL, SYSTEM, **LOAD, **APART, **more)


@pytest.fixture(scope="module")
def narrow():
    return served(prefill_tp=1)


@pytest.fixture(scope="module")
def alike():
    return served()


def test_the_layout_of_the_others_stated_is_the_same_answer(alike):
    stated = served(prefill_tp=2)
    assert stated.capacity == alike.capacity
    for name in ("ttft", "tpot", "pools", "peak_memory"):
        assert getattr(stated, name) == pytest.approx(getattr(alike, name), rel=1e-9), name
    assert stated.gpus == alike.gpus == 6
    energies = [one.powered("gpus").energy.joules_per_token for one in (stated, alike)]
    costs = [one.priced("3 USD/GPU/h").costs for one in (stated, alike)]
    assert energies[0] == pytest.approx(energies[1], rel=1e-9)
    assert costs[0][1:4] == pytest.approx(costs[1][1:4], rel=1e-9)


def test_fewer_ranks_prefill_more_slowly_and_decode_alike(narrow, alike):
    assert narrow.gpus == 5
    assert narrow.parts["prefill"] > 1.3 * alike.parts["prefill"]
    assert narrow.tpot["mean"] == pytest.approx(alike.tpot["mean"], rel=0.01)
    assert narrow.pools.prefill < 0.8 * alike.pools.prefill
    assert narrow.pools.decode == pytest.approx(alike.pools.decode, rel=0.02)


def test_its_prompts_take_as_long_as_on_a_server_of_that_layout(narrow):
    alone = serve_with(MODEL, "1xh100", **{**LOAD, "output_len": 1})
    prompts = [one for one in narrow.iterations if one.replica == 0 and one.prefills == 1 and one.prompt == 2048]
    others = [one for one in alone.iterations if one.prefills == 1 and one.prompt == 2048]
    assert prompts[0].end - prompts[0].start == pytest.approx(others[0].end - others[0].start)


def test_a_gpu_sends_the_keys_and_values_of_all_its_heads(narrow, alike):
    def sent(one: Serving) -> float:
        return one.again.server.sending(2048)

    assert 1.5 * sent(alike) < sent(narrow) < 2 * sent(alike)


def test_gpus_of_both_kinds_count_in_costs(narrow):
    cost = narrow.priced("3 USD/GPU/h").costs
    assert cost.output == pytest.approx(3 * 5 / 3600 / narrow.output_tokens_per_s * 1e6)
    assert narrow.output_tokens_per_s_per_gpu == pytest.approx(narrow.output_tokens_per_s / 5)


def test_prefill_replicas_have_their_own_share_of_the_kv_cache(narrow):
    assert narrow.prefill_cache < 0.9 * narrow.cache
    used = max(one.used for one in narrow.iterations if one.replica == 0)
    assert narrow.peak_memory >= used / narrow.prefill_cache


def test_prefill_chunks_of_their_own_size():
    chunked = served(prefill_max_num_batched_tokens=512)
    assert max(one.prompt for one in chunked.iterations) == 512
    assert chunked.gpus == 6


def test_experts_shared_by_other_numbers_of_ranks():
    load = {"rate": 8, "requests": 200, "input_len": 1024, "output_len": 64}
    found = serve_with(
        "qwen3-30b-a3b", "8xh100", **load, ep=4, replicas=6, prefill_replicas=2, prefill_tp=2, prefill_ep=2
    )
    assert found.gpus == 4 + 2 * 2
    assert "2 of 6 replicas prefill, TP 2, EP 2 each, and the others, TP 1, EP 4, decode" in " ".join(found.notes)


def test_a_slow_gpu_of_either_pool_slows_something(narrow):
    late = narrow.delayed("gpu:30%").late
    assert late.tpot_s[1] >= late.tpot_s[0]
    assert late.ttft_s[1] >= late.ttft_s[0]
    assert (late.tpot_s[1], late.ttft_s[1]) > (late.tpot_s[0], late.ttft_s[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_launch_lines_hold_both_layouts_and_are_read_as_the_same_plan(engine):
    plan = weft.ServingPlan(**APART, prefill_tp=4)
    text = launch(engine, weft.models.load_model(MODEL), weft.system(SYSTEM), plan)
    assert "1 prefill replica, 4 GPUs each" in text
    assert "2 decode replicas, 2 GPUs each" in text
    lines = text.replace("$MODEL", "meta-llama/Meta-Llama-3-8B")
    if engine in ("sglang", "dynamo"):  # whose lines say which prefills
        found = read_server(lines).plan()
        assert (found.tp, found.prefill_tp) == (2, 4)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"prefill_tp": 2}, "prefill_tp is 2, and no replica only prefills; give prefill_replicas, such as 1, too"),
        (
            {"replicas": 3, "prefill_replicas": 1, "prefill_tp": 4, "prefill_ep": 2},
            "of the prefill replicas ep 2 is neither 1 nor tp 4",
        ),
        (
            {"replicas": 4, "prefill_replicas": 3, "prefill_ep": 2},
            "of the prefill replicas 3 replicas of one GPU do not fill groups of ep 2, .*; give a multiple of 2",
        ),
        ({"replicas": 3, "prefill_replicas": 1, "prefill_tp": 0}, "prefill_tp is 0"),
    ],
)
def test_layouts_that_no_prefill_replica_has_are_refused(fields, rule):
    with pytest.raises(InputError, match=rule):
        weft.ServingPlan(**fields)


def test_more_gpus_than_the_system_has_are_refused():
    with pytest.raises(InputError, match="4 replicas of 2 GPUs, 1 of them of 4, do not fit the 8 GPUs of the system"):
        serve_with(MODEL, SYSTEM, **LOAD, tp=2, replicas=4, prefill_replicas=1, prefill_tp=4)
    with pytest.raises(
        InputError, match="1 prefill replicas of 8 GPUs leave none of the 8 GPUs of the system to those"
    ):
        served(prefill_tp=8)


def test_the_search_gives_prefill_replicas_no_layout_of_their_own():
    limits = {"ttft": "1s", "tpot": "50ms"}
    with pytest.raises(
        InputError, match="prefill_tp is 4, and the search gives prefill replicas the layout of the others"
    ):
        plan_with(MODEL, SYSTEM, rate=4, input_len=1024, output_len=64, **limits, prefill_replicas=1, prefill_tp=4)


def test_layouts_that_fill_a_machine_only_together_are_served():
    found = serve_with("llama-3-8b", "12xgb200", **LOAD, tp=8, replicas=2, prefill_replicas=1, prefill_tp=4)
    assert (found.gpus, found.system.gpus) == (12, 12)
    with pytest.raises(InputError, match="tp 8 does not fill the 12 GPUs of the system with whole replicas"):
        serve_with("llama-3-8b", "12xgb200", **LOAD, tp=8)
