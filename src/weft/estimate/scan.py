"""Scans of linear attention and state-space layers: the kernels of the chunked algorithm, or one that goes by token.

Nothing of them is fitted, and no measurement of such kernels is among Weft's rows: bytes, FLOPs and workgroups follow
from the algorithms, and a rate is assumed.
"""

from __future__ import annotations

import numpy as np

from weft.estimate.answer import Estimate, floats, from_parts, in_sequence
from weft.estimate.kernel import BYTES_IN_FLIGHT, REDUCTION_CLOCKS, DataSweep, SweepKernel, kernel_time
from weft.estimate.target import Target
from weft.graph.scan import Scan, ScanStage
from weft.kernels.gemm import main_loop_flops

CHUNK_RATE = 0.3
"""Share of the rate of long GEMMs at which matrix units multiply the small tiles of chunks [assumed, 0.15 to 0.6]."""
_THREADS = 128
"""Threads of a workgroup of the kernels, Triton's four warps [assumed; 64 to 256]."""
_IN_FLIGHT = 128
"""Bytes in flight per thread: two tiles of 64 x 64 elements in 16 bits, which the kernels load ahead [assumed; 64 to
512, by the stages of Triton's pipelines]."""
_EXCHANGES = 2
"""Exchanges through local memory in each of the steps that a workgroup takes in sequence [assumed; 1 to 4]."""


def scan(op: Scan, machine: Target) -> Estimate:
    """Return the time of a scan: its kernels in sequence; steps within a kernel wait for those before.

    Operands that fit into the last-level cache are assumed to be cached; `after_others`, the first one only.
    """
    recent = floats(op.reads[0].bytes) if machine.harness.after_others else np.inf
    found = []
    for number, stage in enumerate(op.stages):
        # what the kernel before it wrote may still be cached
        one = kernel_time(_kernel(op, stage, machine), machine.gpu, recent if number == 0 else np.inf)
        waits = floats(stage.steps - 1) * _EXCHANGES * REDUCTION_CLOCKS / machine.gpu.compute.clock
        found.append(from_parts({**one.parts, "latency": one.parts["latency"] + waits}))
    return found[0] if len(found) == 1 else in_sequence(found)


def scan_kernels(op: Scan, machine: Target) -> tuple[SweepKernel, ...]:
    """Return the kernels of a scan in their order, without what their steps wait."""
    return tuple(_kernel(op, stage, machine) for stage in op.stages)


def _kernel(op: Scan, stage: ScanStage, machine: Target) -> SweepKernel:
    gpu, specials = machine.gpu, floats(0)
    operations = floats(stage.flops) / 2  # multiply-adds
    if op.matrix_dtype is not None:
        rate = CHUNK_RATE * main_loop_flops(op.matrix_dtype, gpu, machine.options)
        operations = floats(stage.flops) / rate * gpu.compute.clock * gpu.vector_lanes
    elif op.rule == "mamba":
        specials = floats(op.tokens) * op.heads * op.state
    sweep = DataSweep(floats(stage.read), floats(stage.written), operations=operations, specials=specials)
    ahead = _IN_FLIGHT if op.matrix_dtype is not None else BYTES_IN_FLIGHT
    return SweepKernel((sweep,), floats(stage.workgroups), floats(_THREADS), in_flight=ahead)
