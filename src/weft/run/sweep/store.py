"""Records on disk: one file per question, found by a digest of its content and checked when it is read.

Files are written whole or not at all, so any number of processes may share a store, and may be killed at any time.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import InputError, OutputError
from weft.files import write_atomically
from weft.run.sweep.task import Question, Record, as_json

SCHEMA = 1
_ENTRIES = "??/*.json.gz"
_PARTS = "??/.*.part"
"""What a writer that was killed leaves behind."""


@dataclass(frozen=True)
class Contents:
    """What a store holds: entries, their size [bytes], and the time since the least recently used was used [s]."""

    entries: int
    bytes: int
    idle_s: float


def runs_folder() -> Path:
    """The default folder of records: `runs` beside the engine's machine code."""
    return checked_cache() / "runs"


def checked_cache() -> Path:
    """The cache folder; InputError if others than this user can have written to it.

    The engine's machine code is executed as it is found there, and records are trusted.
    """
    from weft.engine.jit import cache_root, foreign, open_to_others

    root = cache_root()
    why = foreign() or open_to_others((root / "runs", *root.glob("runs/??")))
    if why:
        raise InputError(
            f"the cache '{root}' is not yours alone: {why}, so what it holds cannot be trusted; remove it, run "
            f"'chmod -R go-w {root}' if you know what is in it, or set WEFT_CACHE to a folder of yours"
        )
    return root


class Store:
    """Records by their questions, below `folder` (None: the user's cache); `keeps` says whether it still stores any.

    A damaged entry is reported on stderr and made again. Where nothing can be written, that is reported once, and runs
    go on without being stored.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = runs_folder() if folder is None else Path(folder)
        self.keeps = True

    def path(self, asked: Question) -> Path:
        """The file of a record."""
        return self.folder / asked.key[:2] / f"{asked.key}.json.gz"

    def get(self, asked: Question) -> Record | None:
        """The record that answers a question, or None; a damaged entry is reported and removed."""
        path = self.path(asked)
        try:
            found = path.read_bytes()
        except OSError:
            return None
        try:
            record = _checked(json.loads(gzip.decompress(found)), asked)
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
            say(f"the cached run '{path}' is damaged ({_reason(error)}); it is made again")
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)  # `clear` removes what was not used for some time
        return record

    def put(self, asked: Question, record: Record) -> None:
        """Store a record; OutputError if it cannot be written."""
        inputs = json.loads(asked.inputs)
        entry = {
            "schema": SCHEMA,
            "key": asked.key,
            "title": asked.task.title,
            "inputs": inputs,
            "record": record,
            "checksum": _checksum(inputs, record),
        }
        # Without a time in the header, equal records are equal files.
        write_atomically(self.path(asked), gzip.compress(as_json(entry).encode(), mtime=0), private=True)

    def give_up(self, why: str) -> None:
        """Store nothing from now on, and say so once."""
        if self.keeps:
            self.keeps = False
            say(f"runs are not kept from here on: {why}")

    def contents(self) -> Contents:
        """How much the store holds."""
        return _contents([stat for _, stat in self._files(_ENTRIES)])

    def clear(self, unused_s: float = 0.0) -> Contents:
        """Remove the entries that were not used for `unused_s` [s], and return what was removed.

        Raises OutputError if one cannot be removed.
        """
        limit = time.time() - unused_s
        removed = []
        for pattern in (_ENTRIES, _PARTS):
            for path, stat in self._files(pattern):
                if stat.st_mtime <= limit:
                    _remove(path)
                    removed += [stat] if pattern == _ENTRIES else []
        return _contents(removed)

    def _files(self, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
        for path in list(self.folder.glob(pattern)):
            with suppress(OSError):  # removed by another process meanwhile
                yield path, path.stat()


def _contents(entries: Sequence[os.stat_result]) -> Contents:
    oldest = min((stat.st_mtime for stat in entries), default=time.time())
    return Contents(len(entries), sum(stat.st_size for stat in entries), max(time.time() - oldest, 0.0))


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"cannot remove '{path}': {reason}; change its permissions") from error


def say(sentence: str) -> None:
    """Write a notice for the user to standard error."""
    if sys.stderr is not None:  # it may be closed
        sys.stderr.write(f"weft: {sentence}\n")
        sys.stderr.flush()


class _Unfit(ValueError):
    """An entry that can be read but is wrong."""


def _checked(entry: dict[str, Any], asked: Question) -> Record:
    """The record of an entry; _Unfit says what is wrong with it."""
    inputs, record = entry["inputs"], entry["record"]
    if entry["schema"] != SCHEMA:
        raise _Unfit(f"its schema is {entry['schema']}, not {SCHEMA}")
    if entry["checksum"] != _checksum(inputs, record):
        raise _Unfit("its checksum is wrong")
    if entry["key"] != asked.key or inputs != json.loads(asked.inputs):
        raise _Unfit("it answers another question")
    return record  # type: ignore[no-any-return]


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, _Unfit) else "it cannot be read"


def _checksum(inputs: Any, record: Any) -> str:
    return hashlib.sha256(as_json({"inputs": inputs, "record": record}).encode()).hexdigest()
