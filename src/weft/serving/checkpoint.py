"""Runs of many requests: their progress, and a checkpoint from which an interrupted one resumes.

A checkpoint is a record of the store, of arrays and JSON: reading it runs none of its content.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.errors import OutputError
from weft.core.store.records import Store, checkpoints, say
from weft.core.store.task import Question, Record, question
from weft.serving.cluster import Cluster
from weft.serving.requests import RequestSpec

Progress = Callable[[int, int, str], None]
"""Called with the number of answered requests, their total, and what runs."""
LEAST = 20_000
"""Fewest requests of a run that is checkpointed: it takes ten seconds or more."""
EVERY_S = 60.0
"""Least time between two checkpoints [s]."""
_SHARE = 20
"""A checkpoint also waits `_SHARE` times as long as the last checkpoint took."""
QUIET_S = 2.0
"""Time for which a run reports no progress: it may be over by then [s]."""
_LOOK = 256
"""Events between two looks at the clock."""
State = Mapping[str, Any]
"""Plain data by name, and numpy arrays."""
WRONG = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError)
"""What reading a state of another form raises."""


@dataclass(frozen=True)
class _Resumable:
    """What decides the state of a run: a task whose record is written and read while another function runs it."""

    decides: Mapping[str, Any]
    title: str = "a load that is served"
    weight: float = 0.0

    def inputs(self) -> Mapping[str, Any]:
        """Return the inputs that determine the state."""
        return self.decides

    def run(self) -> Mapping[str, Any]:
        """Raise: a checkpoint is written by a run, and its description alone cannot make one."""
        raise NotImplementedError


@dataclass
class Checkpoint:
    """The state of a run as a record of the user's cache, read only if this user alone could have written it."""

    store: Store
    question: Question

    @classmethod
    def of(cls, inputs: Mapping[str, Any], asked: Sequence[RequestSpec]) -> Checkpoint:
        """Return the checkpoint of a run, by all that decides it: inputs, requests and Weft's own sources."""
        digest = hashlib.sha256()
        for one in asked:
            digest.update(repr(tuple(one)).encode())
        return cls(checkpoints(), question(_Resumable({**inputs, "requests": digest.hexdigest()})))

    def read(self) -> State | None:
        """Return the state, or None; a file that is damaged or not this user's alone is reported and removed."""
        record = self.store.get(self.question)
        try:
            return None if record is None else _unpack(record)
        except WRONG:
            self.forget("it has another form")
            return None

    def forget(self, why: str) -> None:
        """Say why the state is not taken, and remove it."""
        self.store.discard(self.question, why)

    def write(self, state: State) -> None:
        """Replace the state, whole or not at all; OutputError if it cannot be written."""
        self.store.put(self.question, _pack(state))

    def remove(self) -> None:
        """Remove the state, once the run has ended."""
        self.store.remove(self.question)


def _pack(state: State) -> Record:
    """Return a state whose arrays are texts: exact, and in a tenth of the time that lists of numbers take."""
    return {name: _as_text(value) if isinstance(value, np.ndarray) else value for name, value in state.items()}


def _as_text(array: Any) -> Record:
    return {"base64": base64.b64encode(array.tobytes()).decode(), "dtype": array.dtype.str, "shape": array.shape}


def _unpack(record: Record) -> State:
    """Return what `_pack` was given; ValueError, KeyError or TypeError for arrays of another form."""
    return {name: _as_array(one) if isinstance(one, dict) and "base64" in one else one for name, one in record.items()}


def _as_array(text: Record) -> Any:
    content = base64.b64decode(text["base64"], validate=True)
    return np.frombuffer(content, np.dtype(text["dtype"])).reshape(text["shape"])  # ValueError for objects


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

    def note_resume(self, cluster: Cluster) -> None:
        """Say where a run resumes."""
        say(f"resumes after {cluster.answered:,} of {self._total:,} requests")
