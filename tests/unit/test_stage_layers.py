"""The layers of stages where their number does not divide that of the model's layers."""

import pytest

import weft
from weft.models import load_model
from weft.models.parallel.layers import stage_layers


@pytest.mark.parametrize(
    ("model", "stages", "published"),
    [
        ("llama-3.1-405b", (16, 8), (0, *(1,) * 126, 0)),  # arXiv:2407.21783, section 3.3.2
        ("llama-3.1-405b", (8, 8), (1, *(2,) * 62, 1)),
        ("bloom-176b", (12, 1), (5, *(6,) * 10, 5)),
        ("deepseek-v3", (4, 1), (16, 16, 16, 13)),  # these: Megatron-Bridge, recipes/deepseek/deepseek_v3.py
        ("deepseek-v3", (8, 1), (*(8,) * 7, 5)),
        ("deepseek-v3", (16, 1), (*(4,) * 15, 1)),
        ("deepseek-v3", (4, 2), (*(8,) * 7, 5)),
        ("deepseek-v3", (8, 2), (*(4,) * 15, 1)),
        ("deepseek-v3", (4, 4), (*(4,) * 15, 1)),
    ],
)
def test_stages_have_the_layers_that_published_trainings_gave_them(model, stages, published):
    assert stage_layers(load_model(model), *stages) == published


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3.1-405b", "mt-nlg", "kimi-k2", "qwen3-235b-a22b", "t5-11b"])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_no_layer_is_lost_and_devices_without_embedding_and_head_differ_by_one(name, chunks):
    model = load_model(name)
    for pp in range(2, 17):
        found = stage_layers(model, pp, chunks)
        if not found:
            continue
        assert (len(found), sum(found)) == (pp * chunks, len(model.layer_kinds))
        inner = [sum(found[device::pp]) for device in range(1, pp - 1)]
        assert max(inner, default=0) - min(inner, default=0) <= 1


def test_stages_that_no_rule_divides_are_left_to_the_user():
    assert stage_layers(load_model("llama-3-70b"), 8) == ()
    assert stage_layers(load_model("llama-3-70b"), 32) is None
    assert stage_layers(load_model("deepseek-v3"), 64) is None


def test_a_step_takes_the_stages_that_a_search_would_and_says_so():
    asked = {"tp": 4, "pp": 4, "ep": 64, "batch": 1024, "sequence": 4096, "fidelity": "estimate"}
    step = weft.step("deepseek-v3", "1024xh100", **asked)
    assert step.plan.layers == (16, 16, 16, 13)
    assert "61 layers, so stages have 3 x 16 + 13" in str(step)
    stated = weft.step("deepseek-v3", "1024xh100", layers=(16, 16, 16, 13), **asked)
    assert stated.seconds == step.seconds
    assert weft.step("deepseek-v3", "1024xh100", layers=(15, 16, 15, 15), **asked).seconds > step.seconds
