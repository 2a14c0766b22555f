"""`pytest --without-extension lab`: hide an extension of Weft, and leave out the tests that need it.

A test needs the extension if its file, or the test itself, imports the package; if it uses a public name or a command
that the extension registers; or if `NEEDS` says so. A module of Weft that fails to import fails its tests.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
SOURCES = TESTS.parent / "src" / "weft"
EXTENSIONS = ("lab", "papers", "rewrite", "torch", "ui")
STARTED = TESTS / "without"
"""The folder of `sitecustomize.py`."""

_EVERY = {
    "tests/integration/test_hostile_inputs.py": "draws from the commands, readers and calls of all extensions",
}
NEEDS: dict[str, dict[str, str]] = {
    "lab": {**_EVERY},
    "papers": {**_EVERY},
    "rewrite": {**_EVERY},
    "torch": {**_EVERY},
    "ui": {**_EVERY},
}
"""Tests by extension, file or "file::test", with the reason why they need it."""


class HiddenError(ModuleNotFoundError):
    """The hidden extension is imported; `importer` is the file that does."""

    importer: Path


class _Hidden(MetaPathFinder):
    def __init__(self, extension: str) -> None:
        self.package = f"weft.{extension}"

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname != self.package and not fullname.startswith(f"{self.package}."):
            return
        error = HiddenError(f"No module named '{fullname}'", name=fullname)
        frame: Any = sys._getframe(1)
        while frame and (
            "importlib" in frame.f_code.co_filename or frame.f_code.co_filename.endswith("weft/__init__.py")
        ):
            frame = frame.f_back
        error.importer = Path(frame.f_code.co_filename if frame else "")
        raise error


def hide(extension: str) -> None:
    """Hide a package in this process and in those that it starts."""
    if not any(isinstance(finder, _Hidden) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Hidden(extension))
    os.environ["WEFT_WITHOUT"] = extension
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(STARTED) not in before:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(STARTED), *before]))


class WithoutExtension:
    """The part of pytest that leaves out what needs a hidden extension."""

    def __init__(self, extension: str) -> None:
        self.extension = extension
        declared = runpy.run_path(str(SOURCES / extension / "extension.py"))["EXTENSION"]
        names = "|".join([*declared.names, extension])
        commands = "|".join(name for group in declared.commands.values() for name in group)
        self.given = re.compile(rf"(?:{names}|{commands})(?: |$)")
        self.used = re.compile(
            rf"\bweft\.(?:{names})\b|from weft import .*\b(?:{names})\b"
            rf"|\bweft (?:{commands})\b|[\"'](?:{commands})[\"' ]"
        )
        self.example = re.compile(rf"\bweft\.(?:{names})\b|^\\$ weft (?:{commands})\b", re.MULTILINE)
        self.needs = NEEDS.get(extension, {})

    def pytest_report_header(self) -> str:
        return f"without the extension '{self.extension}'"

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.is_relative_to(SOURCES / self.extension):
            return True
        if collection_path.is_file() and self._place(collection_path) in self.needs:
            return True
        if collection_path.suffix == ".md":
            return True if self.example.search(collection_path.read_text(encoding="utf-8")) else None
        return None

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        report = yield
        call = getattr(report, "call", None)
        if report.failed and call and (why := self._imported(call.excinfo.value)):
            report.outcome, report.result, report.longrepr = "skipped", [], (str(collector.path), 0, why)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if report.failed and call.excinfo and (why := self._imported(call.excinfo.value)):
            report.outcome, report.longrepr = "skipped", (str(item.path), 0, why)
        return report

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        out = [item for item in items if self._is_needed(item)]
        items[:] = [item for item in items if item not in set(out)]
        config.hook.pytest_deselected(items=out)

    def _imported(self, error: BaseException | None) -> str | None:
        """Return that a file of the tests imported the extension, or None if that is not why it failed."""
        while error is not None and not isinstance(error, HiddenError):
            error = error.__cause__ or error.__context__
        return f"imports {error.name}" if error is not None and error.importer.is_relative_to(TESTS) else None

    def _is_needed(self, item: pytest.Item) -> bool:
        place = self._place(item.path)
        name = getattr(item, "originalname", item.name)
        if {f"{place}::{name}", f"{place}::{item.name}"} & set(self.needs):
            return True
        example = getattr(item, "example", None)  # of Sybil
        if example is not None:
            return self.example.search(example.document.text[example.start : example.end]) is not None
        given = getattr(getattr(item, "callspec", None), "params", {}).values()
        code = getattr(getattr(item, "obj", None), "__code__", None)
        return any(isinstance(each, str) and self.given.match(each) for each in given) or (
            code is not None and self.used.search(_source(item)) is not None
        )

    def _place(self, path: Path) -> str:
        return path.relative_to(TESTS.parent).as_posix() if path.is_relative_to(TESTS.parent) else str(path)


def _source(item: Any) -> str:
    import inspect

    return inspect.getsource(item.obj)
