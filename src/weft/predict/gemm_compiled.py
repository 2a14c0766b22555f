"""The loop over shapes of `gemm_kernel` as machine code: same source, same results, a million shapes a second."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numba

from weft.predict import gemm_kernel

_INNER = (
    "_held",
    "crowding",
    "fitted_columns",
    "memory_bytes",
    "split_cost",
    "attempt",
    "wasteful",
    "under",
    "best",
)


def _compiled() -> Callable[..., None]:
    """`gemm_kernel.run` with every function that it calls compiled, and the whole kept on disk."""
    names: dict[str, Any] = dict(vars(gemm_kernel))
    for name in (*_INNER, "run"):
        copy = types.FunctionType(names[name].__code__, names, name)
        names[name] = numba.njit(error_model="numpy", cache=name == "run")(copy)
    run: Callable[..., None] = names["run"]
    return run


run = _compiled()
