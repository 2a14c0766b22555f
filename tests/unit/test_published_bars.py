"""The bars that published figures are held to: every way to break one is told."""

import math
from pathlib import Path

import pytest

from published import broken
from weft.papers import STUDIES
from weft.papers import study as find
from weft.papers.headline import Claim, HeadlineRow

DEVIATIONS = Path(__file__).parents[2] / "docs" / "deviations.md"


def claims(bars):
    return {id_: Claim(id=id_, **parts) for id_, parts in bars.items()}


def row(id_="a", published=1.2, weft=1.25):
    return HeadlineRow(id_, "a speedup", published, weft, "ratio")


@pytest.mark.parametrize(
    ("rows", "bars", "words"),
    [
        ([row(weft=1.31)], {"a": {"bar": 0.1}}, "a: 1.31 is +0.11 off, the bar is 0.1"),
        ([row()], {"a": {"bar": 0.01, "miss": 0.04}}, "a: 1.25 is +0.05 off, where at most +0.04 was known"),
        ([row()], {"a": {"bar": 0.01, "miss": -0.06}}, "a: 1.25 is +0.05 off, where at most -0.06 was known"),
        ([row()], {"a": {"bar": 0.1, "miss": 0.12}}, "meets the bar, 0.1; take away its miss"),
        ([row()], {"a": {"bar": 0.1, "around": 1.1}}, "a: 1.25 is +0.15 off, the bar is 0.1"),
        ([row()], {}, "it is published, but has no bar"),
        ([], {"a": {"bar": 0.1}}, "there is a bar, but no figure"),
        ([row(published=None)], {"a": {"bar": 0.1}}, "nothing published beside"),
        ([row(published=(0.9, 1.0))], {"a": {"bar": 0.1}}, "+0.25 off"),
    ],
)
def test_what_is_broken_is_told(rows, bars, words):
    (told,) = broken(rows, claims(bars))
    assert words in told


def test_figures_in_their_intervals_and_known_misses_are_fine():
    rows = [row(), row("b", 1.2, 1.4), row("c", None, 3.0), row("d", (1.0, 1.3), 1.25), row("e", 1.2, 1.1), row("f")]
    bars = {
        "a": {"bar": 0.06},
        "b": {"bar": 0.1, "miss": 0.25},
        "d": {"bar": 0.01},
        "e": {"bar": 0.05, "miss": -0.12},
        "f": {"bar": 0.01, "around": 1.25},
    }
    assert broken(rows, claims(bars)) == []


@pytest.mark.parametrize("study", STUDIES)
def test_every_bar_can_be_missed_and_every_miss_lies_outside_of_its_bar_and_has_a_cause(study):
    anchors = {
        line.lstrip("# ").lower().replace(" ", "-") for line in DEVIATIONS.read_text().splitlines() if line[:1] == "#"
    }
    for name, claim in find(study).DECLARED.claims.items():
        if claim.published is not None:
            assert math.isfinite(claim.bar), name
            assert claim.source, name
        if claim.miss is not None:
            assert abs(claim.miss) > claim.bar, name
            assert claim.cause in anchors, name
