"""What a sweep answers: a point for every combination, read from where its record is kept."""

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

from weft.core.answer import Answer
from weft.core.errors import InputError, UnitError
from weft.core.store import Record, Store
from weft.core.store.task import Question, question
from weft.core.units import common_unit
from weft.sweep.matrix import GOALS, Combination, Matrix
from weft.sweep.questions import flat, question_of, value_name
from weft.sweep.rows import Columns, Row, write_rows

_BEST = 10
"""Rows of a summary."""
_UNFIT = "does not fit the memory of its GPUs"


@dataclass(frozen=True)
class Version:
    """Whose answers they are: Weft's version, and the hash `code` of its sources and libraries."""

    weft: str
    code: str


@dataclass(frozen=True)
class SweepPoint:
    """One combination of a sweep: its `row` of values and figures by name, and its `speedup` over the first overlap.

    `point[name]` is a value of the row; `why` says why a combination does not work.
    """

    case: Combination
    record: Record
    row: Row
    speedup: float | None = None

    @property
    def values(self) -> tuple[Any, ...]:
        """The value of the point on each axis, as given."""
        return self.case.values

    @property
    def why(self) -> str:
        """Why the combination does not work; empty if it does."""
        return str(self.record.get("why", ""))

    @property
    def seconds(self) -> float:
        """Its time [s]; InputError for a combination that does not work, or whose answer is no time."""
        if self.why or "seconds" not in self.row:
            raise InputError(self.why or f"{self.case.title} has no time; take another figure of its row")
        return float(self.row["seconds"])

    @property
    def answer(self) -> Any:
        """The answer itself: a simulation's timeline as kept, without its spans; any other is recomputed.

        Raises InputError for a combination that does not work.
        """
        if self.why and "found" not in self.record:
            raise InputError(self.why)
        return question_of(self.case.data).read(self.record)

    def __getitem__(self, name: str) -> Any:
        return self.row[name]

    def __contains__(self, name: str) -> bool:
        return name in self.row

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value of the row, or `default` if it has none of that name."""
        return self.row.get(name, default)


class Summary(NamedTuple):
    """The number of points, the best that fit a GPU's memory, best first, and how many do not work by reason.

    `unfit` of the points that work need more memory than their GPUs have.
    """

    rows: int
    best: list[SweepPoint]
    reasons: Mapping[str, int]
    unfit: int


class Temporary:
    """A folder that is removed with this object, or when the process ends."""

    def __init__(self) -> None:
        self.folder = Path(mkdtemp(prefix="weft-sweep-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


@dataclass(frozen=True, repr=False)
class Sweep(Answer):
    """A question under every combination of values: a point for each, with its figures or why it does not work.

    Points are read from the folder of `store`, so that any number of them takes little memory; `temporary` is a folder
    that ends with this answer. `shard` (i, n) holds only the i-th of n parts.
    """

    kind = "sweep"

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
    def fixed_values(self) -> Mapping[str, Any]:
        """The values that do not vary, by name."""
        return {name: value for name, value in self.matrix.data.items() if name not in ("run", *self.axes)}

    @property
    def goal(self) -> str:
        """The figure by which points are compared: "seconds", or "peak_bytes" of memory; less is better."""
        return GOALS[self.matrix.data["run"]]

    @property
    def title(self) -> str:
        """What was asked, on one line."""
        data = self.matrix.data
        words = [
            value_name(data[name]) for name in ("run", "model", "work", "gemm", "collective", "system") if name in data
        ]
        varied = " x ".join(f"{len(values)} {name}" for name, values in self.matrix.axes.items())
        return f"{' '.join(map(str, words))}: {varied or 'one run'}"

    @cached_property
    def points(self) -> tuple[SweepPoint, ...]:
        """Every point, all in memory."""
        return tuple(self)

    @property
    def best(self) -> SweepPoint:
        """The best combination; InputError if none works."""
        if not self.summary.best:
            raise InputError(next(iter(self.summary.reasons), "no combination fits the memory of its GPUs"))
        return self.summary.best[0]

    @property
    def scale(self) -> tuple[str, list[float], str] | None:
        """The axis of numbers with most values (the last of equals), the number on it of each point that works, and
        their unit; None without one.
        """
        points, widest = [point for point in self if not point.why], None
        for place in reversed(range(len(self.axes))):
            values = [point.values[place] for point in points]
            if values and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
                numbers, unit = list(map(float, values)), ""
            elif values and all(isinstance(value, str) for value in values):
                try:
                    numbers, unit = common_unit(values)
                except UnitError:
                    continue
            else:
                continue
            if widest is None or len(set(numbers)) > len(set(widest[1])):
                widest = self.axes[place], numbers, unit
        return widest

    def __iter__(self) -> Iterator[SweepPoint]:
        """Every point in the order of the combinations."""
        first: dict[tuple[Any, ...], float] = {}
        overlap = self.axes.index("overlap") if "overlap" in self.axes and self.shard == (1, 1) else None
        for case, asked in parts_of(self.matrix, self.version, self.shard):
            record = self.store.get(asked)
            if record is None:
                raise InputError(
                    f"the run {case.title} is not in '{self.store.folder}' any more; sweep again: only what is missing "
                    "runs"
                )
            row, speedup = row_of(case, record, self.version), None
            if overlap is not None and not row["why"]:
                others = tuple(str(value_name(value)) for place, value in enumerate(case.values) if place != overlap)
                if case.values[overlap] == self.matrix.axes["overlap"][0]:
                    first[others] = row["seconds"]
                speedup = first[others] / row["seconds"] if others in first else None
            yield SweepPoint(case, record, row, speedup)

    def __len__(self) -> int:
        return self.summary.rows

    @cached_property
    def summary(self) -> Summary:
        """The best points, and why others do not work, in one pass over all points."""
        reasons = Counter[str]()
        best = heapq.nsmallest(_BEST, self._working(reasons), key=lambda point: point[self.goal])
        rows, unfit = reasons.total(), reasons.pop(_UNFIT, 0)
        return Summary(rows, best, {why: count for why, count in reasons.most_common() if why}, unfit)

    def _working(self, reasons: Counter[str]) -> Iterator[SweepPoint]:
        """The points that work and fit a GPU's memory; `reasons` counts every point by why it is not among them."""
        for point in self:
            fits = point.get("fits") is not False
            reasons[point.why or ("" if fits else _UNFIT)] += 1
            if not point.why and fits:
                yield point

    def to_dict(self) -> dict[str, Any]:
        """Return what was asked, the version, and all rows."""
        version = {"weft": self.version.weft, "code": self.version.code}
        return {**self.matrix.to_dict(), **version, "rows": [point.row for point in self]}

    def save(self, path: str | Path) -> Path:
        """Write the rows to .csv or .parquet, all of it to .json, or a page to .html; returns the path."""
        file = Path(path)
        if file.suffix.lower() in (".csv", ".parquet"):
            return write_rows(file, (point.row for point in self), self.columns)
        return super().save(path)


def parts_of(matrix: Matrix, version: Version, shard: tuple[int, int]) -> Iterator[tuple[Combination, Question]]:
    """The combinations of a shard with their questions; which shard one belongs to follows from its content alone."""
    index, shards = shard
    for case in matrix.cases():
        asked = question(case, version.code)
        if shards == 1 or asked.part(shards) == index - 1:
            yield case, asked


def row_of(case: Combination, record: Record, version: Version) -> Row:
    """Return a row of the table: the question's values, the reason, the version, and the figures."""
    set_ = case.data.get("set", {})
    inputs = {
        **flat({name: value_name(value) for name, value in case.data.items() if name != "set"}),
        **value_name(set_),
    }
    ends = {"why": record.get("why", ""), "weft": version.weft, "code": version.code[:12]}
    return {**inputs, **ends, **{name: value for name, value in record.get("found", {}).items() if name not in inputs}}
