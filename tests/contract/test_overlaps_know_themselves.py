"""No file outside `overlaps/` decides by the name or class of an overlap method: it asks the method."""

import ast
from pathlib import Path

import pytest

import weft
from weft.overlaps import BUILT_IN, OverlapMethod
from weft.overlaps.base import _load_methods
from weft.overlaps.registry import _HOMES

ROOT = Path(weft.__file__).parent
OWN_WORDS = {
    "kernels/library/tiles.py": "an architecture is called t3, too",
    "plan/launch_training.py": "which method a launcher's own flag means",
    "estimate/errors.py": "which strategy is measured",
    "papers": "what a paper compares",
    "plan/tune": "which strategies the tables of C3 rank",
    "lab": "which methods are measured",
}
"""Files and folders that compare with a method's name for a reason of their own."""
FILES = [
    path
    for path in sorted(ROOT.rglob("*.py"))
    if not path.relative_to(ROOT).as_posix().startswith((*OWN_WORDS, "overlaps/"))
]
NAMES = {method.name for method in BUILT_IN}
CLASSES = {kind.__name__ for method in BUILT_IN for kind in type(method).__mro__ if issubclass(kind, OverlapMethod)}
CLASSES.remove("OverlapMethod")


def compared(path):
    """Method names that a file compares with, and method classes that it tests for."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            inside = (each for part in (node.left, *node.comparators) for each in ast.walk(part))
            yield from (each.value for each in inside if isinstance(each, ast.Constant) and each.value in NAMES)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            yield from (each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name) and each.id in CLASSES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_file_outside_overlaps_decides_by_a_methods_name_or_class(path):
    assert list(compared(path)) == []


def test_the_search_finds_what_it_looks_for(tmp_path):
    file = tmp_path / "decides.py"
    file.write_text("a = name in ('t3', 'mine') or name == 'flux' or isinstance(name, (Flux, int))")
    assert sorted(compared(file)) == ["Flux", "flux", "t3"]


def test_the_table_of_homes_names_the_methods_of_each_module():
    for home, names in _HOMES.items():
        assert [*_load_methods(home)] == names.split()
