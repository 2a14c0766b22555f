"""Share the engine's machine code among processes: compiled once, even if the user's cache is not writable."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.core.store.records import checked_cache, say

_VARIABLE = "WEFT_CACHE"


@functools.cache
def stand_in() -> Path | None:
    """Return a temporary folder for machine code if the user's cache is not writable, made once, with a notice.

    It is removed when this process ends. None if the cache is writable (or nothing is compiled), and if no temporary
    folder can be made. Raises InputError for a cache that others can write to.
    """
    from weft.core.cache import cache_root
    from weft.engine.code import is_compiled, keeps_code

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
    """Return whether other processes can load the machine code that one compiles."""
    from weft.engine.code import is_compiled, keeps_code

    return keeps_code() or is_compiled() or stand_in() is not None


@contextmanager
def cache_at(folder: Path | None) -> Iterator[None]:
    """Within this context, new processes cache their machine code in that folder (None: where this one does)."""
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
    """Compile the engine and the built-in policies in this process, unless their machine code is on disk."""
    from weft.engine.code import keeps_code
    from weft.engine.loop import run
    from weft.overlaps.arbiters import POLICIES

    if keeps_code():
        run.prepare()
        for policy in POLICIES.values():
            assert policy.compiled is not None
