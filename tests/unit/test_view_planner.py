"""Plans as verdict, tables, pictures and page, and in words."""

import pytest
from shown import check_shown

import weft
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.plan_text import changes, words
from weft.view import planner, training_plans

FIX = {"tp": 8, "pp": [4, 8], "sp": True, "cp": 1, "micro_batch": 1, "schedule": ["1f1b", "interleaved:2"]}


SCARCE = weft.system("64xa100").replace({"memory.capacity": "80 GB"})


@pytest.fixture(scope="module")
def plans():
    return weft.plan("gpt-3", SCARCE, batch=64, fix={**FIX, "recompute": "full"}, refine=0, launcher="megatron")


def test_plans_offer_what_every_answer_offers(plans, tmp_path):
    check_shown(plans, tmp_path)


def test_the_page_shows_the_launch_file_once_and_marks_the_best_plan(plans, tmp_path):
    assert plans.save(tmp_path / "plans.html").read_text().count("torchrun") == 1
    assert [row["step_s"] for row in training_plans.front(plans).data["curves"].records() if row["mark"] == "best"] == [
        plans.best.step_time_s
    ]


def test_the_verdict_is_six_sentences_with_the_best_plans_numbers(plans):
    run, time, memory, second, sure, launched = training_plans.verdict(plans)
    assert run.startswith("Run GPT-3 on 64 GPUs of dgx-a100 with TP 8, PP ")
    assert run.endswith(", as megatron-core does.")
    assert f"{plans.best.step_time_s:.1f} s" in time
    assert f"{plans.best.peak_bytes / 1e9:.1f} GB of 80 GB" in memory
    assert second.startswith("The runner-up has ")
    assert "step times: 80 % interval " in sure
    assert launched.startswith("The launch file is for megatron, where the plan takes ")
    assert "torchtitan" in launched
    assert "deepspeed cannot run it (" in launched


def test_tied_plans_are_counted_and_warned_of(plans):
    tied = sum(one.tied for one in plans.plans[1:])
    assert tied
    assert f"{tied} other plan" in training_plans.verdict(plans)[-2]
    assert training_plans.warnings(plans)[0].startswith("warning: the best plans are tied")


def test_a_single_plan_has_no_runner_up_and_no_warning(plans, tmp_path):
    alone = weft.plan("gpt-3", "64xa100", batch=64, refine=0, fix={**FIX, "recompute": "full", "zero": 0}, top=1)
    assert training_plans.verdict(alone)[3] == "No other plan fits."
    assert training_plans.warnings(alone) == []
    assert alone.save(tmp_path / "report.html").exists()


def test_the_front_has_no_plan_that_another_one_beats(plans):
    figure = training_plans.front(plans)
    line, dots = figure.data["curves"].rows, figure.data["dots"].rows
    assert len(dots) == len(plans.fitting)
    for seconds, held, *_ in line:
        assert not any(one[0] < seconds and one[1] < held for one in dots)


def test_the_map_shows_the_best_time_of_every_two_choices(plans):
    table = training_plans.choices_map(plans, "pp", "schedule").data["cells"]
    cells = {(row[2], row[3]): row[4] for row in table.rows if row[:2] == ("PP", "schedule")}
    for one in plans.fitting:
        assert cells[f"PP {one.plan.pp}", one.plan.schedule] <= one.step_time_s
    assert min(cells.values()) == plans.fitting[0].step_time_s
    assert table.rows[0][:2] == ("PP", "schedule")


def test_the_parts_of_the_difference_lead_from_the_best_step_to_the_runner_ups(plans):
    rows = training_plans.difference(plans).data["bars"].rows
    best, second = (one.step().seconds for one in plans.plans[:2])
    *parts, whole = rows
    assert whole[3] == pytest.approx(second - best, rel=1e-6)
    assert sum((end - start) * (1 if kind == "longer" else -1) for _, kind, start, end, _ in parts) == pytest.approx(
        second - best, rel=1e-6
    )


def test_reasons_for_plans_that_cannot_run_add_up():
    found = weft.plan(
        "gpt-3", "64xa100", batch=64, refine=0, fix={**FIX, "pp": [4, 7, 8], "zero": 0, "recompute": "full"}
    )
    rows = planner.infeasible_table(found).rows
    assert sum(row[1] for row in rows) == found.searched - len(found.fitting)


@pytest.mark.parametrize(
    ("plan", "base", "said"),
    [
        ({"tp": 8}, {"tp": 4}, ["TP 8 instead of 4"]),
        ({"tp": 8, "sp": True}, {"tp": 8}, ["sequence parallelism"]),
        ({"tp": 8}, {"tp": 8, "sp": True}, ["no sequence parallelism"]),
        ({"recompute": "full"}, {}, ["full recomputation"]),
        ({}, {"recompute": "full"}, ["no recomputation instead of full recomputation"]),
        ({"pp": 4, "schedule": "interleaved:2"}, {"pp": 4}, ["interleaved 1F1B of 2 chunks instead of 1F1B"]),
        ({"dp": 8, "zero": 3, "shard": 4}, {"dp": 8, "zero": 3}, ["FSDP in groups of 4 instead of FSDP"]),
        ({"recompute": ("norm1", "activation")}, {}, ["recomputation of norm1, activation"]),
        ({"tp": 8, "overlap": {"tp": "userbuffers"}}, {"tp": 8}, ["TP by userbuffers"]),
    ],
)
def test_a_change_of_the_plan_in_words(plan, base, said):
    assert changes(TrainingPlan(batch=16, **plan), TrainingPlan(batch=16, **base)) == said


def test_equal_plans_have_no_changes():
    plan = TrainingPlan(tp=2, dp=2, batch=8, zero=1, precision="fp8-tensorwise")
    assert changes(plan, plan) == []
    assert words(plan).endswith("optimizer states sharded, no recomputation, fp8-tensorwise")


def test_a_mixtures_plans_name_who_exchanges_their_tokens():
    fix = {"tp": 1, "pp": 1, "cp": 1, "ep": [1, 8], "micro_batch": 1, "recompute": "full"}
    found = weft.plan("mixtral-8x7b", "16xh200", batch=64, sequence=4096, fix=fix, refine=0, launcher="megatron")
    rows = training_plans.plan_table(found).records()
    assert {row["dispatcher"] for row in rows if row["ep"] == 8} == {"nccl", "deepep", "hybridep"}
    chosen = next(one for one in found.plans if one.plan.dispatcher == "deepep")
    assert "--moe-flex-dispatcher-backend deepep" in chosen.launch("megatron")


def test_plans_of_dense_models_name_no_dispatcher(plans):
    assert "dispatcher" not in training_plans.plan_table(plans).keys


def test_choices_between_stated_values_are_answered_by_the_fastest_plan_with_each():
    fix = {"tp": 1, "pp": 1, "cp": 1, "ep": [4, 8], "micro_batch": 1, "dispatcher": ["deepep", "nccl"]}
    found = weft.plan("mixtral-8x7b", "16xh200", batch=64, sequence=4096, fix=fix, refine=0, framework="megatron-core")
    by_ep, by_dispatcher = training_plans.between(found)
    for value in ("deepep", "nccl"):
        least = min(one.step_time_s for one in found.fitting if one.plan.dispatcher == value)
        assert f"{value}: {least:#.3g} s" in by_dispatcher
    assert by_ep.startswith("The fastest plan by EP: ")
