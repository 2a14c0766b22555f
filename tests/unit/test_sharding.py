"""Per-operator sharding: the integer program against all combinations, and what it finds for layers."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import InputError
from weft.hardware import system
from weft.models.block import Tokens, layer
from weft.models.load import load_model
from weft.models.parallel.plan import TrainingPlan
from weft.papers.textbook.shard import ChoiceCosts, ShardedPart, cheapest, shard_layer
from weft.papers.textbook.strategies import Mesh, MeshPrices, Training

NODE = system("8xv100-16gb")
MODEL = load_model("gpt-3.6b")


def exhaustive(problem, limit=float("inf")):
    """The answer of `cheapest` by trying all combinations."""
    every = product(*(range(len(costs)) for costs in problem.costs))
    return min((one for one in every if problem.size(one) <= limit), key=problem.cost, default=None)


@st.composite
def problems(draw):
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    drawn = np.random.default_rng(draw(st.integers(0, 10**6)))
    costs, sizes = ([drawn.integers(0, 20, count).astype(float) for count in counts] for _ in range(2))
    pairs = [(u, v) for u in range(len(counts)) for v in range(u)]
    edges = {
        pair: drawn.integers(0, 20, [counts[at] for at in pair]).astype(float) for pair in pairs if drawn.random() < 0.6
    }
    return ChoiceCosts(costs, sizes, edges)


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from([float("inf"), 30.0, 15.0]))
def test_the_integer_program_equals_all_combinations(problem, limit):
    best, found = exhaustive(problem, limit), cheapest(problem, limit)
    if best is None:
        assert found is None
        return
    assert problem.cost(found) == problem.cost(best)
    assert problem.size(found) <= limit


def test_choices_that_cost_nothing_are_made_all_the_same():
    problem = ChoiceCosts([np.zeros(2), np.zeros(1)], [np.array([5.0, 1.0]), np.ones(1)], {})
    assert cheapest(problem, 3.0) == (1, 0)


def part(mesh, micro_batch=8, **training):
    tokens = Tokens(micro_batch, 1024)
    how = Training(64, **training)
    pieces = list(layer(MODEL, "dense", tokens, how.framework.style, how.dtype))
    return ShardedPart(pieces, (tokens.count, MODEL.hidden), MeshPrices(Mesh(NODE, *mesh)), how)


def test_a_layer_on_one_axis_costs_what_the_best_of_all_combinations_costs():
    found = part((1, 4))
    best = exhaustive(found.problem)
    assert found.best().seconds == pytest.approx(found.problem.cost(best), rel=1e-9)
    limit = 0.6 * found.best().states
    best = exhaustive(found.problem, limit)
    assert found.best(limit).seconds == pytest.approx(found.problem.cost(best), rel=1e-9)


def roles(found, axis):
    return {name: way.roles[axis] for name, way in found.operators}


def test_one_sequence_is_cut_as_megatron_cuts_it():
    found = shard_layer(MODEL, NODE, (1, 8), 1, sequence=1024)
    megatron = {"qkv": "columns", "attention": "heads", "projection": "inner", "fc1": "columns", "fc2": "inner"}
    assert {name: role for name, role in roles(found, 1).items() if name != "input"} == megatron
    forward, backward = 2 * 2, 2  # recomputed once
    kinds = [move.kind for _, way in found.operators for move in way.moves]
    assert kinds == ["all_reduce"] * (forward + backward)


def test_many_sequences_are_split_over_replicas_until_the_memory_is_short():
    found = part((2, 4)).front(0.5)
    assert set(roles(found[0], 0).values()) == {"tokens"}
    assert set(roles(found[0], 1).values()) == {"tokens"}
    assert "columns" in roles(found[-1], 1).values()
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)
    assert all(after.states <= 0.5 * before.states for before, after in pairwise(found))


def test_scattered_gradients_move_as_much_and_leave_each_replica_a_share_of_the_optimizer():
    whole, shared = (part((8, 1), scatter=scatter).best() for scatter in (False, True))
    assert {move.kind for _, way in whole.operators for move in way.sync} == {"all_reduce"}
    assert {move.kind for _, way in shared.operators for move in way.sync} == {"reduce_scatter", "all_gather"}
    sent = [sum(move.sent for _, way in one.operators for move in way.sync) for one in (whole, shared)]
    assert sent[0] == sent[1] > 0
    assert shared.states / whole.states == pytest.approx((2 + 2 + 12 / 8) / 16)


def test_blocks_add_up_to_the_layer():
    found = part((2, 2)).best()
    assert len(found.blocks) == 2
    assert sum(block.seconds for block in found.blocks) == pytest.approx(found.seconds)
    assert sum(block.states for block in found.blocks) == found.states


def test_experts_are_exchanged_by_all_to_all():
    found = shard_layer("mixtral-8x7b", "8xa100", (1, 8), 8, sequence=1024)
    assert roles(found, 1)["experts_fc1"] == roles(found, 1)["experts_fc2"] == "experts"
    assert [move.kind for _, after, move in found.reshards if after in ("experts_fc1", "unpermute")] == [
        "all_to_all"
    ] * 2


def test_a_layer_whose_operators_read_several_others_is_refused():
    with pytest.raises(InputError, match="shares its input"):
        shard_layer("deepseek-v3", "8xa100", (1, 8), 1)


def test_a_layer_that_fits_under_no_sharding_is_refused():
    with pytest.raises(InputError, match="raise the limit"):
        shard_layer(MODEL, NODE, (1, 2), 1, sequence=1024, limit="1 MB")
    with pytest.raises(InputError, match="needs 16 GPUs"):
        shard_layer(MODEL, NODE, (2, 8), 1)


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"dp": 4, "zero": 1, "shard": 99}, "shard is 99, but 4 replicas hold the same weights; give a divisor of 4"),
        ({"dp": 4, "zero": 3, "shard": 3}, "shard is 3, but 4 replicas hold the same weights"),
        ({"dp": 2, "cp": 2, "zero": 1, "shard": 3}, "shard is 3, but 4 replicas hold the same weights"),
        ({"dp": 4, "shard": 2}, "shard is 2, but zero is 0, so that replicas share nothing"),
        ({"pp": 2, "layers": (40, -8)}, "layers of the stages are 40, -8; none can have fewer than 0"),
        ({"zero": 4}, "zero is 4; it must be at most 3"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_by_the_plan_itself(stated, says):
    with pytest.raises(InputError, match=says):
        TrainingPlan(batch=8, **stated)
