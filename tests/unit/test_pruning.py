"""Plans that need no time: bounds below every time, and the same Pareto front without them."""

import numpy as np
import pytest

from weft.hardware import system
from weft.models import load_model
from weft.models.parallel.framework import framework
from weft.models.parallel.plan import TrainingPlan
from weft.step.clock import many
from weft.step.pruning import ParetoFront, Pruning


def test_a_front_keeps_what_nothing_else_beats_in_both():
    front = ParetoFront()
    front.add(np.array([2.0, 1.0, 3.0]), np.array([5.0, 9.0, 6.0]))
    front.add(np.array([1.5]), np.array([9.5]))
    least, peaks = np.array([2.5, 2.5, 0.5, 1.2]), np.array([5.0, 4.0, 20.0, 9.0])
    assert front.beats(least, peaks).tolist() == [True, False, False, True]


def test_a_plan_of_the_fastest_is_timed_even_where_another_beats_it():
    pruning = Pruning(ParetoFront(), 2)
    least, peaks = np.array([2.0, 4.0]), np.array([9.0, 9.0])
    pruning.add(np.array([1.0]), np.array([1.0]))
    assert not pruning.excludes(least, peaks).any()  # so far one is timed, and two are wanted
    pruning.add(np.array([3.0]), np.array([2.0]))
    assert pruning.excludes(least, peaks).tolist() == [False, True]


_PLANS = [
    TrainingPlan(tp=tp, pp=pp, dp=16 // tp // pp, sp=tp > 1, micro_batch=each, batch=64, sequence=4096, **more)
    for tp in (1, 2, 4)
    for pp in (1, 2, 4)
    for each in (1, 2)
    for more in ({}, {"recompute": "full"}, *([{"schedule": "interleaved:2"}] if pp > 1 else []))
]


@pytest.mark.parametrize(("name", "zero"), [("megatron-core", 1), ("torchtitan", 3)])
def test_what_pruning_leaves_out_is_on_no_front_and_not_among_the_fastest(name, zero):
    model, on, how = load_model("llama-3-8b"), system("16xh100"), framework(name)
    plans = [one.alter(zero=zero) for one in _PLANS]
    whole = many(model, on, plans, how)
    pruning = Pruning(ParetoFront(), 3)
    for plan in plans:  # one by one, so that each is met by the bounds of the others
        many(model, on, [plan], how, pruning=pruning)
    again = many(model, on, plans, how, pruning=pruning)
    out = np.isinf(again.seconds)
    assert out.any()
    assert again.seconds[~out] == pytest.approx(whole.seconds[~out], rel=1e-12)
    fastest = np.argsort(whole.seconds, kind="stable")[:3]
    assert not out[fastest].any()
    for at in np.flatnonzero(out):
        assert ((whole.seconds < whole.seconds[at]) & (whole.peak_bytes <= whole.peak_bytes[at])).any()
