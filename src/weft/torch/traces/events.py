"""Traces of Chrome's format, event by event: a file of any size passes through a buffer of a few megabytes."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weft.core.errors import ConfigError, reason
from weft.core.files import Unpacked, whole_text

CHUNK = 1 << 22
"""Characters that are read at a time."""
LONGEST = 1 << 25
"""Most characters of one value: what is longer is no event."""
_SPACE = re.compile(r"[\s,]*")
_EVENTS = "traceEvents"


def events(path: str | Path, head: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, compressed or not, one by one; what else the file holds is put into `head`.

    Raises InputError for a file that cannot be read, ConfigError for one that is cut off or no trace of events.
    """
    with Unpacked(path) as file:
        text = _Text(path, file)
        if text.at("["):
            yield from _items(text)
            return
        if not text.at("{"):
            raise text.broken("it begins with neither { nor [")
        yield from _members(text, head)


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

    def __init__(self, path: str | Path, file: Unpacked) -> None:
        self.path, self.file = str(path), file
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
        """Return whether the next character is a `mark`, which is passed; spaces and commas before it are."""
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
        """Return the next value, which is passed. A number at the window's end may go on behind it."""
        self.at("")
        while True:
            try:
                value, end = self.parse(self.window, self.place)
                if end < len(self.window) or self.ended:
                    has_halves = self.window.find("\\ud", self.place, end) >= 0
                    self.place = end
                    return _whole(value) if has_halves else value
            except (ValueError, RecursionError) as error:
                if len(self.window) - self.place > LONGEST:
                    raise self.broken(f"it holds what is no event ({reason(error)})") from None
                if self.ended:
                    raise self.broken(f"it is cut off or no JSON ({reason(error)})") from None
            self.more()

    def broken(self, why: str) -> ConfigError:
        return ConfigError(f"this is no whole trace: {why}; write it again with torch.profiler", self.path)


def _whole(value: Any) -> Any:
    """Return a value of JSON whose texts hold no half of a character, as a name that was cut off may."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, dict):
        return {whole_text(key): _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value
