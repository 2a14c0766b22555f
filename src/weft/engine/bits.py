"""Arithmetic in few instructions: set bits of a 64-bit integer, rows ahead of their use, division by powers of two."""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.jit import block
from weft.engine.state import Machine, Table


def lowest_bit(bits: int) -> int:
    """The number of the lowest set bit; at least one is set. Compiled, it is one instruction."""
    return (int(bits) & -int(bits)).bit_length() - 1


def prefetch(table: Table, row: int, column: int) -> None:
    """Let the processor bring a row's cache line of `column` into its cache. As plain Python, it does nothing."""


@block
def bits_above(bits: int, k: int) -> int:
    """The bits above bit `k`, shifted down so that the first of them is bit 0."""
    return bits >> k >> 1 & (y.LARGEST >> k)


@block
def quotient(m: Machine, value: int, size: int) -> int:
    """`value` divided by the size in column `size` of `shape`, rounded down."""
    shift = m.shift[size]
    return value >> shift if shift >= 0 else value // m.shape[size]  # type: ignore[no-any-return]


@block
def remainder(m: Machine, value: int, size: int) -> int:
    """`value` modulo the size in column `size` of `shape`."""
    whole = m.shape[size]
    return value & (whole - 1) if m.shift[size] >= 0 else value % whole  # type: ignore[no-any-return]


@block
def duration(bytes_: int, x64: int) -> int:
    """Time [fs] that `bytes_` take at `x64` femtoseconds per 64 bytes, rounded down."""
    return bytes_ * x64 >> 6
