"""The study of serving in whole, against the published figures; and what its searches rest on."""

import pytest

from published import broken
from weft.papers.serving import ServingStudy, _gap
from weft.serving.result import Iteration


@pytest.mark.slow
def test_every_published_figure_is_met_or_off_as_the_deviations_say():
    assert broken(ServingStudy.run(jobs=1).headline(), ServingStudy.DECLARED.claims) == []


def test_a_prompt_between_two_tokens_is_a_gap_of_those_that_write():
    of = {"replica": 0, "running": 3, "waiting": 0, "blocked_on": "", "used": 0, "context": 0, "pairs": 0, "written": 0}
    iterations = [
        Iteration(start=0, end=1, steps=10, decodes=2, prefills=0, prompt=0, **of),
        Iteration(start=1, end=2, steps=1, decodes=0, prefills=1, prompt=500, **of),
        Iteration(start=2, end=2.1, steps=1, decodes=3, prefills=0, prompt=0, **of),
    ]
    assert _gap(iterations, 50) == pytest.approx(0.1)
    assert _gap(iterations, 99) == pytest.approx(1.1)  # the two that wrote before
