"""Measured operators of one GPU: GEMMs, PyTorch's kernels, operators alone, convolutions and recurrent layers.

All are predicted by `weft.estimate`, which is also `weft predict gemm` and `weft predict operator`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.options import SHORT, RunOptions
from weft.estimate import GEMM_PARAMETERS, BenchmarkProtocol, Parameter, estimate
from weft.estimate.target import seen_by_host
from weft.graph import Gemm, Op, Streaming, operator
from weft.graph.convolution import Convolution
from weft.graph.recurrent import GATES, Recurrent
from weft.hardware import Gpu
from weft.kernels.library.tiles import FITTED, recurrent_bounds, recurrent_values
from weft.lab.checks import gemm_floor
from weft.lab.kinds import Columns, Query, RowKind, RowMachine
from weft.lab.problems import Problem
from weft.lab.rigs import gemm_harness, gemm_options
from weft.lab.seen import NO, YES, seen_gemms
from weft.lab.tables import FloatArray, Measurements, seconds_of

LONG = ">= 20 us"
BRIEF = "< 20 us"
_LONG_SECONDS = 20e-6


def least_time(products: Any, dtype: str, gpu: Gpu, saving: float = 1.0) -> FloatArray:
    """Return the time of products at the highest clock [s], divided by what an algorithm may save of them."""
    rate = max(gpu.matrix_rate(dtype, clock) for clock in ("peak", "boost"))
    return np.asarray(products / rate / saving, dtype=np.float64)


def _gemm(
    rows: Columns, machine: RowMachine, dtype: str, harness: BenchmarkProtocol, options: RunOptions
) -> FloatArray:
    m, n, k = (_sizes(rows, name) for name in "mnk")
    return estimate(Gemm(m, n, k, dtype), machine.gpu, options, harness).seconds


def _sizes(rows: Columns, name: str) -> Any:
    """A column as a dimension of operators, which may be an array."""
    return rows[name]


GEMMS = RowKind(
    kind="gemm",
    by=("dtype", "notes", "source"),
    query=lambda dtype, notes, source: (dtype, gemm_harness(notes, source), gemm_options(source)),
    call=_gemm,
    floor=lambda rows, gpu, dtype, *_: gemm_floor(rows["m"], rows["n"], rows["k"], dtype, gpu),
    labels=lambda rows, machine, _: {"dtype": rows["dtype"], "seen": seen_gemms(machine.gpu, rows["dtype"])},
    ranges=lambda rows: {LONG: seconds_of(rows) >= _LONG_SECONDS, BRIEF: seconds_of(rows) < _LONG_SECONDS},
    multiplies=True,
    fits="gpu",
    parameters=lambda machine: GEMM_PARAMETERS,
)
"""GEMMs of one GPU, fitted by the parameters of its closed form."""

_BY_ROWS = ("layernorm", "softmax")
_PRODUCTS = ("linear", "bmm")
_INPUTS = {
    **dict.fromkeys(("gelu", "relu", "tanh", "addu", "mulu", "divu", "powu"), 1),
    **dict.fromkeys(("add", "mul", "div", "pow"), 2),
}
"""Tensors that element-wise operators read; the ending u marks those with a scalar."""
KERNELS_COMPARED = (*_PRODUCTS, *_BY_ROWS, *_INPUTS)
"""PyTorch's operators that have a kernel here."""
_LAUNCHED = tuple(one for one in GEMM_PARAMETERS if one.path == "achieved.gemm_host")
"""What may be fitted: from one kernel to the next, issued and awaited by the host, as all rows are timed."""


def kernel_operator(rows: Columns, op: str, dtype: str) -> Op:
    """Return the operator of PyTorch's kernels of a name, with an array for each dimension."""
    tokens, columns = _sizes(rows, "m"), _sizes(rows, "n")
    if op in _PRODUCTS:
        batch: Any = np.nan_to_num(rows["batch"], nan=1.0)
        return Gemm(tokens, columns, _sizes(rows, "k"), dtype, batch)
    if op in _BY_ROWS:
        return Streaming(op, tokens, columns, dtype)
    if op == "gelu":
        return Streaming("gelu", tokens * columns, 1, dtype)
    return Streaming("elementwise", tokens * columns, 1, dtype, inputs=_INPUTS[op])


def _kernel(rows: Columns, machine: RowMachine, op: str, dtype: str) -> FloatArray:
    """PyTorch's call, from the host's start to the end that it waits for."""
    found = estimate(kernel_operator(rows, op, dtype), machine.gpu, SHORT, BenchmarkProtocol(timed="host"))
    return seen_by_host(op, found.seconds - found.parts["launch"], found.parts["launch"])


def _kernel_floor(rows: Columns, gpu: Gpu, op: str, dtype: str) -> FloatArray:
    """The bytes that no cache holds, at the memory's peak."""
    moved = np.asarray(kernel_operator(rows, op, dtype).least_bytes, dtype=np.float64)
    return np.maximum(moved - gpu.cache.capacity, 0.0) / gpu.memory.bandwidth


def _without_model(checked: Measurements) -> Sequence[Iterable[Problem]]:
    rows = checked.rows
    blank = rows["op"].isin(_PRODUCTS) & (rows["m"] * rows["n"] * rows["k"]).isna()
    unknown = ~rows["op"].isin(KERNELS_COMPARED)
    return (
        checked.by_value(unknown, "op", "kernels of this operator are not compared here"),
        checked.by_value(blank, "op", "a product needs its m, n and k"),
    )


KERNELS = RowKind(
    kind="kernel",
    by=("op", "dtype"),
    query=lambda op, dtype: (op, dtype),
    call=_kernel,
    floor=_kernel_floor,
    labels=lambda rows, machine, _: {"dtype": rows["dtype"], "op": rows["op"], "seen": NO},
    checks=_without_model,
    fits="gpu",
    parameters=lambda machine: _LAUNCHED,
)
"""Kernels on one GPU, timed from the host, whose time for a launch may be fitted."""


def _operator(shapes: Sequence[str], name: str, dtype: str, dimensions: Sequence[str]) -> Op:
    """The operator of `weft measure`, with an array for each dimension in which rows differ."""
    sizes = [dict(part.split("=") for part in text.split(";")) for text in shapes]
    columns = {of: np.array([int(each[of]) for each in sizes]) for of in dimensions}
    alike = {of: int(column[0]) if (column == column[0]).all() else column for of, column in columns.items()}
    return operator(name, dtype, **alike)


def _operator_floor(rows: Columns, gpu: Gpu, *query: Any) -> FloatArray:
    """The bytes that no cache holds, at the memory's peak."""
    moved = np.asarray(_operator(rows["shape"].tolist(), *query).least_bytes, dtype=np.float64)
    return np.maximum(moved - gpu.cache.capacity - gpu.memory_cache.capacity, 0.0) / gpu.memory.bandwidth


def _operator_query(name: str, dtype: str, shape: str) -> Query:
    return name, dtype, tuple(part.partition("=")[0] for part in shape.split(";"))


_SHAPE = r"[a-z_]+=\d{1,15}(;[a-z_]+=\d{1,15})*"
"""Dimensions of an operator, such as "rows=4096;columns=512"."""


def _without_shape(checked: Measurements) -> Sequence[Iterable[Problem]]:
    wrong = ~checked.rows["shape"].str.fullmatch(_SHAPE)
    return (checked.by_value(wrong, "shape", "this gives no dimensions; write them like rows=4096;columns=512"),)


OPERATORS_ALONE = RowKind(
    kind="operator",
    by=("operator", "dtype", "shape"),
    query=_operator_query,
    call=lambda rows, machine, *query: estimate(_operator(rows["shape"].tolist(), *query), machine.gpu, SHORT).seconds,
    floor=_operator_floor,
    labels=lambda rows, machine, _: {"dtype": rows["dtype"], "operator": rows["operator"], "seen": NO},
    checks=_without_shape,
    blamed="operator",
)
"""Operators on one GPU, repeated without the host, as `weft measure` times them."""

ALGORITHMS: Mapping[str, str] = {
    "GEMM": "gemm",
    "IMPLICIT_GEMM": "gemm",
    "IMPLICIT_PRECOMP_GEMM": "gemm",
    "WINOGRAD": "winograd",
    "WINOGRAD_NONFUSED": "winograd_nonfused",
    "FFT": "fft",
    "FFT_TILING": "fft",
    "ConvolutionFwdAlgoDirect": "gemm",
    "ConvolutionFwdAlgoGEMM": "gemm",
    "ConvolutionFwdAlgoWinograd": "winograd",
    "ConvolutionFwdAlgoFFT": "fft",
}
"""What the libraries call their algorithms; a backward pass, whose own is not stated, counts as the forward pass's."""
_DIMENSIONS = {
    "batch": "batch",
    "channels": "in_channels",
    "filters": "out_channels",
    "height": "height",
    "width": "width",
    "window": "filter_height",
    "window_width": "filter_width",
    "stride": "stride_height",
    "stride_width": "stride_width",
    "padding": "pad_height",
    "padding_width": "pad_width",
}
_SAVING = {"gemm": 1.0, "fft": np.inf}
"""Largest factor by which an algorithm saves products; else that of F(4 x 4, 3 x 3)."""
_WINOGRAD_SAVING = 4.0


def _convolution(rows: Columns, dtype: str, algorithm: Any, computes: Any) -> Convolution:
    sizes = {name: _sizes(rows, column) for name, column in _DIMENSIONS.items()}
    return Convolution(**sizes, dtype=dtype, algorithm=algorithm, computes=computes)


def _predict_convolutions(rows: Columns, machine: RowMachine, harness: BenchmarkProtocol, *query: Any) -> FloatArray:
    return estimate(_convolution(rows, *query), machine.gpu, SHORT, harness).seconds


def _convolution_floor(
    rows: Columns, gpu: Gpu, _: BenchmarkProtocol, dtype: str, algorithm: str, computes: str
) -> FloatArray:
    """The products that the algorithm leaves; that of a backward pass is not stated."""
    saving = _SAVING.get(algorithm, _WINOGRAD_SAVING) if computes == "forward" else np.inf
    return least_time(_convolution(rows, dtype, algorithm, computes).flops, dtype, gpu, saving)


def _convolution_query(
    dtype: str, named: str, computes: str, source: str, height: float, width: float, down: float, right: float
) -> Query:
    """The query of a row; MIOpen's Winograd of other windows and strides counts as a direct product."""
    algorithm, plain = ALGORITHMS[named], (height, width, down, right) == (3, 3, 1, 1)
    harness = BenchmarkProtocol(timed="host" if "NeuSight" in source else "device", rotation=1.0)
    return harness, dtype, algorithm if algorithm != "winograd" or plain else "gemm", computes


_WINDOW = ("filter_height", "filter_width", "stride_height", "stride_width")
CONVOLUTIONS = RowKind(
    kind="conv",
    by=("dtype", "forward_algorithm", "pass", "source", *_WINDOW),
    query=_convolution_query,
    call=_predict_convolutions,
    floor=_convolution_floor,
    labels=lambda rows, machine, queries: {
        "dtype": rows["dtype"],
        "algorithm": [algorithm for _, _, algorithm, _ in queries],
        "pass": rows["pass"],
        "seen": NO,
    },
    checks=lambda checked: [
        checked.by_value(
            ~checked.rows["forward_algorithm"].isin([*ALGORITHMS]),
            "forward_algorithm",
            f"Weft knows no such algorithm; it knows {', '.join(ALGORITHMS)}",
        )
    ],
    multiplies=True,
    passes=True,
)
"""Convolutions on one GPU; nothing of their closed form is fitted to a machine."""

_ABOUT = {"gap": "from one kernel of a step to the next beyond its work", "pace": "a step's time for each hidden cell"}


def _recurrent(rows: Columns, cell: Any, dtype: str, computes: Any) -> Recurrent:
    hidden, batch, steps = (_sizes(rows, name) for name in ("hidden", "batch", "timesteps"))
    return Recurrent(cell, hidden=hidden, batch=batch, steps=steps, dtype=dtype, computes=computes)


def _recurrent_parameters(machine: RowMachine) -> tuple[Parameter, ...]:
    bounds = recurrent_bounds(machine.gpu.architecture)
    return tuple(Parameter(path, *bounds[path], "s", 10, _ABOUT[path.split(".")[1]]) for path in FITTED)


RECURRENT = RowKind(
    kind="rnn",
    by=("cell", "dtype", "pass"),
    query=lambda cell, dtype, computes: (cell, dtype, computes),
    call=lambda rows, machine, *query: (
        estimate(_recurrent(rows, *query), machine.gpu, SHORT, machine.harness()).seconds
    ),
    floor=lambda rows, gpu, *query: least_time(_recurrent(rows, *query).flops, query[1], gpu),
    labels=lambda rows, machine, _: {**{name: rows[name] for name in ("dtype", "cell", "pass")}, "seen": YES},
    checks=lambda checked: [
        checked.by_value(
            ~checked.rows["cell"].isin([*GATES]), "cell", f"Weft knows no such cell; it knows {', '.join(GATES)}"
        )
    ],
    multiplies=True,
    passes=True,
    parameters=_recurrent_parameters,
    start=lambda machine, path: recurrent_values(machine.gpu.architecture)[path],
)
"""Recurrent layers on one GPU, fitted by the library's time from one kernel of a step to the next."""
