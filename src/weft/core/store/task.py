"""Tasks of a sweep: a question that identifies the task, and the record that answers it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from weft.core.errors import InputError
from weft.core.store.fingerprint import fingerprint_of, home

Record = dict[str, Any]
"""The result of a task as JSON-compatible data."""


class Task(Protocol):
    """A run to make: a picklable frozen dataclass, whose class is defined in a module file."""

    @property
    def title(self) -> str:
        """A short description of the run."""

    @property
    def weight(self) -> float:
        """Rough relative duration of the run; the heaviest tasks start first."""

    def inputs(self) -> Mapping[str, Any]:
        """Return the inputs that determine the record, as JSON-compatible data: machine, shapes, options."""

    def run(self) -> Mapping[str, Any]:
        """Run the task in this process and return the record as JSON-compatible data."""


@dataclass(frozen=True)
class Question:
    """The identity of a task: `key` hashes its class, its inputs and `code` (the hash of the sources that answer it).

    `home` is the file of its class. Two tasks of equal content have equal questions.
    """

    key: str
    inputs: str
    code: str
    home: Path = field(compare=False)
    task: Task = field(compare=False)

    def part(self, parts: int) -> int:
        """Return which of several parts of a sweep the question belongs to, from 0, by its inputs alone."""
        return int(hashlib.sha256(self.inputs.encode()).hexdigest()[:15], 16) % parts


def question(task: Task, code: str = "") -> Question:
    """Return the identity of a task for the sources of this process, or those of the hash `code`.

    Raises InputError if its inputs are not JSON-compatible, or its class is defined in no file.
    """
    file = home(type(task))
    code = code or fingerprint_of(file)
    inputs = as_json(task.inputs(), f"the inputs of '{task.title}'", sort_keys=True)
    kind = f"{type(task).__module__}.{type(task).__qualname__}"
    key = hashlib.sha256(f"{kind}\n{code}\n{inputs}".encode()).hexdigest()
    return Question(key, inputs, code, file, task)


def answer(task: Task) -> Record:
    """Run a task and return its record after a JSON round trip; InputError if it is not JSON-compatible."""
    made = as_json(task.run(), f"the record of '{task.title}'")
    return json.loads(made)  # type: ignore[no-any-return]


def as_json(data: Mapping[str, Any], what: str = "the data", sort_keys: bool = False) -> str:
    """JSON text that preserves every float exactly; with `sort_keys` equal data give equal text. Else InputError."""
    try:
        return json.dumps(data, sort_keys=sort_keys, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} cannot be kept as JSON: {error}; give numbers, texts and lists") from error
