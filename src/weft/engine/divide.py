"""Divide by the sizes of `shape`: by a shift or a mask where a size is a power of two, as most are."""

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
