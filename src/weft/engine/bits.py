"""Single instructions: walk over the set bits of a 64-bit integer, ask for a row of a table ahead of its use."""

from __future__ import annotations

from weft.engine import layout as y
from weft.engine.jit import block
from weft.engine.state import Table


def lowest_bit(bits: int) -> int:
    """The number of the lowest set bit; at least one is set. Compiled, it is one instruction."""
    return (int(bits) & -int(bits)).bit_length() - 1


def prefetch(table: Table, row: int, column: int) -> None:
    """Let the processor bring a row's cache line of `column` into its cache. As plain Python, it does nothing."""


@block
def bits_above(bits: int, k: int) -> int:
    """The bits above bit `k`, shifted down so that the first of them is bit 0."""
    return bits >> k >> 1 & (y.LARGEST >> k)
