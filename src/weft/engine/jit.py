"""How the engine is compiled: numba, without reference counting, cached on disk under a key of its own sources.

numba's cache looks only at the file of the function that it compiles; the engine lives in several files. The cache
directory is therefore named after a hash of all of them, so that a changed block never meets stale machine code.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.compiler import Compiler

F = TypeVar("F", bound=Callable[..., Any])


class _Lightly(Compiler):
    """Numba's compiler at LLVM's first level: higher ones take half as long again and make the engine no faster."""

    def compile_extra(self, function: Any) -> Any:
        config: Any = numba.config
        before = config.OPT
        config.OPT = type(before)(1)
        try:
            return super().compile_extra(function)  # type: ignore[no-untyped-call]
        finally:
            config.OPT = before


_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "pipeline_class": _Lightly}
# Only the entry point is called from Python: the others need no wrappers, which would take most of the compile time.
_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def block(function: F) -> F:
    """Compile a function of the engine's inner loop; it is inlined in the several places that call it."""
    return numba.njit(forceinline=True, **_INNER)(function)  # type: ignore[no-any-return]


def spliced(function: F) -> F:
    """Make a function of the inner loop part of the one place that calls it; it is not compiled by itself."""
    return numba.njit(inline="always", **_INNER)(function)  # type: ignore[no-any-return]


def shared(function: F) -> F:
    """Compile a function of the engine that stays one function: rarely called, or called from many places."""
    return numba.njit(**_INNER)(function)  # type: ignore[no-any-return]


def entry(function: F) -> F:
    """Compile the engine's entry point, with its machine code kept on disk between runs where that is possible."""
    if not keeps_code():
        return numba.njit(**_OPTIONS)(function)  # type: ignore[no-any-return]
    previous = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    numba.config.CACHE_DIR = str(cache_directory())  # type: ignore[attr-defined]
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)  # type: ignore[no-any-return]
    finally:
        numba.config.CACHE_DIR = previous  # type: ignore[attr-defined]


def cache_root() -> Path:
    """The folder of everything that Weft keeps for later: $WEFT_CACHE, or `weft` among the user's caches."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("WEFT_CACHE") or caches / "weft")


@functools.cache
def cache_directory() -> Path:
    """The directory of this engine's machine code: one per version of its sources and way of compiling them."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    config: Any = numba.config
    for part in (numba.__version__, np.__version__, sys.version, platform.machine(), str(config.BOUNDSCHECK)):
        digest.update(part.encode())
    return cache_root() / f"engine-{digest.hexdigest()[:16]}"


@functools.cache
def keeps_code() -> bool:
    """Whether machine code can be kept in its directory.

    Left to itself, numba would then keep it beside the sources, where a changed block meets stale machine code.
    """
    try:
        cache_directory().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_directory()):
            return True
    except OSError:
        return False


def is_compiled() -> bool:
    """Whether machine code for this version of the engine lies on disk already (or none is needed)."""
    config: Any = numba.config
    if config.DISABLE_JIT:
        return True
    return keeps_code() and any(cache_directory().rglob("*.nbc"))
