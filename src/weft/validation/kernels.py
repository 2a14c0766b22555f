"""Measured kernels of PyTorch: normalisation, softmax, element-wise operators and products, by operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from weft.estimate import GEMM_PARAMETERS, Harness, estimate
from weft.estimate.target import seen_by_host
from weft.graph import Gemm, Op, Streaming
from weft.hardware import Gpu
from weft.options import SHORT
from weft.validation.closed_forms import ClosedForm, Columns
from weft.validation.problems import Problem
from weft.validation.seen import NO
from weft.validation.tables import FloatArray, Measurements

_BY_ROWS = ("layernorm", "softmax")
_PRODUCTS = ("linear", "bmm")
_INPUTS = {
    **dict.fromkeys(("gelu", "relu", "tanh", "addu", "mulu", "divu", "powu"), 1),
    **dict.fromkeys(("add", "mul", "div", "pow"), 2),
}
"""Tensors that element-wise operators read; the ending u marks those with a scalar."""
OPERATORS = (*_PRODUCTS, *_BY_ROWS, *_INPUTS)
"""Operators that have a kernel here."""
PARAMETERS = tuple(one for one in GEMM_PARAMETERS if one.path == "achieved.gemm_host")
"""What may be fitted: from one kernel to the next, issued and awaited by the host, as all rows are timed."""


@dataclass(frozen=True)
class KernelCase:
    """Rows of one operator and data type."""

    op: str
    dtype: str

    def made(self, rows: Columns) -> Op:
        """The operator, with an array for each dimension."""
        tokens: Any = rows["m"]
        columns: Any = rows["n"]
        if self.op in _PRODUCTS:
            depth: Any = rows["k"]
            batch: Any = np.nan_to_num(rows["batch"], nan=1.0)
            return Gemm(tokens, columns, depth, self.dtype, batch)
        if self.op in _BY_ROWS:
            return Streaming(self.op, tokens, columns, self.dtype)
        if self.op == "gelu":
            return Streaming("gelu", tokens * columns, 1, self.dtype)
        return Streaming("elementwise", tokens * columns, 1, self.dtype, inputs=_INPUTS[self.op])

    def seconds(self, rows: Columns, target: Gpu) -> FloatArray:
        """Times on a GPU [s]."""
        found = estimate(self.made(rows), target, SHORT, Harness(timed="host"))
        return seen_by_host(self.op, found.seconds - found.parts["launch"], found.parts["launch"])

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: the bytes that no cache holds, at the memory's peak."""
        moved = np.asarray(self.made(rows).least_bytes, dtype=np.float64)
        return np.maximum(moved - gpu.cache.capacity, 0.0) / gpu.memory.bandwidth


def kernel_cases(rows: pd.DataFrame) -> Iterator[KernelCase]:
    """The operator and data type of each row."""
    return map(KernelCase, rows["op"], rows["dtype"])


def _without_model(checked: Measurements) -> Sequence[Iterator[Problem]]:
    rows = checked.rows
    blank = rows["op"].isin(_PRODUCTS) & (rows["m"] * rows["n"] * rows["k"]).isna()
    return (
        checked.by_value(~rows["op"].isin(OPERATORS), "op", "kernels of this operator are not compared here"),
        checked.by_value(blank, "op", "a product needs its m, n and k"),
    )


KERNELS = ClosedForm(
    kind="kernel",
    cases=kernel_cases,
    labels=lambda rows, gpu, target: {"dtype": rows["dtype"], "op": rows["op"], "seen": NO},
    checks=_without_model,
    parameters=lambda target: PARAMETERS,
)
"""Kernels on one GPU, timed from the host, whose time for a launch may be fitted."""
