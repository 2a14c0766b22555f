"""Training and serving share formulas: stages of a forward pass, and an exchange of tokens beside computing."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.step.exchange_overlap import overlap_exchange
from weft.step.pipeline import Durations, Send, run_schedule, schedule
from weft.step.stages import ForwardStages

SECONDS = st.floats(1e-4, 1.0)


def clocked(stages, batches):
    """The makespan of forward passes of equal batches by the pipeline's clock [s]."""
    forward = np.full(stages.stages, stages.layers / stages.stages)
    forward[-1] += stages.last
    none = np.zeros(stages.stages)
    order = schedule("inference", stages.stages, batches)
    return run_schedule(order, Durations(forward, none, none), Send(stages.send, sender_busy=stages.send)).makespan


@given(st.integers(1, 6), SECONDS, st.floats(0.0, 1.0), st.floats(0.0, 0.1))
def test_stages_of_a_forward_pass_are_those_of_the_pipeline_clock(count, layers, last, send):
    stages = ForwardStages(count, layers, last, send)
    assert clocked(stages, 1) == pytest.approx(stages.latency)
    if count > 1:
        assert clocked(stages, 9) - clocked(stages, 8) == pytest.approx(max(stages.each))


@given(SECONDS, SECONDS, st.floats(0.0, 0.9), st.booleans())
def test_an_exchange_and_computing_take_at_least_what_either_does(exchange, computing, units, held):
    slower, late = overlap_exchange(exchange, computing, units, held)
    both = computing + slower + late
    assert both >= max(exchange, computing) * (1 - 1e-12)
    assert both <= max(exchange, computing / (1 - units)) * (1 + 1e-12)
    if late:  # the exchange is longer, and nothing else is lost
        assert both == pytest.approx(exchange)


def test_units_held_while_nothing_moves_cost_computing_longer():
    assert overlap_exchange(1.0, 8.0, 0.2) == pytest.approx((0.2, 0.0))
    assert overlap_exchange(1.0, 8.0, 0.2, held=True) == pytest.approx((2.0, 0.0))
    assert overlap_exchange(3.0, 1.0, 0.5) == pytest.approx((1.0, 1.0))
    assert math.isclose(sum(overlap_exchange(0.0, 1.0, 0.5)), 0.0)
