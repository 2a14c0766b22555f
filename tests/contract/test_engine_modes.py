"""The engine is one machine however it runs: compiled, as plain Python, with bounds checks, in another process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
SCRIPT = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from machines import finish, layer, program
from weft.overlaps.arbiters import COMPUTE_FIRST
digest = hashlib.sha256()
for overlap in ("sequential", "t3", "rs-nmc"):
    for explicit in (False, True):
        built = program(layer(m=256, n=256, k=64, tp=2), overlap, explicit=explicit)
        for table in finish(built, COMPUTE_FIRST, interference=explicit):
            digest.update(table.tobytes())
print(digest.hexdigest())
"""


def digest(**environment):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(TESTS / "support")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def compiled():
    return digest()


def test_another_process_gets_the_same_to_the_last_bit(compiled):
    assert digest(PYTHONHASHSEED="7") == compiled


def test_plain_python_gets_the_same_to_the_last_bit(compiled):
    assert digest(NUMBA_DISABLE_JIT="1") == compiled


@pytest.mark.slow
def test_with_bounds_checks_no_index_is_outside_and_the_result_is_the_same(compiled):
    assert digest(NUMBA_BOUNDSCHECK="1") == compiled
