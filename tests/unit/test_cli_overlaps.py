import json

import pytest
from click.testing import CliRunner

import weft
from weft.cli.catalogues import overlaps
from weft.core.errors import UnknownNameError
from weft.overlaps import OVERLAPS, STRATEGIES, simulated_methods


def run(*arguments):
    result = CliRunner().invoke(overlaps, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_every_overlap_is_listed_with_what_times_it_and_its_sentence():
    shown = run("list")
    for name, overlap in OVERLAPS.items():
        rows = [line for line in shown.splitlines() if line.split()[:1] == [name]]
        assert any(overlap.timed_by in row for row in rows)
        assert overlap.summary in shown


@pytest.mark.parametrize("place", ["tp", "dp", "sub-layer", "pair", "program"])
def test_an_axis_lists_only_the_methods_that_apply_to_it(place):
    listed = [entry["name"] for entry in json.loads(run("list", "--axis", place, "--json"))]
    assert listed == weft.overlaps(place)
    assert listed == [name for name, overlap in OVERLAPS.items() if place in overlap.places]


def test_an_unknown_place_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="sub-layer"):
        weft.overlaps("sublayer")


def test_overlaps_as_json_say_what_is_simulated_and_how():
    listed = {entry["name"]: entry for entry in json.loads(run("list", "--json"))}
    assert list(listed) == list(OVERLAPS) == weft.overlaps()
    assert {name for name, entry in listed.items() if entry["kind"] != "closed form"} == set(simulated_methods())
    assert listed["t3-mca"]["kind"] == "simulated"
    assert listed["t3-mca"]["arbiter"] == "compute-first"
    assert listed["ideal-overlap"]["kind"] == "ideal"
    assert listed["ideal-overlap"]["arbiter"] is None
    assert {name: entry["driver"] for name, entry in listed.items() if entry["driver"]} == {
        name: one.driver for name, one in STRATEGIES.items()
    }


def test_the_help_has_an_example():
    assert "Example" in run("list", "--help")
    assert "weft overlaps list --axis tp" in run("list", "--help")
