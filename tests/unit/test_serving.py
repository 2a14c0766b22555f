"""Serving: a step is what `weft prefill` and `weft decode` say, and requests get what the steps compute."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import mean

import pytest
from deployments import decode_with, forward_with, prefill_with, serve_with
from shown import check_shown

import weft
from weft.core import files
from weft.core.contrast import Contrast
from weft.core.errors import InputError, UnknownNameError
from weft.kernels.library.kits import framework_tables, resolve_framework
from weft.models import load_model
from weft.serving.framework import serves
from weft.serving.policies import first_come, running_first
from weft.serving.pool import Pool
from weft.serving.requests import Request, RequestSpec, read_requests
from weft.serving.step_times import INTERPOLATION_ERROR, Shape, StepTimes
from weft.step.forward import Group

MODEL, SYSTEM = "llama-3-8b", "1xh100"
HOST = "1 ms"


@cache
def times(model=MODEL, system=SYSTEM, tp=1):
    return StepTimes(forward_with(weft.load_model(model), weft.system(system), tp=tp))


def served(model=MODEL, system=SYSTEM, **asked):
    return serve_with(model, system, **{"cpu_overhead": HOST, **asked})


def outside(prompt):
    """What a request takes outside of steps up to its first token [s]."""
    return serves(forward_with(load_model(MODEL), weft.system(SYSTEM)), weft.ServingPlan()).outside(prompt)


def test_a_longer_prompt_reaches_its_step_later():
    assert 0 < outside(16) < outside(8192) < 0.1


def test_a_step_of_next_tokens_is_what_decode_says():
    for batch, context in ((1, 128), (32, 2048), (256, 1024)):
        step = times().seconds(Shape(batch, batch * context))
        assert step == pytest.approx(decode_with(MODEL, SYSTEM, batch=batch, context=context).seconds)


def test_a_step_of_one_prompt_is_what_prefill_says():
    for sequence, cached in ((512, 0), (2048, 0), (1024, 3071)):
        pairs = sequence * cached + sequence * (sequence + 1) // 2
        step = times().seconds(Shape(prefills=1, new=sequence, pairs=pairs))
        assert step == pytest.approx(prefill_with(MODEL, SYSTEM, sequence=sequence, cached=cached).seconds)


def test_a_mixed_step_is_what_decode_says_with_a_chunk():
    shape = Shape(32, 32 * 2048, 1, 512, 512 * 513 // 2)
    assert times().seconds(shape) == pytest.approx(decode_with(MODEL, SYSTEM, batch=32, chunk=512).seconds)


@pytest.mark.parametrize(("model", "system", "tp"), [(MODEL, SYSTEM, 1), ("mixtral-8x7b", "8xh100", 2)])
def test_interpolated_steps_are_close_to_the_passes_themselves(model, system, tp):
    found, drawn = times(model, system, tp), random.Random(7)
    errors = []
    for _ in range(60):
        count, keys = int(2 ** drawn.uniform(0, 9)), int(2 ** drawn.uniform(4, 14))
        new, cached = int(2 ** drawn.uniform(0, 13)), drawn.choice([0, int(2 ** drawn.uniform(0, 13))])
        prompts = drawn.choice([0, 1, 1, 2, 3])
        groups = [Group(count, 1, keys - 1), *([Group(prompts, new, cached)] if prompts else [])]
        pairs = prompts * (new * cached + new * (new + 1) // 2)
        whole = found.forward.batch(groups).seconds
        errors.append(found.seconds(Shape(count, count * keys, prompts, prompts * new, pairs)) / whole - 1)
    assert max(map(abs, errors)) < INTERPOLATION_ERROR
    assert mean(map(abs, errors)) < INTERPOLATION_ERROR / 10


def test_a_step_with_prompts_lasts_as_long_as_the_host_launches_its_kernels():
    on_gpu, each = times(), 1e-4
    found, least = on_gpu.with_launches(each, 512), 1e-4 * on_gpu.forward.launches
    short, long = (Shape(prefills=1, new=new, pairs=new * (new + 1) // 2) for new in (513, 8192))
    assert found.seconds(short) == least > on_gpu.seconds(short)
    assert found.seconds(long) == on_gpu.seconds(long) > least
    assert sum(found.parts(short).values()) == pytest.approx(least)
    for graphed in (Shape(prefills=1, new=512, pairs=512 * 513 // 2), Shape(600, 600 * 100)):
        assert found.seconds(graphed) == on_gpu.seconds(graphed)


def test_a_version_that_was_measured_has_its_own_time_outside_of_steps():
    forward = forward_with(load_model(MODEL), weft.system(SYSTEM))
    every, old = (serves(forward, weft.ServingPlan(framework=f"trtllm{name}")) for name in ("", "@1.0.0rc3"))
    assert old.frontend > every.frontend
    assert old.host == every.host


def test_every_known_version_is_found_by_its_own_name():
    known = {name: tuple(table["versions"]) for name, table in framework_tables().items()}
    assert {name: tuple(resolve_framework(f"{name}@{one}")[1] for one in each) for name, each in known.items()} == known


def test_a_version_is_resolved_to_what_is_known_of_it():
    named = ("vllm", "vllm@0.10", "vllm@0.10.2", "vllm@v0.15", "sglang@0.5.9")
    assert [resolve_framework(name) for name in named] == [
        ("vllm", ""), ("vllm", "0.10"), ("vllm", "0.10"), ("vllm", "0.15.1"), ("sglang", "0.5.9"),
    ]  # fmt: skip
    for name, said in (
        ("vllm@0.1", "0.10, 0.15.1"),
        ("vllm@", "0.10"),
        ("sglang@2", "0.5.6.post2"),
        ("nope@1", "vllm"),
    ):
        with pytest.raises(UnknownNameError, match=said):
            serve_with(MODEL, SYSTEM, rate=1, framework=name)


def test_the_version_whose_rules_hold_is_part_of_the_answer():
    today, old = (served(rate=4, requests=30, framework=name) for name in ("vllm", "vllm@0.10"))
    assert today.engine == "vLLM (V1), host times fitted to versions 0.15.1 to 0.19.0"
    assert (old.engine, old.framework) == ("vLLM 0.10", "vllm")
    for answer in (today, old):
        assert answer.to_dict()["engine"] == answer.engine
        assert f"Scheduler rules and CPU overheads are those of {answer.engine};" in " ".join(answer.notes)


def test_before_0_11_vllm_ran_experts_of_mxfp4_by_marlin_whose_sizes_are_padded():
    """Hidden 2,880 becomes 3,072 and the inner 2,880 becomes 2,944 (vllm's mxfp4.py); prompts take longer by Marlin."""
    old, today = (
        forward_with(load_model("gpt-oss-120b"), weft.system("2xh100"), tp=2, weights="mxfp4", library=name)
        for name in ("vllm@0.10", "vllm")
    )
    assert old._calls.sizes == (3072, 1536)
    experts = 36 * 128 * 3 * 2880 * 2880 * 4.25 / 8 / 2
    assert old.weights - today.weights == pytest.approx(experts * (3072 * 1536 * 2 / 2880**2 - 1), rel=0.01)
    prompt = Group(1, 8192)
    assert 1.4 < old.batch([prompt]).seconds / today.batch([prompt]).seconds < 2.2
    with pytest.raises(UnknownNameError, match=r"known: 0\.10"):
        forward_with(load_model(MODEL), weft.system(SYSTEM), library="vllm@0.19.0")


@pytest.mark.parametrize("library", ["vllm", "sglang", "trtllm"])
def test_in_eager_mode_an_iteration_lasts_as_long_as_its_launches(library):
    forward = forward_with(load_model(MODEL), weft.system(SYSTEM), library=library)
    quick, slow = (
        decode_with(MODEL, SYSTEM, library=library, enforce_eager=eager, context=512) for eager in (False, True)
    )
    launching = forward.launches * forward.kit.launch
    assert slow.seconds == pytest.approx(max(launching, quick.seconds))
    assert ("host" in slow.parts) == (launching > quick.seconds)
    answer = served(concurrency=1, requests=4, input_len=512, output_len=64, enforce_eager=True, framework=library)
    assert answer.tpot["mean"] == pytest.approx(max(launching, quick.seconds) + 1e-3, rel=0.02)
    prompts = [
        prefill_with(MODEL, SYSTEM, sequence=8192, library=library, enforce_eager=eager) for eager in (False, True)
    ]
    assert prompts[0].seconds == prompts[1].seconds, "kernels of a long prompt take longer than their launches"


def test_eager_mode_needs_a_framework():
    with pytest.raises(InputError, match="give library 'vllm'"):
        decode_with(MODEL, SYSTEM, enforce_eager=True)


def test_many_steps_of_next_tokens_are_those_that_follow_each_other():
    one_by_one = [times().seconds(Shape(24, 24 * 900 + 24 * at)) for at in range(200)]
    assert list(times().next_tokens(24, 24 * 900, 200)) == pytest.approx(one_by_one)


def test_a_lone_request_takes_its_prompt_and_its_next_tokens():
    answer = served(rate=1, requests=1, input_len=2048, output_len=257)
    prompt = prefill_with(MODEL, SYSTEM, sequence=2048, library="vllm").seconds
    assert answer.ttft["mean"] == pytest.approx(prompt + 1e-3 + outside(2048))
    tokens = [decode_with(MODEL, SYSTEM, context=context, library="vllm").seconds for context in (2049, 2304)]
    assert answer.tpot["mean"] == pytest.approx(mean(tokens) + 1e-3, rel=1e-3)
    assert answer.seconds == pytest.approx(answer.latency["mean"])


def test_clients_see_the_step_of_their_number():
    """Closed loop with short prompts: each client's tokens come with the step of all of them."""
    answer = served(concurrency=32, requests=320, input_len=16, output_len=1024)
    step = decode_with(MODEL, SYSTEM, batch=32, context=16 + 512, library="vllm").seconds + 1e-3
    assert answer.tpot["p50"] == pytest.approx(step, rel=0.02)
    assert answer.output_tokens_per_s == pytest.approx(32 / step, rel=0.03)


def test_a_long_prompt_is_read_in_chunks_of_the_budget_beside_next_tokens():
    answer = served(rate=50, requests=20, input_len=3000, output_len=64, max_num_batched_tokens=1024, arrivals="even")
    assert all(iteration.prompt + iteration.decodes <= 1024 for iteration in answer.iterations)
    assert any(iteration.prompt and iteration.decodes for iteration in answer.iterations)


def test_sglang_never_mixes_prompts_with_next_tokens():
    answer = served(rate=20, requests=60, input_len=2000, output_len=64, framework="sglang")
    assert not any(iteration.prompt and iteration.decodes for iteration in answer.iterations)
    assert any(iteration.decodes < iteration.running for iteration in answer.iterations if iteration.prompt)


def test_load_above_capacity_is_said_so_and_no_latency_is_stated():
    answer = served(rate=200, requests=300, input_len=1024, output_len=64)
    assert answer.overloaded
    assert answer.ttft is None
    assert answer.tpot is None
    assert answer.capacity < 200
    assert answer.report().sentences()[0].startswith("Overloaded: ")
    assert not served(rate=0.5 * answer.capacity, requests=300, input_len=1024, output_len=64).overloaded


def test_a_load_just_below_the_capacity_that_was_found_is_no_overload():
    capacity = served(rate=200, requests=300, input_len=1024, output_len=64).capacity
    assert not served(rate=0.8 * capacity, requests=600, input_len=1024, output_len=64).overloaded
    assert served(rate=1.3 * capacity, requests=600, input_len=1024, output_len=64).overloaded


def test_a_common_prefix_is_computed_once():
    plain, common = (
        served(rate=8, requests=100, input_len=2048, output_len=32, shared_prefix=prefix) for prefix in (0, 1536)
    )
    computed = [sum(iteration.prompt for iteration in answer.iterations) for answer in (plain, common)]
    assert computed[0] == 100 * 2048
    assert computed[1] == pytest.approx(1536 + 100 * 512, rel=0.05)
    inside = [answer.ttft["mean"] - outside(2048) for answer in (plain, common)]
    assert inside[1] < 0.5 * inside[0]


@pytest.mark.parametrize(("prefix", "known"), [(0, 0), (15, 0), (999, 992), (1000, 992), (5000, 992), (600, 592)])
def test_all_of_a_prompt_but_its_last_token_is_found_in_whole_blocks(prefix, known):
    """vLLM's KV-cache blocks have 16 tokens; the last token of a prompt gives the first one of the answer."""
    answer = served(rate=4, requests=20, input_len=1000, output_len=8, shared_prefix=prefix)
    assert sum(iteration.prompt for iteration in answer.iterations) == 20 * 1000 - 19 * known


def test_prompts_shorter_than_the_prefix_share_their_part_of_it():
    sizes = (100, 1900)
    computed = [
        sum(
            iteration.prompt
            for iteration in served(rate=1, requests=50, input_len=sizes, output_len=4, shared_prefix=prefix).iterations
        )
        for prefix in (0, 96, 1008, 10_000)
    ]
    assert computed == sorted(computed, reverse=True)
    assert computed[0] - computed[1] == 49 * 96
    asked = [one.input for one in served(rate=1, requests=50, input_len=sizes, output_len=4).requests]
    assert computed[3] <= max(asked) + 50 * 2 * 16


def test_readers_read_prompts_and_others_write_answers():
    answer = served(system="4xh100", rate=16, requests=200, input_len=2048, output_len=128, prefill_replicas=2)
    for iteration in answer.iterations:
        if iteration.replica < 2:
            assert iteration.decodes == 0
        else:  # which compute the last token of each prompt again
            assert iteration.prompt == iteration.prefills
    assert sum(iteration.prompt for iteration in answer.iterations if iteration.replica < 2) == 200 * 2048
    together = served(system="4xh100", rate=16, requests=200, input_len=2048, output_len=128)
    assert answer.tpot["p99"] < together.tpot["p99"], "no prompt delays next tokens"


def test_a_load_ends_when_steps_were_cut_short_at_its_end():
    # A cut-short series of steps leaves the event of its first end behind: it comes later than the last answer.
    load = {
        "rate": 2.0,
        "requests": 45,
        "input_len": 64,
        "output_len": (1, 120),
        "seed": 15,
        "framework": "trtllm",
    }
    answer = serve_with("llama-3-8b", "2xh100", **load, replicas=2, prefill_replicas=1)
    assert answer.completed == 45


def test_a_prefill_worker_waits_for_kv_cache_that_it_is_sending():
    """4,466 tokens of KV cache hold two prompts: a third waits until one has reached the decode worker."""
    plan = weft.ServingPlan(prefill_replicas=1, replicas=2, gpu_memory_utilization=0.25)
    load = weft.Load(concurrency=8, requests=24, input_len=2048, output_len=32)
    scarce = weft.serve("llama-3-8b", "2xh100", plan, load)
    ample = weft.serve("llama-3-8b", "2xh100", replace(plan, gpu_memory_utilization=0.9), load)
    assert 2 * 2048 < scarce.cache_tokens < 3 * 2048
    assert scarce.completed == ample.completed == 24
    assert scarce.ttft["mean"] > ample.ttft["mean"]


@pytest.mark.parametrize(("framework", "late_one"), [("sglang", "tpot"), ("trtllm", "tpot"), ("vllm", "ttft")])
def test_sending_keys_and_values_delays_the_second_token_or_the_first_where_a_proxy_asks_again(framework, late_one):
    slow = {"link.bandwidth": "1 GB/s"}
    asked = {
        "rate": 1,
        "requests": 5,
        "input_len": 4096,
        "output_len": 2,
        "prefill_replicas": 1,
        "framework": framework,
    }
    quick, late = (serve_with(MODEL, weft.system("2xh100").replace(change), **asked) for change in ({}, slow))
    size = 4096 * 2 * 32 * 8 * 128 * 2
    for name in ("ttft", "tpot"):
        delay = getattr(late, name)["mean"] - getattr(quick, name)["mean"]
        if name == late_one:
            assert delay > 0.5 * size / 1e9
        else:
            assert delay == pytest.approx(0, abs=1e-3)


def test_a_second_server_takes_its_own_time_and_computes_the_last_token_of_a_prompt_again():
    asked = {"concurrency": 1, "requests": 1, "input_len": 1024, "output_len": 8}
    alone, apart = (serve_with(MODEL, "2xh100", **asked, **how) for how in ({"replicas": 1}, {"prefill_replicas": 1}))
    writer = [iteration for iteration in apart.iterations if iteration.replica == 1]
    assert (writer[0].prefills, writer[0].prompt) == (1, 1)
    assert sum(iteration.decodes * iteration.steps for iteration in writer) == 7
    assert apart.requests[0].output == 8
    outside = alone.parts["outside"]
    assert apart.ttft["mean"] - alone.ttft["mean"] == pytest.approx(outside + writer[0].end - writer[0].start, rel=0.2)


def test_a_least_loaded_router_is_no_worse_than_one_in_turn():
    asked = {"system": "4xh100", "rate": 40, "requests": 400, "input_len": (100, 6000), "output_len": (10, 500)}
    least, iteration = (served(**asked, router=router) for router in ("least-loaded", "round-robin"))
    assert least.ttft["p99"] <= 1.05 * iteration.ttft["p99"]


def test_a_policy_of_ones_own_decides_who_is_first():
    def shortest_first(server):
        running_first(server)
        for request in sorted(server.waiting, key=lambda request: request.uncomputed_tokens):
            if not server.schedule_tokens(request, request.uncomputed_tokens):
                break

    asked = {"rate": 40, "requests": 200, "input_len": (64, 6000), "output_len": 16}
    own, theirs = served(**asked, scheduler=shortest_first), served(**asked)
    assert own.policy == "shortest_first"

    def of_short(answer):
        return mean(one.ttft for one in answer.requests if one.input < 2000)

    assert of_short(own) < of_short(theirs)


def test_a_policy_that_gives_nothing_is_named():
    with pytest.raises(InputError, match="the policy gave no tokens to any of 1 requests"):
        served(rate=1, requests=3, scheduler=lambda server: None)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (
            lambda server: server.schedule_tokens("first", 1),
            "the policy named 'first' as a request; name one of server.running",
        ),
        (lambda server: server.preempt(None), "the policy named None as a request"),
        (lambda server: server.preempt(server.waiting[0]), "preempted request 0, which does not run"),
        (lambda: None, "policy <lambda> cannot be called with a replica"),
        (lambda server, other: None, "missing a required argument: 'other'"),
    ],
)
def test_a_policy_of_ones_own_that_makes_no_sense_is_refused(policy, words):
    with pytest.raises(InputError, match=words):
        served(rate=1, requests=3, scheduler=policy)


def test_answers_show_themselves(tmp_path):
    check_shown(served(concurrency=8, requests=40, input_len=512, output_len=32, sweep_concurrency=True), tmp_path)


def test_limits_of_seconds_are_taken():
    asked = {"rate": 1, "requests": 3, "input_len": 64, "output_len": 4}
    assert served(**asked, ttft="2 s", tpot="1.5 s").slo_attainment == 1


def test_more_clients_get_more_throughput_and_each_less():
    curve = served(concurrency=64, input_len=512, output_len=64, sweep_concurrency=True).curve
    assert [one.clients for one in curve] == [1, 2, 4, 8, 16, 32, 64]
    for less, more in pairwise(curve):
        assert more.tokens_per_s_per_gpu > less.tokens_per_s_per_gpu
        assert more.tokens_per_s_per_user < 1.01 * less.tokens_per_s_per_user


def test_a_sweep_of_clients_names_the_most_that_meet_the_slo_and_shows_each():
    answer = served(concurrency=64, input_len=512, output_len=64, sweep_concurrency=True, tpot="9 ms")
    tpots = {one.clients: 1 / one.tokens_per_s_per_user for one in answer.curve}
    most = max(clients for clients, tpot in tpots.items() if tpot <= 9e-3)
    assert 1 < most < 64
    (said,) = [line for line in answer.report().sentences() if line.startswith("Most clients")]
    assert f"TPOT <= 9.00 ms: {most} (" in said
    assert f"; {2 * most} clients have " in said
    (table,) = [one for one in answer.report().on_terminal() if "interactivity" in (one.title or "")]
    assert [row[0] for row in table.rows] == list(tpots)


def test_the_answer_says_how_much_of_the_ttft_is_prefill_queue_and_server():
    """The parts up to the first token add up to the mean TTFT; a load above capacity has none."""
    load = weft.Load(rate=6, requests=60, output_len=32)
    answer = weft.serve("llama-3-8b", "1xh100", weft.ServingPlan(), load)
    parts = {name: answer.parts[name] for name in ("outside", "queue", "prefill")}
    assert sum(parts.values()) == pytest.approx(answer.ttft["mean"], rel=0.02)
    (said,) = [line for line in answer.report().sentences() if line.startswith("Mean TTFT: ")]
    assert f"{parts['prefill'] * 1e3:.3g} ms prefill iterations" in said


def test_names_of_dots_on_the_curve_lie_apart():
    answer = served(concurrency=64, input_len=512, output_len=64, sweep_concurrency=True)
    figure = next(one for one in answer.report().figures() if "interactivity" in one.title)
    rows = figure.data["curves"].records()
    named = [row for row in rows if row["said"]]
    assert {row["said"] for row in (rows[0], rows[-1])} == {"1", "64"}
    left, right = rows[-1]["user"], max(row["user"] for row in rows)
    top = max(row["gpu"] for row in rows)
    for at, one in enumerate(named):
        for other in named[:at]:
            across = abs(one["user"] - other["user"]) / (right - left) * 290
            assert across > 36 or abs(one["gpu"] - other["gpu"]) / top * 280 > 16


def test_parts_of_the_mean_step_add_up_to_it():
    answer = served(rate=10, requests=100, input_len=1024, output_len=64)
    assert sum(answer.iteration_parts.values()) == pytest.approx(answer.mean_iteration["seconds"])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "nothing says when requests arrive"),
        ({"rate": 1, "concurrency": 2}, "exclude each other"),
        ({"rate": 1, "input_len": 8000, "output_len": 500}, "8,000 tokens in and 500 out exceeds the 8,192"),
        ({"rate": 1, "gpu_memory_utilization": 0.22}, "leaves no memory for the KV cache under vllm"),
        ({"rate": -1}, "rate is -1"),
        ({"rate": 1, "prefill_replicas": 1}, "1 of 1 replicas only prefill, so that none decodes"),
        ({"rate": 1, "replicas": 2}, "give at most 1"),
        ({"rate": 1, "input_len": (5, 2)}, "the least and the most"),
        ({"rate": 1, "burstiness": 2.0}, "give arrivals='gamma'"),
        ({"concurrency": 2, "arrivals": "even"}, "arrivals is 'even'; leave it out"),
        ({"rate": 1, "sweep_concurrency": True}, "give concurrency"),
        ({"concurrency": 2, "seed": 4}, "nothing is drawn, and seed is 4; leave it out"),
        ({"rate": 1, "cpu_overhead": "1"}, "1"),
    ],
)  # fmt: skip
def test_bad_loads_are_refused_with_the_next_step(asked, words):
    with pytest.raises(InputError, match=words):
        serve_with(MODEL, SYSTEM, **asked)


def test_a_memory_that_holds_not_one_request_is_said_so():
    with pytest.raises(InputError, match="KV cache of a request of 7,128 tokens takes"):
        serve_with(
            MODEL,
            SYSTEM,
            rate=1,
            gpu_memory_utilization=0.225,
            input_len=7000,
            max_num_batched_tokens=64,
            max_num_seqs=8,
        )


@pytest.mark.parametrize(("name", "known"), [("framework", "vllm"), ("scheduler", "sglang"), ("router", "round-robin")])
def test_unknown_names_list_the_known_ones(name, known):
    with pytest.raises(UnknownNameError, match=known):
        serve_with(MODEL, SYSTEM, rate=1, **{name: "nope"})


def test_traces_of_three_kinds_are_read(tmp_path):
    own, azure, mooncake = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "c.jsonl"
    own.write_text("arrival_s,input_tokens,output_tokens\n0,600,5\n0.5,700,6\n")
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,600,5\n2023-11-16 18:15:47.1805900,700,6\n"
    )
    rows = [{"timestamp": at, "input_length": i, "output_length": o, "hash_ids": [1, 2]} for at, i, o in
            ((0, 600, 5), (500, 700, 6))]  # fmt: skip
    mooncake.write_text("\n".join(map(json.dumps, rows)))
    columns = tmp_path / "d.csv"
    columns.write_text('timestamp,input_length,output_length,hash_ids\n0,600,5,"[1, 2]"\n500,700,6,"[1, 3]"\n')
    for file in (own, azure, mooncake, columns):
        first, second = read_requests(file)
        assert second.arrival - first.arrival == pytest.approx(0.5)
        assert (second.input, second.output) == (700, 6)
    assert read_requests(mooncake)[0].blocks == read_requests(columns)[0].blocks == (1, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival_s,input_tokens,output_tokens\n1,10,5\n0.5,20,6\n", "arrives at 0.5 s, before request 1 at 1 s; sort"),
        ("arrival_s,input_tokens,output_tokens\n1,0,5\n", "give at least 1 of each"),
        ("arrival_s,input_tokens,output_tokens\n1,x,5\n", "request 1: input_tokens is 'x'; give a whole number"),
        ("arrival_s,input_tokens,output_tokens\nnan,4,5\n", "request 1: arrival_s is 'nan'; give a number of seconds"),
        ("arrival_s,input_tokens,output_tokens\n1e300,4,5\n", "give at least 1 of each, and a time of 0 to"),
        ("arrival_s,input_tokens,output_tokens\n0,100.9,5\n", "input_tokens is '100.9'; give a whole number"),
        ("arrival_s,input_tokens,output_tokens\n0,1_0,5\n", "input_tokens is '1_0'; give a whole number"),
        ("arrival_s,input_tokens,output_tokens\n0,\u0663,5\n", "give a whole number"),
        ("arrival_s,input_tokens,output_tokens\n1_0,3,5\n", "arrival_s is '1_0'; give a number of seconds"),
        ('{"arrival_s": 0, "input_tokens": true, "output_tokens": 5}', "input_tokens is True; give a whole number"),
        ('{"arrival_s": false, "input_tokens": 4, "output_tokens": 5}', "arrival_s is False; give a number"),
        ("arrival_s,input_tokens,output_tokens,input_tokens\n0,4,5,6\n", "'input_tokens'"),
        ('{"arrival_s": 0, "arrival_s": 1, "input_tokens": 4, "output_tokens": 5}', "'arrival_s' occurs twice"),
        ("arrival_s,input_tokens,output_tokens\n0,4,5,6\n", "has 4 cells"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n5,4,5\n2024-03-10 03:00:00,4,5\n", "write all of them in one way"),
        ('timestamp,input_length,output_length,hash_ids\n0,600,5,"[1, 2, 3]"\n', "3 hash_ids, and its prompt of 600"),
        ("timestamp,input_length,output_length,hash_ids\n0,600,5,[1.9]\n", "give whole numbers in brackets"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": ' + "[" * 100_000, "nested too deep"),
        ("arrival_s,input_tokens,output_tokens\n0," + "1" * 200_000 + ",5\n", "field limit"),
        ("timestamp,input_length,output_length,hash_ids\n0,4,5,[0\n", r"request 1: hash_ids is '\[0'; give whole num"),
        ("arrival_s,input_tokens,output_tokens\n,4,5\n", "lengths without times"),
        ("a,b\n1,2\n", "lacks 'arrival_s', 'input_tokens', 'output_tokens' among its columns 'a', 'b'; add"),
        ("arrival_s, input_tokens,output_tokens\n0,1,1\n", "lacks 'input_tokens' among its columns 'arrival_s', ' inp"),
        ("timestamp,input_length\n0,1\n", "lacks 'output_length' among"),
        ("trace,arrival_s,input_tokens,output_tokens\nx,0,4,5\ny,0,4,5\n", "several traces; name one"),
        ("{nope\n", "line 1 is no JSON"),
    ],
)
def test_a_bad_trace_is_refused_with_its_row(tmp_path, text, words):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        serve_with(MODEL, SYSTEM, trace=file)


def test_dates_without_a_zone_are_utc_and_numbers_may_be_as_pandas_writes_them(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    file = tmp_path / "t.csv"
    rows = ("2024-03-10 01:59:59,600.0,5", "2024-03-10 03:00:00.0000000,700,5.0", "2024-03-10 05:00:01+02:00,1,1")
    file.write_text("\n".join(("TIMESTAMP,ContextTokens,GeneratedTokens", *rows)))
    found = read_requests(file)
    monkeypatch.undo()
    time.tzset()
    assert [one.arrival for one in found] == [0.0, 3601.0, 3602.0]
    assert [one.input for one in found] == [600, 700, 1]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["a pipe", "a device"])
def test_what_is_no_file_is_refused_behind_the_suffix_of_gzip_too(tmp_path, make, monkeypatch):
    monkeypatch.setattr(files, "SILENCE_S", 0.1)
    path = tmp_path / "t.csv.gz"
    make(path)
    with pytest.raises(InputError, match=r"pipe|device"):
        read_requests(path)


def test_an_answer_holds_no_number_that_json_has_not(tmp_path):
    file = tmp_path / os.fsdecode(b"\xff.csv")
    file.write_text("arrival_s,input_tokens,output_tokens\n0,64,1\n")
    found = serve_with(MODEL, SYSTEM, trace=file)
    assert found.offered == float("inf")
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["offered_per_s"] is None
    found.save(tmp_path / "page.html")
    assert json.loads(found.save(tmp_path / "answer.json").read_text())["load"] == "1 requests of \ufffd.csv"


def test_a_trace_is_scaled_to_a_rate(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{at * at},64,4\n" for at in range(20)))
    answer = serve_with(MODEL, SYSTEM, trace=file, rate=5)
    assert answer.offered == pytest.approx(5)


def test_kept_blocks_serve_prompts_that_begin_alike_until_their_room_is_needed():
    pool = Pool(10 * 16, 1, lambda tokens: tokens, shared=16)
    first = Request(0, RequestSpec(0.0, 48, 1, (1, 2, 3)))
    assert pool.match(first) == 0
    assert pool.allocate_blocks(first, 48)
    pool.publish(first)
    pool.release(first)
    assert (pool.used, pool.idle) == (0, 48)
    alike = Request(1, RequestSpec(0.0, 64, 1, (1, 2, 9, 8)))
    assert pool.match(alike) == 32
    assert pool.allocate_blocks(alike, 64)
    assert (pool.used, pool.idle) == (64, 16)
    large = Request(2, RequestSpec(0.0, 96, 1))
    assert pool.allocate_blocks(large, 96)
    assert (pool.used, pool.idle) == (160, 0)
    assert not pool.allocate_blocks(Request(3, RequestSpec(0.0, 1, 1)), 1)
    pool.release(alike)
    pool.release(large)
    assert pool.used == 0


def test_rates_of_arrivals_are_those_between_warm_up_and_the_last_arrival():
    served = serve_with("llama-3-8b", "1xh100", rate=20, requests=400, input_len=512, output_len=64)
    assert served.requests_per_s == pytest.approx(served.offered, rel=0.05)
    assert served.completed / served.span < served.requests_per_s
    assert served.output_tokens_per_s == pytest.approx(64 * served.requests_per_s)
    closed = serve_with("llama-3-8b", "1xh100", concurrency=4, requests=20, input_len=512, output_len=64)
    assert closed.requests_per_s == closed.completed / closed.span  # too few for warm-up and drain to be left out


def test_servers_beside_each_other_show_what_a_server_is_judged_by():
    load = {"rate": 4, "requests": 60, "input_len": 512, "output_len": 32, "ttft": "1 s"}
    servers = {name: serve_with("llama-3-8b", "1xh100", framework=name, **load) for name in ("vllm", "sglang")}
    assert "With sglang a mean request takes" in str(Contrast(servers))
    told = [row[0] for row in Contrast(servers).report().tables()[1].rows]
    for name in ("TTFT, p99 [ms]", "TPOT, mean [ms]", "req/s", "SLO attainment [%]"):
        assert name in told
        assert Contrast(servers).rows[1]["measures"][name] == servers["sglang"].measures[name]


@pytest.mark.parametrize("sign", [1, -1], ids=["first come", "last come"])
def test_requests_decode_together_as_they_do_one_by_one(sign):
    def serve(together):
        def policy(server):
            server.running.sort(key=lambda request: sign * request.id)
            if together:
                running_first(server)
            else:
                for request in list(server.running):
                    if server.budget:
                        server.schedule_tokens(request, request.uncomputed_tokens)
            first_come(server)

        plan = weft.ServingPlan(scheduler=policy, max_num_batched_tokens=256)
        load = weft.Load(rate=20.0, requests=80, input_len=(20, 900), output_len=(1, 80), seed=5)
        return weft.serve("llama-3-8b", "1xh100", plan, load)

    found = serve(together=True)
    assert sum(iteration.written for iteration in found.iterations) == sum(one.output - 1 for one in found.requests)
    assert max(iteration.decodes for iteration in found.iterations) > 10
    assert found.iterations == serve(together=False).iterations
