"""Divide by shifts and masks: by the sizes of `shape` that are powers of two, as most are, and by 64 bytes."""

from __future__ import annotations

from weft.engine.jit import block
from weft.engine.state import Machine


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
