"""Operators that mainly move data: bytes moved, number of sweeps, and operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.core.errors import InputError
from weft.estimate.answer import Estimate, FloatArray, floats, from_parts, in_sequence
from weft.estimate.kernel import REDUCTION_CLOCKS, CacheShare, DataSweep, SweepKernel, kernel_time
from weft.estimate.target import Target
from weft.graph import Ctc, Gemv, Op, Opaque, Pooling, Streaming
from weft.graph.op import BLOCK_BYTES, width
from weft.graph.streaming import DIVIDE, EXP, OWN, SELECT
from weft.hardware import DTYPES, Gpu
from weft.kernels.gemm import main_loop_flops
from weft.kernels.library.served import library, table_of, values_of

THREADS = 256
"""Threads of a workgroup of element-wise kernels [assumed; PyTorch uses 128 to 512]."""
_NARROW = ("fp8", *BLOCK_BYTES)
GEMV_ROWS = 8
"""Rows of a matrix that a workgroup multiplies with a vector, one for each 32 threads [assumed; 4 to 16]."""
_ROW_THREADS = 128
"""Threads that normalise one row, as in PyTorch's LayerNorm kernel."""
_ROW_IN_REGISTERS = 1024
"""Longest row whose softmax PyTorch keeps in registers [elements]: longer ones are read in every sweep."""
_SORT_KERNELS = 8
"""Kernels of a sort of indices: a histogram, three passes of a radix sort, and the search for equal ones [assumed; 5 to
12]."""
_SORTED_BYTES = 16
"""An index and its place, as a pass of a sort moves them [bytes]."""
_STATE_BYTES = 12
"""Optimizer state per parameter [bytes]: master weight and two moments in fp32."""


class StreamingStep(NamedTuple):
    """A kernel of an element-wise operator: dtypes that it reads and writes, operations and specials of an element.

    It works on a `share` of the operator's elements. Where it goes `singly`, a thread loads an element only after it
    has stored the one before: PyTorch's kernels on operands that are broadcast or lie apart (aten/src/ATen/native/cuda/
    CUDALoops.cuh, launch_legacy_kernel; Shape.cu, CatArrayBatchedCopy), whose pointers may alias.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    operations: float
    specials: float = 0.0
    share: float = 1.0
    singly: bool = False


def streaming(op: Streaming, machine: Target) -> Estimate:
    """Return the time of a streaming operator: its kernels in sequence.

    Operands that fit into the last-level cache are assumed to be cached; `after_others`, the first one only. The
    harness may name a library of inference (`_served_streaming`). Raises InputError for formats of 8 bits or fewer on a
    GPU without them.
    """
    for dtype in dict.fromkeys((op.dtype, *op.about.writes)):
        if dtype in _NARROW and not machine.gpu.supports(dtype):
            known = ", ".join(one for one in DTYPES if machine.gpu.supports(one))
            raise InputError(f"{machine.gpu.name} does not compute in {dtype}; choose one of {known}")
    if machine.harness.served:
        return _served_streaming(op, machine)
    recent = _bytes(op.reads[:1]) if machine.harness.after_others else np.inf
    found = [kernel_time(kernel, machine.gpu, recent) for kernel in _kernels(op, machine.gpu)]
    return found[0] if len(found) == 1 else in_sequence(found)


def _served_streaming(op: Streaming, machine: Target) -> Estimate:
    """Return the time of a streaming operator by a library of inference, which the harness names.

    The launch, and the bytes at a share of the rate of the memory, or of the cache where that holds them, as the kernel
    is timed repeatedly. Raises UnknownNameError for an unknown library, InputError for an operator that it has no
    values of.
    """
    gpu, of = machine.gpu, library("streaming", machine.harness.served)
    own = values_of(table_of("streaming", of.name, op.name, gpu.architecture), machine.harness.values)
    size = floats(op.least_bytes)
    held = CacheShare(size, gpu).cache
    return from_parts(
        {
            "launch": np.broadcast_to(own["start"], size.shape),
            "memory": size * (1 - held) / (own["memory"] * gpu.memory.bandwidth),
            "cache": size * held / (own["cache"] * gpu.cache.bandwidth * gpu.cache.efficiency),
        }
    )


def opaque(op: Op, machine: Target) -> Estimate:
    """Return the time of an operator known only by FLOPs and bytes: one sweep by workgroups that fill the GPU.

    Vector units do a multiply-add, two FLOPs, per lane and clock; matrix units run at their achieved GEMM rate. An
    operator with a measured time takes that time.
    """
    if isinstance(op, Opaque) and op.seconds:
        return from_parts({"measured": floats(op.seconds)})
    return kernel_time(_opaque_kernel(op, machine), machine.gpu)


def kernels_of(op: Op, machine: Target) -> tuple[SweepKernel, ...]:
    """The kernels of an operator without matrix products, in their order; one of a single sweep where only bytes are
    known.
    """
    if isinstance(op, Pooling):
        return (_pooling_kernel(op),)
    return _kernels(op, machine.gpu) if isinstance(op, Streaming) else (_opaque_kernel(op, machine),)


def pooling(op: Pooling, machine: Target) -> Estimate:
    """Return the time of a pooling or its gradient: one sweep, overlapping windows read from the cache."""
    return kernel_time(_pooling_kernel(op), machine.gpu)


def _pooling_kernel(op: Pooling) -> SweepKernel:
    elements = floats(op.reads[0].bytes) / width(op.dtype)
    written = floats(op.writes[0].bytes) / width(op.dtype)
    work = floats(op.flops) if not op.gradient else elements
    sweep = DataSweep(_bytes(op.reads), _bytes(op.writes), operations=work)
    return SweepKernel((sweep,), np.ceil(written / THREADS), floats(THREADS))


def ctc(op: Ctc, machine: Target) -> Estimate:
    """Return the time of CTC's loss or gradient: a workgroup for each sequence, whose steps wait for each other.

    A step exchanges sums between the workgroup's threads, like a sum over them, and stores what it reached.
    """
    sweep = DataSweep(_bytes(op.reads), _bytes(op.writes), operations=floats(op.flops) * EXP)
    found = kernel_time(SweepKernel((sweep,), floats(op.batch), floats(THREADS)), machine.gpu)
    clock = machine.gpu.compute.clock
    waves = np.ceil(floats(op.batch) / machine.gpu.compute.compute_units)
    return from_parts({**found.parts, "latency": found.parts["latency"] + waves * op.steps * REDUCTION_CLOCKS / clock})


def gemv(op: Gemv, machine: Target) -> Estimate:
    """Return the time of a matrix times a vector: a stream of the matrix, row by row; wavefronts each sum up a row."""
    return kernel_time(_rows_summed(op), machine.gpu)


def _rows_summed(op: Gemv) -> SweepKernel:
    elements = floats(op.rows) * op.columns
    sweep = DataSweep(_bytes(op.reads), _bytes(op.writes), operations=elements)
    return SweepKernel((sweep,), np.ceil(floats(op.rows) / GEMV_ROWS), floats(THREADS))


def _opaque_kernel(op: Op, machine: Target) -> SweepKernel:
    compute, gpu = machine.gpu.compute, machine.gpu
    rate = 2 * gpu.vector_lanes * compute.clock
    if op.matrix_dtype is not None:
        rate = main_loop_flops(op.matrix_dtype, gpu, machine.options)
    cycles = floats(op.flops) / rate * compute.clock * gpu.vector_lanes
    sweep = DataSweep(_bytes(op.reads), _bytes(op.writes), operations=cycles)
    resident = max(compute.threads_per_cu // THREADS, 1) * compute.compute_units
    return SweepKernel((sweep,), floats(resident), floats(THREADS))


def _bytes(tensors: tuple[object, ...]) -> FloatArray:
    return floats(sum(tensor.bytes for tensor in tensors))  # type: ignore[attr-defined]


def _kernels(op: Streaming, gpu: Gpu) -> tuple[SweepKernel, ...]:
    """Return the kernels of an operator, in their order: one sweep over its tensors, unless its kind needs more."""
    special = _SPECIAL.get(op.name)
    if special:
        return special(op, gpu)
    elements, size = floats(op.elements), width(op.dtype)
    return (_elementwise(elements, _bytes(op.reads), _bytes(op.writes), op.operations, op.about.specials, size),)


def _optimizer(op: Streaming, gpu: Gpu) -> tuple[SweepKernel, ...]:
    """Adam in one kernel; LAMB in two, the norms of weights and update known only after the first."""
    elements, size, specials = floats(op.elements), width(op.dtype), op.about.specials
    # Besides the fp32 state, a working copy of the weights is written in the dtype.
    copy = 0 if op.dtype == "fp32" else size
    reads, writes = (_STATE_BYTES + size) * elements, _STATE_BYTES * elements
    if op.name == "adam":
        return (_elementwise(elements, reads, writes + copy * elements, op.operations, specials, 4),)
    return (
        _elementwise(elements, reads, writes, op.operations - 2, specials, 4),
        _elementwise(elements, 8 * elements, (4 + copy) * elements, 2.0, 0.0, 4),
    )


def _in_steps(*steps: StreamingStep) -> Callable[[Streaming, Gpu], tuple[SweepKernel, ...]]:
    """Return kernels that each go once over elements, as a framework runs them without fusing."""

    def kernel(op: Streaming, step: StreamingStep) -> SweepKernel:
        elements, own = floats(op.elements) * step.share, width(op.dtype)
        read, written = _wide(step.reads, own), _wide(step.writes, own)
        found = _elementwise(elements, read * elements, written * elements, step.operations, step.specials, 4)
        return replace(found, in_flight=read + written) if step.singly else found

    return lambda op, gpu: tuple(kernel(op, step) for step in steps)


def _wide(dtypes: tuple[str, ...], own: float) -> float:
    """Return the bytes of an element of tensors of these dtypes."""
    return sum(own if dtype == OWN else width(dtype) for dtype in dtypes)


def _scatter_kernels(op: Streaming, gpu: Gpu) -> tuple[SweepKernel, ...]:
    """Gradients of rows added to a table's: a sort of the rows by their places, then one sweep over them."""
    rows, size = floats(op.rows), width(op.dtype)
    sort = _elementwise(rows, _SORTED_BYTES * rows, _SORTED_BYTES * rows, 10.0, 0.0, 8)
    added = _elementwise(floats(op.elements), _bytes(op.reads), _bytes(op.writes), op.operations, 0.0, size)
    return *(sort for _ in range(_SORT_KERNELS)), added


def _elementwise(
    elements: FloatArray, reads: FloatArray, writes: FloatArray, operations: float, specials: float, size: float
) -> SweepKernel:
    """Return a kernel that reads and writes `reads` and `writes` bytes, with `operations` on each element."""
    sweep = DataSweep(reads, writes, operations=operations * elements, specials=specials * elements)
    per_workgroup = THREADS * np.maximum(16 // size, 1)
    return SweepKernel((sweep,), np.ceil(elements / per_workgroup), floats(THREADS))


def _softmax(op: Streaming, gpu: Gpu) -> tuple[SweepKernel, ...]:
    """Return rows of elements: the largest, the sum of exponentials, then the quotients.

    As PyTorch does it: fp32 inside, short rows held in registers by a wavefront each, longer ones read again in every
    sweep by a workgroup each.
    """
    elements, size, again, threads = _rows(op, gpu)
    sweeps = (
        DataSweep(reads=size, operations=elements),
        DataSweep(rereads=again, operations=(EXP + 2) * elements, specials=elements),
        DataSweep(writes=size, rereads=again, operations=(EXP + DIVIDE + 1) * elements, specials=2 * elements),
    )
    return (SweepKernel(sweeps, floats(op.rows), threads, footprint=2 * size / op.rows),)


def _softmax_backward(op: Streaming, gpu: Gpu) -> tuple[SweepKernel, ...]:
    """Return rows of the output and of its gradient: the sum of their products, then the differences from it."""
    elements, size, again, threads = _rows(op, gpu)
    sweeps = (
        DataSweep(reads=2 * size, operations=2 * elements),
        DataSweep(writes=size, rereads=2 * again, operations=(op.operations - 2) * elements),
    )
    return (SweepKernel(sweeps, floats(op.rows), threads, footprint=3 * size / op.rows),)


def _eager_softmax_backward(op: Streaming, gpu: Gpu) -> tuple[SweepKernel, ...]:
    """Return a kernel that multiplies output and gradient, and the one of `_softmax_backward` on the products."""
    elements, own = floats(op.elements), width(op.dtype)
    product = _elementwise(elements, 2 * own * elements, own * elements, 1.0, 0.0, own)
    return product, *_softmax_backward(replace(op, name="softmax_backward"), gpu)


def _rows(op: Streaming, gpu: Gpu) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Elements, bytes, bytes that a further sweep reads again, and threads of each row's workgroup."""
    columns, elements = floats(op.columns), floats(op.elements)
    size, short = elements * width(op.dtype), columns <= _ROW_IN_REGISTERS
    threads = np.where(short, gpu.compute.wavefront_size, np.clip(columns / 16, _ROW_THREADS, 1024))
    return elements, size, np.where(short, 0.0, size), threads


def _normalise_kernels(scaled: float, parameters: int) -> Callable[[Streaming, Gpu], tuple[SweepKernel, ...]]:
    """Normalisation of rows: a sweep for the moments, one that reads the rows again, scales and writes them.

    The parameters come from memory once, and from the cache to every other compute unit that has a row.
    """

    def kernels(op: Streaming, gpu: Gpu) -> tuple[SweepKernel, ...]:
        elements, weights = floats(op.elements), parameters * floats(op.columns) * width(op.dtype)
        size = elements * width(op.dtype)
        shared = weights * (np.minimum(floats(op.rows), gpu.compute.compute_units) - 1)
        first, more = _bytes(op.reads), _bytes(op.writes[1:])  # what is added, and what is kept of the sum
        sweeps = (
            DataSweep(reads=first, writes=more, operations=(op.operations - scaled) * elements),
            DataSweep(reads=weights, writes=size, rereads=size + shared, operations=scaled * elements),
        )
        return (
            SweepKernel(sweeps, floats(op.rows), floats(_ROW_THREADS), footprint=2 * size / op.rows, shared=shared),
        )

    return kernels


def _normalised_backward(parameters: int) -> Callable[[Streaming, Gpu], tuple[SweepKernel, ...]]:
    """Gradients of a normalisation: sums over each row, then their use; and a kernel for those of the parameters.

    As in Apex and Transformer Engine: a workgroup on each compute unit goes through rows, which it holds in registers,
    and keeps fp32 partial sums of the gradients of scale and shift, which the second kernel adds up.
    """

    def kernels(op: Streaming, gpu: Gpu) -> tuple[SweepKernel, ...]:
        elements, gradients = floats(op.elements), parameters * floats(op.columns)
        size, half = elements * width(op.dtype), op.operations / 2 * elements
        partial = 4 * gradients * np.minimum(floats(op.rows), gpu.compute.compute_units)
        sweeps = (
            DataSweep(reads=2 * size, operations=half),
            DataSweep(writes=size + partial, operations=half),
        )
        rows = SweepKernel(sweeps, floats(op.rows), floats(_ROW_THREADS))
        return rows, _elementwise(partial / 4, partial, gradients * width(op.dtype), 1.0, 0.0, 4)

    return kernels


def _over_channels(op: Streaming, gpu: Gpu) -> tuple[SweepKernel, ...]:
    """A normalisation over the batch: a kernel that sums over each channel, and one that reads everything again."""
    elements, read = floats(op.elements), _bytes(op.reads)
    half, size = op.operations / 2, width(op.dtype)
    sums = _elementwise(elements, read, np.zeros(()), half, 0.0, size)
    return sums, _elementwise(elements, read, _bytes(op.writes), half, 0.0, size)


_SPECIAL: Mapping[str, Callable[[Streaming, Gpu], tuple[SweepKernel, ...]]] = {
    "softmax": _softmax,
    "softmax_backward": _softmax_backward,
    "eager_softmax": _softmax,
    "eager_softmax_backward": _eager_softmax_backward,
    "layernorm": _normalise_kernels(4, 2),
    "eager_layernorm": _normalise_kernels(4, 2),
    "add_layernorm": _normalise_kernels(4, 2),
    "dropout_add_layernorm": _normalise_kernels(4, 2),
    "batchnorm_training": _over_channels,
    "batchnorm_gradient": _over_channels,
    "rmsnorm": _normalise_kernels(3, 1),
    "add_rmsnorm": _normalise_kernels(3, 1),
    "gated_rmsnorm": _normalise_kernels(3, 1),
    "layernorm_backward": _normalised_backward(2),
    "rmsnorm_backward": _normalised_backward(1),
    "adam": _optimizer,
    "lamb": _optimizer,
    "embedding_backward": _scatter_kernels,
    # PyTorch's masked_fill out of place (TensorAdvancedIndexing.cpp): clone, then masked_fill_.
    "masked_fill_backward": _in_steps(StreamingStep((OWN,), (OWN,), 1), StreamingStep((OWN,), (OWN,), 1)),
    # PyTorch's infinitely_differentiable_native_dropout_backward: the mask converted, scaled, times the gradient.
    "dropout_backward_again": _in_steps(
        StreamingStep(("int8",), (OWN,), 1), StreamingStep((OWN,), (OWN,), 1), StreamingStep((OWN, OWN), (OWN,), 1)
    ),
    # Megatron-LM: a copy in fp32, the largest of each row, its subtraction, exponentials, their sum, quotients.
    "cross_entropy": _in_steps(
        StreamingStep((OWN,), ("fp32",), 1),
        StreamingStep(("fp32",), (), 1),
        StreamingStep(("fp32",), ("fp32",), 1),
        StreamingStep(("fp32",), ("fp32",), EXP, 1),
        StreamingStep(("fp32",), (), 1),
        StreamingStep(("fp32",), ("fp32",), DIVIDE, 1),
    ),
    # The probabilities minus one at the target, times the loss's gradient; then a copy in the dtype of the logits.
    "cross_entropy_backward": _in_steps(StreamingStep(("fp32",), ("fp32",), 2), StreamingStep(("fp32",), (OWN,), 1)),
    # PyTorch's: a copy in fp32, the logarithm of softmax; zeros but for targets, its gradient, a copy in the dtype.
    "eager_cross_entropy": _in_steps(
        StreamingStep((OWN,), ("fp32",), 1), StreamingStep(("fp32",), ("fp32",), 2 * EXP + 4, 2)
    ),
    "eager_cross_entropy_backward": _in_steps(
        StreamingStep((), ("fp32",), 1),
        StreamingStep(("fp32", "fp32"), ("fp32",), EXP + 2, 1),
        StreamingStep(("fp32",), (OWN,), 1),
    ),
    # Megatron-LM's router: probabilities, the largest of them, and zeros with these and with ones at their places.
    "top_k": _in_steps(
        StreamingStep((OWN,), ("fp32",), 2 * EXP + DIVIDE + 4, 2),
        StreamingStep(("fp32",), (), SELECT),
        StreamingStep((), ("fp32",), 1),
        StreamingStep((), ("int8",), 1),
    ),
    # Megatron Core's rotation (rope_utils.py): times the cosine, the second half negated, halves joined, times the
    # sine, the sum, joined with no elements that pass. Backward: both products, half negated, joined, the sum; zeros
    # for those that passed, added.
    "scaled_rotary": _in_steps(
        StreamingStep((OWN,), (OWN,), 1, singly=True),
        StreamingStep((OWN,), (OWN,), 1, share=0.5, singly=True),
        StreamingStep((OWN,), (OWN,), 1, singly=True),
        StreamingStep((OWN,), (OWN,), 1, singly=True),
        StreamingStep((OWN, OWN), (OWN,), 1),
        StreamingStep((OWN,), (OWN,), 1),
    ),
    "scaled_rotary_backward": _in_steps(
        StreamingStep((OWN,), (OWN,), 1, singly=True),
        StreamingStep((OWN,), (OWN,), 1, singly=True),
        StreamingStep((OWN,), (OWN,), 1, share=0.5, singly=True),
        StreamingStep((OWN,), (OWN,), 1, singly=True),
        StreamingStep((OWN, OWN), (OWN,), 1),
        StreamingStep((), (OWN,), 1),
        StreamingStep((OWN, OWN), (OWN,), 1),
    ),
    # Megatron Core's bias of experts (experts.py, _apply_bias): times the weights of tokens, added, joined, cast.
    "weighted_bias_add": _in_steps(
        StreamingStep((), ("fp32",), 1, singly=True),
        StreamingStep((OWN, "fp32"), ("fp32",), 1),
        StreamingStep(("fp32",), ("fp32",), 1),
        StreamingStep(("fp32",), (OWN,), 1),
    ),
    # Cast; the gradient of the tokens, cast and joined; of bias and weights, each a product and its sum.
    "weighted_bias_add_backward": _in_steps(
        StreamingStep((OWN,), ("fp32",), 1),
        StreamingStep(("fp32",), (OWN,), 1),
        StreamingStep((OWN,), (OWN,), 1),
        StreamingStep(("fp32",), ("fp32",), 1, singly=True),
        StreamingStep(("fp32",), (), 1),
        StreamingStep(("fp32",), ("fp32",), 1, singly=True),
        StreamingStep(("fp32",), (), 1),
    ),
    # Megatron Core's limits of a gated activation (fused_bias_geglu.py): both halves, which lie apart, and a copy that
    # joins them. Backward (PyTorch's clamp_backward): one comparison of the gate, two of the rest and their "and", the
    # gradient or zero by half, and a copy that joins them.
    "clamp": _in_steps(StreamingStep((OWN,), (OWN,), 1, singly=True), StreamingStep((OWN,), (OWN,), 1)),
    "clamp_backward": _in_steps(
        *(StreamingStep((OWN,), ("int8",), 1, share=0.5, singly=True) for _ in range(3)),
        StreamingStep(("int8", "int8"), ("int8",), 1, share=0.5),
        StreamingStep(("int8", OWN), (OWN,), 1, singly=True),
        StreamingStep((OWN,), (OWN,), 1),
    ),
}
"""The kernels of the kinds that take more than one sweep."""
