"""T3 end to end in whole, against the published figures."""

import pytest

from published import broken
from weft.papers import t3_end_to_end

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def done():
    return t3_end_to_end.run()


def test_every_published_figure_is_met_or_off_as_the_deviations_say(done):
    assert broken(done.headline(), t3_end_to_end.DECLARED.claims) == []


def test_no_step_gains_more_than_with_ideal_overlap_and_near_memory_reduction(done):
    for step in (*done.steps, *done.shared):
        assert 1 < step.speedup("t3-mca") < step.speedup("ideal-rs-nmc"), step.title


def test_replicas_in_the_background_hardly_change_what_t3_gains(done):
    alone, replicas, *_ = done.nodes
    assert replicas.speedup("t3-mca") == pytest.approx(alone.speedup("t3-mca"), abs=0.02)
