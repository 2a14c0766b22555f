"""Kernels, drivers and roles are classes and members of enumerations: no text picks what runs, or what a node is."""

import ast
from pathlib import Path

import pytest

import weft

SOURCES = Path(weft.__file__).parent
TYPED = ("kernel", "driver")
"""Fields and variables that hold a kernel of a node, or what moves a collective's data."""


def is_typed(part):
    return getattr(part, "attr", getattr(part, "id", "")) in TYPED


def holds_text(part):
    return any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(part))


def compared(tree):
    """Lines of a source on which a kernel or a driver is compared with a text, by operators or by `match`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            if any(map(is_typed, parts)) and any(holds_text(part) for part in parts if not is_typed(part)):
                yield node.lineno
        elif isinstance(node, ast.Match) and is_typed(node.subject):
            yield from (case.pattern.lineno for case in node.cases if holds_text(case.pattern))


def test_no_kernel_and_no_driver_is_compared_with_a_text():
    found = [
        f"{path.relative_to(SOURCES)}:{line}"
        for path in sorted(SOURCES.rglob("*.py"))
        for line in compared(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "choice.kernel == 'split-k'",
        "kernel in ('ring', 'tiles')",
        "one.driver != 'dma'",
        "'cu' == driver",
    ],
)
def test_a_comparison_with_a_text_is_found(source):
    assert list(compared(ast.parse(source))) == [1]


@pytest.mark.parametrize("source", ["driver is Driver.DMA", "isinstance(kernel, PaperRing)", "kernel is None"])
def test_a_class_or_a_member_is_no_text(source):
    assert list(compared(ast.parse(source))) == []


NODES = ("node", "nodes", "piece", "pieces")
"""Variables that hold a node of a graph, or an operator of a model."""
CUTS = ("startswith", "endswith", "partition", "rpartition", "split", "rsplit", "removeprefix", "removesuffix")


def is_name_of_node(part):
    """Whether an expression is the name of a node: `node.name`, `nodes[0].name`, `one.node.id`."""
    if not (isinstance(part, ast.Attribute) and part.attr in ("name", "id", "operator")):
        return False
    owner = part.value.value if isinstance(part.value, ast.Subscript) else part.value
    return getattr(owner, "id", getattr(owner, "attr", "")) in NODES


def is_constant(part):
    return isinstance(part, ast.Name) and part.id.upper() == part.id


def names_tested(tree):
    """Lines of a source that ask what a node is by its name: compared with a text or a constant, cut, or matched."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            others = [part for part in parts if not is_name_of_node(part)]
            if len(others) < len(parts) and any(holds_text(part) or is_constant(part) for part in others):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CUTS:
            if is_name_of_node(node.func.value):
                yield node.lineno
        elif isinstance(node, ast.Match) and is_name_of_node(node.subject):
            yield node.lineno


def test_no_name_of_a_node_says_what_it_is():
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCES.rglob("*.py"))}
    found = [
        f"{path.relative_to(SOURCES)}:{line}"
        for path, source in sources.items()
        if any(package in source for package in ("weft.graph", "weft.models", "weft.models.parallel"))
        for line in names_tested(ast.parse(source))
    ]
    assert found == [], "ask node.role, node.phase or node.module (weft.graph.op)"


@pytest.mark.parametrize(
    "source",
    [
        "node.name == 'router'",
        "piece.name in ('fc1', 'fc2')",
        "node.name in _NORMS",
        "node.name.startswith('shared_')",
        "nodes[0].id.partition('.')",
        "layer.node.operator != 'qkv'",
    ],
)
def test_a_test_of_a_name_is_found(source):
    assert list(names_tested(ast.parse(source))) == [1]


@pytest.mark.parametrize("source", ["node.role is Role.ROUTER", "node.id in joined", "node.op.name == 'all_gather'"])
def test_roles_identities_and_kinds_of_operators_are_no_names(source):
    assert list(names_tested(ast.parse(source))) == []
