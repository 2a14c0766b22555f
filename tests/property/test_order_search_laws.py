"""Laws of the search for pipeline orders: bounds hold, memory is kept, and small cases are solved exactly."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import InputError
from weft.step.pipeline import Durations, Send, run_schedule, schedule
from weft.step.pipeline.problem import OrderProblem, least_end, least_spans
from weft.step.pipeline.search import find_order

SECONDS = st.floats(0.05, 2.0)
KEPT = st.sampled_from([0.0, 0.4, 1.0])
FEW = settings(deadline=None, max_examples=25)


@st.composite
def problems(draw, most_devices=5, most_micro_batches=9):
    devices = draw(st.integers(1, most_devices))
    micro_batches = draw(st.integers(1, most_micro_batches))
    times = [draw(st.lists(SECONDS, min_size=devices, max_size=devices)) for _ in range(3)]
    busy = draw(st.sampled_from([0.0, 0.1]))
    send = Send(draw(st.floats(0, 0.5)) + busy, sender_busy=busy, receiver_busy=busy / 2)
    limit = draw(st.floats(1, micro_batches + 1))
    return OrderProblem(devices, micro_batches, Durations(*times), send, limit, draw(KEPT))


def cost(times, objective):
    return times.makespan if objective == "makespan" else times.span.max()


def rows(count):
    """Every order of one stage, each kind in the sequence of its micro-batches."""
    found = [((), (0, 0, 0))]
    for _ in range(3 * count):
        found = [
            ((*row, kind), tuple(ran[at] + (at == kind) for at in range(3)))
            for row, ran in found
            for kind in range(3)
            if ran[kind] < (count if kind == 0 else ran[kind - 1])
        ]
    return np.array([row for row, _ in found])


def held(row, kept):
    ran = [np.cumsum(row == kind) for kind in range(3)]
    return (ran[0] - (1 - kept) * ran[1] - kept * ran[2]).max()


def shortest(problem, objective):
    """The least cost of all orders within the memory, by trying each."""
    costs = problem.costs
    fitting = [
        [row for row in rows(problem.micro_batches) if held(row, costs.kept[at]) <= costs.limit[at] + 1e-9]
        for at in range(problem.devices)
    ]
    return min(run_or_deadlock(problem, np.stack(each), objective) for each in product(*fitting))


def run_or_deadlock(problem, order, objective):
    try:
        return cost(run_schedule(problem.schedule(order), problem.durations, problem.send), objective)
    except InputError:  # stages wait for each other
        return np.inf


@FEW
@given(problems(), st.sampled_from(["span", "makespan"]))
def test_what_is_found_fits_the_memory_and_never_beats_the_bound(problem, objective):
    found = find_order(problem, objective)
    assert found.cost == cost(found.times, objective)
    assert found.least <= found.cost * (1 + 1e-9)
    order = found.times.schedule
    for at in range(problem.devices):
        assert order.in_flight(at, problem.costs.kept[at]).max() <= problem.costs.limit[at] + 1e-6


@FEW
@given(problems())
def test_no_named_schedule_within_the_memory_beats_the_bound_or_the_order_found(problem):
    found = {objective: find_order(problem, objective) for objective in ("span", "makespan")}
    for name in ("1f1b", "zb-h1", "zb-h2", "gpipe"):
        named = schedule(name, problem.devices, problem.micro_batches)
        peaks = [named.in_flight(at, problem.costs.kept[at]).max() for at in range(problem.devices)]
        if (np.array(peaks) <= problem.costs.limit).all():
            ran = run_schedule(named, problem.durations, problem.send)
            for objective, order in found.items():
                assert order.least <= cost(ran, objective) * (1 + 1e-9)
                assert order.cost <= cost(ran, objective) * (1 + 1e-9)


@settings(deadline=None, max_examples=10)
@given(problems(most_devices=2, most_micro_batches=3), st.sampled_from(["span", "makespan"]))
def test_the_search_finds_the_best_of_all_orders_in_small_cases(problem, objective):
    assert find_order(problem, objective).cost == pytest.approx(shortest(problem, objective), rel=1e-9)


@FEW
@given(problems(), st.sampled_from(["span", "makespan"]))
def test_more_memory_never_makes_the_order_found_or_the_bound_longer(problem, objective):
    limit = np.floor(problem.costs.limit[0])
    wider = (limit, limit + 1, limit + 2)
    found = [
        find_order(
            OrderProblem(
                problem.devices, problem.micro_batches, problem.durations, problem.send, each, problem.kept_for_weight
            ),
            objective,
        )
        for each in wider
    ]
    for less, more in pairwise(found):
        assert more.least <= less.least * (1 + 1e-9)
        assert more.cost <= less.cost * (1 + 1e-9)


@FEW
@given(problems(), st.floats(0.01, 100))
def test_bounds_scale_with_the_unit_of_time(problem, unit):
    took = problem.costs.took.T * unit
    send = Send(
        *(np.asarray(getattr(problem.send, part)) * unit for part in ("latency", "sender_busy", "receiver_busy"))
    )
    other = OrderProblem(
        problem.devices, problem.micro_batches, Durations(*took), send, problem.limit, problem.kept_for_weight
    )
    assert least_spans(other) == pytest.approx(unit * least_spans(problem))
    assert least_end(other) == pytest.approx(unit * least_end(problem))
