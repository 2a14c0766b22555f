import json

from click.testing import CliRunner

from weft.cli.overlaps import overlaps
from weft.schedule import PASSES, SHARING

JOINED = {name: one for name, one in PASSES.items() if name not in SHARING}


def run(*arguments):
    result = CliRunner().invoke(overlaps, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_every_overlap_is_listed_with_its_title_and_arbiter():
    shown = run("list")
    for name, overlap in JOINED.items():
        row = next(line for line in shown.splitlines() if line.split()[:1] == [name])
        assert overlap.title in row
    assert "compute-first" in shown


def test_every_strategy_is_listed_with_its_driver():
    shown = run("list")
    for name, strategy in SHARING.items():
        row = next(line for line in shown.splitlines() if line.split()[:1] == [name])
        assert f" {strategy.driver} " in row
        assert (" yes " in row) is strategy.partition


def test_overlaps_as_json_say_which_are_simulated():
    listed = {entry["name"]: entry for entry in json.loads(run("list", "--json"))}
    assert list(listed) == [*JOINED, *SHARING]
    assert listed["t3-mca"]["kind"] == "simulated"
    assert listed["t3-mca"]["arbiter"] == "compute-first"
    assert listed["ideal-overlap"]["kind"] == "ideal"
    assert listed["ideal-overlap"]["arbiter"] is None


def test_the_help_has_an_example():
    assert "Example: weft overlaps list" in run("list", "--help")
