"""Plans of serving: the fewest GPUs that meet limits of time, said as `weft serve` says it."""

from __future__ import annotations

import csv
import json
from functools import cache
from itertools import pairwise
from math import inf

import pytest
from click.testing import CliRunner
from deployments import plan_with, serve_with
from shown import check_shown

import weft
from weft.cli.main import weft as cli
from weft.core.errors import InputError, UnknownNameError
from weft.core.fields import stated_fields
from weft.models import load_model
from weft.plan.launch import ENGINES
from weft.plan.launch import launch as launch_of
from weft.plan.search import Search
from weft.plan.serving import EVERY, _numbers
from weft.step.serving_plan import ServingPlan
from weft.view.serving_plans import ServingPlansReport

MODEL, SYSTEM = "llama-3-8b", "2xh100"
LOAD = {"rate": 12, "requests": 60, "input_len": 1024, "output_len": 48}
LIMITS = {"ttft": "400 ms", "tpot": "20 ms"}


def launch(engine, plan):
    return launch_of(engine, load_model(MODEL), weft.system(SYSTEM), plan)


@cache
def planned(**more):
    return plan_with(MODEL, SYSTEM, **{**LOAD, **LIMITS, **more})


def test_what_a_plan_says_of_a_layout_is_what_serve_says():
    found = planned()
    for one in {one.plan: one for one in [found.best, *found.front]}.values():
        again = weft.serve(MODEL, SYSTEM, one.plan, weft.Load(**LOAD), weft.Limits(**LIMITS))
        assert json.dumps(again.to_dict()) == json.dumps(one.serving.to_dict())
        assert one.meets == (not again.overloaded and again.slo_attainment >= found.attainment)


@pytest.mark.parametrize(
    ("model", "system", "more"),
    [
        (MODEL, SYSTEM, {"pp": 2}),
        (
            MODEL,
            SYSTEM,
            {
                "acceptance_rate": 0.7,
                "speculative_method": "eagle",
                "tp": 1,
                "prefill_replicas": 0,
                "max_num_batched_tokens": 2048,
            },
        ),
        ("qwen3-30b-a3b", "4xh100", {"ep": 4, "two_batch_overlap": True, "prefill_replicas": 0}),
        (
            "qwen3-30b-a3b",
            "4xh100",
            {"ep": 4, "acceptance_rate": 0.7, "prefill_replicas": 0, "max_num_batched_tokens": 2048},
        ),
    ],
)
def test_stages_drafts_and_halves_are_served_as_serve_does(model, system, more):
    asked = {**LOAD, "tpot": "40 ms", "ttft": "1 s", **more}
    found = plan_with(model, system, **asked)
    assert found.tried
    for one in found.tried:
        again = serve_with(model, system, **asked | stated_fields(one.plan))
        assert json.dumps(again.to_dict()) == json.dumps(one.serving.to_dict())
        assert one.plan.pp == more.get("pp", 1)
        assert (one.plan.num_speculative_tokens is None) == ("acceptance_rate" not in more)


def test_accepted_drafts_speed_users_up():
    load = {"tp": 1, "prefill_replicas": 0, "replicas": 1, "max_num_batched_tokens": 8192}
    plain, drafted = planned(**load), planned(**load, acceptance_rate=0.8, speculative_method="eagle")
    assert drafted.best.plan.num_speculative_tokens > 0
    assert drafted.best.tokens_per_s_per_user > 1.2 * plain.best.tokens_per_s_per_user
    assert drafted.best.words == "1 x TP 1, 7 draft tokens by eagle, 8,192 batched tokens"


def test_a_model_that_no_tp_holds_is_planned_in_stages():
    found = plan_with("llama-3-70b", "8xl40s", tp=1, **{**LOAD, "rate": 0.2}, ttft="4 s", tpot="400 ms")
    assert found.best.words == "1 x TP 1 and PP 4, 512 batched tokens"
    assert found.best.gpus == 4


def test_the_best_layout_meets_the_limits_on_the_fewest_gpus():
    found = planned()
    assert found.best.meets
    assert found.best.serving.slo_attainment >= 0.9
    assert all(one.gpus >= found.best.gpus for one in found.tried if one.meets)


def test_the_best_layout_meets_the_limits_for_minutes_whatever_the_draw():
    asked = {"rate": 12, "input_len": 1024, "output_len": 128, "ttft": "400 ms", "tpot": "25 ms"}
    found = plan_with(MODEL, "8xh100", **asked)
    assert found.load.startswith("3,600 requests")
    assert found.best.serving.completed == 3600
    for seed in (1, 7, 8):
        served = serve_with(MODEL, "8xh100", **asked, **stated_fields(found.best.plan), requests=3600, seed=seed)
        assert served.slo_attainment >= 0.88


def test_on_the_front_more_gpus_mean_faster_users():
    front = planned().front
    assert [one.gpus for one in front] == sorted(one.gpus for one in front)
    assert [one.tpot for one in front] == sorted((one.tpot for one in front), reverse=True)


def test_a_choice_that_is_given_is_not_searched():
    found = planned(tp=2, max_num_batched_tokens=2048)
    assert {(one.plan.tp, one.plan.max_num_batched_tokens) for one in found.tried} == {(2, 2048)}


def test_limits_that_no_layout_meets_name_the_nearest_and_what_limits():
    found = planned(tpot="1 ms")
    assert found.best is None
    assert found.nearest.serving.slo_attainment == 0
    said = " ".join(found.report().sentences())
    assert "No plan on 2 GPUs" in said
    assert "TPOT above its SLO" in said


def test_layouts_that_the_time_of_the_search_does_not_reach_are_said_so():
    found = planned(budget_s=0.0)
    assert found.best is None
    assert (
        found.unknown == found.rejected["not tried"] == found.searched - found.bounded - found.rejected.get("memory", 0)
    )
    assert f"ran out of time before {found.unknown} of them" in " ".join(found.report().sentences())
    assert planned().unknown == 0


def test_slower_layouts_of_fewer_gpus_that_the_time_does_not_reach_are_counted(monkeypatch):
    """Layouts that miss the limits run again without them, as their few GPUs may be on the front."""
    whole = planned(tpot="9 ms")
    monkeypatch.setattr(Search, "time_left", property(lambda self: self.workload.limit < inf))
    found = plan_with(MODEL, SYSTEM, **{**LOAD, **LIMITS, "tpot": "9 ms"})
    assert found.best.plan == whole.best.plan
    assert found.best.gpus == 2
    missed = {one.plan for one in whole.tried if one.gpus == 1}
    assert missed
    assert missed.isdisjoint(one.plan for one in found.tried)
    assert found.unknown >= len(missed)
    assert found.unknown == found.rejected["not tried"]
    assert sum(found.rejected.values()) <= found.searched


def test_a_load_above_what_all_gpus_answer_is_said_so():
    found = planned(rate=500, requests=600)
    assert found.best is None
    assert max(found.rejected, key=found.rejected.get) in (
        "load above capacity",
        "TTFT above its SLO",
    )


def test_plans_show_themselves(tmp_path):
    check_shown(planned(), tmp_path)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"ttft": None}, "ttft is not given; give ttft, such as 1s"),
        ({"tpot": "0 s"}, "tpot is 0 s, which no answer meets"),
        ({"rate": None, "concurrency": 4}, "give rate or trace"),
        ({"attainment": 2}, "attainment is 2; give a number of 0.01 to 1"),
        ({"input_len": 9000}, "exceeds the 8,192 tokens"),
        ({"tp": 1, "pp": 1, "gpu_memory_utilization": 0.2}, "leaves no memory"),
        ({"pp": 3}, "tp 1 and pp 3 do not fill the 2 GPUs"),
        ({"two_batch_overlap": True}, "none are without ep above tp 1"),
        ({"acceptance_rate": 1.5}, "acceptance_rate is 1.5; give a number of 0 to 1"),
        ({"acceptance_rate": 0.5, "speculative_method": "lama-3-8b"}, "llama-3-8b"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_next_step(asked, words):
    with pytest.raises(InputError, match=words):
        plan_with(MODEL, SYSTEM, **{**LOAD, **LIMITS, **asked})


def test_the_command_says_what_the_function_says(tmp_path):
    asked = ["serve", MODEL, "--system", SYSTEM, "--plan", "--rate", "12", "--requests", "60", "--input-len", "1024"]
    asked += ["--output-len", "48", "--ttft", "400ms", "--tpot", "20ms", "--json", tmp_path / "a.json"]
    done = CliRunner().invoke(
        cli, [*map(str, asked), "--csv", str(tmp_path / "a.csv"), "--out", str(tmp_path / "page")]
    )
    assert done.exit_code == 0, done.output
    kept = json.loads((tmp_path / "a.json").read_text())
    assert kept["best"] == json.loads(json.dumps(planned().best.to_dict()))
    assert "vllm serve $MODEL --tensor-parallel-size" in done.output
    assert len(list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))) == len(planned().tried)
    assert "Pareto front of throughput and interactivity" in (tmp_path / "page" / "report.html").read_text()
    assert (tmp_path / "page" / "launch.sh").read_text() == planned().launch


@pytest.mark.parametrize("engine", ENGINES)
def test_launch_lines_state_every_choice_and_every_role(engine):
    text = launch(
        engine, ServingPlan(tp=4, ep=4, replicas=5, prefill_replicas=2, max_num_batched_tokens=512, max_num_seqs=64)
    )
    for value in ("4", "512", "64"):
        assert f" {value}" in text
    assert "# 2 prefill replicas, 4 GPUs each" in text
    assert "# 3 decode replicas, 4 GPUs each" in text
    alone = launch(engine, ServingPlan(replicas=1))
    assert "512" not in alone
    assert "None" not in alone


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_that_share_experts_are_one_engine(engine):
    text = launch(engine, ServingPlan(ep=16, replicas=48, prefill_replicas=16))
    assert "# 1 prefill replica, 16 GPUs each" in text
    assert "# 2 decode replicas, 16 GPUs each" in text
    said = {"trtllm": "enable_attention_dp: true", "sglang": "--dp-size 16 --enable-dp-attention"}
    assert said.get(engine, "--data-parallel-size 16") in text


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", "--tensor-parallel-size 8 --pipeline-parallel-size 2 --distributed-executor-backend ray"),
        ("sglang", "--tp-size 8 --pp-size 2"),
        ("trtllm", "--tp_size 8 --pp_size 2"),
    ],
)
def test_a_pipeline_is_one_engine(engine, words):
    text = launch(
        engine, ServingPlan(tp=8, pp=2, replicas=6, prefill_replicas=2, max_num_batched_tokens=512, max_num_seqs=64)
    )
    assert words in text
    assert "# 1 prefill replica, 16 GPUs each" in text
    assert "# 2 decode replicas, 16 GPUs each" in text
    assert {"vllm": "--max-num-seqs 128", "sglang": "--max-running-requests 128"}.get(engine, "_size 64") in text


@pytest.mark.parametrize(
    ("engine", "draft", "words"),
    [
        ("vllm", "mtp", '{"method": "mtp", "num_speculative_tokens": 3}'),
        ("vllm", "eagle", '"method": "eagle", "model": "\'$DRAFT\'", "num_speculative_tokens": 3'),
        ("vllm", "none", '"method": "ngram", "prompt_lookup_max": 4'),
        ("dynamo", "llama-3-8b", '"method": "draft_model", "model"'),
        ("sglang", "mtp", "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"),
        ("sglang", "llama-3-8b", "--speculative-algorithm STANDALONE"),
        ("sglang", "none", "--speculative-algorithm NGRAM --speculative-num-draft-tokens 4"),
        ("trtllm", "mtp", "decoding_type: MTP\n  max_draft_len: 3"),
        ("trtllm", "eagle", "decoding_type: Eagle3\n  max_draft_len: 3\n  speculative_model: $DRAFT"),
    ],
)
def test_drafts_are_started_as_an_engine_spells_them(engine, draft, words):
    assert words in launch(
        engine, ServingPlan(tp=4, replicas=1, num_speculative_tokens=3, acceptance_rate=0.5, speculative_method=draft)
    )
    assert "spec" not in launch(engine, ServingPlan(tp=4, replicas=1, num_speculative_tokens=0))


def test_two_batches_are_overlapped_where_an_engine_does():
    started = ServingPlan(ep=8, replicas=8, two_batch_overlap=True)
    assert "--enable-dbo" in launch("vllm", started)
    assert "--enable-two-batch-overlap" in launch("sglang", started)
    asked = {
        "rate": 2,
        "requests": 10,
        "output_len": 8,
        "ep": 4,
        "prefill_replicas": 0,
        "max_num_batched_tokens": 2048,
        **LIMITS,
    }
    found = [plan_with("qwen3-30b-a3b", "4xh100", framework=name, **asked) for name in ("sglang", "trtllm")]
    assert found[0].searched > found[1].searched


def test_separate_prompts_have_a_router_that_knows_every_engine():
    started = ServingPlan(tp=4, ep=4, replicas=5, prefill_replicas=2)
    assert "--prefiller-hosts HOST0 HOST1 --prefiller-ports 8000 8000" in launch("vllm", started)
    assert "python -m dynamo.vllm --model $MODEL --disaggregation-mode decode" in launch("vllm", started)
    assert launch("sglang", started).count("--decode http://") == 3
    trtllm = launch("trtllm", started)
    assert 'urls: ["HOST2:8000", "HOST3:8000", "HOST4:8000"]' in trtllm
    assert trtllm.count("cache_transceiver_config") == 2


def test_an_unknown_engine_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="sglang"):
        launch("nope", ServingPlan(replicas=1))


def test_whole_experts_on_each_gpu_read_as_many_weights_as_slices():
    """At many tokens both hold the same bytes and FLOPs; only the shapes of GEMMs differ."""
    asked = {"rate": 8, "requests": 20, "input_len": 2048, "output_len": 8, "tp": 4}
    slices, whole = (serve_with("mixtral-8x7b", "4xh100", **asked, ep=ep) for ep in (1, 4))
    assert whole.cache == slices.cache
    assert whole.seconds == pytest.approx(slices.seconds, rel=0.25)
    assert whole.seconds != slices.seconds


@pytest.mark.parametrize(
    ("model", "ep", "words"),
    [(MODEL, 2, "has no experts to spread"), ("mixtral-8x7b", 3, "neither 1 nor tp 2")],
)
def test_ranks_that_cannot_share_experts_are_refused(model, ep, words):
    with pytest.raises(InputError, match=words):
        serve_with(model, "4xh100", rate=1, tp=2, ep=ep)


def test_numbers_of_many_replicas_are_tried_some_percent_apart():
    for step, most in ((1, 1000), (8, 1000), (2, 7), (1, 1), (4, 3)):
        found = list(_numbers(step, most, step))
        assert found[: EVERY // 2] == list(range(step, most + 1, step))[: EVERY // 2]
        assert not found or found[-1] == most // step * step
        assert all(0 < after - before <= max(2 * before / EVERY, step) for before, after in pairwise(found))
        assert len(found) < 200


def test_a_plan_says_whether_it_meets_its_slo_at_the_upper_end_of_its_interval():
    found = planned()
    low, high = found.best.tpot_interval_s
    assert low < found.best.tpot < high
    limit = found.objective.tpot
    assert found.best.meets_at_upper_end == (high <= limit)
    said = " ".join(ServingPlansReport(found).sentences())
    assert ("meets its SLO at the upper end" in said) == found.best.meets_at_upper_end
    assert "80 % interval" in said


def test_a_plan_that_may_miss_its_slo_names_the_fewest_gpus_that_surely_meet_it():
    """A limit just above the best plan's own time lies inside its interval."""
    limit = f"{planned().best.tpot * 1.02e3:.3f} ms"
    found = planned(tpot=limit)
    assert not found.best.meets_at_upper_end
    said = " ".join(ServingPlansReport(found).sentences())
    safest = found.safest
    if safest is None:
        assert "no plan on the Pareto front meets it" in said
    else:
        assert safest.gpus >= found.best.gpus
        assert f"{safest.gpus} GPUs meet it ({safest.words})" in said
        assert safest.tpot_interval_s[1] <= found.objective.tpot
