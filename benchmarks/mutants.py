"""Plant errors one at a time and run the tests that should see them.

    python benchmarks/mutants.py                # all of mutants.toml
    python benchmarks/mutants.py kv-heads zero-stage

Every mutant is planted in a copy of the working tree. The tests run without measurements, as in a fresh clone; the one
that fails must pass on the unchanged copy. Prints each mutant with the first test that fails, and ends with status 1
if one survives.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "benchmarks" / "mutants.toml"
COPIED = ("benchmarks", "conftest.py", "docs", "measure", "pyproject.toml", "README.md", "src", "tests")


def mutants() -> dict[str, dict[str, Any]]:
    """Return the planted errors by name."""
    with TABLE.open("rb") as file:
        return tomllib.load(file)


def plant(mutant: Mapping[str, Any], root: Path) -> None:
    """Plant an error in the tree `root`; ValueError if its text is not there exactly once."""
    path = root / mutant["file"]
    text = path.read_text(encoding="utf-8")
    if text.count(mutant["before"]) != 1:
        raise ValueError(
            f"{mutant['file']} has {text.count(mutant['before'])} times {mutant['before']!r}; give it once"
        )
    path.write_text(text.replace(mutant["before"], mutant["after"]), encoding="utf-8")


def run_tests(root: Path, tests: list[str]) -> tuple[bool, str]:
    """Run tests of the tree `root`; return whether they passed, and the first that failed."""
    without = {name: value for name, value in os.environ.items() if name not in {"WEFT_DATA", "WEFT_CACHE"}}
    path = os.pathsep.join([str(root / "src"), str(root / "measure" / "src")])
    environment = {**without, "PYTHONPATH": path, "WEFT_CACHE": str(root / "cache")}
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow and not study"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest {' '.join(tests)} ended with status {done.returncode}: {done.stdout[-2000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return done.returncode == 0, failed[1] if failed else ""


def main() -> int:
    """Run the mutants that the command line names, or all."""
    known = mutants()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(known)}; by default all")
    names = parser.parse_args().names or list(known)
    if unknown := set(names) - set(known):
        parser.error(f"no planted error is called {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    survived = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, root / name)
        for name in names:
            mutant, begin = known[name], time.monotonic()
            file = root / mutant["file"]
            unchanged = file.read_bytes()
            plant(mutant, root)
            passed, failed = run_tests(root, mutant["tests"])
            file.write_bytes(unchanged)
            if not passed and not run_tests(root, [failed])[0]:
                raise RuntimeError(f"{failed} fails without a planted error; mend it first")
            survived += [name] * passed
            verdict = "SURVIVED" if passed else f"caught by {failed}"
            print(f"{name}: {verdict} ({time.monotonic() - begin:.0f} s)", flush=True)
    print(f"{len(names) - len(survived)} of {len(names)} planted errors are caught")
    return int(bool(survived))


if __name__ == "__main__":
    sys.exit(main())
