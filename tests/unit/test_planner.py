"""The planner: what it tries and leaves out, how it ranks, and what it says of it."""

import json
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from click.testing import CliRunner

import weft
from weft.cli.main import weft as weft_command
from weft.core.errors import InputError, UnknownNameError
from weft.core.units import format_time
from weft.estimate.step_errors import step_error
from weft.hardware import system
from weft.models import load_model
from weft.models.parallel.check import problems
from weft.models.parallel.framework import current_frameworks, framework
from weft.models.parallel.plan import TrainingPlan
from weft.plan import plans, training
from weft.plan.plans import ALIKE, roomiest_first
from weft.plan.space import space
from weft.plan.training import plan
from weft.step.clock import many, train
from weft.step.durations import DurationCache
from weft.step.memory import memory

GPT = load_model("gpt-3")
FIX = {"tp": 8, "pp": 8, "sp": True}


A100 = 81920 * 2**20
SCARCE = system("64xh100").replace({"memory.capacity": "80 GB"})
"""GPUs with as little memory as to make plans of equal time differ in what they leave free."""


@pytest.fixture(scope="module")
def found():
    return plan("gpt-3", "64xa100", batch=64, fix=FIX, refine=0)


def candidates(fix, on="64xa100", used="megatron-core", model=GPT, batch=64):
    rejected = Counter()
    plans = list(space(model, system(on), framework(used), batch, 2048, fix).candidates(rejected))
    return plans, rejected


def test_the_best_plan_is_the_fastest_that_fits(found):
    times = [one.step_time_s for one in found.plans]
    assert times == sorted(times)
    assert all(one.feasible and one.peak_bytes <= A100 for one in found.plans)


def test_a_plan_takes_as_long_as_weft_step_says(found):
    best = found.best
    same = weft.step(GPT, "64xa100", best.plan, framework=best.setting.framework.name, fidelity="estimate")
    assert best.step().seconds == pytest.approx(same.seconds)
    assert best.step_time_s == pytest.approx(same.seconds)
    assert best.peak_bytes == pytest.approx(same.memory.peak)
    assert best.mfu == pytest.approx(same.mfu)
    assert best.tokens_per_s_per_gpu == pytest.approx(same.tokens_per_s_per_gpu)


def test_every_plan_is_counted_once():
    fix = {"tp": [8, 64], "cp": 1, "pp": [4, 8], "zero": 0, "micro_batch": [1, 3]}
    plans, rejected = candidates(fix)
    assert len(plans) == len({str(one) for one in plans})
    found = plan("gpt-3", "64xa100", batch=64, fix=fix, refine=0, framework="megatron-core")
    assert found.searched == len(plans) + sum(rejected.values())
    kept = found.searched - sum(found.rejected.values())
    on, used = system("64xa100"), framework("megatron-core")
    assert kept == sum(memory(GPT, on, one, used).fits for one in plans)


def test_the_space_holds_every_combination_that_divides():
    """Against a plain product of all degrees on eight GPUs, each checked by the rules of plans."""
    fix = {"zero": 0, "recompute": "none", "micro_batch": 1, "schedule": "1f1b", "cp": 1}
    plans, _ = candidates(fix, "8xa100", batch=8)
    expected = set()
    for tp, pp, sp in product((1, 2, 4, 8), (1, 2, 4, 8), (False, True)):
        if 8 % (tp * pp) == 0 and (tp > 1 or not sp):
            one = TrainingPlan(tp=tp, pp=pp, dp=8 // (tp * pp), sp=sp, batch=8)
            if next(problems(GPT, one), None) is None:
                expected.add((tp, pp, sp))
    assert {(one.tp, one.pp, one.sp) for one in plans} == expected


def test_reasons_name_what_does_not_divide():
    _, rejected = candidates({"tp": 64, "zero": 0})
    assert any("tp 64 does not divide the 96 attention heads" in reason for reason in rejected)


def test_memory_is_a_reason_with_its_range(found):
    reasons = [reason for reason in found.rejected if reason.startswith("needs") and "Megatron" in reason]
    assert reasons
    for reason in reasons:
        assert "and a GPU has 86" in reason
        assert found.rejected[reason] > 0


def test_selective_recomputation_is_left_out_where_attention_is_fused():
    fused, _ = candidates({"tp": 8, "pp": 8})
    unfused, _ = candidates({"tp": 8, "pp": 8}, used="megatron-2022")
    assert "selective" not in {one.recompute for one in fused}
    assert "selective" in {one.recompute for one in unfused}


def test_fix_takes_lists_of_values():
    plans, _ = candidates({**FIX, "micro_batch": [1, 3], "recompute": ["full"]}, batch=48)
    assert {one.micro_batch for one in plans} == {1, 3}
    assert {one.recompute for one in plans} == {"full"}


def test_embedding_and_head_take_the_place_of_layers_where_stages_do_not_divide_them():
    """Llama 3's 126 layers on 16 stages: seven on the first and the last, eight on the others."""
    model = load_model("llama-3.1-405b")
    plans, _ = candidates({"tp": 8, "cp": 1, "pp": 16}, "1024xh100", model=model, batch=1024)
    plain = [one for one in plans if one.schedule == "1f1b"]
    assert plain
    assert {one.layers for one in plain} == {(7, *[8] * 14, 7)}
    assert {one.schedule for one in plans} >= {"1f1b", "interleaved:2", "interleaved:4"}
    assert all(sum(one.layers) == 126 for one in plans)


def test_experts_are_spread_over_ranks():
    model = load_model("mixtral-8x7b")
    plans, _ = candidates({"tp": 1, "cp": 1, "pp": 4}, used="megatron-core", model=model)
    assert {one.ep for one in plans} == {1, 2, 4, 8}


def test_the_objective_memory_finds_the_least_peak():
    found = plan("gpt-3", "64xa100", batch=64, fix=FIX, objective="memory", refine=0)
    peaks = [one.peak_bytes for one in found.plans]
    assert peaks == sorted(peaks)
    assert peaks[0] < plan("gpt-3", "64xa100", batch=64, fix=FIX, refine=0).best.peak_bytes


def test_the_objective_cost_may_take_fewer_gpus():
    found = plan(
        "llama-3-8b", "16xh100", batch=32, fix={"cp": 1, "zero": 1, "micro_batch": 1}, objective="cost", refine=0
    )
    costs = [one.gpu_seconds for one in found.plans]
    assert costs[1:] == sorted(costs[1:])
    assert costs[0] <= (1 + ALIKE) * min(costs)  # the first leaves more memory free than plans as cheap
    assert found.best.gpus < 16


def test_fewer_gpus_that_nodes_cannot_share_evenly_are_left_out():
    fix = {"tp": [1, 5, 8], "cp": 1, "pp": 1, "micro_batch": 1, "zero": 3}
    found = plan("llama-3-8b", "40xh100", batch=40, sequence=2048, fix=fix, refine=0)  # 20 are 3 nodes, 10 are 2
    assert {one.gpus for one in found.front} <= {40, 10, 5}
    assert found.best.gpus == 40


def test_nothing_beats_a_plan_of_the_front_in_all_three(found):
    for one, other in product(found.front, found.front):
        if one is not other:
            pairs = [(getattr(other, name), getattr(one, name)) for name in ("step_time_s", "peak_bytes", "gpus")]
            assert any(theirs > mine for theirs, mine in pairs)
    assert found.front[0].step_time_s == found.best.step_time_s


def test_a_plan_has_the_80_percent_interval_of_its_step(found):
    error = step_error(weft.gpu("a100-sxm-80gb"), found.best.setting.framework.name)
    assert found.best.interval_s == pytest.approx(
        (found.best.step_time_s * error.low, found.best.step_time_s * error.high)
    )
    assert found.best.tied
    assert found.evidence


def test_plans_are_tied_where_the_interval_of_their_ratio_holds_one(found):
    best = found.best
    for one in found.plans:
        low, high = one.ratio_error(best).around(one.step_time_s / best.step_time_s)
        assert low < one.step_time_s / best.step_time_s < high
        assert one.tied == (low <= 1 <= high)


def test_the_runner_up_is_explained_by_the_parts_that_changed_most(found):
    best, second = found.plans[:2]
    mine, theirs = best.step().parts, second.step().parts
    changes = {name: theirs.get(name, 0.0) - mine.get(name, 0.0) for name in {*mine, *theirs}}
    most = max(changes.values(), key=abs)
    assert f"takes {format_time(abs(second.step_time_s - best.step_time_s), 3)} (" in found.runner_up
    assert f"{'-' if most < 0 else '+'}{format_time(abs(most), 3)}" in found.runner_up


def test_the_reason_of_a_plan_says_what_its_step_is_spent_on(found):
    parts = found.best.step().parts
    useful = (parts["gemm"] + parts["attention"]) / sum(parts.values())
    assert f"{useful:.0%}" in found.best.why
    assert f"{found.best.peak_bytes / A100:.0%} full" in found.best.why


def test_of_plans_as_fast_the_one_with_most_memory_free_comes_first():
    fix = {"pp": 4, "cp": 2, "tp": 4, "micro_batch": 1, "sp": True}
    found = plan("llama-3-70b", SCARCE, batch=512, fix=fix, refine=0, launcher="megatron")
    best, second = found.plans[:2]
    assert best.peak_bytes == min(
        one.peak_bytes for one in found.fitting if one.step_time_s < 1.02 * second.step_time_s
    )
    assert second.step_time_s < best.step_time_s < 1.02 * second.step_time_s
    assert found.runner_up.endswith(
        "; of plans within 2% of the fastest, the one that leaves most memory free comes first"
    )
    times = [one.step_time_s for one in found.plans[1:]]
    assert times == sorted(times)


def test_no_plan_is_both_faster_and_smaller_than_the_best():
    fix = {"tp": 1, "cp": 1, "pp": 2, "ep": 8, "zero": 1, "micro_batch": 1, "dispatcher": "deepep", "recompute": "none"}
    found = plan("qwen3-30b-a3b", SCARCE, batch=256, sequence=4096, fix=fix, refine=0)
    best, second = found.plans[:2]
    better = [one for one in found.fitting if one.step_time_s < best.step_time_s and one.peak_bytes < best.peak_bytes]
    assert better == []
    if second.step_time_s < best.step_time_s:
        assert found.runner_up.endswith("the one that leaves most memory free comes first")


def test_plans_are_searched_under_todays_frameworks_that_run_on_the_machine():
    fix = {"tp": 1, "cp": 1, "pp": 1, "ep": 8, "micro_batch": [1, 2]}
    found = plan("qwen3-30b-a3b", "16xh200", batch=256, sequence=4096, fix=fix, refine=0)
    used = {one.setting.framework.name for one in found.fitting}
    assert {"megatron-bridge", "megatron-core", "torchtitan"} <= used <= set(current_frameworks())
    assert found.best.step_time_s <= min(
        plan("qwen3-30b-a3b", "16xh200", batch=256, sequence=4096, fix=fix, refine=0, framework=name).best.step_time_s
        for name in ("megatron-core", "torchtitan")
    )
    assert any("All plans were timed under megatron-bridge and torchtitan" in note for note in found.notes)
    told = found.report().sentences()
    assert found.best.setting.framework.name in told[0]
    assert any(one.startswith("The fastest of the plans timed by framework: ") for one in told)
    overlapped = [one.plan.overlap_moe_expert_parallel_comm for one in found.fitting]
    assert {True, None} <= set(overlapped)
    amd = plan("llama-3-8b", "8xmi300x", batch=16, sequence=2048, fix={"tp": 1, "pp": 1, "cp": 1}, refine=0)
    assert {one.setting.framework.name for one in amd.fitting} == {"megatron-core", "torchtitan"}


def test_a_framework_that_overlaps_exchanges_runs_plans_that_cannot_without_it():
    """Megatron Core pairs passes of interleaved stages, or without a pipeline, and without full recomputation."""
    fix = {"tp": 1, "cp": 1, "ep": 8, "pp": [1, 2], "micro_batch": 1, "schedule": ["1f1b", "interleaved:2"]}
    asked = {"batch": 256, "sequence": 2048, "refine": 0, "framework": "megatron-bridge-2026"}
    found = plan("qwen3-30b-a3b", "16xb200", fix={**fix, "precision": "mxfp8"}, **asked)
    for one in found.fitting:
        paired = one.plan.overlap_moe_expert_parallel_comm is not False
        assert paired == ((one.plan.pp == 1 or one.plan.chunks > 1) and one.plan.recompute != "full")


@pytest.mark.parametrize(
    ("model", "system", "asked"),
    [
        ("gpt-3", "64xa100", {"batch": 64, "fix": {"tp": 8, "pp": 8}}),
        ("llama-3-70b", "64xh100", {"batch": 128, "sequence": 8192, "fix": {"tp": 8, "zero": 3}}),
        ("deepseek-v3", "1024xh100", {"batch": 8192, "sequence": 4096, "fix": {"tp": 4, "pp": 8, "ep": 32, "zero": 1}}),
    ],
)
def test_the_command_of_a_plan_answers_as_the_plan_does(model, system, asked):
    best = plan(model, system, **asked, refine=0).best
    told = CliRunner().invoke(weft_command, [*best.command.split()[1:], "--json", "-"])
    assert told.exit_code == 0, told.output
    answer = json.loads(told.stdout)
    assert answer["step_time_s"] == pytest.approx(best.step_time_s, rel=1e-9)
    assert answer["peak_bytes"] == pytest.approx(best.peak_bytes, rel=1e-9)


def test_a_plan_of_ones_own_model_has_no_command():
    own = weft.load_model("gpt-3").replace({"layers": 88})
    assert plan(own, "64xa100", batch=64, fix={"tp": 8, "pp": 8}, refine=0).best.command == ""


def test_memory_decides_among_plans_as_fast_then_time(found):
    base = replace(found.best, step_time_s=10.0, peak_bytes=60e9)

    def first_beside(step_time_s, peak_bytes, **more):
        other = replace(base, step_time_s=step_time_s, peak_bytes=peak_bytes, **more)
        return roomiest_first([base, other])[0] is other

    assert first_beside(10.19, 57e9)
    assert not first_beside(10.21, 57e9)
    assert not first_beside(10.1, 60e9)
    assert first_beside(10.0, 59.9e9)
    assert not first_beside(10.1, 40e9, fidelity="windows")


def test_a_reserve_of_memory_stays_free():
    fix = {"pp": 4, "cp": 2, "tp": 4, "micro_batch": 1, "sp": True}
    peaks = {
        share: max(
            one.peak_bytes for one in plan("llama-3-70b", SCARCE, batch=512, fix=fix, refine=0, reserve=share).fitting
        )
        for share in (0.0, 0.04, 0.3)
    }
    assert all(peak <= (1 - share) * 80e9 for share, peak in peaks.items())
    assert peaks[0.0] > 0.96 * 80e9


@pytest.mark.parametrize("reserve", [-0.01, 1, "a tenth", None])
def test_a_reserve_is_a_share(reserve):
    with pytest.raises(InputError, match=r"reserve is .*; give the share of memory that stays free"):
        plan("gpt-3", "64xa100", batch=64, fix=FIX, refine=0, reserve=reserve)


def test_a_launched_plan_says_what_it_takes_under_other_launchers():
    fix = {"tp": 1, "pp": 1, "cp": 1, "zero": 3, "recompute": "full"}
    found = plan("llama-3-8b", "8xh100", batch=16, fix=fix, refine=0, launcher="torchtitan")
    other = found.elsewhere["deepspeed"]
    same = weft.step("llama-3-8b", "8xh100", found.best.plan, framework="deepspeed-zero3", fidelity="estimate")
    assert other.step_time_s == pytest.approx(same.seconds)
    assert other.peak_bytes == pytest.approx(same.memory.peak)
    assert set(found.elsewhere) == {"megatron", "deepspeed"}
    data = found.to_dict()["elsewhere"]
    assert data["deepspeed"] == {"estimated_s": other.estimated_s, "peak_bytes": other.peak_bytes}
    held = plan("llama-3-70b", "64xh100", batch=64, fix={"tp": 8, "pp": 8}, refine=0, launcher="megatron")
    assert "pipeline" in held.elsewhere["deepspeed"]


def test_the_products_of_experts_are_no_loss():
    fix = {"tp": 1, "pp": 2, "cp": 1, "ep": 8, "micro_batch": 1, "schedule": "1f1b", "recompute": "none", "zero": 1}
    best = plan("mixtral-8x7b", "64xh100", batch=64, sequence=4096, fix=fix, refine=0).best
    parts = best.step().parts
    useful = (parts["gemm"] + parts["grouped_gemm"] + parts["attention"]) / sum(parts.values())
    assert best.why.startswith(f"GEMMs and attention take {useful:.0%} of the step, ")
    assert "grouped_gemm" not in best.why


def test_plain_data_has_the_keys_of_every_answer(found):
    data = found.to_dict()
    assert {"plans", "searched", "rejected", "wall_s"} <= set(data)
    first = data["plans"][0]
    assert {"tp", "pp", "dp", "cp", "ep", "step_time_s", "peak_bytes", "feasible", "why"} <= set(first)
    assert data["searched"] == found.searched
    assert data["rejected"] == found.rejected


def test_no_plan_is_refined_without_time(monkeypatch):
    monkeypatch.setattr(training, "Store", type("Empty", (), {"get": lambda self, asked: None}))
    found = plan("gpt-3", "64xa100", batch=64, fix=FIX, refine=5, budget_s=0.0)
    assert found.refined == 0
    assert "The time was up after 0 of 5 plans" in found.notes[0]


def test_refined_plans_are_ranked_by_their_windows(monkeypatch):
    """Windows that turn the order of the two best around change two ranks."""
    slow = iter([3.0, 2.0])
    monkeypatch.setattr(plans, "meetings", lambda *_: ())
    monkeypatch.setattr(training, "train", lambda *_: type("Timed", (), {"seconds": next(slow)})())
    found = plan("gpt-3", "64xa100", batch=64, fix=FIX, refine=2)
    assert [one.step_time_s for one in found.plans[:2]] == [2.0, 3.0]
    assert [one.place for one in found.plans[:2]] == [2, 1]
    assert (found.refined, found.moved) == (2, 2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"fix": {"tp": 3}}, "fix asks for tp 3, which takes 3 GPUs, and the system has 64; let the degrees divide 64"),
        ({"fix": {"tp": 8, "pp": 16}}, "tp 8 x pp 16, which takes 128 GPUs, and the system has 64"),
        ({"fix": {"tp": 8, "cp": 1, "pp": 1, "dp": 4}}, "which takes 32 GPUs"),
        ({"fix": {"batch": 8}}, "fix names 'batch', which is no choice of the search; give it as the argument batch"),
        ({"fix": {"layers": [1]}}, "the planner does not choose it"),
        ({"fix": {"tp": []}}, "fix gives 'tp' no value"),
        ({"fix": {"sp": "maybe"}}, "'sp' of fix is 'maybe'; it must be yes or no"),
        ({"fix": {"sp": 2}}, "'sp' of fix is 2; it must be yes or no"),
        ({"fix": {"shard": "x"}}, "'shard' of fix is 'x'; it must be a whole number of at least 1"),
        ({"fix": {"tp": 64}}, "tp 64 does not divide the 96 attention heads"),
        ({"batch": 0}, "batch is 0; it must be a whole number of at least 1"),
    ],
)
def test_contradictions_are_one_sentence(more, said):
    with pytest.raises(InputError, match=r"\S") as caught:
        plan("gpt-3", "64xa100", **{"batch": 64, "refine": 0, **more})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "kind"), [({"objective": "speed"}, "objective"), ({"fix": {"tq": 2}}, "field of a plan")]
)
def test_unknown_names_list_the_known_ones(more, kind):
    with pytest.raises(UnknownNameError, match=f"unknown {kind}"):
        plan("gpt-3", "64xa100", batch=64, **more)


def test_a_machine_that_no_multiple_helps_says_how_far_was_tried():
    with pytest.raises(InputError, match=r"on 1 GPU like t4: .*, and up to 64 GPUs do not hold it either; take a smal"):
        plan("llama-3-70b", "1xt4", batch=8, sequence=2048, refine=0)


def test_a_need_that_rounds_to_the_memory_is_said_to_be_over_it():
    said = training._too_large(np.array([80.2e9, 670e9]), 80 * 10**9, 0.0, framework("megatron-core"))
    assert said == "needs just over 80 to 670 GB with Megatron Core, and a GPU has 80"
    said = training._too_large(np.array([77.1e9, 90e9]), 80 * 10**9, 0.04, framework("megatron-core"))
    assert said == "needs 77 to 90 GB with Megatron Core, and a GPU has 80, of which 4% stay free"


def test_a_machine_too_small_says_how_many_gpus_would_do():
    fix = {"sp": True, "micro_batch": 1, "zero": 1, "cp": 1}
    with pytest.raises(InputError, match=r"needs .* GB .*; 48 GPUs would hold it, as with tp 8, pp 6"):
        plan("gpt-3", "16xa100", batch=64, fix=fix, refine=0, framework="megatron-core")


def test_a_model_of_105_layers_is_not_denied_pipelines_of_8_stages():
    model = load_model("mt-nlg")
    plans, _ = candidates({"tp": 8, "cp": 1, "pp": 8, "zero": 1}, "1024xa100", model=model, batch=1920)
    assert {one.layers for one in plans if one.schedule == "1f1b"} == {(13, 13, 13, 13, 13, 13, 14, 13)}


def test_formats_with_block_scales_are_planned():
    fix = {"precision": "nvfp4", "tp": 4, "pp": 4, "cp": 1, "micro_batch": 1, "schedule": "1f1b"}
    assert plan("llama-3-70b", "64xb200", batch=128, fix=fix, refine=0).best.plan.precision == "nvfp4"


def test_uneven_stages_are_timed_as_weft_step_times_them():
    model, on, used = load_model("llama-3.1-405b"), system("1024xh100"), framework("llama-3")
    fix = {"tp": 8, "cp": 1, "pp": [8, 16], "zero": 2, "micro_batch": 1, "recompute": "full", "sp": True}
    plans = list(space(model, on, used, 512, 8192, fix).candidates(Counter()))
    assert "interleaved:8" in {one.schedule for one in plans}
    found = many(model, on, plans, used)
    for one, seconds, peak in zip(plans[::3], found.seconds[::3], found.peak_bytes[::3], strict=True):
        assert seconds == pytest.approx(train(model, on, one, used, fidelity="estimate").seconds, rel=1e-9)
        assert peak == pytest.approx(memory(model, on, one, used).peak, rel=1e-9)


def agrees(one, on, used, seconds, peak):
    model = load_model("qwen3-30b-a3b")
    assert seconds == pytest.approx(train(model, on, one, used, fidelity="estimate").seconds, rel=1e-9)
    assert peak == pytest.approx(memory(model, on, one, used).peak, rel=1e-9)


def test_a_mixture_takes_as_long_as_weft_step_says_on_all_gpus_and_on_fewer():
    fix = {"tp": [1, 2, 4], "cp": 1, "ep": 16, "micro_batch": [1, 2]}
    found = plan("qwen3-30b-a3b", "32xh100", batch=64, sequence=4096, fix=fix, refine=0)
    assert {one.gpus for one in found.front} == {16, 32}
    assert {one.plan.dispatcher for one in found.fitting} == {"", "nccl", "deepep", "hybridep"}
    for one in (*found.plans[:3], *found.fitting[::80], *found.front[::5]):
        agrees(one.plan, one.setting.system, one.setting.framework, one.step_time_s, one.peak_bytes)


def test_what_runs_again_is_timed_alike_whatever_was_timed_before():
    on, used = system("16xh100"), framework("megatron-core")
    plain = TrainingPlan(tp=4, dp=4, ep=16, sp=True, batch=64, sequence=4096, dispatcher="hybridep", zero=1)
    cache = DurationCache(on)
    for one in (plain, replace(plain, recompute="full")):
        found = many(load_model("qwen3-30b-a3b"), on, [one], used, cache=cache)
        agrees(one, on, used, found.seconds[0], found.peak_bytes[0])
