"""The bars that published figures are held to: every way to break one is told."""

import pytest

from published import broken
from weft.studies.headline import HeadlineRow


def row(id_="a", published=1.2, weft=1.25):
    return HeadlineRow(id_, "a speedup", published, weft, "ratio")


@pytest.mark.parametrize(
    ("rows", "bars", "gaps", "words"),
    [
        ([row(weft=1.31)], {"a": 0.1}, {}, "a: 1.31 is +0.11 off, the bar is 0.1"),
        ([row()], {"a": 0.01}, {"a": 1.27}, "a: it is 1.25, the deviations say 1.27"),
        ([row()], {"a": 0.1}, {"a": 1.25}, "take it off the known gaps"),
        ([row()], {}, {}, "it is published, but has no bar"),
        ([], {"a": 0.1}, {}, "there is a bar, but no figure"),
        ([row(published=None)], {"a": 0.1}, {}, "nothing published beside"),
        ([row(published=None)], {}, {"a": 1.25}, "a gap is known, but there is no bar"),
        ([row(published=(0.9, 1.0))], {"a": 0.1}, {}, "+0.25 off"),
    ],
)
def test_what_is_broken_is_told(rows, bars, gaps, words):
    (told,) = broken(rows, bars, gaps)
    assert words in told


def test_figures_in_their_intervals_and_known_gaps_are_fine():
    rows = [row(), row("b", 1.2, 1.4), row("c", None, 3.0), row("d", (1.0, 1.3), 1.25)]
    assert broken(rows, {"a": 0.06, "b": 0.1, "d": 0.01}, {"b": 1.4}) == []
