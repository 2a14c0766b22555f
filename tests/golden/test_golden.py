"""A guard against accidental drift and slow-down: two small runs take what they took, event for event."""

import json
import runpy
from pathlib import Path

import pytest

RUNS = runpy.run_path(str(Path(__file__).parent / "runs.py"))
GOLDEN = json.loads(RUNS["GOLDEN"].read_text(encoding="utf-8"))


def test_every_run_is_golden():
    assert set(GOLDEN) == set(RUNS["RUNS"])


@pytest.mark.parametrize("name", GOLDEN)
def test_a_small_run_takes_what_it_took(name):
    found = json.loads(json.dumps(RUNS["figures"](RUNS["RUNS"][name]())))
    assert found == GOLDEN[name], "meant? then write it anew with `make golden`, and say why in the commit"
