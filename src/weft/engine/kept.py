"""Keep machine code of numba's own functions on disk, by the content of the file that holds them.

Weft's closed forms use it. Machine code that numba keeps is unpickled, which can execute arbitrary code: only files
from a folder that this user alone can write are loaded, and only those whose digest matches the one recorded.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

from weft.engine.code import cache_directory, for_this_user_alone, keeps_code, say
from weft.engine.jit import is_plain

F = TypeVar("F", bound=Callable[..., Any])


def kept(compiled: Any, function: F) -> F:
    """Cache the machine code of `function`, which numba has `compiled`, on disk where that is possible and safe."""
    config: Any = numba.config
    if is_plain() or not keeps_code():
        return compiled  # type: ignore[no-any-return]
    previous, config.CACHE_DIR = config.CACHE_DIR, str(cache_directory())
    try:
        with for_this_user_alone():
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
        self._cache_path = str(cache_directory() / "numba")
        Path(self._cache_path).mkdir(exist_ok=True)
        name = f"{self._cache_file._index_name.removesuffix('.nbi')}"
        source = hashlib.sha256(Path(function.__code__.co_filename).read_bytes()).hexdigest()
        self._cache_file = _SealedFiles(self._cache_path, name, source)  # type: ignore[no-untyped-call]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except (_DamagedError, OSError) as error:
            say(f"the compiled engine in '{self.cache_path}' is damaged: {error}; it is compiled again ...")
            shutil.rmtree(self.cache_path, ignore_errors=True)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            with for_this_user_alone():
                super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except (_DamagedError, OSError) as error:
            say(f"the compiled engine cannot be kept in '{self.cache_path}': {error}")


def _seal(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _check_seal(file: Path) -> None:
    with suppress(FileNotFoundError):
        content = file.read_bytes()
        if content[-32:] != _seal(content[:-32]):
            raise _DamagedError(f"{file.name} is not what was written")
