"""Every example runs as a reader would run it, and prints what it is there to show."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SLOW = {"02_change_the_machine.py", "06_choose_a_split.py"}
SHOWS = {
    "01_two_overlaps.py": ["t3-mca", "gemm read", "matrix_unit"],
    "02_change_the_machine.py": ["as in the paper", "link.bandwidth = 300 GB/s"],
    "03_own_arbiter.py": ["round-robin", "half_queue"],
    "04_unequal_gpus.py": ["all alike", "GPU 2 starts 50 us late"],
    "05_layer_across_systems.py": ["TP 8, decode", "in all-reduces"],
    "06_choose_a_split.py": ["8192 rows beside 512 MiB: dma", "chosen in"],
}


def test_every_example_says_what_it_shows():
    assert [example.name for example in EXAMPLES] == sorted(SHOWS)


def marked(example):
    return pytest.param(example, marks=pytest.mark.slow if example.name in SLOW else (), id=example.name)


@pytest.mark.parametrize("example", [marked(example) for example in EXAMPLES])
def test_an_example_runs_and_shows_it(example, tmp_path):
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    for part in SHOWS[example.name]:
        assert part in done.stdout
    assert not list(tmp_path.iterdir()), "an example leaves no files behind"
