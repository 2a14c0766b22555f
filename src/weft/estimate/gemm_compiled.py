"""The loop over shapes of `gemm_kernel` as machine code: same source, same results, over a million shapes a second."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from weft.estimate import gemm_kernel

_INNER = (
    "_tile",
    "_costs",
    "_held",
    "costs",
    "crowding",
    "traffic",
    "fitted_columns",
    "fitted",
    "memory_bytes",
    "split_cost",
    "feed",
    "step_time",
    "units_time",
    "attempt",
    "wasteful",
    "most_parts",
    "least_time",
    "quick_time",
    "under",
    "_under",
    "best",
)


def _compiled() -> Callable[..., None]:
    """`gemm_kernel.run` with every function that it calls compiled, and the whole kept on disk."""
    names: dict[str, Any] = {
        **vars(gemm_kernel),
        "ceil": np.ceil,
        "floor": np.floor,
    }  # no integers in between
    for name in (*_INNER, "run"):
        copy = types.FunctionType(names[name].__code__, names, name)
        names[name] = numba.njit(error_model="numpy", cache=name == "run")(copy)
    run: Callable[..., None] = names["run"]
    return run


run = _compiled()
