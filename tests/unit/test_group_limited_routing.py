"""Group-limited routing: a token's experts are of some groups, in exchanges, steps, launch files and models."""

from itertools import combinations

import numpy as np
import pytest

import weft
from weft.cli.cases import layer_of_experts, parse_exchange, parse_routing
from weft.core.errors import InputError
from weft.estimate.exchange import Exchange, count_bytes, exchange
from weft.graph import TokenExchange
from weft.graph.routing import count_reached
from weft.hardware import system
from weft.kernels.library.dispatchers import dispatcher
from weft.models import load_model
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.plan.launch import launch
from weft.step.rank_parts import rank_parts

DEEPSEEK = load_model("deepseek-v3")


def counted(parts, experts, top_k, few, groups):
    """The parts that a token reaches, over every choice of groups and of experts in them."""
    part, group = (np.arange(experts) * count // experts for count in (parts, groups))
    means = []
    for chosen in combinations(range(groups), few):
        near = [expert for expert in range(experts) if group[expert] in chosen]
        means.append(np.mean([len({part[one] for one in some}) for some in combinations(near, top_k)]))
    return float(np.mean(means))


@pytest.mark.parametrize(
    ("parts", "experts", "top_k", "few", "groups"),
    [(4, 8, 3, 2, 4), (8, 8, 3, 2, 4), (2, 8, 3, 2, 4), (2, 12, 4, 3, 6), (1, 8, 2, 1, 4), (4, 8, 3, 4, 4)],
)
def test_a_token_reaches_as_many_parts_as_counting_says(parts, experts, top_k, few, groups):
    found = float(count_reached(parts, experts, top_k, (few, groups)))
    assert found == pytest.approx(counted(parts, experts, top_k, few, groups), rel=1e-12)


def test_groups_keep_tokens_off_the_network():
    free, limited = (
        count_bytes(Exchange("dispatch", 4096, 7168, 8, 256, 64, reach=reach), dispatcher("deepep"), 8)
        for reach in (None, (4, 8))
    )
    assert limited.network_bytes / free.network_bytes == pytest.approx(
        float(count_reached(4, 128, 8) / count_reached(8, 256, 8)), rel=1e-9
    )


def test_nodes_that_share_no_group_are_what_groups_by_node_say():
    by_groups, by_nodes = (
        exchange(Exchange("dispatch", 4096, 7168, 8, 256, 64, reach=reach), "64xh100") for reach in ((4, 8), 4)
    )
    assert by_groups.seconds == pytest.approx(by_nodes.seconds)


def test_the_exchange_of_a_step_is_the_one_that_weft_predict_exchange_says():
    plan = TrainingPlan(ep=64, dp=64, batch=64, sequence=4096, dispatcher="deepep")
    part = rank_parts(DEEPSEEK, plan, framework("megatron-core"))["moe"]
    (op,) = [node.op for node in part.forward if isinstance(node.op, TokenExchange) and node.op.operation == "dispatch"]
    asked = Exchange(**parse_exchange("dispatch:4096x7168,top8/256,reach4/8"), ranks=64, dtype=op.dtype)
    assert float(weft.estimate(op, system("64xh100")).seconds) == pytest.approx(
        float(exchange(asked, "64xh100", "deepep").seconds)
    )


def test_launches_name_the_groups_and_are_read_back(tmp_path):
    plan = TrainingPlan(ep=64, dp=64, batch=64, sequence=4096)
    text = launch("megatron", DEEPSEEK, system("64xh100"), plan, framework("megatron-core"))
    assert "--moe-router-num-groups 8 --moe-router-group-topk 4" in text
    (tmp_path / "run.sh").write_text(text)
    found = weft.read_launch(tmp_path / "run.sh").model
    assert (found.expert_groups, found.groups_per_token) == (8, 4)


def test_layers_of_experts_are_asked_in_the_same_words():
    def on(text, ranks):
        sizes = layer_of_experts(f"4096x7168x2048,top8/256,{text}")
        return parse_routing({name: sizes[name] for name in sizes if name not in ("hidden", "ffn")}, ranks, ()).reach

    assert on("reach4/8", 8) == on("reach4", 8) == 4
    assert on("reach4/8", 64) == 0  # as many GPUs as a token has experts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dispatch:4096x7168,top8/256,reach9/8", "reach is"),
        ("dispatch:4096x7168,top8/256,reach4/7", "256 experts cannot be in 7 equal groups"),
        ("dispatch:4096x7168,top8/16,reach1/8", "experts cannot be of 1 out of 8 groups of 2; give 4 to 8"),
    ],
)
def test_groups_that_cannot_be_are_refused_in_a_sentence(text, said):
    with pytest.raises(InputError, match=said):
        Exchange(**parse_exchange(text), ranks=8)


@pytest.mark.parametrize("loads", [float("nan"), -1.0, (1, float("inf")), (True, 1), ("a", "b"), "power:nan", "1e400"])
def test_a_plan_refuses_loads_that_are_no_finite_numbers(loads):
    with pytest.raises(InputError, match="a load of an expert is"):
        weft.TrainingPlan(dp=2, ep=2, batch=8, expert_load=loads)
