"""Which sources decide a task's answer: a digest of them, so that no record outlives the code that made it.

All rooms that a simulation can enter count, with their data; of those that choose what to simulate, what the task's own
module imports.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from weft.errors import InputError

PACKAGE = Path(__file__).parents[2]
SHOWING = ("cli", "view")
"""Rooms that only show answers: no task's answer depends on them, though a study holds its page, too."""
CHOOSING = ("studies", "validation", "search")
"""Rooms that say what to simulate, and that no simulation enters."""
LIBRARIES = ("numpy", "numba", "llvmlite", "scipy")
"""What computes beside Weft."""


@functools.cache
def fingerprint_of(module: Path) -> str:
    """A digest of everything but its inputs that decides what tasks of that file answer."""
    digest = hashlib.sha256(_base().encode())
    for source in sorted(_reached(module)):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()


def home(kind: type) -> Path:
    """The file of a task's class; InputError if it stands in none, as when it was typed at a prompt."""
    with contextlib.suppress(TypeError, OSError):
        module = Path(inspect.getfile(kind))
        if module.is_file():
            return module
    raise InputError(
        f"the task '{kind.__name__}' stands in no file, so other processes cannot find it; define it in a module"
    )


@functools.cache
def _base() -> str:
    """A digest of the rooms that simulations enter, of the libraries and of the interpreter."""
    digest = hashlib.sha256()
    for source in sorted(PACKAGE.rglob("*")):
        place = source.relative_to(PACKAGE)
        if source.suffix in (".py", ".toml") and place.parts[0] not in (*SHOWING, *CHOOSING):
            digest.update(place.as_posix().encode())
            digest.update(source.read_bytes())
    for name in LIBRARIES:
        digest.update(f"{name} {version(name)}".encode())
    digest.update(f"{sys.version} {platform.machine()}".encode())
    return digest.hexdigest()


def _reached(module: Path) -> set[Path]:
    """A module's file and those that it imports from the rooms that choose, directly or through others."""
    reached, waiting = set[Path](), [module]
    while waiting:
        source = waiting.pop()
        if source not in reached:
            reached.add(source)
            waiting.extend(_imports(source))
    return reached


def _imports(source: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(source.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            # What is imported from a package may be a module of it.
            yield from _files([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
        elif isinstance(node, ast.Import):
            yield from _files([alias.name for alias in node.names])


def _files(modules: list[str]) -> Iterator[Path]:
    """The files of those modules that stand in rooms that choose."""
    for module in modules:
        package, *parts = module.split(".")
        if package == PACKAGE.name and parts and parts[0] in CHOOSING:
            place = PACKAGE.joinpath(*parts)
            yield from filter(Path.is_file, (place.with_suffix(".py"), place / "__init__.py"))
