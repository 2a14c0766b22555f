"""Models of the memory-bound operators: the bytes that each moves, in how many sweeps, and what it computes on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from weft.predict.attention import batched_attention
from weft.predict.gemm import Clock
from weft.predict.kernel import Amount, Kernel, Sweep, in_sequence, kernel_time
from weft.predict.prediction import FloatArray, Prediction
from weft.workload import DTYPE_BYTES

if TYPE_CHECKING:
    from weft.hardware import Gpu

Shape = Mapping[str, FloatArray]
"""Dimensions by name, arrays of one shape."""
Model = Callable[[Shape, "Gpu", str, Clock], Prediction]
"""The time of an operator of a shape on a GPU, in a dtype, in a state of the clock."""

THREADS = 256
"""Threads of a workgroup of element-wise kernels [assumed; PyTorch takes 128 to 512]."""
ROW_THREADS = 128
"""Threads that normalise one row, as in PyTorch's LayerNorm kernel."""
ROW_IN_REGISTERS = 1024
"""Longest row [elements] whose softmax PyTorch keeps in registers: longer ones are read once per sweep."""

# Vector operations per element, each a clock of a lane; what the fp32 mathematics of CUDA and HIP compile to.
EXP, DIVIDE, ERF, RANDOM = 6, 6, 12, 20
"""Operations of an exponential, a division (each with one special function), an error function, and a random number
(Philox, a counter-based generator: ten rounds for four numbers)."""


def _streaming(
    elements: FloatArray,
    reads: FloatArray,
    writes: FloatArray,
    operations: float | FloatArray,
    specials: float,
    size: int,
) -> Kernel:
    """A kernel that reads and writes so many bytes, with so many operations for each of its elements."""
    sweep = Sweep(reads, writes, operations=operations * elements, specials=specials * elements)
    per_workgroup = THREADS * max(16 // size, 1)
    return Kernel((sweep,), np.ceil(elements / per_workgroup), np.float64(THREADS))


def simple(
    inputs: int, outputs: int, operations: float, specials: float = 0.0, extra_bytes: float = 0.0
) -> Model:
    """An element-wise operator that reads `inputs` and writes `outputs` tensors of its elements.

    `extra_bytes` are written per element beside them.
    """

    def model(shape: Shape, gpu: Gpu, dtype: str, clock: Clock) -> Prediction:
        size, elements = DTYPE_BYTES[dtype], shape["elements"]
        reads, writes = inputs * size * elements, (outputs * size + extra_bytes) * elements
        return kernel_time(_streaming(elements, reads, writes, operations, specials, size), gpu)

    return model


def elementwise(shape: Shape, gpu: Gpu, dtype: str, clock: Clock) -> Prediction:
    """Any number of inputs and outputs, an operation for each of their elements."""
    size, elements = DTYPE_BYTES[dtype], shape["elements"]
    inputs, outputs = shape["inputs"], shape["outputs"]
    kernel = _streaming(
        elements, inputs * size * elements, outputs * size * elements, inputs + outputs, 0.0, size
    )
    return kernel_time(kernel, gpu)


def softmax_time(rows: Amount, columns: Amount, gpu: Gpu, dtype: str) -> Prediction:
    """Softmax of `rows` rows of `columns` elements: the largest, the sum of exponentials, then the quotients.

    As PyTorch does it: fp32 inside, short rows held in registers by a wavefront each, longer ones read again in every
    sweep by a workgroup each.
    """
    elements = rows * columns
    size = elements * DTYPE_BYTES[dtype]
    short = columns <= ROW_IN_REGISTERS
    again = np.where(short, 0.0, size)
    threads = np.where(short, gpu.compute.wavefront_size, np.clip(columns / 16, ROW_THREADS, 1024))
    sweeps = (
        Sweep(reads=size, operations=elements),
        Sweep(rereads=again, operations=(EXP + 2) * elements, specials=elements),
        Sweep(writes=size, rereads=again, operations=(EXP + DIVIDE + 1) * elements, specials=2 * elements),
    )
    return kernel_time(Kernel(sweeps, rows, threads, footprint=2 * size / rows), gpu)


def softmax(shape: Shape, gpu: Gpu, dtype: str, clock: Clock) -> Prediction:
    """`softmax_time` of a shape."""
    return softmax_time(shape["rows"], shape["columns"], gpu, dtype)


def normalised(moments: float, scaled: float, parameters: int) -> Model:
    """Normalisation of rows: a sweep for the moments, one that reads the rows again, scales and writes them."""

    def model(shape: Shape, gpu: Gpu, dtype: str, clock: Clock) -> Prediction:
        elements, width = shape["rows"] * shape["columns"], DTYPE_BYTES[dtype]
        size = elements * width
        weights = parameters * shape["columns"] * width
        sweeps = (
            Sweep(reads=size, operations=moments * elements),
            Sweep(reads=weights, writes=size, rereads=size, operations=scaled * elements),
        )
        kernel = Kernel(sweeps, shape["rows"], np.float64(ROW_THREADS), footprint=2 * size / shape["rows"])
        return kernel_time(kernel, gpu)

    return model


# An optimizer keeps master weights and two moments in fp32, and gradients and working weights in the dtype.
STATE_BYTES = 12


def adam(shape: Shape, gpu: Gpu, dtype: str, clock: Clock) -> Prediction:
    """One kernel: gradient, weight and moments read; weight, moments and a working copy of the weight written."""
    size, count = DTYPE_BYTES[dtype], shape["parameters"]
    copy = 0 if dtype == "fp32" else size
    kernel = _streaming(
        count, (STATE_BYTES + size) * count, (STATE_BYTES + copy) * count, 12 + DIVIDE, 2.0, 4
    )
    return kernel_time(kernel, gpu)


def lamb(shape: Shape, gpu: Gpu, dtype: str, clock: Clock) -> Prediction:
    """Two kernels: moments, update and the norms of weights and update; then the step by the ratio of the norms."""
    size, count = DTYPE_BYTES[dtype], shape["parameters"]
    copy = 0 if dtype == "fp32" else size
    update = _streaming(count, (STATE_BYTES + size) * count, STATE_BYTES * count, 16 + DIVIDE, 2.0, 4)
    step = _streaming(count, 8 * count, (4 + copy) * count, 2.0, 0.0, 4)
    return in_sequence((kernel_time(update, gpu), kernel_time(step, gpu)))


def embedding(shape: Shape, gpu: Gpu, dtype: str, clock: Clock) -> Prediction:
    """Rows of a table gathered by token: 8 bytes of index and a row read, a row written."""
    size = DTYPE_BYTES[dtype]
    rows = shape["tokens"] * shape["hidden"] * size
    elements = shape["tokens"] * shape["hidden"]
    return kernel_time(_streaming(elements, rows + 8 * shape["tokens"], rows, 1.0, 0.0, size), gpu)


def batched(shape: Shape, gpu: Gpu, dtype: str, clock: Clock) -> Prediction:
    """The three kernels of attention, each after the other."""
    return in_sequence(batched_attention(shape, gpu, dtype, clock, softmax_time))
