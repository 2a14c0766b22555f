"""The last backwards of many pipelines end when the clock of their schedule says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.step.pipeline import Durations, Send, many, run_schedule, schedule

SECONDS = st.floats(0.01, 3.0)


@st.composite
def pipelines(draw):
    """A slotted schedule, its times by stage, and its sends."""
    name = draw(st.sampled_from(many.SLOTTED))
    chunks = draw(st.integers(2, 4)) if name == "interleaved" else 1
    devices = draw(st.integers(2 if chunks > 1 else 1, 6))
    groups = draw(st.integers(1, 9))
    micro_batches = groups * devices if chunks > 1 else draw(st.integers(1, 50))
    stages = devices * chunks
    ends = draw(st.tuples(SECONDS, SECONDS))
    middle = draw(st.one_of(SECONDS, st.lists(SECONDS, min_size=stages, max_size=stages)))
    forward = np.broadcast_to(middle, stages).astype(float)
    forward[0], forward[-1] = ends
    latency = draw(st.sampled_from([0.0, 0.05, 0.4]))
    busy = draw(st.sampled_from([0.0, latency]))
    return name, devices, chunks, micro_batches, forward, draw(st.floats(0.5, 3.0)) * forward, latency, busy


@given(pipelines())
@settings(deadline=None, max_examples=150)
def test_many_pipelines_end_as_the_clock_of_their_schedule_says(one):
    name, devices, chunks, micro_batches, forward, backward, latency, busy = one
    order = schedule(name + (f":{chunks}" if chunks > 1 else ""), devices, micro_batches)
    ran = run_schedule(order, Durations(forward, backward), Send(latency, sender_busy=busy))
    rows = (np.stack([each, each]) for each in (forward, backward))
    found = many.last_backwards(name, devices, chunks, micro_batches, *rows, np.full(2, latency), np.full(2, busy))
    np.testing.assert_allclose(found, np.tile(np.nanmax(ran.end[1], axis=1), (2, 1)), rtol=1e-9)


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 3)])
def test_machine_code_says_the_same_as_python(name, chunks):
    times = np.random.default_rng(1).uniform(1, 2, (2, 5, 4 * chunks))
    asked = name, 4, chunks, 24, *times, np.full(5, 0.1), np.zeros(5)
    plain = many.last_backwards(*asked)
    ends = np.empty_like(plain)
    many.compile_clock()(many.SLOTTED.index(name), *asked[1:], ends, np.empty(24))
    np.testing.assert_array_equal(ends, plain)


def test_whole_periods_are_skipped_and_nothing_is_lost():
    """Of a thousand micro-batches most are skipped; the recurrence without skipping says the same."""
    forward, backward = np.array([[1.0, 1.0, 1.0, 1.25]]), np.array([[2.0, 2.0, 2.0, 2.5]])
    (end,) = many.last_backwards("1f1b", 4, 1, 1000, forward, backward, np.zeros(1), np.zeros(1))
    assert end[0] == pytest.approx(3 * 3.0 + 1000 * 3.75)
