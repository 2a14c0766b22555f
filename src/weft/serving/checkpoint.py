"""Runs of many requests: their progress, and a checkpoint from which an interrupted one resumes."""

from __future__ import annotations

import hashlib
import io
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from weft.errors import OutputError
from weft.files import write_atomically
from weft.serving.cluster import Cluster
from weft.serving.requests import Asked
from weft.store.fingerprint import fingerprint_of
from weft.store.records import checkpoints, say
from weft.store.task import as_json

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
_DIGEST = 32


@dataclass
class Checkpoint:
    """The state of a run in a file, beside `shared` objects, each the only one of its type, which are made anew.

    The file is private, in the user's cache, and read only if its checksum holds.
    """

    file: Path
    shared: Sequence[object]

    @classmethod
    def of(cls, inputs: Mapping[str, Any], asked: Sequence[Asked], shared: Sequence[object]) -> Checkpoint:
        """The checkpoint of a run, by all that decides it: inputs, requests and Weft's own sources."""
        digest = hashlib.sha256(as_json(inputs, "the inputs of a load", sort_keys=True).encode())
        digest.update(fingerprint_of(Path(__file__)).encode())
        for one in asked:
            digest.update(repr(tuple(one)).encode())
        return cls(checkpoints().folder / f"{digest.hexdigest()}.state", shared)

    def read(self) -> Any:
        """The state, or None; a damaged file is reported and removed."""
        try:
            found = self.file.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(found[_DIGEST:]).digest() != found[:_DIGEST]:
            say(f"the checkpoint '{self.file}' is damaged; the run begins anew")
            self.remove()
            return None
        return _Unpickler(io.BytesIO(found[_DIGEST:]), self.shared).load()

    def write(self, state: Any) -> None:
        """Replace the state, whole or not at all; OutputError if it cannot be written."""
        whole = io.BytesIO()
        _Pickler(whole, self.shared).dump(state)
        payload = whole.getvalue()
        write_atomically(self.file, hashlib.sha256(payload).digest() + payload, private=True)

    def remove(self) -> None:
        """Remove the file, once the run has ended."""
        with suppress(OSError):
            self.file.unlink()


def _shared(place: int) -> object:
    """What a file names instead of a shared object; `_Unpickler` finds the object."""
    raise NotImplementedError


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[object]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        # By type: a method that saw each of some 10^7 values would take minutes.
        self.dispatch_table = {type(one): partial(_named, place) for place, one in enumerate(shared)}


def _named(place: int, _: object) -> tuple[Callable[[int], object], tuple[int]]:
    return _shared, (place,)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[object]) -> None:
        super().__init__(file)
        self._objects = shared

    def find_class(self, module: str, name: str, /) -> Any:
        """A class or function by name, or what finds a shared object."""
        return self._objects.__getitem__ if name == _shared.__name__ else super().find_class(module, name)


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
            checkpoint.write(cluster)
        except OutputError as error:
            say(f"the run is not kept from here on: {error}")
            self._checkpoint = None
        now = time.monotonic()
        self._due = now + max(EVERY_S, _SHARE * (now - began))

    def resumed(self, cluster: Cluster) -> None:
        """Say where a run resumes."""
        say(f"resumes after {cluster.answered:,} of {self._total:,} requests")
