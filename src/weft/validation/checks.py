"""Which rows cannot be true: unknown machines, repeats, times beyond physics, times in another unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from weft.errors import InputError, UnknownNameError, join_or, nearest
from weft.validation.data import Rows
from weft.validation.problems import Problem

if TYPE_CHECKING:
    from weft.hardware import Gpu

FloatArray = npt.NDArray[np.float64]

DTYPE_BYTES: Mapping[str, float] = {
    "fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1,
}  # fmt: skip
"""Bytes of an element of an input matrix; outputs of one-byte types have two bytes."""

_TIMING_ERROR = 1.02  # clocks and timers are this far off at most before "faster than the peak" is impossible
_UNIT = 1000.0
_FEW = 12  # names that a sentence can list
_UNIT_ERROR = 200.0  # times this far off are rather in another unit than so slow or fast


def duplicates(rows: Rows) -> list[Problem]:
    """Rows that repeat an earlier one: left out if every cell is the same, told but used if only the time differs."""
    columns = {**rows.texts, **{name: column.astype(np.str_) for name, column in rows.numbers.items()}}
    times = [name for name in columns if name.endswith(("_us", "_s")) or name == "speedup"]
    case = list(zip(*(columns[name].tolist() for name in columns if name not in times), strict=True))
    time = list(zip(*(columns[name].tolist() for name in times), strict=True))
    problems: list[Problem] = []
    first: dict[object, int] = {}
    seen: set[object] = set()
    for line, key, value in zip(rows.line.tolist(), case, time, strict=True):
        if (key, value) in seen:
            rule = "this row is a duplicate: every cell is that of the earlier line"
            problems.append(Problem(rows.file, (line,), "earlier line", str(first[key]), rule))
        elif key in first:
            rule = "this row measures the case of an earlier line again, and counts as well"
            problems.append(Problem(rows.file, (line,), "earlier line", str(first[key]), rule, used=True))
        first.setdefault(key, line)
        seen.add((key, value))
    return problems


def unknown_names(rows: Rows, column: str, find: Callable[[str], object]) -> list[Problem]:
    """Rows whose `column` names what `find` does not know; one problem per name."""
    problems = []
    names = rows.texts[column]
    for name in np.unique(names).tolist():
        try:
            find(name)
        except InputError as error:
            lines = tuple(rows.line[names == name].tolist())
            problems.append(Problem(rows.file, lines, column, name, _unknown(column, error)))
    return problems


def _unknown(column: str, error: InputError) -> str:
    """The rule; names are listed where they are few, else alike problems can be told together."""
    if not isinstance(error, UnknownNameError):
        return str(error)
    close = nearest(error.name, error.known)
    hint = f", did you mean {join_or(close)}?" if close else ""
    if len(error.known) <= _FEW:
        return f"Weft knows no such {column}; it knows {', '.join(error.known)}"
    return f"Weft knows no such {column}; see 'weft hardware list'{hint}"


def gemm_floor(m: FloatArray, n: FloatArray, k: FloatArray, dtype: str, gpu: Gpu) -> FloatArray:
    """Less time than this no GEMM takes [s]: its operations at the highest clock, and the bytes that no cache holds."""
    rate = max(gpu.matrix_rate(dtype, clock) for clock in ("peak", "boost"))
    size = DTYPE_BYTES[dtype]
    moved = size * (m * k + k * n) + max(size, 2.0) * m * n
    # Repeated runs of one shape may find their inputs in the caches.
    cold = np.maximum(moved - gpu.cache.capacity - gpu.memory_cache.capacity, 0.0)
    return np.maximum(2 * m * n * k / rate, cold / gpu.memory.bandwidth)


def collective_floor(name: str, ranks: FloatArray, size: FloatArray, link: float, in_switch: bool) -> FloatArray:
    """Less time than this no collective takes [s]: what a GPU must at least send over its links, in one direction.

    `size` counts as nccl-tests do; `link` is the egress of the whole GPU [bytes/s]. In-switch reduction halves
    what an all-reduce sends.
    """
    times = 2.0 if name == "all_reduce" and not in_switch else 1.0
    return times * (ranks - 1) / ranks * size / link


def beyond_physics(rows: Rows, floor: FloatArray, expected: FloatArray, of: str) -> list[Problem]:
    """Rows faster than `floor` [s], and rows so far from the `expected` [s] that their unit must be another.

    `of` says whose peak the floor is.
    """
    measured = rows.seconds
    ratio = measured / expected
    in_s = ratio < 1 / (_UNIT_ERROR * _UNIT)
    in_ms = (ratio < 1 / _UNIT_ERROR) & ~in_s
    in_ns = ratio > _UNIT_ERROR
    fast = (measured * _TIMING_ERROR < floor) & ~in_s & ~in_ms
    unit = f"this is far off what {of} can take: the time looks like"
    return [
        *_times(rows, measured, fast, f"this is faster than the peak of {of}"),
        *_times(rows, measured, in_s, f"{unit} seconds, not microseconds"),
        *_times(rows, measured, in_ms, f"{unit} milliseconds, not microseconds"),
        *_times(rows, measured, in_ns, f"{unit} nanoseconds, not microseconds"),
    ]


def _times(rows: Rows, measured: FloatArray, which: npt.NDArray[np.bool_], rule: str) -> list[Problem]:
    pairs: Iterable[tuple[int, float]] = zip(rows.line[which].tolist(), measured[which].tolist(), strict=True)
    return [Problem(rows.file, (line,), "time_us", _shown(seconds), rule) for line, seconds in pairs]


def _shown(seconds: float) -> str:
    return f"{seconds * 1e6:.6g}"
