"""Dynamic programs over stage borders find what trying everything finds."""

import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.textbook.borders import Level, balanced, clustered, pipedream
from weft.textbook.meshes import StageCosts, cost_of, mesh_plans
from weft.textbook.mixtures import LayerTables, layerwise, metropolis

WHOLE = st.integers(1, 50)


def cuts(layers, stages):
    """Every way to cut layers into stages, as (first, after last) of each."""
    for borders in combinations(range(1, layers), stages - 1):
        yield list(zip((0, *borders), (*borders, layers), strict=True))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WHOLE, WHOLE, WHOLE), min_size=1, max_size=12), st.integers(1, 4), st.integers(20, 400))
def test_dp_of_the_slowest_stage_equals_brute_force(layers, stages, capacity):
    stages = min(stages, len(layers))
    times, states, kept = (list(column) for column in zip(*layers, strict=True))

    def slowest(cut):
        held = [sum(states[i:j]) + (stages - at) * sum(kept[i:j]) for at, (i, j) in enumerate(cut)]
        return max(sum(times[i:j]) for i, j in cut) if max(held) <= capacity else math.inf

    best = min(slowest(cut) for cut in cuts(len(layers), stages))
    if math.isinf(best):
        with pytest.raises(InputError, match="fit"):
            balanced(times, stages, states=states, kept=kept, capacity=capacity)
        return
    found = balanced(times, stages, states=states, kept=kept, capacity=capacity)
    ends = np.cumsum([0, *found.layers])
    assert found.bottleneck == best == slowest(list(pairwise(ends)))


@settings(max_examples=40, deadline=None)
@given(st.lists(WHOLE, min_size=1, max_size=12), st.integers(1, 4))
def test_groups_have_the_least_sum_of_squares(times, groups):
    groups = min(groups, len(times))

    def squares(cut):
        return sum(sum(times[i:j]) ** 2 for i, j in cut)

    ends = np.cumsum([0, *clustered(times, groups)])
    found = squares(pairwise(ends))
    assert found == min(squares(cut) for cut in cuts(len(times), groups))


def shares(machines, stages):
    """Every way to give machines to stages, at least one each."""
    return (one for one in product(range(1, machines + 1), repeat=stages) if sum(one) == machines)


def brute_pipedream(times, weights, sends, machines, bandwidth):
    best = math.inf
    for stages in range(1, min(len(times), machines) + 1):
        for cut in cuts(len(times), stages):
            wire = max((2 * sends[j - 1] / bandwidth for _, j in cut[:-1]), default=0.0)
            for replicas in shares(machines, stages):
                each = (
                    max(sum(times[i:j]), 2 * (q - 1) * sum(weights[i:j]) / bandwidth) / q
                    for (i, j), q in zip(cut, replicas, strict=True)
                )
                best = min(best, max(*each, wire))
    return best


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(WHOLE, WHOLE, WHOLE), min_size=1, max_size=8), st.integers(1, 4), st.integers(1, 9))
def test_pipedreams_partition_equals_brute_force(layers, machines, bandwidth):
    times, weights, sends = (list(column) for column in zip(*layers, strict=True))
    found = pipedream(times, weights, sends, [Level(machines, bandwidth)])
    assert found.seconds == brute_pipedream(times, weights, sends, machines, bandwidth)
    assert sum(stage.replicas for stage in found.stages) == machines
    assert [stage.first for stage in found.stages[1:]] == [stage.last + 1 for stage in found.stages[:-1]]
    assert found.in_flight == math.ceil(machines / found.stages[0].replicas)


@st.composite
def stage_costs(draw):
    groups, sizes = draw(st.integers(1, 4)), draw(st.sampled_from([(1, 2), (1, 2, 4), (1, 1, 3)]))
    shape = (groups, groups, len(sizes))
    numbers = st.lists(WHOLE, min_size=math.prod(shape), max_size=math.prod(shape))
    seconds, states, kept = (np.array(draw(numbers), dtype=float).reshape(shape) for _ in range(3))
    return StageCosts(seconds, states, kept, sizes, draw(st.sampled_from([math.inf, 80.0, 40.0])))


def brute_meshes(costs, devices, micro_batches):
    """The best time of each set of meshes, and of each order of them, by trying all stages, meshes and uses."""
    best = {}
    groups = len(costs.seconds)
    for stages in range(1, groups + 1):
        for cut in cuts(groups, stages):
            for picked in product(range(len(costs.devices)), repeat=stages):
                meshes = tuple(costs.devices[at] for at in picked)
                places = [(i, j - 1, at) for (i, j), at in zip(cut, picked, strict=True)]
                held = [costs.states[p] + (stages - at) * costs.kept[p] for at, p in enumerate(places)]
                if sum(meshes) != devices or max(held) > costs.capacity:
                    continue
                times = [costs.seconds[p] for p in places]
                total = sum(times) + (micro_batches - 1) * max(times)
                best[meshes] = min(best.get(meshes, math.inf), total)
    return best


@settings(max_examples=30, deadline=None)
@given(stage_costs(), st.integers(1, 6), st.integers(1, 8))
def test_stages_on_meshes_equal_brute_force_and_so_do_the_next_best(costs, devices, micro_batches):
    ordered = brute_meshes(costs, devices, micro_batches)
    sets = {}
    for meshes, seconds in ordered.items():
        sets.setdefault(tuple(sorted(meshes)), []).append(seconds)
    if not sets:
        with pytest.raises(InputError, match="hold the model"):
            mesh_plans(costs, devices, micro_batches, 4)
        return
    found = mesh_plans(costs, devices, micro_batches, 4)
    assert [plan.seconds for plan in found] == sorted(map(min, sets.values()))[:4]
    assert len({tuple(sorted(plan.meshes)) for plan in found}) == len(found)
    for meshes, seconds in list(ordered.items())[:6]:
        assert cost_of(costs, meshes, micro_batches).seconds == seconds


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(4, 20), st.data())
def test_mixtures_of_layers_equal_brute_force(layers, candidates, capacity, data):
    def numbers(*shape):
        count = math.prod(shape)
        return np.array(data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)), float).reshape(shape)

    tables = LayerTables(
        numbers(layers, candidates), numbers(layers, candidates), numbers(candidates, candidates), float(capacity)
    )
    best = min(tables.cost(chosen) for chosen in product(range(candidates), repeat=layers))
    if math.isinf(best):
        with pytest.raises(InputError, match="fit"):
            layerwise(tables, capacity)
        return
    found = layerwise(tables, capacity)
    assert found.seconds == best == tables.cost(found.chosen)


def test_a_random_walk_finds_the_optimum_of_a_small_space_and_says_how_far_it_is():
    cost = np.random.default_rng(3).integers(1, 100, (5, 4))
    walk = metropolis(lambda chosen: float(cost[range(5), chosen].sum()), [4] * 5, steps=500)
    optimum = float(cost.min(1).sum())
    assert walk.cost == optimum
    assert walk.distance(optimum) == 0
    assert walk.evaluations == 4 * 501
    assert 0 < walk.accepted < 1
    assert walk == metropolis(lambda chosen: float(cost[range(5), chosen].sum()), [4] * 5, steps=500)
    short = metropolis(lambda chosen: float(cost[range(5), chosen].sum()), [4] * 5, starts=1, steps=1)
    assert short.distance(optimum) > 0


def test_a_random_walk_leaves_what_does_not_fit():
    walk = metropolis(lambda chosen: math.inf if chosen[0] else 1.0 + chosen[1], [6, 6], seed=1)
    assert walk.best == (0, 0)
