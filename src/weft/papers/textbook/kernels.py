"""Kernels by hand: arithmetic intensity and the roofline, launches by the host, and what access patterns move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, check_whole
from weft.graph import Op
from weft.hardware import Gpu
from weft.hardware.gpus import ClockState


@dataclass(frozen=True)
class ElementWork:
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


def elementwise_chain(operators: int, *, fused: bool) -> ElementWork:
    """Binary element-wise operators in a row, for each element: each takes the result before and a tensor of its own.

    Unfused each reads two elements and writes one: 1/3. Fused only the ends are moved: three operators take 3/5.

    >>> elementwise_chain(3, fused=False).per_access, elementwise_chain(3, fused=True).per_access
    (0.3333333333333333, 0.6)
    """
    check_whole("operators", operators, 1, 1)
    return ElementWork(operators, operators + 2 if fused else 3 * operators)


def fusion_speedup(operators: int) -> float:
    """Return how many times faster the fused chain is where memory bounds both: the ratio of their accesses.

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
    """Return the roofline: the lesser of the matrix rate and of what the memory can feed [FLOP/s]."""
    return min(gpu.matrix_rate(dtype, clock), flops_per_byte * gpu.memory.bandwidth)


@dataclass(frozen=True)
class LaunchTimes:
    """A sequence of kernels as the host launches them: its time, and that of the kernels alone [s]."""

    seconds: float
    busy: float

    @property
    def idle(self) -> float:
        """Share of the time in which the GPU waits for the host."""
        return 1 - self.busy / self.seconds


def launch_kernels(kernels: npt.ArrayLike, host: float) -> LaunchTimes:
    """Kernels of given times [s], launched serially, each `host` seconds of a thread that never waits.

    A kernel begins when it is launched and its predecessor has ended, so the sequence takes the longest of launches up
    to some kernel and the kernels from there on. Raises InputError for negative times and no kernels.
    """
    times = _times(kernels, host=host)
    issued = host * np.arange(1, len(times) + 1)
    left = np.cumsum(times[::-1])[::-1]
    return LaunchTimes(float(np.max(issued + left)), float(times.sum()))


def replay_graph(kernels: npt.ArrayLike, host: float, gap: float = 0.0) -> LaunchTimes:
    """Return the same kernels as one graph: one launch of `host` seconds, and `gap` between kernels on the device [s].

    Graphs remove launches; the kernels still move the same bytes.
    """
    times = _times(kernels, host=host, gap=gap)
    return LaunchTimes(host + float(times.sum()) + gap * (len(times) - 1), float(times.sum()))


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
class ReadPattern:
    """A pattern of reads: bytes that are used, and bytes that move because memory moves whole sectors."""

    used: int
    moved: int

    @property
    def waste(self) -> float:
        """Bytes moved for each byte used: 1 for contiguous reads."""
        return self.moved / self.used


def strided_read(elements: int, stride: int, element: int, sector: int = SECTOR) -> ReadPattern:
    """`elements` of `element` bytes, `stride` elements apart, from the start of a sector, none read twice from a cache.

    A transposed read of 2-byte elements has the stride of a row and moves 16 times what it uses.

    >>> strided_read(1024, 4096, 2).waste
    16.0
    """
    for name, size in (("elements", elements), ("stride", stride), ("element", element), ("sector", sector)):
        check_whole(name, size, 1, 1)
    first = np.arange(elements, dtype=np.int64) * stride * element
    touched = np.unique(np.concatenate([first // sector, (first + element - 1) // sector]))
    return ReadPattern(elements * element, len(touched) * sector)


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


@dataclass(frozen=True)
class MatrixProduct:
    """C[m,n] = A[m,k] B[k,n]."""

    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        _check(m=self.m, n=self.n, k=self.k)


@dataclass(frozen=True)
class WordTraffic:
    """Words read of A and of B at each level, the farthest first, and words of C written to the farthest.

    `held` are the words that the tile keeps at each level that it uses.
    """

    reads: Mapping[str, tuple[int, int]]
    writes: int
    held: Mapping[str, int]

    def words(self, level: str) -> int:
        """Return words of A and B read from a level, such as "memory" or "shared"; InputError for a level not used."""
        if level not in self.reads:
            raise InputError(f"nothing is read from '{level}'; the levels are {', '.join(self.reads)}")
        return sum(self.reads[level])


def untiled_traffic(product: MatrixProduct) -> WordTraffic:
    """Return each of the m n k multiply-adds reads both operands: n^3 words of each for square matrices."""
    every = product.m * product.n * product.k
    return WordTraffic({"memory": (every, every)}, product.m * product.n, {"registers": 3})


def cache_tiled(product: MatrixProduct, rows: int, columns: int) -> WordTraffic:
    """Bands of `rows` of A and of `columns` of B^T stay in the cache: A is read once, B once for every band of A.

    Square: n^2 words of A and n^3 / rows of B. The bands hold (rows + columns) k words.
    """
    _check(rows=rows, columns=columns)
    m, n, k = product.m, product.n, product.k
    held = (min(rows, m) + min(columns, n)) * k
    return WordTraffic({"memory": (m * k, _tiles(m, rows) * n * k)}, m * n, {"cache": held})


def register_tiled(product: MatrixProduct, rows: int, columns: int, depth: int = 1) -> WordTraffic:
    """A tile of C of `rows` x `columns` stays in registers; A is read once for every tile of a row, B of a column.

    Square: n^3 / columns words of A and n^3 / rows of B; `depth`, the slice of k that is loaded at once, cancels and
    only costs registers: rows depth + columns depth + rows columns.
    """
    _check(rows=rows, columns=columns, depth=depth)
    return WordTraffic(
        {"memory": _tile_reads(product, rows, columns)},
        product.m * product.n,
        {"registers": rows * depth + columns * depth + rows * columns},
    )


def cache_and_register_tiled(
    product: MatrixProduct, cache: tuple[int, int], registers: tuple[int, int], depth: int = 1
) -> WordTraffic:
    """Bands in the cache and tiles in registers at once; `cache` and `registers` are (rows, columns).

    Square: n^2 + n^3 / cache rows words from memory, n^3 / columns + n^3 / rows of the register tile from the cache.
    Raises InputError for register tiles that do not divide the bands.
    """
    inner, outer = register_tiled(product, *registers, depth), cache_tiled(product, *cache)
    if cache[0] % registers[0] or cache[1] % registers[1]:
        raise InputError(
            f"bands of {cache[0]} x {cache[1]} are not whole tiles of {registers[0]} x {registers[1]}; choose bands "
            "that are multiples of the register tile"
        )
    reads = {"memory": outer.reads["memory"], "cache": inner.reads["memory"]}
    return WordTraffic(reads, outer.writes, {**outer.held, **inner.held})


def thread_tiled(product: MatrixProduct, side: int, *, outer: bool = True) -> WordTraffic:
    """Each thread of a GPU computes `side` x `side` elements of C and reads from memory: 1 is one element a thread.

    As outer products of a column and a row it reads 2 n^3 / side words and holds side^2 + 2 side; as inner products,
    element by element with A's row kept, n^3 / side + n^3.
    """
    _check(side=side)
    if outer:
        return WordTraffic(
            {"memory": _tile_reads(product, side, side)}, product.m * product.n, {"registers": side * side + 2 * side}
        )
    a, b = product.m * product.k * _tiles(product.n, side), product.m * product.n * product.k
    return WordTraffic({"memory": (a, b)}, product.m * product.n, {"registers": side * side + side + 1})


def shared_tiled(product: MatrixProduct, tile: int | tuple[int, int], side: int, step: int = 1) -> WordTraffic:
    """A workgroup's tile of C is fed from shared memory, in which `step` columns of A and rows of B lie at a time.

    Square tiles: 2 n^3 / tile words from memory into shared memory, 2 n^3 / side from there into registers. `tile` is
    a side or (rows, columns). Raises InputError for a tile that is not whole threads' tiles.
    """
    rows, columns = (tile, tile) if isinstance(tile, int) else tile
    _check(rows=rows, columns=columns, side=side, step=step)
    if rows % side or columns % side:
        raise InputError(f"a tile of {rows} x {columns} is not whole threads' tiles of {side}; choose multiples of it")
    reads = {"memory": _tile_reads(product, rows, columns), "shared": _tile_reads(product, side, side)}
    held = {"shared": (rows + columns) * step, "registers": side * side + 2 * side}
    return WordTraffic(reads, product.m * product.n, held)


def _tile_reads(product: MatrixProduct, rows: int, columns: int) -> tuple[int, int]:
    """Return the words of A and B read by tiles of C: A once per tile of a row, B once per tile of a column."""
    m, n, k = product.m, product.n, product.k
    return m * k * _tiles(n, columns), n * k * _tiles(m, rows)


@dataclass(frozen=True)
class TileLimits:
    """What a workgroup may use: bytes of shared memory, and elements of C in its registers.

    `step` columns of A and rows of B are loaded at once, `stages` times over, of `element` bytes; sides are multiples
    of `granule`.
    """

    shared_bytes: int
    accumulators: int
    step: int = 32
    stages: int = 1
    element: int = 2
    granule: int = 16

    def __post_init__(self) -> None:
        _check(**vars(self))

    def slab(self, rows: int, columns: int) -> int:
        """Return the bytes of shared memory of a tile."""
        return (rows + columns) * self.step * self.stages * self.element


@dataclass(frozen=True)
class Rectangle:
    """A tile of C, the words that it reads and writes in memory, and the bytes of shared memory that it takes."""

    rows: int
    columns: int
    words: int
    shared_bytes: int


def best_rectangle(product: MatrixProduct, limits: TileLimits) -> Rectangle:
    """Return the tile with the least traffic, M N K (1/rows + 1/columns) + M N words, that the limits allow.

    All tiles are tried; of equal ones, that with the least shared memory. Raises InputError if no tile fits.
    """
    most = max(limits.shared_bytes // (limits.step * limits.stages * limits.element), 0)
    sides = np.arange(limits.granule, max(min(most, limits.accumulators), 1) + 1, limits.granule)
    rows, columns = (axis.ravel() for axis in np.meshgrid(sides, sides, indexing="ij"))
    fits = (rows + columns <= most) & (rows * columns <= limits.accumulators)
    if not fits.any():
        raise InputError(
            f"no tile fits {limits.shared_bytes} bytes of shared memory and {limits.accumulators} accumulators: the "
            f"smallest, {limits.granule} x {limits.granule}, needs {limits.slab(limits.granule, limits.granule)} bytes"
        )
    rows, columns = rows[fits], columns[fits]
    m, n, k = (float(size) for size in (product.m, product.n, product.k))
    words = m * k * np.ceil(n / columns) + n * k * np.ceil(m / rows) + m * n
    best = np.lexsort((rows + columns, words))[0]
    return Rectangle(
        int(rows[best]), int(columns[best]), int(words[best]), limits.slab(int(rows[best]), int(columns[best]))
    )


def stencil_loads(threads: int, radius: int, *, shared: bool = True) -> int:
    """Loads of a workgroup of a one-dimensional stencil: each thread needs 2 radius + 1 neighbours.

    Through shared memory the workgroup loads each element once, threads + 2 radius.

    >>> stencil_loads(128, 1), stencil_loads(128, 1, shared=False)
    (130, 384)
    """
    _check(threads=threads)
    check_whole("radius", radius, 0, 0)
    return threads + 2 * radius if shared else threads * (2 * radius + 1)


def _tiles(size: int, side: int) -> int:
    return math.ceil(size / side)


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        check_whole(name, size, 1, 1)
