"""Kernels by hand: arithmetic intensity and the roofline, launches by the host, and what access patterns move."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, check_whole
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


@dataclass(frozen=True)
class Launched:
    """A sequence of kernels as the host launches them: its time, and that of the kernels alone [s]."""

    seconds: float
    busy: float

    @property
    def idle(self) -> float:
        """Share of the time in which the GPU waits for the host."""
        return 1 - self.busy / self.seconds


def launched(kernels: npt.ArrayLike, host: float) -> Launched:
    """Kernels of given times [s], launched one after the other, each `host` seconds of a thread that never waits.

    A kernel begins when it is launched and its predecessor has ended, so the sequence takes the longest of launches up
    to some kernel and the kernels from there on. Raises InputError for negative times and no kernels.
    """
    times = _times(kernels, host=host)
    issued = host * np.arange(1, len(times) + 1)
    left = np.cumsum(times[::-1])[::-1]
    return Launched(float(np.max(issued + left)), float(times.sum()))


def replayed(kernels: npt.ArrayLike, host: float, gap: float = 0.0) -> Launched:
    """The same kernels as one graph: one launch of `host` seconds, and `gap` between kernels on the device [s].

    Graphs remove launches; the kernels still move the same bytes.
    """
    times = _times(kernels, host=host, gap=gap)
    return Launched(host + float(times.sum()) + gap * (len(times) - 1), float(times.sum()))


def _times(kernels: npt.ArrayLike, **costs: float) -> npt.NDArray[np.float64]:
    times = np.atleast_1d(np.asarray(kernels, dtype=np.float64))
    for name, cost in costs.items():
        if not 0 <= cost < np.inf:
            raise InputError(f"{name} is {cost:g} s; it must be a time of at least 0")
    if not times.size or not np.all((times > 0) & np.isfinite(times)):
        raise InputError("kernels must be times above 0 s, at least one of them")
    return times


SECTOR = 32
"""Bytes that a GPU's memory system moves at least [CUDA C++ best practices guide, coalesced access]."""


@dataclass(frozen=True)
class Access:
    """A pattern of reads: bytes that are used, and bytes that move because memory moves whole sectors."""

    used: int
    moved: int

    @property
    def waste(self) -> float:
        """Bytes moved for each byte used: 1 for contiguous reads."""
        return self.moved / self.used


def strided_read(elements: int, stride: int, element: int, sector: int = SECTOR) -> Access:
    """`elements` of `element` bytes, `stride` elements apart, from the start of a sector, none read twice from a cache.

    A transposed read of 2-byte elements has the stride of a row and moves 16 times what it uses.

    >>> strided_read(1024, 4096, 2).waste
    16.0
    """
    for name, size in (("elements", elements), ("stride", stride), ("element", element), ("sector", sector)):
        check_whole(name, size, 1, 1)
    first = np.arange(elements, dtype=np.int64) * stride * element
    touched = np.unique(np.concatenate([first // sector, (first + element - 1) // sector]))
    return Access(elements * element, len(touched) * sector)


def view_bytes(shape: tuple[int, ...], element: int, *, contiguous: bool = False) -> int:
    """Bytes that a slice, transposition or broadcast moves: none, until it is made `contiguous`: read and written.

    >>> view_bytes((1024, 1024), 2), view_bytes((1024, 1024), 2, contiguous=True)
    (0, 4194304)
    """
    for size in (*shape, element):
        check_whole("a size", size, 1, 1)
    return 2 * math.prod(shape) * element if contiguous else 0


def load_instructions(elements: int, width: int = 1) -> int:
    """Loads of `elements` in vectors of `width`, such as 4 for float4.

    >>> load_instructions(256), load_instructions(256, 4)
    (256, 64)
    """
    check_whole("elements", elements, 1, 1)
    check_whole("width", width, 1, 1)
    return math.ceil(elements / width)


@dataclass(frozen=True)
class Padding:
    """What padding lengths into buckets costs: `volume` is padded elements over real ones in all, `mean` the mean of
    each length's own ratio.
    """

    volume: float
    mean: float


def bucket_padding(lengths: npt.ArrayLike, base: float = 2.0) -> Padding:
    """Padding of `lengths` to the next power of `base`: shape buckets, so that few shapes are compiled.

    Uniform lengths over an octave give 4/3 by volume and 2 ln 2 = 1.386 by length. Raises InputError for lengths that
    are not above zero, and a base of 1 or less.
    """
    given = np.asarray(lengths, dtype=np.float64)
    if not given.size or not np.all(given > 0):
        raise InputError("lengths must be numbers above zero, at least one of them")
    if not base > 1:
        raise InputError(f"base is {base:g}; buckets are powers of a base above 1, such as 2")
    exponent = np.ceil(np.round(np.log(given) / math.log(base), 9))
    padded = base**exponent
    return Padding(float(padded.sum() / given.sum()), float(np.mean(padded / given)))
