"""Hash of the sources that decide a task's record, so that no record outlives the code that made it.

It covers all packages that a simulation runs through, with their data, and, of the packages that choose what to
simulate, the modules that the task's own module imports.
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

from weft.core.errors import InputError

PACKAGE = Path(__file__).parents[2]
SHOWING = ("cli", "view")
"""Packages that only show records: no task's record depends on them."""
CHOOSING = ("lab", "papers", "plan", "rewrite", "testing")
"""Packages that choose what to simulate; no simulation runs through them."""
LIBRARIES = ("numpy", "numba", "llvmlite", "scipy")
"""Libraries whose versions affect records."""


@functools.cache
def fingerprint_of(module: Path) -> str:
    """Hash of everything that decides the records of a file's tasks, except their inputs."""
    digest = hashlib.sha256(sources().encode())
    for source in sorted(_imported_files(module)):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()


def home(kind: type) -> Path:
    """Return the file that defines a task's class; InputError if there is none, as for a class typed at a prompt."""
    with contextlib.suppress(TypeError, OSError):
        module = Path(inspect.getfile(kind))
        if module.is_file():
            return module
    raise InputError(
        f"the task '{kind.__name__}' is defined in no file, so other processes cannot find it; define it in a module"
    )


@functools.cache
def sources() -> str:
    """Hash of the packages that simulations run through, of library versions and of the interpreter."""
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


def _imported_files(module: Path) -> set[Path]:
    """Return a module's file and the files that it imports, directly or indirectly, from the packages in `CHOOSING`."""
    reached, waiting = set[Path](), [module]
    while waiting:
        source = waiting.pop()
        if source not in reached:
            reached.add(source)
            waiting.extend(_imports(source))
    return reached


def _imports(source: Path) -> Iterator[Path]:
    """Yield the files that a module imports from the packages in `CHOOSING`."""
    for node in ast.walk(ast.parse(source.read_bytes())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            # What is imported from a package may be a module of it.
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for package, *parts in (module.split(".") for module in modules):
            if package == PACKAGE.name and parts and parts[0] in CHOOSING:
                place = PACKAGE.joinpath(*parts)
                yield from filter(Path.is_file, (place.with_suffix(".py"), place / "__init__.py"))
