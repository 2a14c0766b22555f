"""Dynamic programs over stage borders find what trying everything finds."""

import math
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import InputError
from weft.papers.textbook.meshes import StageCosts, balance_stages, cluster_operators, cost_of, mesh_plans

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
            balance_stages(times, stages, states=states, kept=kept, capacity=capacity)
        return
    found = balance_stages(times, stages, states=states, kept=kept, capacity=capacity)
    ends = np.cumsum([0, *found.layers])
    assert found.bottleneck == best == slowest(list(pairwise(ends)))


@settings(max_examples=40, deadline=None)
@given(st.lists(WHOLE, min_size=1, max_size=12), st.integers(1, 4))
def test_groups_have_the_least_sum_of_squares(times, groups):
    groups = min(groups, len(times))

    def squares(cut):
        return sum(sum(times[i:j]) ** 2 for i, j in cut)

    ends = np.cumsum([0, *cluster_operators(times, groups)])
    found = squares(pairwise(ends))
    assert found == min(squares(cut) for cut in cuts(len(times), groups))


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
