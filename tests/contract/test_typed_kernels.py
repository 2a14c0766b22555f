"""Kernels and drivers are classes and members of an enumeration: no text picks what runs."""

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
