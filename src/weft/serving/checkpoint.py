"""Runs of many requests: their progress, and a checkpoint from which an interrupted one resumes.

A checkpoint is data, arrays and JSON: reading it runs none of its content.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import InputError, OutputError
from weft.core.files import read_stored, write_atomically
from weft.core.store.fingerprint import fingerprint_of
from weft.core.store.records import checkpoints, say
from weft.core.store.task import as_json
from weft.serving.cluster import Cluster
from weft.serving.requests import Asked

Progress = Callable[[int, int, str], None]
"""Called with the number of answered requests, their total, and what runs."""
LEAST = 20_000
"""Fewest requests of a run that is checkpointed: it takes ten seconds or more."""
EVERY_S = 60.0
"""Least time between two checkpoints [s]."""
_SHARE = 20
"""A checkpoint follows the last one after so many times what that took, too."""
QUIET_S = 2.0
"""Time for which a run reports no progress: it may be over by then [s]."""
_LOOK = 256
"""Events between two looks at the clock."""
_MAGIC, _DIGEST = b"weft checkpoint 1\n", 32
_JSON = "json"
State = Mapping[str, Any]
"""Plain data by name, and numpy arrays."""
WRONG = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)
"""What reading a state of another form raises."""


@dataclass
class Checkpoint:
    """The state of a run in a file.

    The file is private, in the user's cache. It is read only if it belongs to this user, no other one may write to it,
    it is no link, and its checksum holds.
    """

    file: Path

    @classmethod
    def of(cls, inputs: Mapping[str, Any], asked: Sequence[Asked]) -> Checkpoint:
        """The checkpoint of a run, by all that decides it: inputs, requests and Weft's own sources."""
        digest = hashlib.sha256(as_json(inputs, "the inputs of a load", sort_keys=True).encode())
        digest.update(fingerprint_of(Path(__file__)).encode())
        for one in asked:
            digest.update(repr(tuple(one)).encode())
        return cls(checkpoints().folder / f"{digest.hexdigest()}.state")

    def read(self) -> State | None:
        """The state, or None; a file that is damaged or not this user's alone is reported and removed."""
        try:
            found = read_stored(self.file, own=True)
        except OSError:
            return None
        except InputError as error:
            self.forget(str(error))
            return None
        payload = found[len(_MAGIC) + _DIGEST :]
        if not found.startswith(_MAGIC) or hashlib.sha256(payload).digest() != found[len(_MAGIC) :][:_DIGEST]:
            self.forget("it is damaged")
            return None
        try:
            with np.load(io.BytesIO(payload), allow_pickle=False) as arrays:
                state = {name: arrays[name] for name in arrays.files}
            return {**json.loads(state.pop(_JSON).tobytes()), **state}
        except (*WRONG, OSError, EOFError, RecursionError, zipfile.BadZipFile):
            self.forget("it has another form")
            return None

    def forget(self, why: str) -> None:
        """Say why the file is not read, and remove it."""
        say(f"the checkpoint '{self.file}' is not read ({why}); the run begins anew")
        self.remove()

    def write(self, state: State) -> None:
        """Replace the state, whole or not at all; OutputError if it cannot be written."""
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        text = json.dumps({name: value for name, value in state.items() if name not in arrays}).encode()
        whole = io.BytesIO()
        np.savez(whole, allow_pickle=False, **arrays, **{_JSON: np.frombuffer(text, np.uint8)})
        payload = whole.getvalue()
        write_atomically(self.file, _MAGIC + hashlib.sha256(payload).digest() + payload, private=True)

    def remove(self) -> None:
        """Remove the file, once the run has ended."""
        with suppress(OSError):
            self.file.unlink()


class Watched:
    """Sees a run between its events: reports its progress, and writes its checkpoint."""

    def __init__(self, total: int, progress: Progress | None, checkpoint: Checkpoint | None) -> None:
        self._total, self._progress, self._checkpoint = total, progress, checkpoint
        self._events, self._begin = 0, time.monotonic()
        self._due = self._begin + EVERY_S

    def __call__(self, cluster: Cluster) -> None:
        """See the state between two events."""
        self._events += 1
        if self._events % _LOOK:
            return
        if self._progress and time.monotonic() - self._begin >= QUIET_S:
            self._progress(cluster.answered, self._total, "requests answered")
        if self._checkpoint and time.monotonic() >= self._due:
            self._write(self._checkpoint, cluster)

    def _write(self, checkpoint: Checkpoint, cluster: Cluster) -> None:
        began = time.monotonic()
        try:
            checkpoint.write(cluster.state())
        except OutputError as error:
            say(f"the run is not kept from here on: {error}")
            self._checkpoint = None
        now = time.monotonic()
        self._due = now + max(EVERY_S, _SHARE * (now - began))

    def resumed(self, cluster: Cluster) -> None:
        """Say where a run resumes."""
        say(f"resumes after {cluster.answered:,} of {self._total:,} requests")
