"""Arithmetic intensity: operations per access or per byte, and where a GPU turns from memory to compute."""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import check_whole
from weft.graph import Op
from weft.hardware import Gpu
from weft.hardware.gpus import ClockState


@dataclass(frozen=True)
class Work:
    """Operations, and accesses of elements, of an element-wise computation."""

    operations: int
    accesses: int

    @property
    def per_access(self) -> float:
        """Operations for each element read or written."""
        return self.operations / self.accesses

    def per_byte(self, element: int = 4) -> float:
        """Operations for each byte, with elements of `element` bytes."""
        return self.per_access / element


def elementwise_chain(operators: int, *, fused: bool) -> Work:
    """Binary element-wise operators in a row, for each element: each takes the result before and a tensor of its own.

    Unfused each reads two elements and writes one: 1/3. Fused only the ends are moved: three operators take 3/5.

    >>> elementwise_chain(3, fused=False).per_access, elementwise_chain(3, fused=True).per_access
    (0.3333333333333333, 0.6)
    """
    check_whole("operators", operators, 1, 1)
    return Work(operators, operators + 2 if fused else 3 * operators)


def fusion_speedup(operators: int) -> float:
    """How many times faster the fused chain is where memory bounds both: the ratio of their accesses.

    >>> fusion_speedup(3)
    1.8
    """
    return elementwise_chain(operators, fused=False).accesses / elementwise_chain(operators, fused=True).accesses


def intensity(op: Op) -> float:
    """FLOPs for each byte, everything read and written once.

    >>> from weft.graph import Gemm
    >>> round(intensity(Gemm(4096, 4096, 4096, "bf16")))
    1365
    """
    return op.flops / op.least_bytes


def ridge(gpu: Gpu, dtype: str, clock: ClockState = "peak") -> float:
    """FLOPs for each byte of DRAM from which on the matrix units, not the memory, bound a perfect kernel.

    Raises InputError for a dtype that the GPU lacks.
    """
    return gpu.matrix_rate(dtype, clock) / gpu.memory.bandwidth


def attainable(gpu: Gpu, dtype: str, flops_per_byte: float, clock: ClockState = "peak") -> float:
    """The roofline: the lesser of the matrix rate and of what the memory can feed [FLOP/s]."""
    return min(gpu.matrix_rate(dtype, clock), flops_per_byte * gpu.memory.bandwidth)
