"""The planted errors of `make mutants` are where its table says."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
from mutants import mutants, plant  # noqa: E402


@pytest.mark.parametrize("name", mutants())
def test_a_planted_error_changes_one_place(name, tmp_path):
    mutant = mutants()[name]
    copy = tmp_path / mutant["file"]
    copy.parent.mkdir(parents=True)
    copy.write_text((ROOT / mutant["file"]).read_text())
    plant(mutant, tmp_path)
    assert mutant["after"] in copy.read_text()
    assert all((ROOT / test).exists() for test in mutant["tests"] if test.startswith("tests/"))
