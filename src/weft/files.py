"""Files: results written whole or not at all, places checked before the long work, the user's files read.

Reading always ends, whatever the user names: at a limit of size, and where a pipe stays silent.
"""

from __future__ import annotations

import json
import os
import select
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from weft.errors import ConfigError, InputError, OutputError

LARGEST_FILE = 64 << 20
"""Most that is read of a file [bytes], unless its kind says otherwise."""
SILENCE_S = 10.0
"""How long a pipe may say nothing before it is given up [s]."""
STDOUT = Path("-")
"""The path that means standard output."""
_reserved: ContextVar[Mapping[str | None, str]] = ContextVar("options by place", default=MappingProxyType({}))
"""Which option writes to a place."""
_data_stream: ContextVar[TextIO | None] = ContextVar("the stream of STDOUT, if it is not sys.stdout", default=None)


def write_atomically(path: str | os.PathLike[str], data: str | bytes, private: bool = False) -> Path:
    """Write `data` (text as UTF-8) to `path`, whole or not at all, and return the path; "-" is standard output.

    Missing folders are made. An existing file is replaced in one step, so a reader never sees half of it. What is
    `private` can be read by this user alone, and so can the folders that are made for it.

    Raises:
        OutputError: the file cannot be written there; what stood there before is untouched.
    """
    target = Path(path)
    payload = data.encode() if isinstance(data, str) else data
    with _writing("the file", target):
        if target == STDOUT:
            _write_stdout(payload)
        elif target.exists() and not (target.is_file() or target.is_dir()):
            target.write_bytes(payload)  # a pipe or a device, /dev/stdout: nothing to replace
        else:
            _make_folder(target.parent, private)
            _replace(Path(os.path.realpath(target)), payload, private)
    return target


@contextmanager
def _writing(what: str, target: Path) -> Iterator[None]:
    """Turn what the system says where `target` cannot be written into an OutputError with the next step."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reason = str(getattr(error, "strerror", None) or error).lower()
        if target == STDOUT:
            raise OutputError(f"cannot write to standard output: {reason}; name a file") from error
        step = "choose another place or change its permissions"
        raise OutputError(f"cannot write {what} '{target}': {reason}; {step}") from error


def keep_stdout_for_data() -> None:
    """Print on standard error from here on, so that standard output holds just what is written to "-"."""
    _data_stream.set(sys.stdout)
    sys.stdout = sys.stderr


def reserve(path: Path, by: str) -> None:
    """Keep a file for what the option `by` will write: none of the user's files is read from there any more.

    Raises InputError if another option writes it.
    """
    held, key = _reserved.get(), _place(path)
    if key in held:
        where = "standard output" if path == STDOUT else f"'{path}'"
        raise InputError(f"{held[key]} and {by} both write to {where}; give each a place of its own")
    if key is not None:
        _reserved.set({**held, key: by})


def release() -> None:
    """Forget what is reserved, and print on standard output again."""
    _reserved.set({})
    stream = _data_stream.get()
    if stream is not None:
        _data_stream.set(None)
        sys.stdout = stream


def _place(path: str | os.PathLike[str]) -> str | None:
    """What tells the place of a file from others; None for devices and pipes, which many may use."""
    real = Path(os.path.realpath(path))
    return None if real.exists() and not (real.is_file() or real.is_dir()) else str(real)


def write_json(path: str | os.PathLike[str], data: Any) -> Path:
    """Write plain data as JSON that people can read, whole or not at all, and return the path; else OutputError."""
    return write_atomically(path, json.dumps(data, indent=1) + "\n")


def read_json(path: str | os.PathLike[str], what: str, again: str) -> dict[str, Any]:
    """The object in a JSON file that holds `what`; `again` says how to write one.

    Raises InputError for a file that cannot be read, ConfigError for one that holds no JSON or something else.
    """
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise ConfigError(f"this is no JSON; {again}", str(path)) from None
    if not isinstance(content, dict):
        raise ConfigError(f"this is no {what}; {again}", str(path))
    return content


def read_text(path: str | os.PathLike[str], at_most: int = LARGEST_FILE) -> str:
    """The text of a file, or of a pipe that is being written, in UTF-8 with or without a mark at its beginning.

    Raises InputError as `read_bytes` does, and for other encodings.
    """
    try:
        return read_bytes(path, at_most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"the file '{path}' is no text in UTF-8; save it as such") from None


def read_bytes(path: str | os.PathLike[str], at_most: int = LARGEST_FILE) -> bytes:
    """The content of a file, or of a pipe that is being written.

    Raises InputError for what is no file or not there, for more than `at_most` bytes, and for a pipe that stays silent.
    """
    if writer := _reserved.get().get(_place(path)):
        raise InputError(f"the file '{path}' is read, but {writer} would write over it; write to another file")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe waits for its writer
        with os.fdopen(descriptor, "rb", buffering=0):
            return _content(str(path), descriptor, os.fstat(descriptor), at_most)
    except FileNotFoundError:
        raise InputError(f"the file '{path}' does not exist; check the path or give a known name") from None
    except (OSError, ValueError) as error:
        why = str(getattr(error, "strerror", None) or error).lower()
        raise InputError(f"the file '{path}' cannot be read ({why}); check it and its rights") from None


def _content(path: str, descriptor: int, found: os.stat_result, at_most: int) -> bytes:
    """All that can be read, once it is sure that it ends; InputError otherwise."""
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"'{path}' is a folder, not a file; name a file in it")
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
        raise InputError(f"'{path}' is a device, not a file; name a file")
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    parts: list[bytes] = []
    size = 0
    while size <= at_most:
        if not poll.poll(SILENCE_S * 1000):
            raise InputError(f"nothing came out of the pipe '{path}' for {SILENCE_S:g} s; write a file and name that")
        part = os.read(descriptor, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    limit = f"{at_most >> 20} MiB, the most that is read"
    raise InputError(f"the file '{path}' is larger than {limit}; split it, or name another file")


def check_writable(path: str | os.PathLike[str]) -> Path:
    """The path, once it is sure that a file can be written there; nothing is created.

    Raises:
        OutputError: it is a folder, or its own folder cannot be written to.
    """
    target = Path(path)
    if not str(path):
        raise OutputError("cannot write a file without a name; give one, or '-' for standard output")
    with _writing("the file", target):
        if target != STDOUT and target.is_dir():
            raise OutputError(f"cannot write the file '{target}': it is a folder; add a file name")
        if target != STDOUT and (not target.exists() or target.is_file()):
            _try_folder(target.parent)
    return target


def check_out_dir(path: str | os.PathLike[str]) -> Path:
    """The path, once it is sure that files can be written to that folder, now or once made; nothing is created.

    Raises:
        OutputError: it is a file, or it cannot be made or written to.
    """
    target = Path(path)
    if not str(path):
        raise OutputError("cannot write to a folder without a name; give one, or '.' for this one")
    with _writing("to the folder", target):
        if target.exists() and not target.is_dir():
            raise OutputError(f"cannot write to the folder '{target}': it is a file; name a folder")
        _try_folder(target)
    return target


def _write_stdout(payload: bytes) -> None:
    stream = _data_stream.get() or sys.stdout  # where that was closed, the command line reads and writes os.devnull
    if stream is None or getattr(stream, "name", "") == os.devnull:
        raise OutputError("cannot write to standard output: it is closed; name a file")
    stream.flush()
    binary = getattr(stream, "buffer", None)
    if binary is None:  # a stream of text alone, as in a notebook
        stream.write(payload.decode(errors="replace"))
    else:
        binary.write(payload)
    stream.flush()


def _make_folder(folder: Path, private: bool) -> None:
    if not private:
        folder.mkdir(parents=True, exist_ok=True)
        return
    for path in (*reversed(folder.parents), folder):  # mkdir gives its mode to the last folder alone
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


def _replace(target: Path, payload: bytes, private: bool) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as part:
            part.write(payload)
        if not private:
            Path(name).chmod(_mode(target))
        Path(name).replace(target)
    except BaseException:  # also on Ctrl-C: no part may stay behind
        Path(name).unlink(missing_ok=True)
        raise


def _mode(target: Path) -> int:
    """The permissions of the file that is replaced, or else of any new file."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _try_folder(folder: Path) -> None:
    """Make and drop a nameless file in the nearest folder that exists: the only check that never lies."""
    nearest = Path(os.path.realpath(folder))
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    tempfile.TemporaryFile(dir=nearest).close()
