"""Measured kernels of PyTorch: normalisation, softmax, element-wise operators and products, by operator; and the
operators that `weft measure` times, by their names here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from weft.core.options import SHORT
from weft.estimate import GEMM_PARAMETERS, Harness, estimate
from weft.estimate.target import seen_by_host
from weft.graph import Gemm, Op, Streaming, operator
from weft.hardware import Gpu
from weft.lab.closed_forms import ClosedForm, Columns
from weft.lab.problems import Problem
from weft.lab.seen import NO
from weft.lab.tables import FloatArray, Measurements

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


@dataclass(frozen=True)
class OperatorCase:
    """Rows of one declared operator and data type that state the same dimensions."""

    name: str
    dtype: str
    dimensions: tuple[str, ...]

    def made(self, rows: Columns) -> Op:
        """The operator, with an array for each dimension that may be one."""
        sizes = [_sizes(text) for text in rows["shape"]]
        columns = {name: np.array([each[name] for each in sizes]) for name in self.dimensions}
        alike = {name: int(column[0]) if (column == column[0]).all() else column for name, column in columns.items()}
        return operator(self.name, self.dtype, **alike)

    def seconds(self, rows: Columns, target: Gpu) -> FloatArray:
        """Times on a GPU [s], among repetitions of the same operator."""
        return np.broadcast_to(estimate(self.made(rows), target, SHORT).seconds, len(rows["shape"]))

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times [s]: the bytes that no cache holds, at the memory's peak."""
        moved = np.asarray(self.made(rows).least_bytes, dtype=np.float64)
        floor = np.maximum(moved - gpu.cache.capacity - gpu.memory_cache.capacity, 0.0) / gpu.memory.bandwidth
        return np.broadcast_to(floor, len(rows["shape"]))


_SHAPE = r"[a-z_]+=\d{1,15}(;[a-z_]+=\d{1,15})*"
"""Dimensions of an operator, such as "rows=4096;columns=512"."""


def _sizes(text: str) -> Mapping[str, int]:
    return {name: int(size) for name, _, size in (part.partition("=") for part in text.split(";"))}


def _without_shape(checked: Measurements) -> Sequence[Iterator[Problem]]:
    wrong = ~checked.rows["shape"].str.fullmatch(_SHAPE)
    return (checked.by_value(wrong, "shape", "this gives no dimensions; write them like rows=4096;columns=512"),)


def operator_cases(rows: pd.DataFrame) -> Iterator[OperatorCase]:
    """The operator, data type and dimensions of each row."""
    for name, dtype, text in zip(rows["operator"], rows["dtype"], rows["shape"], strict=True):
        yield OperatorCase(name, dtype, tuple(part.partition("=")[0] for part in text.split(";")))


OPERATORS_ALONE = ClosedForm(
    kind="operator",
    cases=operator_cases,
    labels=lambda rows, gpu, target: {"dtype": rows["dtype"], "operator": rows["operator"], "seen": NO},
    checks=_without_shape,
    blamed="operator",
)
"""Operators on one GPU, repeated without the host, as `weft measure` times them."""
