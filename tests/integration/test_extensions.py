"""Without any one of its extensions, the rest of Weft imports and answers; what the extension had is unknown."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("without_extension.py")
OWNED = {
    "lab": (["validate --help"], ["validate", "calibrate"]),
    "papers": (["sample --help", "study --help"], ["papers", "sample"]),
    "rewrite": (["rewrite --help"], ["rewrite"]),
    "torch": (["capture --help"], ["capture", "read_trace", "write_chakra"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("extension", OWNED)
def test_all_but_what_an_extension_owns_works_without_it(extension):
    run = subprocess.run([sys.executable, SCRIPT, extension], capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    commands, names = OWNED[extension]
    failed = {line: said for line, said in found["answers"].items() if said}
    assert sorted(failed) == sorted(commands), failed
    assert all("unknown command" in said for said in failed.values())
    assert not set(names) & set(found["names"])
    assert set().union(*(owned for _, owned in OWNED.values())) - set(names) <= set(found["names"])
