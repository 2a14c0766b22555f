"""Plans that do not fit a model: one sentence, with the nearest plan that does."""

from dataclasses import replace

import pytest

from weft.core.errors import InputError
from weft.models import load_model
from weft.models.parallel.check import check_plan, nearest_plan, problems
from weft.models.parallel.plan import TrainingPlan, schedule_name


@pytest.mark.parametrize(
    ("name", "plan", "sentence"),
    [
        ("llama-3-70b", {"tp": 3, "dp": 8}, "tp 3 does not divide the 64 attention heads of [^;]*; .* tp 4, dp 6"),
        ("qwen2.5-7b", {"tp": 8}, "tp 8 does not divide the 28 attention heads .* is tp 4, dp 2"),
        ("llama-3-70b", {"pp": 48}, r"pp 48 does not divide the 80 layers .*layers of each"),
        ("llama-3-70b", {"pp": 128}, "pp 128 needs 128 layers, and llama-3-70b has 80"),
        ("gpt-3", {"pp": 8, "schedule": "interleaved:5"}, "pp 8 with 5 chunks each does not divide the 96 layers"),
        ("deepseek-v3", {"ep": 3, "dp": 6}, "ep 3 does not divide the 256 experts of deepseek-v3; .* ep 2, dp 6"),
        ("deepseek-v3", {"ep": 16, "dp": 8}, "ep 16 does not divide the 8 ranks that route.* ep 8, dp 8"),
        ("gpt-3", {"ep": 2, "dp": 2}, "ep 2 shares experts, and gpt-3 has none; .* is dp 2"),
        ("qwen3-30b-a3b", {"tp": 5}, "tp 5 does not divide the 32 attention heads"),
        ("mpt-125m", {"tp": 4, "cp": 2, "context": "all_to_all"}, "cp 2 does not divide the 3 attention heads"),
        ("llama-3-8b", {"cp": 4, "sequence": 4100}, "cp 4 needs a sequence of a multiple of 8 tokens, and it has 4100"),
        ("llama-3-8b", {"tp": 8, "sp": True, "sequence": 100}, "tp 8 does not divide the 100 tokens of a sequence"),
    ],
)  # fmt: skip
def test_a_plan_that_does_not_divide_names_what_and_the_nearest_that_does(name, plan, sentence):
    model = load_model(name)
    plan = TrainingPlan(**{"batch": plan.get("dp", 1) * 720, "sequence": 2048} | plan)
    with pytest.raises(InputError, match=sentence) as caught:
        check_plan(model, plan)
    assert "\n" not in str(caught.value)
    better = nearest_plan(model, plan)
    if better is not None:
        assert better.gpus == plan.gpus
        check_plan(model, better)


def test_a_vocabulary_that_does_not_divide_names_the_padded_one():
    model = load_model("gpt-3").replace({"vocabulary": 50257})
    with pytest.raises(InputError, match=r"tp 8 does not divide the 50257 rows .*pad the vocabulary to 50264"):
        check_plan(model, TrainingPlan(tp=8))
    check_plan(model.replace({"vocabulary": 50264}), TrainingPlan(tp=8))


def test_heads_of_keys_may_be_fewer_than_ranks_but_not_odd_ones():
    model = load_model("llama-3-70b")
    check_plan(model, TrainingPlan(tp=16))
    shared = model.replace({"kv_heads": 4, "heads": 60, "hidden": 7680, "ffn": 28680, "vocabulary": 128280})
    assert "no divisor or multiple of the 4 heads of keys" in next(problems(shared, TrainingPlan(tp=6)))


def test_stages_may_differ_where_a_layer_less_at_some_makes_up_for_embedding_and_head():
    model, plan = load_model("llama-3.1-405b"), TrainingPlan(pp=16, batch=32)
    check_plan(model, plan)
    check_plan(model, replace(plan, layers=(7,) * 7 + (8,) * 8 + (13,)))
    with pytest.raises(InputError, match=r"pp 100 does not divide the 126 layers .*state the layers of each"):
        check_plan(model, replace(plan, pp=100))


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("gpt-1008b", {"tp": 8, "pp": 64, "sp": True}),
        ("deepseek-v3", {"tp": 2, "sp": True, "ep": 64, "dp": 32, "batch": 256}),
        ("llama-3-8b", {"cp": 8, "sequence": 131072}),
    ],
)
def test_plans_that_are_in_use_fit(name, plan):
    check_plan(load_model(name), TrainingPlan(**plan))


@pytest.mark.parametrize(
    ("text", "chunks", "group", "words"),
    [
        ("1f1b", 1, None, "1F1B"),
        ("interleaved:5", 5, None, "interleaved 1F1B of 5 chunks"),
        ("interleaved:5:16", 5, 16, "interleaved 1F1B of 5 chunks in groups of 16"),
        ("chimera:2", 1, None, "chimera:2"),
    ],
)
def test_the_name_of_a_schedule_says_its_chunks_and_groups(text, chunks, group, words):
    name = schedule_name(text)
    assert (name.chunks, name.group, name.words, str(name)) == (chunks, group, words, text)
