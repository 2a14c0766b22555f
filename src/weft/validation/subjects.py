"""What is put to the test: rows of one machine, the model that predicts them, the parameters that may be fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.estimate import Parameter
from weft.validation.data import Rows

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Progress = Callable[[int, int, str], None]
"""Told how many steps are done, of how many, and which comes next."""
Predict = Callable[[Rows, Mapping[str, float]], FloatArray]
"""Seconds of each row with some parameters changed, by path [base units]."""


@dataclass(frozen=True)
class Subject:
    """Rows of one machine and kind, labelled by what their errors are grouped by.

    `ranges` maps a class of size, such as ">= 20 us", to the rows in it. `start` holds the parameters' values in
    the catalog. `vendor` says whose other machines are relatives; a `slow` subject is simulated, request by request.
    `teaches` marks the rows that a fit may learn from (None: all); the others are only predicted.
    """

    kind: str
    machine: str
    rows: Rows
    measured: FloatArray
    labels: Mapping[str, npt.NDArray[Any]]
    ranges: Mapping[str, BoolArray]
    predict: Predict
    parameters: tuple[Parameter, ...] = ()
    start: Mapping[str, float] = field(default_factory=dict)
    vendor: str = "none"
    slow: bool = False
    teaches: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def name(self) -> str:
        """Kind and machine: what tells subjects apart."""
        return f"{self.kind} {self.machine}"

    def take(self, which: BoolArray | npt.NDArray[np.int64]) -> Subject:
        """The subject with some of its rows."""
        return replace(
            self,
            rows=self.rows.take(which),
            measured=self.measured[which],
            labels={name: column[which] for name, column in self.labels.items()},
            ranges={name: mask[which] for name, mask in self.ranges.items()},
            teaches=None if self.teaches is None else self.teaches[which],
        )

    def teaching(self) -> Subject:
        """The subject with the rows that a fit may learn from."""
        return self if self.teaches is None else self.take(self.teaches)

    def model(self) -> Callable[[Mapping[str, float]], FloatArray]:
        """The seconds of its rows as a function of the parameters alone."""
        return lambda values: self.predict(self.rows, values)

    def strata(self) -> list[str]:
        """The group of each row as one text: what a split or a sample keeps the shares of."""
        columns = [column.astype(np.str_).tolist() for column in self.labels.values()]
        return [" ".join(parts) for parts in zip(*columns, strict=True)]


@dataclass(frozen=True)
class Predicted:
    """A subject with a prediction for each of its rows [s]."""

    subject: Subject
    seconds: FloatArray


def predicted(subject: Subject, values: Mapping[str, float] | None = None) -> Predicted:
    """The subject as the catalog's parameters predict it, or with some of them changed."""
    return Predicted(subject, subject.predict(subject.rows, values or {}))


def joined(parts: Sequence[Predicted]) -> tuple[FloatArray, FloatArray]:
    """Predicted and measured seconds of several subjects, one after the other."""
    if not parts:
        return np.zeros(0), np.zeros(0)
    return np.concatenate([p.seconds for p in parts]), np.concatenate([p.subject.measured for p in parts])
