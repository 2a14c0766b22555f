"""What Weft reads from disk is data: nothing is unpickled, so that reading a file of a cache executes nothing."""

import ast
from pathlib import Path

import pytest

import weft

UNPICKLING = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
SOURCES = sorted(Path(weft.__file__).parent.rglob("*.py"))


def imported(node):
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    return {(node.module or "").partition(".")[0]} if isinstance(node, ast.ImportFrom) else set()


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_no_module_can_unpickle_a_file(source):
    for node in ast.walk(ast.parse(source.read_bytes())):
        assert not imported(node) & UNPICKLING
        # numba pickles what it caches, and NumPy reads pickles if it is told to
        named = isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "cache")
        assert not (named and isinstance(node.value, ast.Constant) and node.value.value is True)
