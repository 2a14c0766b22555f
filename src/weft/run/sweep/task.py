"""Tasks of a sweep: their content as a question, and the record that answers it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from weft.errors import InputError
from weft.run.sweep.fingerprint import fingerprint_of, home

Record = dict[str, Any]
"""The result of a task as plain data that JSON can hold."""


class Task(Protocol):
    """A run to make: a frozen dataclass that can be pickled, of a class that a module defines."""

    @property
    def title(self) -> str:
        """The run in a few words, for people."""

    @property
    def weight(self) -> float:
        """Roughly how long the run takes compared with others; the heaviest start first."""

    def inputs(self) -> Mapping[str, Any]:
        """Everything that decides the record, as JSON can hold it: machine, shapes, options."""

    def run(self) -> Mapping[str, Any]:
        """Run the task in this process; returns the record, as JSON can hold it."""


@dataclass(frozen=True)
class Question:
    """A task by its content: `key` is a digest of its class, its inputs and `code`, the sources that would answer it.

    `home` is the file of its class. Two tasks of equal content make equal questions.
    """

    key: str
    inputs: str
    code: str
    home: Path = field(compare=False)
    task: Task = field(compare=False)


def question(task: Task) -> Question:
    """The content of a task; InputError if its inputs are no JSON, or if its class is defined in no file."""
    file = home(type(task))
    code = fingerprint_of(file)
    inputs = as_json(task.inputs(), f"the inputs of '{task.title}'", sort_keys=True)
    kind = f"{type(task).__module__}.{type(task).__qualname__}"
    key = hashlib.sha256(f"{kind}\n{code}\n{inputs}".encode()).hexdigest()
    return Question(key, inputs, code, file, task)


def answer(task: Task) -> Record:
    """The record that a task's run makes, as JSON gives it back; InputError if it is none."""
    made = as_json(task.run(), f"the record of '{task.title}'")
    return json.loads(made)  # type: ignore[no-any-return]


def as_json(data: Mapping[str, Any], what: str = "the data", sort_keys: bool = False) -> str:
    """JSON that gives back every float exactly, with `sort_keys` the same text for equal data; else InputError."""
    try:
        return json.dumps(data, sort_keys=sort_keys, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} cannot be kept as JSON: {error}; give numbers, texts and lists") from error
