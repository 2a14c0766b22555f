"""Linear programs of whole and real unknowns, written row by row and solved by SciPy's HiGHS."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError

FloatArray = npt.NDArray[np.float64]
Columns = npt.NDArray[np.int_]


@contextmanager
def unprinted() -> Iterator[None]:
    """Drop what C code prints meanwhile: HiGHS prints a line for solutions of sub-problems, whatever the options.

    Where standard output is closed, nothing is done.
    """
    try:
        sys.stdout.flush()
        kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    except (OSError, ValueError):
        yield
        return
    buffers = ctypes.CDLL(None).fflush if os.name == "posix" else lambda _: None
    buffers(None)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        buffers(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


class LinearProgram:
    """The unknowns of least cost under linear constraints; an unknown is known by its column."""

    def __init__(self) -> None:
        self._costs, self._high, self._whole = np.empty(0), np.empty(0), np.empty(0, dtype=int)
        self._low = np.empty(0)
        self._rows: list[tuple[Mapping[int, float], float, float]] = []

    def unknowns(self, costs: npt.ArrayLike, high: float = 1.0, *, whole: bool = True) -> Columns:
        """Return the columns of new unknowns from 0 to `high`, with the shape of their `costs`."""
        added = np.asarray(costs, dtype=np.float64)
        begin = len(self._costs)
        self._costs = np.append(self._costs, added.ravel())
        self._low = np.append(self._low, np.zeros(added.size))
        self._high = np.append(self._high, np.full(added.size, high))
        self._whole = np.append(self._whole, np.full(added.size, int(whole)))
        return begin + np.arange(added.size).reshape(added.shape)

    def fix(self, columns: Columns, value: float) -> None:
        """Give unknowns a value."""
        self._low[columns] = self._high[columns] = value

    def row(self, values: Mapping[int, float], low: float = -math.inf, high: float = math.inf) -> None:
        """Constrain the sum of unknowns times `values`, by column, to the range from `low` to `high`."""
        self._rows.append((values, low, high))

    def solve(self, seconds: float = math.inf) -> FloatArray | None:
        """Return the values of all unknowns; None if no values keep the constraints.

        Raises InputError if HiGHS has no proven optimum after `seconds` [s].
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        rows = np.repeat(np.arange(len(self._rows)), [len(values) for values, _, _ in self._rows])
        columns = [column for values, _, _ in self._rows for column in values]
        entries = [value for values, _, _ in self._rows for value in values.values()]
        matrix = coo_array((entries, (rows, columns)), shape=(len(self._rows), len(self._costs))).tocsr()
        limits = [low for _, low, _ in self._rows], [high for _, _, high in self._rows]
        with unprinted():
            found = milp(
                self._costs,
                integrality=self._whole,
                bounds=Bounds(self._low, self._high),
                constraints=LinearConstraint(matrix, *limits),
                options={"mip_rel_gap": 0.0, **({} if math.isinf(seconds) else {"time_limit": seconds})},
            )
        if found.status == 1:
            raise InputError(
                f"the program of {len(self._costs)} unknowns has no proven optimum after {seconds:g} s; give more "
                "seconds, or a smaller problem"
            )
        return None if found.x is None else np.asarray(found.x)
