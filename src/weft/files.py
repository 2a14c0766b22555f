"""Files of results: written whole or not at all, with every complaint before the long work; read as JSON."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from weft.errors import ConfigError, InputError, OutputError


def write_atomically(path: str | os.PathLike[str], data: str | bytes) -> Path:
    """Write `data` (text as UTF-8) to `path`, whole or not at all, and return the path.

    Missing folders are made. An existing file is replaced in one step, so a reader never sees half of it.

    Raises:
        OutputError: the file cannot be written there; what stood there before is untouched.
    """
    target = Path(path)
    payload = data.encode() if isinstance(data, str) else data
    try:
        if target.exists() and not (target.is_file() or target.is_dir()):
            target.write_bytes(payload)  # a pipe or a device, /dev/stdout: nothing to replace
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            _replace(Path(os.path.realpath(target)), payload)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _cannot_write("the file", target, error) from error
    return target


def write_json(path: str | os.PathLike[str], data: Any) -> Path:
    """Write plain data as JSON that people can read, whole or not at all, and return the path; else OutputError."""
    return write_atomically(path, json.dumps(data, indent=1) + "\n")


def read_json(path: str | os.PathLike[str], what: str, again: str) -> dict[str, Any]:
    """The object in a JSON file that holds `what`; `again` says how to write one.

    Raises InputError for a file that cannot be read, ConfigError for one that holds no JSON or something else.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError(f"the file '{path}' cannot be read ({why}); check it and its rights") from None
    except ValueError:
        raise ConfigError(f"this is no JSON; {again}", str(path)) from None
    if not isinstance(content, dict):
        raise ConfigError(f"this is no {what}; {again}", str(path))
    return content


def check_writable(path: str | os.PathLike[str]) -> Path:
    """The path, once it is sure that a file can be written there; nothing is created.

    Raises:
        OutputError: it is a folder, or the folder it would stand in cannot be written to.
    """
    target = Path(path)
    if target.is_dir():
        raise OutputError(f"cannot write the file '{target}': it is a folder; add a file name")
    if not target.exists() or target.is_file():
        _try_folder("the file", target, target.parent)
    return target


def check_out_dir(path: str | os.PathLike[str]) -> Path:
    """The path, once it is sure that files can be written to that folder, now or once made; nothing is created.

    Raises:
        OutputError: it is a file, or it cannot be made or written to.
    """
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise OutputError(f"cannot write to the folder '{target}': it is a file; name a folder")
    _try_folder("to the folder", target, target)
    return target


def _replace(target: Path, payload: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as part:
            part.write(payload)
        Path(name).chmod(_mode(target))
        Path(name).replace(target)
    except BaseException:  # also on Ctrl-C: no part may stay behind
        Path(name).unlink(missing_ok=True)
        raise


def _mode(target: Path) -> int:
    """The permissions of the file that is replaced, or those that a plain new file would get."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _try_folder(what: str, target: Path, folder: Path) -> None:
    """Make and drop a nameless file in the nearest folder that exists: the only check that never lies."""
    nearest = Path(os.path.realpath(folder))
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise _cannot_write(what, target, error) from error


def _cannot_write(what: str, target: Path, error: OSError) -> OutputError:
    reason = (error.strerror or str(error)).lower()
    return OutputError(f"cannot write {what} '{target}': {reason}; choose another place or change its permissions")
