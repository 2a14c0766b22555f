"""Operators that mainly move data: the bytes that each moves, in how many sweeps, and what it computes on them."""

from __future__ import annotations

import numpy as np

from weft.errors import InputError
from weft.estimate.answer import Estimate, FloatArray, floats, in_sequence
from weft.estimate.kernel import Kernel, Sweep, kernel_time
from weft.estimate.target import Target
from weft.graph import DTYPE_BYTES, Op, Streaming
from weft.graph.streaming import DIVIDE, EXP
from weft.hardware import DTYPES, Gpu
from weft.kernels.gemm import main_loop_flops

THREADS = 256
"""Threads of a workgroup of element-wise kernels [assumed; PyTorch takes 128 to 512]."""
ROW_THREADS = 128
"""Threads that normalise one row, as in PyTorch's LayerNorm kernel."""
ROW_IN_REGISTERS = 1024
"""Longest row [elements] whose softmax PyTorch keeps in registers: longer ones are read once per sweep."""
STATE_BYTES = 12
"""What an optimizer keeps of a parameter: master weight and two moments in fp32."""


def streaming(op: Streaming, on: Target) -> Estimate:
    """The time of a streaming operator: its kernels one after the other.

    Operands that fit into the last-level cache are taken to be there. Raises InputError for fp8 on a GPU without it.
    """
    if op.dtype == "fp8" and not on.gpu.supports(op.dtype):
        known = ", ".join(one for one in DTYPES if on.gpu.supports(one))
        raise InputError(f"{on.gpu.name} does not compute in fp8; choose one of {known}")
    found = [kernel_time(kernel, on.gpu) for kernel in _kernels(op, on.gpu)]
    return found[0] if len(found) == 1 else in_sequence(found)


def opaque(op: Op, on: Target) -> Estimate:
    """The time of an operator of which only FLOPs and tensors are known: one sweep by workgroups that fill the GPU.

    Vector units do a multiply-add, two FLOPs, per lane and clock; matrix units reach what they do in a GEMM.
    """
    compute, gpu = on.gpu.compute, on.gpu
    rate = 2 * gpu.vector_lanes * compute.clock
    if op.matrix_dtype is not None:
        rate = main_loop_flops(op.matrix_dtype, gpu, on.options)
    cycles = floats(op.flops) / rate * compute.clock * gpu.vector_lanes
    sweep = Sweep(_bytes(op.reads), _bytes(op.writes), operations=cycles)
    resident = max(compute.threads_per_cu // THREADS, 1) * compute.compute_units
    return kernel_time(Kernel((sweep,), floats(resident), floats(THREADS)), gpu)


def _bytes(tensors: tuple[object, ...]) -> FloatArray:
    return floats(sum(tensor.bytes for tensor in tensors))  # type: ignore[attr-defined]


def _kernels(op: Streaming, gpu: Gpu) -> tuple[Kernel, ...]:
    if op.name == "softmax":
        return (_softmax(op, gpu),)
    if op.name == "layernorm":
        return (_normalised(op, 8, 4, 2),)
    if op.name == "rmsnorm":
        return (_normalised(op, 2, 3, 1),)
    elements, size, specials = floats(op.elements), DTYPE_BYTES[op.dtype], op.about.specials
    if op.name not in ("adam", "lamb"):
        reads, writes = _bytes(op.reads), _bytes(op.writes)
        return (_elementwise(elements, reads, writes, op.operations, specials, size),)
    # Beside the state, a working copy of the weights is written in the dtype.
    copy = 0 if op.dtype == "fp32" else size
    reads, writes = (STATE_BYTES + size) * elements, STATE_BYTES * elements
    if op.name == "adam":
        return (_elementwise(elements, reads, writes + copy * elements, op.operations, specials, 4),)
    # Moments, update and the norms of weights and update; then the step by the ratio of the norms.
    return (
        _elementwise(elements, reads, writes, op.operations - 2, specials, 4),
        _elementwise(elements, 8 * elements, (4 + copy) * elements, 2.0, 0.0, 4),
    )


def _elementwise(
    elements: FloatArray, reads: FloatArray, writes: FloatArray, operations: float, specials: float, size: int
) -> Kernel:
    """A kernel that reads and writes `reads` and `writes` bytes, with `operations` on each element."""
    sweep = Sweep(reads, writes, operations=operations * elements, specials=specials * elements)
    per_workgroup = THREADS * max(16 // size, 1)
    return Kernel((sweep,), np.ceil(elements / per_workgroup), floats(THREADS))


def _softmax(op: Streaming, gpu: Gpu) -> Kernel:
    """Rows of elements: the largest, the sum of exponentials, then the quotients.

    As PyTorch does it: fp32 inside, short rows held in registers by a wavefront each, longer ones read again in every
    sweep by a workgroup each.
    """
    rows, columns = floats(op.rows), floats(op.columns)
    elements = rows * columns
    size = elements * DTYPE_BYTES[op.dtype]
    short = columns <= ROW_IN_REGISTERS
    again = np.where(short, 0.0, size)
    threads = np.where(short, gpu.compute.wavefront_size, np.clip(columns / 16, ROW_THREADS, 1024))
    sweeps = (
        Sweep(reads=size, operations=elements),
        Sweep(rereads=again, operations=(EXP + 2) * elements, specials=elements),
        Sweep(writes=size, rereads=again, operations=(EXP + DIVIDE + 1) * elements, specials=2 * elements),
    )
    return Kernel(sweeps, rows, threads, footprint=2 * size / rows)


def _normalised(op: Streaming, moments: float, scaled: float, parameters: int) -> Kernel:
    """Normalisation of rows: a sweep for the moments, one that reads the rows again, scales and writes them."""
    rows, columns, width = floats(op.rows), floats(op.columns), DTYPE_BYTES[op.dtype]
    elements = rows * columns
    size, weights = elements * width, parameters * columns * width
    sweeps = (
        Sweep(reads=size, operations=moments * elements),
        Sweep(reads=weights, writes=size, rereads=size, operations=scaled * elements),
    )
    return Kernel(sweeps, rows, floats(ROW_THREADS), footprint=2 * size / rows)
