"""What access patterns cost: sectors of strided reads, bytes of copies, load instructions, and padding into buckets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.errors import InputError, check_whole

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
