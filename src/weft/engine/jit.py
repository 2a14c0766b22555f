"""Compile the engine with numba, without reference counting, and cache the machine code by a hash of the sources.

numba's own cache checks only the file of the compiled function, but the engine lives in several files. The cache
directory is named after a hash of all of them, so that a changed file never meets stale machine code.

Loading machine code unpickles it, and unpickling can execute arbitrary code. Weft therefore loads files only from a
folder that this user alone can write, and only files whose digest matches the one recorded when they were written.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.np import arrayobj

F = TypeVar("F", bound=Callable[..., Any])


def _plain_index(context: Any, builder: Any, kind: Any, index: Any, size: Any) -> Any:
    """Lower an integer index as it is: the engine has no negative ones, and a check of each would cost a tenth."""
    return context.cast(builder, index, kind, numba.types.intp if kind.signed else numba.types.uintp)


class _Whole(JITCodeLibrary):
    """The LLVM module of an entry point: it links all inner functions that it calls, directly or not."""

    def add_linking_library(self, library: Any) -> None:
        """Link `library`, and all that an inner function among them calls in turn."""
        super().add_linking_library(library)  # type: ignore[no-untyped-call]
        if isinstance(library, _Inner):
            self._linking_libraries = list(dict.fromkeys(self._linking_libraries + library._linking_libraries))


class _Inner(_Whole):
    """The LLVM module of an inner function, which is optimised and translated to machine code as part of entry points.

    numba would also do so for each inner function with all that it calls, for a fifth of the time to compile.
    """

    def finalize(self) -> None:
        """Leave the module as it is: an entry point links it."""
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """No address: Python does not call inner functions."""
        return 0

    @property
    def codegen(self) -> Any:
        """The object that numba asks to set a function's environment, which inner functions do not have."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Set nothing: code without Python objects needs no environment."""


class _Lightly(Compiler):
    """Compile at LLVM's optimisation level 1, without negative indices.

    Higher levels take 50 % longer, and the engine runs no faster.
    """

    module = _Whole

    def compile_extra(self, function: Any) -> Any:
        self.state.library = self.module(self.state.targetctx.codegen(), function.__qualname__)  # type: ignore[no-untyped-call]
        self.state.library.enable_object_caching()
        config: Any = numba.config
        level, index = config.OPT, arrayobj.fix_integer_index
        config.OPT, arrayobj.fix_integer_index = type(level)(1), _plain_index
        try:
            return super().compile_extra(function)  # type: ignore[no-untyped-call]
        finally:
            config.OPT, arrayobj.fix_integer_index = level, index


class _LightlyInner(_Lightly):
    """Compile an inner function."""

    module = _Inner


_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "pipeline_class": _Lightly}
# Only the entry point is called from Python; without wrappers the other functions compile in far less time.
_INNER: dict[str, Any] = {
    **_OPTIONS, "pipeline_class": _LightlyInner, "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
}  # fmt: skip


def block(function: F) -> F:
    """Compile a function of the engine's inner loop and inline it at each of its few call sites."""
    return numba.njit(forceinline=True, **_INNER)(function)  # type: ignore[no-any-return]


def spliced(function: F) -> F:
    """Inline a function of the inner loop at its only call site; it is not compiled by itself."""
    return numba.njit(inline="always", **_INNER)(function)  # type: ignore[no-any-return]


def shared(function: F) -> F:
    """Compile a function of the engine that is not inlined: rarely called, or called from many places."""
    return numba.njit(**_INNER)(function)  # type: ignore[no-any-return]


def entry(function: F) -> F:
    """Compile the engine's entry point; its machine code is cached on disk where possible."""
    return kept(numba.njit(**_OPTIONS)(function), function)


def kept(compiled: Any, function: F) -> F:
    """Cache the machine code of `function`, which numba has `compiled`, on disk where that is possible and safe."""
    config: Any = numba.config
    if config.DISABLE_JIT or not keeps_code():
        return compiled  # type: ignore[no-any-return]
    previous, config.CACHE_DIR = config.CACHE_DIR, str(cache_directory())
    try:
        with _for_this_user_alone():
            compiled._cache = _KeptCode(function)
    finally:
        config.CACHE_DIR = previous
    return compiled  # type: ignore[no-any-return]


class _DamagedError(Exception):
    """A machine-code file differs from what was written."""


class _SealedFiles(IndexDataCacheFile):
    """numba's cache files, each followed by a digest of its content, which is checked before unpickling."""

    def _load_index(self) -> Any:
        _check_seal(Path(self._index_path))
        return super()._load_index()  # type: ignore[no-untyped-call]

    def _load_data(self, name: str) -> Any:
        _check_seal(Path(self._data_path(name)))  # type: ignore[no-untyped-call]
        return super()._load_data(name)  # type: ignore[no-untyped-call]

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        with super()._open_for_write(filepath) as file:
            content = io.BytesIO()
            yield content
            file.write(content.getvalue() + _seal(content.getvalue()))


class _KeptCode(FunctionCache):
    """Machine code on disk for this user alone; damaged files, or a failure to write, only cause a warning."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        files = self._cache_file
        name = files._index_name.removesuffix(".nbi")
        self._cache_file = _SealedFiles(files._cache_path, name, files._source_stamp)  # type: ignore[no-untyped-call]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except (_DamagedError, OSError) as error:
            _say(f"the compiled engine in '{self.cache_path}' is damaged: {error}; it is compiled again ...")
            shutil.rmtree(self.cache_path, ignore_errors=True)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            with _for_this_user_alone():
                super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except (_DamagedError, OSError) as error:
            _say(f"the compiled engine cannot be kept in '{self.cache_path}': {error}")


def _seal(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _check_seal(file: Path) -> None:
    with suppress(FileNotFoundError):
        content = file.read_bytes()
        if content[-32:] != _seal(content[:-32]):
            raise _DamagedError(f"{file.name} is not what was written")


@contextmanager
def _for_this_user_alone() -> Iterator[None]:
    """Within this context, new files and folders are readable and writable by this user only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _say(sentence: str) -> None:
    if sys.stderr is not None:  # it may be closed
        sys.stderr.write(f"weft: {sentence}\n")
        sys.stderr.flush()


def cache_root() -> Path:
    """The folder of all caches of Weft: $WEFT_CACHE, or `weft` in the user's cache folder."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("WEFT_CACHE") or caches / "weft")


@functools.cache
def cache_directory() -> Path:
    """The directory of this engine's machine code: one per version of its sources and compiler settings."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    config: Any = numba.config
    for part in (numba.__version__, np.__version__, sys.version, platform.machine(), str(config.BOUNDSCHECK)):
        digest.update(part.encode())
    return cache_root() / f"engine-{digest.hexdigest()[:16]}"


def foreign() -> str:
    """Why another user could have written machine code into the cache; empty if none could."""
    return open_to_others((cache_root(), cache_directory(), *cache_directory().rglob("*")))


def open_to_others(paths: Iterable[Path]) -> str:
    """Why another user could have written one of those files or folders; empty if none could."""
    for path in paths:
        try:
            found = path.stat()
        except OSError:  # gone since, or never there
            continue
        if found.st_uid != os.geteuid():
            return f"'{path}' belongs to user {found.st_uid}, and you are user {os.geteuid()}"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others may write to '{path}'"
    return ""


@functools.cache
def keeps_code() -> bool:
    """Whether machine code can be kept in its directory, and only this user can write there.

    Otherwise numba would cache it beside the sources, where a changed file would meet stale machine code.
    """
    if foreign():
        return False
    try:
        with _for_this_user_alone():
            cache_directory().mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=cache_directory()):
                return True
    except OSError:
        return False


def is_compiled() -> bool:
    """Whether machine code for this engine version is already on disk, or none is needed."""
    config: Any = numba.config
    if config.DISABLE_JIT:
        return True
    return keeps_code() and any(cache_directory().rglob("loop.run*.nbc"))
