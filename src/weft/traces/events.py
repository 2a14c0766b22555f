"""Traces of Chrome's format, event by event: a file of any size passes through a buffer of a few megabytes."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import stat
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from weft.errors import ConfigError, InputError

CHUNK = 1 << 22
"""Characters that are read at a time."""
LONGEST = 1 << 26
"""Most characters of one value: what is longer is no event."""
LARGEST = 1 << 30
"""Most bytes of a trace that is held in memory as a whole, after it is unpacked."""
_SPACE = re.compile(r"[\s,]*")
_EVENTS = "traceEvents"


def events(path: str | Path, head: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a trace, compressed or not, one after the other; what else the file holds is put into `head`.

    Raises InputError for a file that cannot be read, ConfigError for one that is cut off or no trace of events.
    """
    text = _Text(path)
    try:
        with text.file:
            if text.at("["):
                yield from _items(text)
                return
            if not text.at("{"):
                raise text.broken("it begins with neither { nor [")
            yield from _members(text, head)
    except (OSError, EOFError, zlib.error) as error:
        raise text.broken(f"it cannot be read to its end ({error})") from None


def _members(text: _Text, head: dict[str, Any]) -> Iterator[dict[str, Any]]:
    found = False
    while not text.at("}"):
        name = text.value()
        if not text.at(":"):
            raise text.broken(f"a colon is missing behind {str(name)[:40]!r}")
        if name != _EVENTS:
            head[str(name)] = text.value()
            continue
        if not text.at("["):
            raise text.broken(f"{_EVENTS} is no list")
        found = True
        yield from _items(text)
    if not found:
        raise text.broken(f"it has no {_EVENTS}")


def _items(text: _Text) -> Iterator[dict[str, Any]]:
    while not text.at("]"):
        event = text.value()
        if isinstance(event, dict):
            yield event


class _Text:
    """A file's characters as a window that moves on; values are parsed where it stands."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.file = opened(path)
        self.decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self.window, self.place, self.ended = "", 0, False
        self.parse = json.JSONDecoder(strict=False).raw_decode

    def more(self) -> bool:
        """Read on, as much again as the value in the window has; False at the end of the file."""
        if self.ended:
            return False
        data = self.file.read(max(CHUNK, len(self.window) - self.place))
        self.ended = not data
        self.window = self.window[self.place :] + self.decode(data, self.ended)
        self.place = 0
        return True

    def at(self, mark: str) -> bool:
        """Whether the next character is a `mark`, which is passed; spaces and commas before it are."""
        while True:
            self.place = _SPACE.match(self.window, self.place).end()  # type: ignore[union-attr]
            if self.place < len(self.window):
                break
            if not self.more():
                raise self.broken("it is cut off")
        found = self.window[self.place] == mark
        self.place += found
        return found

    def value(self) -> Any:
        """The next value, which is passed. A number at the window's end may go on behind it."""
        self.at("")
        while True:
            try:
                value, end = self.parse(self.window, self.place)
                if end < len(self.window) or self.ended:
                    self.place = end
                    return value
            except ValueError as error:
                if len(self.window) - self.place > LONGEST:
                    raise self.broken(f"it holds what is no event ({error})") from None
                if self.ended:
                    raise self.broken(f"it is cut off or no JSON ({error})") from None
            self.more()

    def broken(self, why: str) -> ConfigError:
        return ConfigError(f"this is no whole trace: {why}; write it again with torch.profiler", self.path)


def opened(path: str | Path) -> BufferedReader | gzip.GzipFile:
    """A file's bytes, unpacked if it is compressed. Raises InputError for what is missing, or no file."""
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise InputError(f"'{path}' is a folder, a pipe or a device; save the trace to a file and give that")
        with Path(path).open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rb") if packed else Path(path).open("rb")
    except OSError as error:
        raise InputError(f"'{path}' cannot be read ({error.strerror}); give the file of a graph or a trace") from None


def whole(path: str | Path) -> bytes:
    """All bytes of a file, unpacked. Raises InputError as `opened`, ConfigError for a broken or too large one."""
    try:
        with opened(path) as file:
            content = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"this is no whole trace ({error}); record or get it again", str(path)) from None
    if len(content) > LARGEST:
        raise ConfigError(f"the trace holds more than {LARGEST >> 30} GiB; record fewer steps", str(path))
    return content


def beginning(path: str | Path) -> bytes:
    """The first 64 KiB of a file, unpacked, which say what it is; b"" for a broken one. InputError as of `opened`."""
    try:
        with opened(path) as file:
            return file.read(1 << 16)
    except (OSError, EOFError, zlib.error):
        return b""
