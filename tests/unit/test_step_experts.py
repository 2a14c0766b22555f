"""Replicas of routed experts: fewer than those of all other weights."""

import pytest

from weft import hardware
from weft.core.errors import ConfigError
from weft.models import load_model
from weft.models.parallel.framework import Framework
from weft.models.parallel.memory import shard_size, states
from weft.models.parallel.plan import TrainingPlan
from weft.step.clock import train
from weft.step.stages import chunks_of

MODEL = load_model("qwen3-30b-a3b").replace({"layers": 8})


@pytest.mark.parametrize(
    ("plan", "replicas"),
    [
        ({"dp": 16, "ep": 8}, 2),
        ({"dp": 8, "ep": 8}, 1),
        ({"tp": 2, "sp": True, "dp": 8, "ep": 8}, 2),
        ({"tp": 2, "dp": 8}, 8),
    ],
)
def test_experts_have_as_many_replicas_as_ranks_that_hold_the_same(plan, replicas):
    assert TrainingPlan(batch=16, **plan).expert_replicas == replicas


def test_optimizer_states_of_experts_are_shared_among_their_replicas_alone():
    plan = TrainingPlan(dp=16, ep=8, batch=16, zero=1)
    assert shard_size(1600, 0, plan) == 100
    assert shard_size(1600, 1600, plan) == 800
    assert states(1600, plan, Framework(), 1600)["optimizer"] == 800 * Framework().optimizer_bytes


@pytest.mark.parametrize("zero", [1, 3])
def test_a_rank_with_its_own_experts_exchanges_gradients_of_the_other_weights_alone(zero):
    """With ep = dp no other rank has the same experts, so that their gradients stay."""
    on = hardware.system("8xh100")
    alone, all_ranks = (
        train(MODEL, on, TrainingPlan(dp=8, ep=ep, batch=64, micro_batch=1, sequence=4096, zero=zero)) for ep in (8, 1)
    )
    assert alone.parts["exposed dp"] < 0.2 * all_ranks.parts["exposed dp"]


@pytest.mark.parametrize(
    ("stages", "layers"), [(16, [4] * 15 + [1]), (4, [16, 16, 16, 13]), (32, [1] + [2] * 30 + [0]), (1, [61])]
)
def test_the_last_stages_have_fewer_layers_beside_the_head(stages, layers):
    """Up to 16 stages the layouts of NVIDIA-NeMo/Megatron-Bridge for DeepSeek-V3 (recipes/deepseek/deepseek_v3.py)."""
    chunks = chunks_of(load_model("deepseek-v3"), stages, TrainingPlan(pp=stages, batch=stages))
    assert [sum(name in ("dense", "moe") for name in chunk) for chunk in chunks] == layers
    assert (chunks[0][0], chunks[-1][-1]) == ("embedding", "head")


def test_tokens_of_limited_groups_travel_to_fewer_nodes():
    """DeepSeek-V3 sends a token to four of eight groups of experts: with a node for each group, to four nodes."""
    model, plan = load_model("deepseek-v3"), TrainingPlan(dp=64, ep=64, batch=64, sequence=4096, dispatcher="deepep")
    anywhere = model.model_copy(update={"groups_per_token": 8})
    limited, free = (
        train(one, hardware.system("64xh100"), plan, fidelity="estimate").parts for one in (model, anywhere)
    )
    exposed = [sum(seconds for name, seconds in found.items() if "ep" in name) for found in (limited, free)]
    assert exposed[0] < 0.8 * exposed[1]


def test_a_token_cannot_reach_more_groups_than_there_are():
    with pytest.raises(ConfigError, match="groups_per_token is 9; there are 8 groups of experts"):
        type(load_model("deepseek-v3"))(**{**load_model("deepseek-v3").model_dump(), "groups_per_token": 9})
