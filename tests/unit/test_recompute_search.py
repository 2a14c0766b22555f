"""What to compute again under a memory budget: integer programs against exhaustive search, and policies of plans."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shown import check_shown

import weft
from weft.cli.main import main
from weft.core.errors import InputError, UnitError
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.recompute import INPUT, OperatorSaves
from weft.papers.textbook.rematerialization import Tensors, layer_tensors, peak_of, rematerialize
from weft.plan.recompute import Layers, cheapest, frontier, recompute, segments, stage_layers

PLAN = TrainingPlan(tp=8, sp=True, sequence=2048)


def layers(model="llama-3-8b", plan=PLAN):
    return stage_layers(weft.load_model(model), weft.system("8xh100"), plan, framework("megatron-core"))


def subsets(names):
    return itertools.chain.from_iterable(itertools.combinations(names, size) for size in range(len(names) + 1))


def least_time(kinds, budget):
    """Seconds of the cheapest set within a budget, by trying all; None if none is."""
    fixed = {name for kind in kinds for name in kind.seconds if name not in kind.free}
    free = sorted(set().union(*(kind.free for kind in kinds)) - fixed)
    fitting = (
        sum(kind.added_seconds(again) for kind in kinds)
        for again in subsets(free)
        if sum(kind.bytes(again) for kind in kinds) <= budget
    )
    return min(fitting, default=None)


@pytest.mark.parametrize("model", ["gpt-3", "llama-3-8b"])
@pytest.mark.parametrize("share", [0.02, 0.4, 0.7, 1.0])
def test_cheapest_operators_of_a_layer_equal_exhaustive_search(model, share):
    kinds = layers(model)
    budget = share * sum(kind.bytes(()) for kind in kinds)
    found, best = cheapest(kinds, budget), least_time(kinds, budget)
    if best is None:
        assert found is None
        return
    assert sum(kind.bytes(found) for kind in kinds) <= budget
    assert sum(kind.added_seconds(found) for kind in kinds) == pytest.approx(best)


@st.composite
def small_layers(draw):
    """Operators that each read one or two earlier ones, and keep what they read or not."""
    count = draw(st.integers(2, 6))
    size = st.integers(0, 5)
    saved = []
    for at in range(count):
        sources = draw(st.lists(st.integers(INPUT, at - 1), min_size=1, max_size=2, unique=True))
        sizes = [st.sampled_from([0, 3 if one == INPUT else saved[one].output]) for one in sources]
        kept = tuple((one, draw(bytes)) for one, bytes in zip(sources, sizes, strict=True))
        saved.append(OperatorSaves(f"op{at}", draw(size), kept, draw(st.integers(1, 5))))
    seconds = {one.name: float(draw(st.integers(1, 5))) for one in saved}
    free = frozenset(list(seconds)[: draw(st.integers(1, count))])
    return Layers(tuple(saved), seconds, free, draw(st.integers(1, 3)))


@settings(max_examples=25, deadline=None)
@given(st.lists(small_layers(), min_size=1, max_size=2), st.floats(0, 1))
def test_cheapest_operators_of_random_layers_equal_exhaustive_search(kinds, share):
    budget = share * sum(kind.bytes(()) for kind in kinds)
    found, best = cheapest(kinds, budget), least_time(kinds, budget)
    assert (found is None) == (best is None)
    if found is not None:
        assert sum(kind.bytes(found) for kind in kinds) <= budget
        assert sum(kind.added_seconds(found) for kind in kinds) == pytest.approx(best)


def test_frontier_falls_in_memory_and_rises_in_time():
    kinds = layers()
    sets = frontier(kinds)
    left = [sum(kind.bytes(names) for kind in kinds) for names in sets]
    time = [sum(kind.added_seconds(names) for kind in kinds) for names in sets]
    assert sets[0] == ()
    assert left == sorted(left, reverse=True)
    assert time == sorted(time)
    assert left[-1] == min(sum(kind.bytes(again) for kind in kinds) for again in subsets(sorted(kinds[0].free)))


def test_cheap_operators_go_first():
    assert set(frontier(layers())[1]) <= {"norm1", "norm2", "rotary", "activation"}


def test_square_root_checkpointing_of_96_layers_keeps_20_units_for_a_third_more_time():
    assert segments(96) == (pytest.approx(2 * math.sqrt(96)), pytest.approx(4 / 3))
    assert segments(96, 10)[0] == pytest.approx(19.6)
    assert min(segments(96, each)[0] for each in range(1, 97)) >= segments(96)[0]
    with pytest.raises(InputError, match="give 1 to 96"):
        segments(96, 97)


# -- Checkmate's integer program


def brute_force(graph, budget):
    """Least cost of any plan within the budget, by trying every R with the S that it needs; None if none is."""
    count = len(graph.cost)
    pairs = [(stage, i) for stage in range(count) for i in range(stage)]
    best = None
    for chosen in itertools.product((0, 1), repeat=len(pairs)):
        computed = np.eye(count, dtype=np.int64)
        for (stage, i), value in zip(pairs, chosen, strict=True):
            computed[stage, i] = value
        cost = float((computed * np.asarray(graph.cost)).sum())
        kept = needed(graph, computed)
        if kept is not None and (best is None or cost < best) and peak_of(graph, computed, kept) <= budget:
            best = cost
    return best


def needed(graph, computed):
    """What each stage must find in memory; None if that was never computed before."""
    count = len(computed)
    kept = np.zeros_like(computed)
    for stage in range(count - 1, -1, -1):
        for i in range(count):
            used = any(computed[stage, user] for user in graph.users(i))
            later = stage + 1 < count and kept[stage + 1, i]
            if not computed[stage, i] and (used or later):
                if i >= stage:
                    return None
                kept[stage, i] = 1
    return kept


@pytest.mark.parametrize("seed", range(5))
def test_checkmate_equals_exhaustive_search_on_small_graphs(seed):
    drawn = np.random.default_rng(seed)
    count = int(drawn.integers(3, 6))
    needs = tuple(tuple(j for j in range(i) if j == i - 1 or drawn.random() < 0.4) for i in range(count))
    cost, size = (tuple(drawn.integers(1, 5, count).astype(float)) for _ in range(2))
    graph = Tensors(cost, size, needs)
    for budget in (0.5 * sum(size), 0.7 * sum(size), sum(size)):
        found, best = rematerialize(graph, budget), brute_force(graph, budget)
        assert (None if found is None else pytest.approx(found.cost)) == best
        assert found is None or found.peak <= budget + 1e-9


def test_checkmate_trades_memory_for_forwards():
    backward = tuple(tuple(one for one in (3 - place, 4 + place) if one >= 0) for place in range(5))
    graph = Tensors((1.0,) * 5 + (2.0,) * 5, (1.0,) * 10, ((), (0,), (1,), (2,), (3,), *backward))
    found = {budget: rematerialize(graph, budget) for budget in (6, 5, 4, 3)}
    assert [found[budget].cost for budget in found] == [15, 16, 17, 21]
    assert [found[budget].peak for budget in found] == [6, 5, 4, 3]
    assert rematerialize(graph, 2) is None


def test_checkmate_finds_at_least_what_named_operators_reach():
    """One layer: with a peak in which operators run again just before they are needed, no more time than they take."""
    kind = layers()[0]
    graph = layer_tensors(kind)
    free = rematerialize(graph, 1e15)
    assert free.cost == pytest.approx(sum(kind.seconds.values()) + sum(kind.backward.values()))
    less = rematerialize(graph, 0.9 * free.peak)
    cheap = sum(kind.seconds[name] for name in ("norm1", "norm2", "rotary", "activation"))
    assert free.cost < less.cost <= free.cost + cheap


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tensors((1.0,), (1.0, 1.0), ((),)), "one of each for every tensor"),
        (lambda: Tensors((1.0, 1.0), (1.0, 1.0), ((1,), ())), "does not come before it"),
    ],
)
def test_graphs_that_cannot_be_computed_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


# -- plans


@pytest.fixture(scope="module")
def gpt3():
    return recompute("gpt-3", "64xa100", "65 GB", tp=8, pp=8, batch=16)


def test_chosen_policy_fits_and_is_the_fastest_that_does(gpt3, tmp_path):
    chosen = gpt3.chosen
    assert chosen.peak <= gpt3.budget < gpt3.base.peak
    for other in (*gpt3.policies, *gpt3.named):
        assert other.peak > gpt3.budget or other.seconds >= chosen.seconds
    check_shown(gpt3, tmp_path)


def test_operators_cost_less_than_full_recomputation_for_the_same_memory(gpt3):
    full = next(one for one in gpt3.named if one.recompute == "full")
    most = gpt3.policies[-1]
    assert most.peak == pytest.approx(full.peak, rel=0.01)
    assert most.seconds < full.seconds


def test_policies_are_what_plans_with_them_answer(gpt3):
    answer = weft.step("gpt-3", "64xa100", tp=8, pp=8, batch=16, recompute=gpt3.chosen.recompute, fidelity="estimate")
    assert answer.seconds == pytest.approx(gpt3.chosen.seconds)
    assert answer.memory.peak == pytest.approx(gpt3.chosen.peak)


def test_budget_without_a_unit_is_refused():
    with pytest.raises(UnitError, match="'65' has no unit"):
        recompute("gpt-3", "64xa100", "65", tp=8, pp=8, batch=16)


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    printed = capsys.readouterr()
    return left.value.code, printed.out, printed.err


def test_command_says_what_to_compute_again(capsys):
    command = ["memory", "gpt-1.7b", "--system", "8xa100", "--tp", "8", "--batch", "8", "--budget"]
    for budget, words in (
        ("80 GB", "No recomputation needed"),
        ("7.7 GB", "activation: the peak falls from"),
        ("1 GB", "Recomputation alone does not reach 1.0 GB"),
    ):
        status, out, _ = run(capsys, *command, budget)
        assert status == 0
        assert words in out
    status, _, problem = run(capsys, *command, "6 GB", "--recompute", "full")
    assert status != 0
    assert "--recompute has no effect with --budget" in problem


def test_command_takes_operators_by_name(capsys):
    command = ["memory", "gpt-1.7b", "--system", "8xa100", "--tp", "8", "--batch", "8", "--recompute"]
    assert run(capsys, *command, "norm1,activation")[0] == 0
    status, _, problem = run(capsys, *command, "ful")
    assert status != 0
    assert "did you mean 'full'?" in problem
