"""Machine code in files: made once, sealed by a digest, and loaded from a folder that no other user can write to.

The folder's name is a hash of the engine's sources and of the processor family that the code is for: a changed source
never meets stale machine code, and all copies of the same sources share it, wherever they lie. A file holds an object
file, as compilers write it, and its digest. It is looked for in three places: the folder that WEFT_ENGINE names, the
package (a wheel may bring it), the user's cache. If it is in none, the engine is compiled into the cache.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from weft.core.cache import cache_root, open_to_others
from weft.engine.jit import EntryPoint, checks_bounds, is_plain, register_loader

_SUFFIX = ".code"
_V3 = ("avx2", "bmi", "bmi2", "fma", "f16c", "lzcnt", "movbe")


class Code:
    """Loaded machine code: the address of its function, which returns a status. It is unloaded with this object."""

    def __init__(self, content: bytes, name: str) -> None:
        import llvmlite.binding as llvm

        linker = _linker()
        library = llvm.JITLibraryBuilder().add_object_img(content).add_current_process().export_symbol(name)
        self._library = library.link(linker, f"{name} {next(_numbers)}")
        self.address: int = self._library[name]


_numbers = itertools.count()
"""Numbers of the libraries of this process: LLVM takes each name once, even if its library is gone."""


@functools.cache
def _linker() -> Any:
    """Return LLVM's linker (ORC) of object files into this process, as JITLink links them."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(use_jit_link=True)


def load_entry(entry: EntryPoint) -> Callable[..., int]:
    """The machine code of an entry point, as a function of addresses and integers; made if it is in no folder."""

    def make() -> Any:
        from weft.engine.compiler import engine_module

        return engine_module(entry, _Progress())

    code = load(entry.name, make)
    count = entry.py_func.__code__.co_argcount
    kinds = [ctypes.c_int64] * count
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *kinds)(code.address)

    def call(*arguments: int, code: Code = code) -> int:
        result, reason = ctypes.c_int64(), ctypes.c_void_p()
        if function(ctypes.addressof(result), ctypes.addressof(reason), *arguments):
            raise ArithmeticError("the arbiter's policy raised an exception, such as a division by zero")
        return result.value

    return call


register_loader(load_entry)


def load(name: str, make: Callable[[], Any], keep: bool = True) -> Code:
    """The machine code of this name from a folder; else that of the LLVM module that `make` returns, which is cached.

    With `keep` false, it is made in any case, and not written.
    """
    for folder in _folders() if keep else ():
        content = _read(folder / f"{name}{_SUFFIX}")
        if content is not None:
            return Code(content, name)
    content = _object_code(make())
    if keep and keeps_code():
        with suppress(OSError), for_this_user_alone():
            _write(cache_directory() / f"{name}{_SUFFIX}", content)
    return Code(content, name)


def _folders() -> Iterator[Path]:
    """The folders that may hold machine code of this engine."""
    name = cache_directory().name
    if given := os.environ.get("WEFT_ENGINE"):
        yield Path(given) / name
    yield Path(__file__).parent / "machine_code" / name
    if keeps_code():
        yield cache_directory()


def _read(path: Path) -> bytes | None:
    """The object file in `path`; None if there is none that can be trusted, with a notice if one is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if why := open_to_others((path, path.parent)):
        say(f"the compiled engine in '{path.parent}' is not used: {why}")
        return None
    if content[-32:] == hashlib.sha256(content[:-32]).digest():
        return content[:-32]
    say(f"the compiled engine in '{path.parent}' is damaged: {path.name} is not what was written; it is compiled again")
    return None


def _write(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content + hashlib.sha256(content).digest())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


@functools.cache
def processor() -> str:
    """The processor family that code is made for: x86-64-v3 (from 2013 on), x86-64, or any of another architecture."""
    import llvmlite.binding as llvm

    if not llvm.get_process_triple().startswith("x86_64"):
        return "generic"
    features = llvm.get_host_cpu_features()
    return "x86-64-v3" if all(features.get(each) for each in _V3) else "x86-64"


def _object_code(module: Any) -> bytes:
    """Optimise an LLVM module as a whole, and translate it to an object file."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(cpu=processor(), opt=2, codemodel="jitdefault", jit=True)
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)  # type: ignore[no-any-return]


class _Progress:
    """Shows on a terminal how many functions have been compiled."""

    def __call__(self, functions: int, of: int) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            end = "\n" if functions == of else ""
            sys.stderr.write(f"\rweft: {functions} of {of} functions{end}")
            sys.stderr.flush()


@contextmanager
def for_this_user_alone() -> Iterator[None]:
    """Within this context, new files and folders are readable and writable by this user only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def say(sentence: str) -> None:
    """Print a notice on stderr."""
    if sys.stderr is not None:  # it may be closed
        sys.stderr.write(f"weft: {sentence}\n")
        sys.stderr.flush()


@functools.cache
def cache_directory() -> Path:
    """The directory of this engine's machine code: one per version of its sources and family of processors."""
    import llvmlite.binding as llvm

    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    for part in (llvm.get_process_triple(), processor(), str(checks_bounds())):
        digest.update(part.encode())
    return cache_root() / f"engine-{digest.hexdigest()[:16]}"


def foreign() -> str:
    """Why another user could have written machine code into the cache; empty if none could."""
    return open_to_others((cache_root(), cache_directory(), *cache_directory().rglob("*")))


@functools.cache
def keeps_code() -> bool:
    """Whether machine code can be written to its directory, and only this user can write there."""
    if foreign():
        return False
    try:
        with for_this_user_alone():
            cache_directory().mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=cache_directory()):
                return True
    except OSError:
        return False


def is_compiled() -> bool:
    """Whether machine code for this engine version is already on disk, or none is needed."""
    return is_plain() or any((folder / f"loop.run{_SUFFIX}").exists() for folder in _folders())
