"""What a sweep of a file answers: a row for every combination, read from where its records are kept."""

from __future__ import annotations

import heapq
import shutil
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from weft.answer import Answer
from weft.errors import InputError
from weft.store import Record, Store
from weft.store.task import Question, question
from weft.sweep.matrix import Case, Matrix
from weft.sweep.questions import flat
from weft.sweep.rows import Columns, Row, write_rows

_GOALS = {"step": "seconds", "memory": "peak_bytes", "simulate": "seconds", "estimate": "seconds"}
"""The figure that is best if it is least, by the kind of run."""


_BEST = 10
"""Rows of a summary."""


@dataclass(frozen=True)
class Version:
    """Whose answers they are: Weft's version, and the hash `code` of its sources and libraries."""

    weft: str
    code: str


class Summary(NamedTuple):
    """The number of rows, the best ones that fit a GPU's memory, best first, and how many do not work by reason."""

    rows: int
    best: list[Row]
    reasons: Mapping[str, int]


class Temporary:
    """A folder that is removed with this object, or when the process ends."""

    def __init__(self) -> None:
        self.folder = Path(mkdtemp(prefix="weft-sweep-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


@dataclass(frozen=True, repr=False)
class Runs(Answer):
    """Every combination of a question's values with its figures, or the reason why it does not work.

    Rows are read from the folder of `store`, so that any number of them takes little memory; `temporary` is a folder
    that ends with this answer. `shard` (i, n) holds only the i-th of n parts.
    """

    kind = "runs"

    matrix: Matrix
    store: Store
    version: Version
    columns: Columns
    shard: tuple[int, int] = (1, 1)
    temporary: Temporary | None = field(default=None, compare=False)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the values that vary."""
        return tuple(self.matrix.axes)

    @property
    def goal(self) -> str:
        """The figure by which rows are compared: "seconds", or "peak_bytes" of memory; less is better."""
        return _GOALS[self.matrix.data["run"]]

    def __iter__(self) -> Iterator[Row]:
        """Every row in the order of the combinations: the values, the figures, the reason `why`, and the version."""
        for case, asked in mine(self.matrix, self.version, self.shard):
            record = self.store.get(asked)
            if record is None:
                raise InputError(
                    f"the run {case.title} is not in '{self.store.folder}' any more; sweep again: only what is missing "
                    "runs"
                )
            yield row_of(case, record, self.version)

    def __len__(self) -> int:
        return self.summary.rows

    @cached_property
    def summary(self) -> Summary:
        """The best rows, and why others do not work, in one pass over all rows."""
        reasons = Counter[str]()
        best = heapq.nsmallest(_BEST, self._working(reasons), key=lambda row: row[self.goal])
        return Summary(reasons.total(), best, {why: count for why, count in reasons.most_common() if why})

    def _working(self, reasons: Counter[str]) -> Iterator[Row]:
        """The rows that work and fit a GPU's memory; `reasons` counts all rows."""
        for row in self:
            reasons[row["why"]] += 1
            if not row["why"] and row.get("fits") is not False:
                yield row

    def to_dict(self) -> dict[str, Any]:
        """What was asked, the version, and all rows."""
        return {**self.matrix.to_dict(), "weft": self.version.weft, "code": self.version.code, "rows": list(self)}

    def save(self, path: str | Path) -> Path:
        """Write the rows to .csv or .parquet, all of it to .json, or a page to .html; returns the path."""
        file = Path(path)
        if file.suffix.lower() in (".csv", ".parquet"):
            return write_rows(file, self, self.columns)
        return super().save(path)


def mine(matrix: Matrix, version: Version, shard: tuple[int, int]) -> Iterator[tuple[Case, Question]]:
    """The combinations of a shard with their questions; which shard one belongs to follows from its content alone."""
    index, shards = shard
    for case in matrix.cases():
        asked = question(case, version.code)
        if shards == 1 or asked.part(shards) == index - 1:
            yield case, asked


def row_of(case: Case, record: Record, version: Version) -> Row:
    """A row of the table: the question's values, the reason, the version, and the figures."""
    set_ = case.data.get("set", {})
    inputs = {**flat({name: value for name, value in case.data.items() if name != "set"}), **set_}
    ends = {"why": record.get("why", ""), "weft": version.weft, "code": version.code[:12]}
    return {**inputs, **ends, **{name: value for name, value in record.get("found", {}).items() if name not in inputs}}
