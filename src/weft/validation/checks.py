"""Find rows that cannot be right: unknown machines, repeats, impossible times, times in another unit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from weft.errors import InputError, UnknownNameError, join_or, nearest
from weft.graph import DTYPE_BYTES
from weft.validation.problems import Problem
from weft.validation.tables import FloatArray, IntArray, Rows

if TYPE_CHECKING:
    from weft.hardware import Gpu

_TIMING_ERROR = 1.02  # tolerance for clocks and timers before "faster than the peak" counts as impossible
_UNIT = 1000.0
_FEW = 12  # most names listed in a sentence
_UNIT_ERROR = 200.0  # factor beyond which a time is more likely in another unit


class Checked:
    """The valid rows of a file, and all problems so far."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.problems: list[Problem] = []

    def drop(self, *found: Iterable[Problem]) -> None:
        """Add problems, and drop the rows that they exclude."""
        problems = [problem for each in found for problem in each]
        bad = [line for problem in problems if not problem.used for line in problem.lines]
        if bad:
            self.rows = self.rows.take(~np.isin(self.rows.line, bad))
        self.problems += problems


class Unfit(Exception):
    """A row that cannot be compared: the column, its value, and the broken rule."""


def unfit_rows(rows: Rows, check: Callable[[int, dict[str, Any]], object]) -> Iterator[Problem]:
    """The rows for which `check`, called with line and cells, raises Unfit."""
    for line, row in zip(rows.line.tolist(), rows, strict=True):
        try:
            check(line, row)
        except Unfit as unfit:
            yield Problem(rows.file, (line,), *unfit.args)


def check_multiplies(gpu: Gpu, dtype: str) -> None:
    """Raise Unfit for a data type that the GPU's matrix units lack."""
    if dtype not in DTYPE_BYTES or not gpu.supports(dtype):
        raise Unfit("dtype", dtype, f"{gpu.name} does not multiply matrices of this type")


def duplicates(rows: Rows) -> Iterator[Problem]:
    """Rows that repeat an earlier one: dropped if every cell is equal, reported but used if only the time differs."""
    first: dict[object, str] = {}
    seen: set[object] = set()
    for line, row in zip(rows.line.tolist(), rows, strict=True):
        cells = {name: str(value) for name, value in row.items()}
        case = tuple(cell for name, cell in cells.items() if not name.endswith(("_us", "_s")) and name != "speedup")
        whole = tuple(cells.values())
        if whole in seen:
            rule = "this row is a duplicate: every cell is that of the earlier line"
            yield Problem(rows.file, (line,), "earlier line", first[case], rule)
        elif case in first:
            rule = "this row measures the case of an earlier line again, and counts as well"
            yield Problem(rows.file, (line,), "earlier line", first[case], rule, used=True)
        first.setdefault(case, str(line))
        seen.add(whole)


def unknown_names(rows: Rows, column: str, find: Callable[[str], object]) -> Iterator[Problem]:
    """Rows whose `column` holds a name unknown to `find`; one problem per name."""
    for name in np.unique(rows[column]).tolist():
        try:
            find(name)
        except InputError as error:
            yield Problem(rows.file, rows.lines(rows[column] == name), column, name, _unknown(column, error))


def _unknown(column: str, error: InputError) -> str:
    """The problem's rule; lists the known names only if they are few, so that similar problems can be merged."""
    if not isinstance(error, UnknownNameError):
        return str(error)
    if len(error.known) <= _FEW:
        return f"Weft knows no such {column}; it knows {', '.join(error.known)}"
    close = nearest(error.name, error.known)
    hint = f", did you mean {join_or(close)}?" if close else ""
    return f"Weft knows no such {column}; see 'weft hardware list'{hint}"


def gemm_floor(m: FloatArray, n: FloatArray, k: FloatArray, dtype: str, gpu: Gpu) -> FloatArray:
    """Lower bound on a GEMM's time [s]: its operations at the highest clock, and the bytes that exceed every cache.

    Outputs of one-byte types have two bytes.
    """
    rate = max(gpu.matrix_rate(dtype, clock) for clock in ("peak", "boost"))
    size = DTYPE_BYTES[dtype]
    moved = size * (m * k + k * n) + max(size, 2.0) * m * n
    # Repeated runs of one shape may find their inputs in the caches.
    cold = np.maximum(moved - gpu.cache.capacity - gpu.memory_cache.capacity, 0.0)
    return np.maximum(2 * m * n * k / rate, cold / gpu.memory.bandwidth)


def collective_floor(name: str, ranks: int, size: FloatArray, link: float, in_switch: bool) -> FloatArray:
    """Lower bound on a collective's time [s]: a GPU's least bytes over its links, in one direction.

    `size` counts as nccl-tests do; `link` is the egress of the whole GPU [bytes/s]. In-switch reduction halves what an
    all-reduce sends.
    """
    times = 2.0 if name == "all_reduce" and not in_switch else 1.0
    return times * (ranks - 1) / ranks * size / link


class Case(Protocol):
    """Rows predicted by one call of a closed form, on machines described by a GPU or a library's profile."""

    @property
    def positions(self) -> IntArray:
        """Indices of its rows."""

    def seconds(self, rows: Rows, on: Any) -> FloatArray:
        """Predicted times of its rows [s]; InputError if the model has none."""

    def floor(self, rows: Rows, gpu: Gpu) -> FloatArray:
        """Lower bounds of its rows' times [s]."""


def predicted_by(cases: Sequence[Case], rows: Rows, on: Any) -> FloatArray:
    """The closed form's time of each row [s]."""
    seconds = np.empty(len(rows))
    for case in cases:
        seconds[case.positions] = case.seconds(rows.take(case.positions), on)
    return seconds


def believable(
    column: str, cases: Sequence[Case], rows: Rows, gpu: Gpu, on: Any, in_us: Collection[int] = ()
) -> Checked:
    """The rows that the model can predict and that are physically possible; problems name their `column`.

    The lines `in_us` are known to be in microseconds: another time of theirs is near what the model predicts.
    """
    checked, refused = Checked(rows), []
    floor, expected = np.empty(len(rows)), np.full(len(rows), np.nan)
    for case in cases:
        some = rows.take(case.positions)
        try:
            expected[case.positions], floor[case.positions] = case.seconds(some, on), case.floor(some, gpu)
        except InputError as error:
            refused.append(Problem(rows.file, tuple(some.line.tolist()), column, str(some[column][0]), str(error)))
    checked.drop(refused)
    known = np.isfinite(expected)
    checked.drop(beyond_physics(checked.rows, floor[known], expected[known], gpu.name, in_us))
    return checked


def beyond_physics(
    rows: Rows, floor: FloatArray, expected: FloatArray, of: str, in_us: Collection[int] = ()
) -> Iterator[Problem]:
    """Rows faster than `floor` [s], and rows so far from `expected` [s] that their time must be in another unit.

    `of` names whose peak the floor is; the lines `in_us` are in microseconds, however far off.
    """
    measured = rows.seconds
    ratio = np.where(np.isin(rows.line, [*in_us]), 1.0, measured / expected)
    in_s = ratio < 1 / (_UNIT_ERROR * _UNIT)
    in_ms = (ratio < 1 / _UNIT_ERROR) & ~in_s
    unit = f"this is far off what {of} can take: the time looks like"
    for which, rule in (
        ((measured * _TIMING_ERROR < floor) & ~in_s & ~in_ms, f"this is faster than the peak of {of}"),
        (in_s, f"{unit} seconds, not microseconds"),
        (in_ms, f"{unit} milliseconds, not microseconds"),
        (ratio > _UNIT_ERROR, f"{unit} nanoseconds, not microseconds"),
    ):
        for line, seconds in zip(rows.lines(which), measured[which].tolist(), strict=True):
            yield Problem(rows.file, (line,), "time_us", f"{seconds * 1e6:.6g}", rule)


def unsupported(rows: Rows, gpu: Gpu) -> Iterator[Problem]:
    """Rows of data types that the GPU's matrix units lack; one problem per type."""
    known = ", ".join(dtype for dtype in DTYPE_BYTES if gpu.supports(dtype))
    for dtype in np.unique(rows["dtype"]).tolist():
        if dtype not in DTYPE_BYTES or not gpu.supports(dtype):
            rule = f"{gpu.name} does not multiply matrices of this type; it has {known}"
            yield Problem(rows.file, rows.lines(rows["dtype"] == dtype), "dtype", dtype, rule)
