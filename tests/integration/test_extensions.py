"""Without any one of its extensions, the rest of Weft installs, imports and answers; what it had is unknown."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OWNED = {
    "lab": ("validate calibrate", ["validate", "calibrate"]),
    "papers": ("sample study", ["papers", "sample"]),
    "rewrite": ("rewrite", ["rewrite"]),
    "torch": ("capture import export", ["capture", "read_trace", "write_chakra"]),
    "ui": ("ui", []),
}
NEEDED_BY = {"rewrite": ["memo"], "torch": ["pytorch-on-simulator"]}
"""Studies that an extension's absence takes along."""
SUITE = (
    "tests/golden",
    "tests/contract/test_least_times.py",
    "tests/contract/test_recipes.py",
    "tests/unit/test_units.py",
)
"""Tests of the rest that need seconds; `make test-without` runs all."""


@pytest.fixture(scope="module", params=OWNED)
def removed(request, tmp_path_factory):
    """Install Weft without an extension's package and entry point; return its name and the environment to run in."""
    extension, site = request.param, tmp_path_factory.mktemp("site")
    packed = shutil.ignore_patterns("__pycache__", "machine_code")
    shutil.copytree(ROOT / "src" / "weft", site / "weft", ignore=packed)
    shutil.rmtree(site / "weft" / extension)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entries = project["entry-points"]["weft.extensions"]
    listed = [f"{name} = {target}" for name, target in entries.items() if name != extension]
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/weft/__init__.py").read_text(encoding="utf-8"))[1]
    about = site / f"weft-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: weft\nVersion: {version}\n")
    (about / "entry_points.txt").write_text("\n".join(["[weft.extensions]", *listed, ""]))
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return extension, site, {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run(environment, *words):
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=900
    )


def test_all_but_what_an_extension_owns_works_without_it(removed):
    extension, site, environment = removed
    done = run(environment, Path(__file__).with_name("without_extension.py"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["home"], found["missing"]) == (str(site / "weft"), [f"weft.{extension}"])
    commands, names = OWNED[extension]
    failed = {line: said for line, said in found["answers"].items() if said}
    assert {line.split()[0] for line in failed} == set(commands.split()), failed
    assert all("unknown command" in said for said in failed.values()), failed
    assert not set(names) & set(found["names"])
    assert set().union(*(owned for _, owned in OWNED.values())) - set(names) <= set(found["names"])
    assert found["studies"] == {
        name: f"the study '{name}' needs the extension '{extension}' of Weft, which is not installed"
        for name in (NEEDED_BY.get(extension, []) if extension != "papers" else [])
    }


def test_tests_of_the_rest_pass_without_an_extension(removed):
    extension, _, environment = removed
    done = run(
        environment, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--without-extension", extension, *SUITE
    )
    assert done.returncode == 0, done.stdout[-4000:]
