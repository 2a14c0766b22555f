"""Records on disk: one file per question, named by a hash of its content and checked when it is read.

Files are written whole or not at all, so any number of processes may share a store, and may be killed at any time.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from weft.core.cache import cache_root, open_to_others
from weft.core.errors import InputError, OutputError
from weft.core.files import parse_json, read_stored, write_atomically
from weft.core.store.fingerprint import fingerprint_of
from weft.core.store.task import Question, Record, Task, answer, as_json, question

SCHEMA = 1
Answer = tuple[Record, str]
"""A record, and why it could not be stored (empty if it was stored, or there is no store)."""
_ENTRIES = "??/*.json.gz"
_COMPRESSION = 6
"""Level of compression: half the time of the highest, and files of equal size within 2 %."""
_PART = ".*.part"
"""The name of temporary files that a killed writer leaves behind."""


@dataclass(frozen=True)
class Contents:
    """The state of a store: entries, their size [bytes], and the age of the least recently used one [s]."""

    entries: int
    bytes: int
    idle_s: float


def runs_folder() -> Path:
    """Return the default folder of records: `runs` beside the engine's machine code."""
    return checked_cache() / "runs"


def checkpoints() -> Store:
    """Return the store of the states of interrupted runs, in the user's cache."""
    return Store(checked_cache() / "checkpoints", called="checkpoint", again="the run begins anew")


def checked_cache() -> Path:
    """Return the cache folder; InputError if other users could have written to it.

    The engine's machine code is executed as found there, and records are trusted.
    """
    root = cache_root()
    held = (
        root.glob(pattern)
        for pattern in ("engine-*", "engine-*/**/*", "runs", "runs/??", "checkpoints", "checkpoints/??")
    )
    why = open_to_others((root, *chain.from_iterable(held)))
    if why:
        raise InputError(
            f"the cache '{root}' is not yours alone: {why}, so what it holds cannot be trusted; remove it, run "
            f"'chmod -R go-w {root}' if you know what is in it, or set WEFT_CACHE to a folder of yours"
        )
    return root


class Store:
    """Records by their questions, in `folder` (None: the user's cache); `keeps` says whether new ones are stored.

    A damaged entry is reported on stderr, as what it is `called`, removed and computed `again`; a store that does not
    `mend` leaves it and takes it for missing. In the user's cache, so is an entry that another user could have written.
    If nothing can be written, that is reported once, and runs continue without being stored.
    """

    def __init__(
        self, folder: str | Path | None = None, mends: bool = True, called: str = "", again: str = "it is made again"
    ) -> None:
        self.folder = runs_folder() if folder is None else Path(folder)
        self.mends = mends
        self._own = folder is None or bool(called)
        self._called = called or "cached run"
        self._again = again if mends else "it counts as missing"
        self.keeps = True
        self.given_up = ""
        """Why new records are not stored; empty while they are."""
        self.found = 0
        """Records read so far."""

    def path(self, asked: Question) -> Path:
        """Return the file of a record."""
        return self.folder / asked.key[:2] / f"{asked.key}.json.gz"

    def get(self, asked: Question) -> Record | None:
        """Return the record that answers a question, or None; a damaged entry is reported."""
        path = self.path(asked)
        try:
            record = _check_entry(parse_json(read_stored(path, self._own), any_number=True), asked)
        except OSError:
            return None
        except (InputError, ValueError, KeyError, TypeError) as error:
            self.discard(asked, _reason(error))
            return None
        self.found += 1
        with suppress(OSError):
            os.utime(path)  # marks the entry as used, for `clear`
        return record

    def discard(self, asked: Question, why: str) -> None:
        """Say why an entry is damaged, and remove it if the store mends."""
        say(f"the {self._called} '{self.path(asked)}' is damaged ({why}); {self._again}")
        if self.mends:
            self.remove(asked)

    def remove(self, asked: Question) -> None:
        """Remove a record, if it is there and may be removed."""
        with suppress(OSError):
            self.path(asked).unlink()

    def put(self, asked: Question, record: Record) -> None:
        """Store a record; OutputError if it cannot be written."""
        inputs = parse_json(asked.inputs, any_number=True)
        entry = {
            "schema": SCHEMA,
            "key": asked.key,
            "title": asked.task.title,
            "inputs": inputs,
            "record": record,
            "checksum": _checksum(inputs, record),
        }
        # No time stamp in the header, so that equal records are equal files.
        whole = gzip.compress(as_json(entry).encode(), _COMPRESSION, mtime=0)
        write_atomically(self.path(asked), whole, private=True)

    def keep(self, asked: Question, record: Record) -> None:
        """Store a record unless the store gave up; if it cannot be written, give up."""
        if self.keeps and (why := store_record(asked, record, self)):
            self.give_up(why)

    def give_up(self, why: str) -> None:
        """Stop storing records, and say so once."""
        if self.keeps:
            self.keeps, self.given_up = False, why
            say(f"runs are not kept from here on: {why}")

    def contents(self) -> Contents:
        """Return how much the store holds."""
        return _contents([stat for _, stat in self._files(_ENTRIES)])

    def clear(self, unused_s: float = 0.0) -> Contents:
        """Remove entries unused for `unused_s` [s], and return what was removed.

        Raises OutputError if one cannot be removed.
        """
        limit = time.time() - unused_s
        removed = []
        for pattern in (_ENTRIES, f"??/{_PART}"):
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


def answer_here(asked: Question, store: Store | None) -> Answer:
    """The answer to a question: read if another process has stored it meanwhile, else computed here and stored."""
    if store is None or not store.keeps:
        return answer(asked.task), ""
    found = store.get(asked)
    if found is not None:
        return found, ""
    made = answer(asked.task)
    if fingerprint_of(asked.home) != asked.code:
        return made, "Weft's own sources changed since the sweep began"
    return made, store_record(asked, made, store)


def store_record(asked: Question, record: Record, store: Store) -> str:
    """Store a record; why that failed, or an empty text."""
    try:
        store.put(asked, record)
    except OutputError as error:
        return str(error)
    return ""


def read_or_make(task: Task, store: Store) -> Record:
    """Return the record of a task: read from the store, else made in this process and stored.

    Raises InputError for a task that JSON cannot represent, and what the task raises.
    """
    record, why = answer_here(question(task), store)
    if why:
        store.give_up(why)
    return record


def say(sentence: str) -> None:
    """Print a notice for the user on standard error."""
    if sys.stderr is not None:  # it may be closed
        sys.stderr.write(f"weft: {sentence}\n")
        sys.stderr.flush()


class _Unfit(ValueError):
    """An entry that is readable but invalid."""


def _check_entry(entry: dict[str, Any], asked: Question) -> Record:
    """Return the record of an entry; raises _Unfit with the reason if it is invalid."""
    inputs, record = entry["inputs"], entry["record"]
    if entry["schema"] != SCHEMA:
        raise _Unfit(f"its schema is {entry['schema']}, not {SCHEMA}")
    if entry["checksum"] != _checksum(inputs, record):
        raise _Unfit("its checksum is wrong")
    if entry["key"] != asked.key or inputs != parse_json(asked.inputs, any_number=True):
        raise _Unfit("it answers another question")
    if why := getattr(asked.task, "misfit", lambda record: "")(record):
        raise _Unfit(why)
    return record  # type: ignore[no-any-return]


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, _Unfit | InputError) else "it cannot be read"


def _checksum(inputs: Any, record: Any) -> str:
    return hashlib.sha256(as_json({"inputs": inputs, "record": record}).encode()).hexdigest()
