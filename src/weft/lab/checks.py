"""Checks of measured rows: names that Weft does not know, rows that repeat others, and impossible times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from weft.core.errors import InputError, UnknownNameError, join_or, nearest
from weft.graph import DTYPE_BYTES
from weft.lab.problems import Problem
from weft.lab.tables import FloatArray, Measurements, seconds_of

if TYPE_CHECKING:
    from weft.hardware import Gpu

_TIMING_ERROR = 1.02  # tolerance for clocks and timers before "faster than the peak" counts as impossible
_UNIT = 1000.0
_FEW = 12  # most names listed in a sentence
_UNIT_ERROR = 200.0  # factor beyond which a time is more likely in another unit


class Unfit(Exception):
    """A row that cannot be compared: the column, its value, and the broken rule."""


def unfit_rows(checked: Measurements, check: Callable[[int, dict[str, Any]], object]) -> Iterator[Problem]:
    """The rows for which `check`, called with line and cells, raises Unfit."""
    for line, row in zip(checked.rows.index.tolist(), checked.rows.to_dict("records"), strict=True):
        try:
            check(line, row)
        except Unfit as unfit:
            yield Problem(checked.file, (line,), *unfit.args)


def check_multiplies(gpu: Gpu, dtype: str) -> None:
    """Raise Unfit for a data type that the GPU's matrix units lack."""
    if dtype not in DTYPE_BYTES or not gpu.supports(dtype):
        raise Unfit("dtype", dtype, f"{gpu.name} does not multiply matrices of this type")


def duplicates(checked: Measurements) -> Iterator[Problem]:
    """Rows that repeat an earlier one: dropped if every cell is equal, reported but used if only the time differs."""
    rows = checked.rows
    case = [name for name in rows if not name.endswith(("_us", "_s")) and name != "speedup"]
    first = pd.Series(rows.index, rows.index).groupby([rows[name] for name in case], dropna=False).transform("first")
    whole, again = rows.duplicated(), rows.duplicated(case)
    for line in rows.index[again].tolist():
        rule = "this row is a duplicate: every cell is that of the earlier line"
        if not whole[line]:
            rule = "this row measures the case of an earlier line again, and counts as well"
        yield Problem(checked.file, (line,), "earlier line", str(first[line]), rule, used=not whole[line])


def unknown_names(checked: Measurements, column: str, find: Callable[[str], object]) -> Iterator[Problem]:
    """Rows whose `column` holds a name unknown to `find`; one problem per name."""
    for name in sorted(set(checked.rows[column])):
        try:
            find(name)
        except InputError as error:
            yield from checked.problem(checked.rows[column] == name, _unknown(column, error), column, name)


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


def beyond_physics(
    checked: Measurements, floor: FloatArray, expected: FloatArray, of: str, in_us: Collection[int] = ()
) -> Iterator[Problem]:
    """Rows faster than `floor` [s], and rows so far from `expected` [s] that their time must be in another unit.

    `of` names whose peak the floor is; the lines `in_us` are in microseconds, however far off.
    """
    rows, measured = checked.rows, seconds_of(checked.rows)
    ratio = np.where(rows.index.isin([*in_us]), 1.0, measured / expected)
    in_s = ratio < 1 / (_UNIT_ERROR * _UNIT)
    in_ms = (ratio < 1 / _UNIT_ERROR) & ~in_s
    unit = f"this is far off what {of} can take: the time looks like"
    for which, rule in (
        ((measured * _TIMING_ERROR < floor) & ~in_s & ~in_ms, f"this is faster than the peak of {of}"),
        (in_s, f"{unit} seconds, not microseconds"),
        (in_ms, f"{unit} milliseconds, not microseconds"),
        (ratio > _UNIT_ERROR, f"{unit} nanoseconds, not microseconds"),
    ):
        for line, seconds in zip(rows.index[which].tolist(), measured[which].tolist(), strict=True):
            yield Problem(checked.file, (line,), "time_us", f"{seconds * 1e6:.6g}", rule)


def find_unsupported(checked: Measurements, gpu: Gpu) -> Iterator[Problem]:
    """Rows of data types that the GPU's matrix units lack; one problem per type."""
    known = [dtype for dtype in DTYPE_BYTES if gpu.supports(dtype)]
    rule = f"{gpu.name} does not multiply matrices of this type; it has {', '.join(known)}"
    return checked.by_value(~checked.rows["dtype"].isin(known), "dtype", rule)
