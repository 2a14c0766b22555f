"""Files: results written whole or not at all, paths checked before long work, user files read with limits.

Every file that a user or another program names is read here. Reading always ends: at a size limit, also of what a
compressed file holds, or at a timeout for a silent pipe. JSON, TOML and CSV are parsed within limits of their own.
"""

from __future__ import annotations

import codecs
import csv
import errno
import gzip
import io
import itertools
import json
import math
import os
import re
import select
import signal
import stat
import sys
import tempfile
import threading
import tomllib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Self, TextIO

from weft.core.errors import ConfigError, InputError, OutputError, check_type, show_value

LARGEST_FILE = 64 << 20
"""Largest file that is read [bytes], unless its kind has a limit of its own."""
LARGEST_UNPACKED = 1 << 30
"""Largest file that is held in memory as a whole, after it is unpacked [bytes]."""
HOW_TO_GET_DATA = (
    "put measurements (gemm.csv, collectives.csv, ...) into a folder and name it with --data or WEFT_DATA; "
    "docs/howto/validate.md describes the columns"
)
UNPACKS = 100
"""How many times its size a compressed file may hold: traces and graphs of real programs reach about 30."""
UNPACKS_FREELY = 64 << 20
"""What any compressed file may hold, however small it is [bytes]."""
SILENCE_S = 10.0
"""Longest silence of a pipe before reading fails [s]."""
DEEPEST = 100
"""Most levels of lists and tables that a file of JSON or TOML nests."""
LONGEST_KEY = 1000
"""Most parts of a dotted key of TOML: its parser takes the square of their number."""
STDOUT = Path("-")
"""The path that means standard output."""
_reserved: ContextVar[Mapping[str | None, str]] = ContextVar("options by place", default=MappingProxyType({}))
"""The option that writes to each path."""
_pending: ContextVar[dict[Path, Path] | None] = ContextVar(
    "whole files by the places that they will take", default=None
)
_data_stream: ContextVar[TextIO | None] = ContextVar("the stream of STDOUT, if it is not sys.stdout", default=None)


def write_atomically(path: str | os.PathLike[str], data: str | bytes, private: bool = False) -> Path:
    """Write `data` (text as UTF-8) to `path`, whole or not at all, and return the path; "-" is standard output.

    Missing folders are made. An existing file is replaced in one step, so a reader never sees half of it. What is
    `private` can be read by this user alone, and so can the folders that are made for it.

    Raises:
        OutputError: the file cannot be written there; what stood there before is untouched.
    """
    check_path(path)
    target = Path(path)
    payload = data.encode("utf-8", "replace") if isinstance(data, str) else data
    with _writing("the file", target):
        if target == STDOUT:
            _write_stdout(payload)
        elif target.exists() and not (target.is_file() or target.is_dir()):
            target.write_bytes(payload)  # a pipe or a device, /dev/stdout: nothing to replace
        else:
            _make_folder(target.parent, private)
            _replace(target if private else Path(os.path.realpath(target)), payload, private)
    return target


@contextmanager
def _writing(what: str, target: Path) -> Iterator[None]:
    """Translate an operating-system error at `target` into an OutputError that says what to do."""
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
    """Redirect print to standard error, so that standard output holds only what is written to "-"."""
    _data_stream.set(sys.stdout)
    sys.stdout = sys.stderr


def reserve(path: Path, by: str) -> None:
    """Reserve an output path for the option `by`; user files are no longer read from it.

    Raises InputError if another option writes it.
    """
    held, key = _reserved.get(), _place(path)
    if key in held:
        where = "standard output" if path == STDOUT else f"'{path}'"
        raise InputError(f"{held[key]} and {by} both write to {where}; give each a place of its own")
    if key is not None:
        _reserved.set({**held, key: by})


def release() -> None:
    """Drop all reservations and restore printing to standard output."""
    _reserved.set({})
    stream = _data_stream.get()
    if stream is not None:
        _data_stream.set(None)
        sys.stdout = stream


def _place(path: str | os.PathLike[str]) -> str | None:
    """Return the resolved path that identifies a file; None for devices and pipes, which several options may write."""
    try:
        real = Path(os.path.realpath(path))
    except ValueError:  # a null byte, or half of a character
        raise InputError(f"{show_value(path)} is no path that a file can have; give another one") from None
    return None if real.exists() and not (real.is_file() or real.is_dir()) else str(real)


@contextmanager
def written_together() -> Iterator[None]:
    """Write the files of a context together or not at all: they take their places when it ends well.

    An answer, its page and its table belong together; a full disk or Ctrl-C leaves what stood there before. Standard
    output and devices are written at once.
    """
    if _pending.get() is not None:
        yield
        return
    parts: dict[Path, Path] = {}
    token = _pending.set(parts)
    try:
        yield
        with _defer_signals():
            for target, part in parts.items():
                with _writing("the file", target):
                    part.replace(target)
    finally:
        _pending.reset(token)
        for part in parts.values():
            part.unlink(missing_ok=True)


@contextmanager
def _defer_signals() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the context has ended.

    A mask of this thread would not do: another thread takes the signal, and Python still handles it in the main one.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal interrupts this thread
        return
    came: list[int] = []
    for number in before:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _place_part(part: Path, target: Path) -> None:
    """Move a whole file to its place, at once or when the others of `written_together` are whole."""
    pending = _pending.get()
    if pending is None:
        part.replace(target)
    else:
        if target in pending:
            pending[target].unlink(missing_ok=True)
        pending[target] = part


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary file beside `path` that takes its place when the context ends well, and is removed otherwise.

    Raises:
        OutputError: the file cannot be written there; what stood there before is untouched.
    """
    target = Path(path)
    with _writing("the file", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent)
        os.close(descriptor)
        try:
            yield Path(name)
            Path(name).chmod(_mode(target))
            _place_part(Path(name), target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def packaged_toml(package: str, name: str) -> dict[str, Any]:
    """The content of a TOML file that is shipped inside `package`, such as "weft.graph"."""
    return tomllib.loads(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def write_json(path: str | os.PathLike[str], data: Any) -> Path:
    """Write plain data as readable JSON, whole or not at all, and return the path; OutputError if that fails."""
    return write_atomically(path, to_json(data, indent=1) + "\n")


def to_json(data: Any, **layout: Any) -> str:
    """Return plain data as JSON text, laid out as `json.dumps` is told; a number that is not finite becomes null.

    JSON has neither Infinity nor NaN, and no half of a character (of a file's name that is no UTF-8): no other reader
    than Python's takes them.
    """
    try:
        text = json.dumps(data, allow_nan=False, **layout)
    except ValueError:
        text = json.dumps(finite(data), allow_nan=False, **layout)
    return _HALVES.sub(lambda found: found[0] if found[1] else "\\ufffd", text) if "\\ud" in text else text


_HALVES = re.compile(r"(\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})|\\ud[89a-f][0-9a-f]{2}")
"""Escaped characters of JSON beyond the basic plane, which stay, and halves of such."""


def whole_text(text: str) -> str:
    """Return a text with a question mark for each half of a character, which no file or page can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def finite(data: Any) -> Any:
    """Plain data with None for every number that is not finite."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    return [finite(value) for value in data] if isinstance(data, list | tuple) else data


def parse_json(text: str | bytes, any_number: bool = False) -> Any:
    """Parse the JSON of a user's file; numbers that are not finite are refused, unless `any_number` may stand there.

    Raises ValueError in words for what is no JSON, nests deeper than `DEEPEST`, or holds half of a character or a
    number of thousands of digits.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        raise ValueError(_plain_reason(error)) from None
    half = b"\\ud" in text.lower() if isinstance(text, bytes) else "\\ud" in text.lower()
    _check_document(document, half, any_number)
    return document


def parse_toml(text: str) -> dict[str, Any]:
    """Parse the TOML of a user's file.

    Raises ValueError in words for what is no TOML, nests deeper than `DEEPEST`, or holds a number of thousands of
    digits.
    """
    if max(part.count(".") for part in re.split(r"[=,{\n]", text)) > LONGEST_KEY:
        raise ValueError(_TOO_DEEP)
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        raise ValueError(_plain_reason(error)) from None
    _check_document(document, half=False, any_number=True)
    return document


_TOO_DEEP = f"it nests more than {DEEPEST} levels; nest fewer"


def _plain_reason(error: ValueError) -> str:
    return "a number has thousands of digits; write fewer" if "set_int_max_str_digits" in str(error) else str(error)


def _check_document(document: Any, half: bool, any_number: bool) -> None:
    """Raise ValueError for parsed data that nests too deep, or holds numbers or texts that no answer can hold.

    It goes level by level, so that no depth exhausts Python's stack.
    """
    level = [document]
    for depth in itertools.count():
        if depth == DEEPEST and any(isinstance(value, dict | list) for value in level):
            raise ValueError(_TOO_DEEP)
        if not level:
            return
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner.extend(value.values())
                inner.extend(value if half else ())
            elif isinstance(value, list):
                inner.extend(value)
            elif not any_number and isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"it holds the number {value:g}; JSON has finite numbers only")
            elif half and isinstance(value, str) and not value.isascii():
                _check_whole_characters(value)
        level = inner


def _check_whole_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        half = "a text holds half of a character, such as \\ud83d without its other half"
        raise ValueError(f"{half}; write whole characters") from None


def read_json(path: str | os.PathLike[str], what: str, again: str) -> dict[str, Any]:
    """Read the object in a JSON file that holds `what`; `again` says in messages how to write one.

    Raises InputError for a file that cannot be read, ConfigError if it holds no JSON or something else.
    """
    try:
        content = parse_json(read_text(path))
    except json.JSONDecodeError:
        raise ConfigError(f"this is no JSON; {again}", str(path)) from None
    except ValueError as error:
        raise ConfigError(f"this is no JSON that is read: {error}; {again}", str(path)) from None
    if not isinstance(content, dict):
        raise ConfigError(f"this is no {what}; {again}", str(path))
    return content


class Rows:
    """The rows of CSV text, or of its lines, cells as they stand; `line` is the line of the last one.

    Raises ConfigError, with the line, for what is no CSV.
    """

    def __init__(self, text: str | Iterable[str], path: str | os.PathLike[str], spaces: bool = False) -> None:
        self._path = str(path)
        lines = io.StringIO(text, newline="") if isinstance(text, str) else text
        self._reader = csv.reader(lines, skipinitialspace=spaces)

    @property
    def line(self) -> int:
        """The line of the row that was read last, from 1."""
        return self._reader.line_num

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[str]:
        try:
            return next(self._reader)
        except csv.Error as error:
            why = f"this is no CSV ({error}) from line {self.line + 1} on; check its quotes, and export it again"
            raise ConfigError(why, self._path) from None


def read_records(text: str, path: str | os.PathLike[str]) -> Iterator[dict[str, str]]:
    """The rows of CSV text by the names of its first line; a row's cells beyond them are left out, missing ones empty.

    Raises ConfigError for what is no CSV, or names a column twice.
    """
    rows = Rows(text, path)
    head = next(rows, [])
    if twice := next((name for name in head if head.count(name) > 1), None):
        raise ConfigError(f"the column '{twice}' is there twice; name each column once", str(path))
    for row in rows:
        if row:
            yield dict(zip(head, [*row, *[""] * (len(head) - len(row))], strict=False))


def write_csv(file: TextIO, rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Write rows as CSV with these columns, missing values empty.

    Text that a spreadsheet would take for a formula (it begins with = + - @, a tab or a line break) gets an apostrophe
    in front, as OWASP advises: names in a trace or a shard come from others.
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_no_formula(name) for name in names])
    writer.writerows([_no_formula(row.get(name)) for name in names] for row in rows)


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def _no_formula(cell: Any) -> Any:
    if isinstance(cell, str) and cell.startswith(_FORMULA) and not _is_number(cell):
        return f"'{cell}"
    return cell


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def read_text(path: str | os.PathLike[str], at_most: int = LARGEST_FILE) -> str:
    """Read a file or a pipe, unpacked if it is compressed, as UTF-8 text, with or without a byte-order mark.

    Raises InputError as `read_bytes` does, and for other encodings.
    """
    try:
        return read_bytes(path, at_most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"the file '{path}' is no text in UTF-8; save it as such") from None


def read_bytes(path: str | os.PathLike[str], at_most: int = LARGEST_FILE) -> bytes:
    """Read the content of a file or of a pipe that is being written, unpacked if it is compressed by gzip.

    Raises InputError for a missing file, for what is no file, for more than `at_most` bytes (packed or not), and for a
    silent pipe; ConfigError for a compressed file that is cut off or damaged.
    """
    with _open_file(path) as file:
        content = _content(str(path), file.fileno(), os.fstat(file.fileno()), at_most)
    if content and str(path).endswith(".gz") and not content.startswith(GZIP):
        why = "its name ends in .gz, but it is not packed by gzip; pack it again, or give it another name"
        raise ConfigError(why, str(path))
    return _unpack(content, path, at_most)


def read_stored(path: str | os.PathLike[str], own: bool = False) -> bytes:
    """Read a file that a run of Weft stored in a folder, unpacked if it is compressed; `own`: for this user alone.

    Raises OSError if it cannot be read; InputError for a link, a pipe, a device or more than `LARGEST_UNPACKED` bytes,
    and, with `own`, for a file of another user or one that others may write to; ConfigError for a damaged compressed
    file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise InputError(f"'{path}' is a link, not a file; remove it") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"'{path}' is no file; remove it")
        if own and (found.st_uid != os.getuid() or found.st_mode & 0o022):
            raise InputError(f"others may write to '{path}', so it cannot be trusted; remove it")
        content = _content(str(path), descriptor, found, LARGEST_UNPACKED)
    finally:
        os.close(descriptor)
    return _unpack(content, path, LARGEST_UNPACKED)


GZIP = b"\x1f\x8b"
"""The first bytes of what gzip has compressed."""


def _unpack(content: bytes, path: str | os.PathLike[str], at_most: int) -> bytes:
    """Return a file's content, unpacked if it is compressed.

    Raises InputError for more than `at_most` bytes, ConfigError for content that is cut off or damaged.
    """
    if not content.startswith(GZIP):
        return content
    parts, size = [], 0
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        try:
            while part := file.read(1 << 20):
                parts.append(part)
                size += len(part)
                if size > at_most:
                    raise _too_large(path, at_most, ", unpacked,")
        except (OSError, EOFError, zlib.error) as error:
            raise _damage_error(error, path) from None
    return b"".join(parts)


def _unreadable(path: str | os.PathLike[str], error: Exception) -> InputError:
    why = str(getattr(error, "strerror", None) or error).lower()
    return InputError(f"the file '{path}' cannot be read ({why}); check the path and its permissions")


def _damage_error(error: Exception, path: str | os.PathLike[str]) -> ConfigError:
    why = "it is cut off" if isinstance(error, EOFError) else str(error)
    return ConfigError(f"the file cannot be read to its end ({why}); get it or write it again", str(path))


def _size(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >> 20 else f"{limit >> 10} KiB"


def _too_large(path: str | os.PathLike[str], at_most: int, how: str = "") -> InputError:
    return InputError(
        f"the file '{path}'{how} is larger than {_size(at_most)}, the most that is read; split it, or name another file"
    )


class Unpacked:
    """The bytes of a regular file, unpacked if it is compressed, read in order and with the limits of all readers.

    Opening raises InputError for what cannot be read, and for a folder, a pipe or a device. `read` raises ConfigError
    for a compressed file that is cut off, or that holds more than a real one of its size does.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(path)
        self._raw = _open_file(path)
        found = os.fstat(self._raw.fileno())
        if not stat.S_ISREG(found.st_mode):
            self._raw.close()
            raise InputError(f"'{path}' is a folder, a pipe or a device; save its content to a file and give that")
        try:
            self.packed = self._raw.read(2) == GZIP
            self._raw.seek(0)
        except OSError as error:
            self._raw.close()
            raise _unreadable(path, error) from None
        self._file = gzip.GzipFile(fileobj=self._raw) if self.packed else self._raw
        self._most = max(UNPACKS_FREELY, UNPACKS * found.st_size) if self.packed else sys.maxsize
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._raw.close()

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; none at the end of the file."""
        try:
            data = self._file.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise _damage_error(error, self.path) from None
        self._count += len(data)
        if self._count > self._most:
            raise ConfigError(
                f"the file unpacks to more than {_size(self._most)}, over {UNPACKS} times its size, as no "
                "trace or graph does; unpack it if it is meant so",
                self.path,
            )
        return data


def unpacked_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the lines of a text of any size, with their ends. Raises InputError and ConfigError as `Unpacked`."""
    decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
    rest = ""
    with Unpacked(path) as file:
        while data := file.read(1 << 20):
            *lines, rest = (rest + decode(data)).splitlines(keepends=True) or [""]
            yield from lines
    if rest:
        yield rest


def beginning(path: str | os.PathLike[str]) -> bytes:
    """The first 64 KiB of a file, unpacked, which say what it is; b"" for a broken one. InputError as of `Unpacked`."""
    with Unpacked(path) as file:
        try:
            return file.read(1 << 16)
        except ConfigError:
            return b""


def read_unpacked(path: str | os.PathLike[str], at_most: int | None = None) -> bytes:
    """All bytes of a file, unpacked. Raises InputError and ConfigError as `Unpacked`, and for more than `at_most`."""
    parts, size, limit = [], 0, LARGEST_UNPACKED if at_most is None else at_most
    with Unpacked(path) as file:
        while part := file.read(1 << 22):
            parts.append(part)
            size += len(part)
            if size > limit:
                raise ConfigError(f"the file holds more than {_size(limit)}, the most that is read", str(path))
    return b"".join(parts)


def _open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A file or a pipe, opened without waiting for its writer. Raises InputError for one that an option writes."""
    check_path(path)
    if writer := _reserved.get().get(_place(path)):
        raise InputError(f"the file '{path}' is read, but {writer} would write over it; write to another file")
    try:
        if Path(path).is_dir():
            raise InputError(f"'{path}' is a folder, not a file; name a file in it")
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)
    except FileNotFoundError:
        raise InputError(f"the file '{path}' does not exist; check the path or give a known name") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def check_path(path: object) -> None:
    """Raise InputError unless a value is a path."""
    check_type("the path", path, (str, os.PathLike), "give the name of a file, or a pathlib.Path")


def _content(path: str, descriptor: int, found: os.stat_result, at_most: int) -> bytes:
    """Read to the end of a file or pipe, within the limits of size and time; InputError beyond them."""
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
        raise InputError(f"'{path}' is a device, not a file; name a file")
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    parts: list[bytes] = []
    size = 0
    while size <= at_most:
        if not poll.poll(SILENCE_S * 1000):
            raise InputError(f"nothing came out of the pipe '{path}' for {SILENCE_S:g} s; write a file and name that")
        try:
            part = os.read(descriptor, 1 << 20)
        except OSError as error:
            raise _unreadable(path, error) from None
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise _too_large(path, at_most)


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Check that a file can be written at the path, without creating it, and return the path.

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
    """Check that files can be written to the folder, which may not exist yet, and return the path.

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
    if binary is None:  # a text stream without a binary buffer, as in a notebook
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
        if private:  # kept for later runs, whatever becomes of this one
            Path(name).replace(target)
        else:
            _place_part(Path(name), target)
    except BaseException:  # also on Ctrl-C: leave no partial file behind
        Path(name).unlink(missing_ok=True)
        raise


def _mode(target: Path) -> int:
    """Permissions of the file that is replaced, or those of a new file."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _try_folder(folder: Path) -> None:
    """Check the nearest existing folder by creating and dropping an unnamed file: permissions alone can mislead."""
    nearest = Path(os.path.realpath(folder))
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    tempfile.TemporaryFile(dir=nearest).close()


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder (or file) with measurements: `given`, else WEFT_DATA, else ../shared/data beside the project.

    Raises InputError if there is none.
    """
    if given is not None and not str(given):
        raise InputError("the folder of measurements is an empty text; name one, or leave it out")
    named = given if given is not None else os.environ.get("WEFT_DATA")
    if named:
        if not Path(named).exists():
            raise InputError(f"the folder of measurements '{named}' does not exist; {HOW_TO_GET_DATA}")
        return Path(named)
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    if not beside.is_dir():
        raise InputError(f"there are no measurements here; {HOW_TO_GET_DATA}")
    return beside
