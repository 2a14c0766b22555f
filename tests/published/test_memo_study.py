"""The study of the memo in whole: every row holds, each can fail, and each slip has its row."""

import math
from dataclasses import replace

import pytest

from published import broken
from weft.papers import memo
from weft.papers.memo.study import DECLARED, SECTIONS

CLAIMS = DECLARED.claims
COSTLY = ("fusion", "planning")
"""Sections that take seconds: whole steps and searches."""


@pytest.fixture(scope="module")
def study():
    """The study without its costly sections."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.papers.memo.study.SECTIONS", {k: v for k, v in SECTIONS.items() if k not in COSTLY})
        return memo.run(jobs=1)


@pytest.fixture
def claims():
    return {name: claim for name, claim in CLAIMS.items() if name.partition(".")[0] not in COSTLY}


def test_every_row_holds_to_the_digits_that_are_given(study, claims):
    assert broken(study.headline(), claims) == []
    assert study.broken == []


@pytest.mark.slow
def test_whole_steps_and_searches_hold_too():
    whole = memo.run(jobs=1)
    assert broken(whole.headline(), CLAIMS) == []
    assert set(whole.values) == set(CLAIMS)


def test_every_declared_row_is_computed_in_a_declared_section(study, claims):
    assert set(study.values) == set(claims)
    assert set(SECTIONS) == set(DECLARED.cases["sections"])


def test_a_changed_number_fails_in_every_row(study, claims, monkeypatch):
    """The number given, moved to twice the tolerance from Weft's value, to either side."""
    for side in (-2, 2):
        moved = {
            name: claim.model_copy(update={"published": study.values[name] + side * claim.bar})
            for name, claim in claims.items()
            if claim.bar is not None
        }
        monkeypatch.setattr(memo.MemoStudy, "DECLARED", DECLARED.model_copy(update={"claims": {**claims, **moved}}))
        assert {row.id for row in study.broken} == set(moved)
        assert len(broken(study.headline(), study.DECLARED.claims)) == len(moved)
        assert study.to_dict()["green"] is False
        assert "do not" in " ".join(study.findings)


def test_a_changed_value_of_weft_fails(study):
    for name, value in study.values.items():
        other = replace(study, values={**study.values, name: value + 3 * (CLAIMS[name].bar or 0)})
        assert [row.id for row in other.broken] == [name] * (CLAIMS[name].bar is not None)


def test_numbers_are_held_to_the_digits_that_are_given(claims):
    """A tolerance is half of a digit, but for what was measured or executed."""
    wide = {
        name
        for name, claim in claims.items()
        if claim.bar is not None and not any(math.isclose(claim.bar, 5 * 10.0**power) for power in range(-10, 2))
    }
    assert wide == {"peak.dynamic", "peak.static", "peak.all", "quantization.sine_rounded", "rewriting.batchnorm"}
    assert all(claim.source for claim in CLAIMS.values() if claim.published is not None)


def test_every_slip_has_a_row_that_shows_what_holds(study):
    slips = study.to_dict()["slips"]
    assert len(slips) == 6
    assert {slip["row"] for slip in slips} <= set(CLAIMS)


def test_the_page_has_every_row_and_picture(study, tmp_path):
    text = study.page(tmp_path).read_text(encoding="utf-8")
    assert f"{len([row for row in study.rows() if study.holds(row)])} of" in text
    assert "does not hold" not in text
    assert text.count('"spec":') >= 6
    for section in study.values:
        assert DECLARED.cases["sections"][section.partition(".")[0]][0] in text


def test_rows_as_data(study):
    found = study.to_dict()
    assert found["green"]
    assert len(found["rows"]) == len(study.values)
    assert {"section", "tolerance", "source", "holds", "weft", "published"} <= set(found["rows"][0])
