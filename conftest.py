"""Makes tests of the examples in README.md, docs/ and src/ (the rules: tests/docs/doc_blocks.py).

All tests run in the same surroundings: what a shell says of its terminal and language does not reach them.
"""

import contextlib
import os
import tempfile
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import FILE_LANGUAGES, ConsoleParser, FileParser, PythonParser
from hidden_extension import EXTENSIONS, WithoutExtension, hide
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

for name in ("COLUMNS", "LINES", "LANGUAGE", "LC_ALL", "NO_COLOR", "FORCE_COLOR"):
    os.environ.pop(name, None)  # of the shell that runs the tests: what they compare is printed as in a plain terminal
os.environ["LANG"] = "C.UTF-8"

DOCTEST = ELLIPSIS | NORMALIZE_WHITESPACE
_STACK = "_leaves_the_temporary_folder"


class DoctestBlockParser(PythonCodeBlockParser):
    """Python blocks that are doctests; the plain ones are PythonParser's."""

    def __call__(self, document: Any) -> Any:
        return (region for region in super().__call__(document) if not isinstance(region.parsed, str))


def enter_temporary_folder(namespace: dict[str, Any]) -> None:
    stack = contextlib.ExitStack()
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-docs-"))
    stack.callback(os.chdir, Path.cwd())
    os.chdir(folder)
    namespace[_STACK] = stack


def leave_temporary_folder(namespace: dict[str, Any]) -> None:
    namespace[_STACK].close()


pages = Sybil(
    name="pages",
    parsers=[
        SkipParser(),
        DoctestBlockParser(doctest_optionflags=DOCTEST),
        PythonParser(),
        ConsoleParser(),
        *(FileParser(language) for language in FILE_LANGUAGES),
    ],
    pattern="*.md",
    setup=enter_temporary_folder,
    teardown=leave_temporary_folder,
)
docstrings = Sybil(name="docstrings", path="src", parsers=[DocTestParser(DOCTEST)], pattern="*.py")

SLOW_PAGES = {
    "cost-and-energy.md",
    "how-many-cus.md",
    "own-suites.md",
    "other-gpus.md",
    "advise.md",
    "calibrate.md",
    "gallery.md",
}
"""Pages whose examples together take longer than about ten seconds: `make check` runs them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in SLOW_PAGES:
            item.add_marker(pytest.mark.slow)


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "hide this extension of Weft, and run all tests that do not need it"
    parser.addoption("--without-extension", choices=EXTENSIONS, help=about)


def pytest_configure(config: pytest.Config) -> None:
    if extension := config.getoption("--without-extension"):
        config.pluginmanager.register(WithoutExtension(extension), "without-extension")
        hide(extension)


pytest_collect_file = (pages + docstrings).pytest()
