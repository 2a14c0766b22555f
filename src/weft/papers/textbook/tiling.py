"""Words that a matrix product or a stencil moves under each way of tiling it, and the best tile under limits.

C[m,n] = A[m,k] B[k,n]; words are elements. Counts are exact for any sizes: a tile at an edge holds what is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from weft.core.errors import InputError, check_whole


@dataclass(frozen=True)
class Product:
    """C[m,n] = A[m,k] B[k,n]."""

    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        _check(m=self.m, n=self.n, k=self.k)


@dataclass(frozen=True)
class Traffic:
    """Words read of A and of B at each level, the farthest first, and words of C written to the farthest.

    `held` are the words that the tile keeps at each level that it uses.
    """

    reads: Mapping[str, tuple[int, int]]
    writes: int
    held: Mapping[str, int]

    def words(self, level: str) -> int:
        """Words of A and B read from a level, such as "memory" or "shared"; InputError for a level not used."""
        if level not in self.reads:
            raise InputError(f"nothing is read from '{level}'; the levels are {', '.join(self.reads)}")
        return sum(self.reads[level])


def untiled(product: Product) -> Traffic:
    """Each of the m n k multiply-adds reads both operands: n^3 words of each for square matrices."""
    every = product.m * product.n * product.k
    return Traffic({"memory": (every, every)}, product.m * product.n, {"registers": 3})


def cache_tiled(product: Product, rows: int, columns: int) -> Traffic:
    """Bands of `rows` of A and of `columns` of B^T stay in the cache: A is read once, B once for every band of A.

    Square: n^2 words of A and n^3 / rows of B. The bands hold (rows + columns) k words.
    """
    _check(rows=rows, columns=columns)
    m, n, k = product.m, product.n, product.k
    held = (min(rows, m) + min(columns, n)) * k
    return Traffic({"memory": (m * k, _tiles(m, rows) * n * k)}, m * n, {"cache": held})


def register_tiled(product: Product, rows: int, columns: int, depth: int = 1) -> Traffic:
    """A tile of C of `rows` x `columns` stays in registers; A is read once for every tile of a row, B of a column.

    Square: n^3 / columns words of A and n^3 / rows of B; `depth`, the slice of k that is loaded at once, cancels and
    only costs registers: rows depth + columns depth + rows columns.
    """
    _check(rows=rows, columns=columns, depth=depth)
    return Traffic(
        {"memory": _tile_reads(product, rows, columns)},
        product.m * product.n,
        {"registers": rows * depth + columns * depth + rows * columns},
    )


def cache_and_register_tiled(
    product: Product, cache: tuple[int, int], registers: tuple[int, int], depth: int = 1
) -> Traffic:
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
    return Traffic(reads, outer.writes, {**outer.held, **inner.held})


def thread_tiled(product: Product, side: int, *, outer: bool = True) -> Traffic:
    """Each thread of a GPU computes `side` x `side` elements of C and reads from memory: 1 is one element a thread.

    As outer products of a column and a row it reads 2 n^3 / side words and holds side^2 + 2 side; as inner products,
    element by element with A's row kept, n^3 / side + n^3.
    """
    _check(side=side)
    if outer:
        return Traffic(
            {"memory": _tile_reads(product, side, side)}, product.m * product.n, {"registers": side * side + 2 * side}
        )
    a, b = product.m * product.k * _tiles(product.n, side), product.m * product.n * product.k
    return Traffic({"memory": (a, b)}, product.m * product.n, {"registers": side * side + side + 1})


def shared_tiled(product: Product, tile: int | tuple[int, int], side: int, step: int = 1) -> Traffic:
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
    return Traffic(reads, product.m * product.n, held)


def _tile_reads(product: Product, rows: int, columns: int) -> tuple[int, int]:
    """Words of A and B read by tiles of C: A once per tile of a row, B once per tile of a column."""
    m, n, k = product.m, product.n, product.k
    return m * k * _tiles(n, columns), n * k * _tiles(m, rows)


@dataclass(frozen=True)
class Limits:
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
        """Bytes of shared memory of a tile."""
        return (rows + columns) * self.step * self.stages * self.element


@dataclass(frozen=True)
class Rectangle:
    """A tile of C, the words that it reads and writes in memory, and the bytes of shared memory that it takes."""

    rows: int
    columns: int
    words: int
    shared_bytes: int


def best_rectangle(product: Product, limits: Limits) -> Rectangle:
    """The tile with the least traffic, M N K (1/rows + 1/columns) + M N words, that the limits allow.

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
