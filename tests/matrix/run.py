"""Run golden runs and commands on every Python present, with the newest and the lowest dependencies, and compare.

Environments lie in .venv-matrix, one for each Python and set of dependencies; they are set up anew when pyproject.toml
changes. Pythons are those that the classifiers name, by their commands on the PATH.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-matrix"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTS = ("pytest>=9.0", "pytest-xdist>=3.6", "hypothesis>=6.112", "sybil>=8.0")
SUITE = ("tests/golden", "tests/matrix", "tests/unit/test_engine_compiler.py", "tests/unit/test_machine_code.py")
SAME = 1e-9
"""Relative difference of two floats that counts as none: versions of NumPy differ in the last digit of a logarithm."""
CLOCK = {"cpu_s"}
"""Fields that say how long Weft took."""


def main() -> int:
    """Run the suite in every environment, and compare the answers; return how many environments failed."""
    answers: dict[str, dict[str, Any]] = {}
    failed = 0
    for name, python, pins in environments():
        folder = FOLDER / name
        set_up(folder, python, pins)
        print(f"== {name}: {versions(folder)}", flush=True)
        if run_suite(folder):
            answers[name] = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
        else:
            failed += 1
    if not answers:
        print("nothing ran: put python3.11 or later on the PATH")
        return 1
    first, *others = answers
    for name in others:
        differing = list(differences(answers[first], answers[name]))
        failed += bool(differing)
        print(f"== {name} {'differs from' if differing else 'answers as'} {first}", *differing[:20], sep="\n   ")
    return failed


def environments() -> Iterator[tuple[str, str, list[str]]]:
    """Yield name, command and pinned dependencies of every environment whose Python is there."""
    numbers = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    for number in numbers:
        python = shutil.which(f"python{number}")
        if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
            print(f"== python{number} is not on the PATH: left out", flush=True)
            continue
        yield f"{number}-newest", python, []
        if number == numbers[0]:
            yield f"{number}-lowest", python, lowest()


def lowest() -> list[str]:
    """Return the declared dependencies at their lower bounds."""
    bounds = (re.match(r"([\w-]+)>=([\w.]+)", each) for each in PROJECT["dependencies"])
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


def set_up(folder: Path, python: str, pins: list[str]) -> None:
    """Make an environment, unless it is as pyproject.toml says."""
    stamp, wanted = folder / "made", hashlib.sha256(json.dumps([PROJECT["dependencies"], pins]).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"== setting up {folder.relative_to(ROOT)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--editable", ROOT, *pins, *TESTS], check=True)
    stamp.write_text(wanted)


def versions(folder: Path) -> str:
    """Return what an environment holds of the libraries that decide figures and pages."""
    names = "numpy", "numba", "llvmlite", "scipy", "pandas", "pydantic", "click", "altair"
    script = f"from importlib.metadata import version; print(*[f'{{n}} {{version(n)}}' for n in {names}], sep=', ')"
    done = subprocess.run([folder / "bin" / "python", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def run_suite(folder: Path) -> bool:
    """Run the suite in an environment, with a cache of its own; its answers come to the environment's folder."""
    for stale in folder.glob("*.json"):
        stale.unlink()
    variables = {**os.environ, "WEFT_CACHE": str(folder / "cache"), "WEFT_MATRIX": str(folder)}
    told = [folder / "bin" / "python", "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *SUITE]
    return subprocess.run(told, cwd=ROOT, env=variables, check=False).returncode == 0


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Yield the places in which two answers differ, with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other} - CLOCK):
            yield from differences(one.get(key), other.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, f"{where}[{index}]")
    elif isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, rel_tol=SAME):
        return
    elif one != other:
        yield f"{where}: {one} and {other}"


if __name__ == "__main__":
    sys.exit(main())
