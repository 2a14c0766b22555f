"""The engine's machine code for several processes: compiled once, also where the user's cache cannot be written."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.run.sweep.store import checked_cache, say

_VARIABLE = "WEFT_CACHE"


@functools.cache
def stand_in() -> Path | None:
    """A temporary folder for machine code where the user's cache cannot be written, made once, with a notice.

    It is removed when this process ends. None where the cache can be written (or nothing is compiled), and where no
    temporary folder can be made either. Raises InputError for a cache that others can write to.
    """
    from weft.engine.jit import cache_root, is_compiled, keeps_code

    checked_cache()
    if keeps_code() or is_compiled():
        return None
    try:
        folder = Path(tempfile.mkdtemp(prefix="weft-"))
    except OSError:
        return None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    say(f"the cache '{cache_root()}' cannot be written; the engine is compiled into a temporary folder")
    return folder


def is_shared() -> bool:
    """Whether other processes can load what one compiles."""
    from weft.engine.jit import is_compiled, keeps_code

    return keeps_code() or is_compiled() or stand_in() is not None


@contextmanager
def cache_at(folder: Path | None) -> Iterator[None]:
    """Let processes that start meanwhile cache their machine code in that folder (None: where this one does)."""
    before = os.environ.get(_VARIABLE)
    if folder is not None:
        os.environ[_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if folder is not None:
            os.environ.pop(_VARIABLE)
            os.environ.update({} if before is None else {_VARIABLE: before})


def compile_here() -> None:
    """Compile the engine in this process, unless its machine code is on disk already (or cannot be written)."""
    from weft.engine.jit import is_compiled, keeps_code

    if keeps_code() and not is_compiled():
        from weft.models import SubLayer
        from weft.parallel import split
        from weft.run import simulate

        simulate(split(SubLayer.custom(512, 512, 128), 2), "t3-paper", "sequential")
