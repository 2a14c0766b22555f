"""Walk over the set bits of a 64-bit integer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import intrinsic, overload

from weft.engine import layout as y
from weft.engine.jit import block


def lowest_bit(bits: int) -> int:
    """The number of the lowest set bit; at least one is set."""
    return (int(bits) & -int(bits)).bit_length() - 1


@block
def bits_above(bits: int, k: int) -> int:
    """The bits above bit `k`, shifted down so that the first of them is bit 0."""
    return bits >> k >> 1 & (y.LARGEST >> k)


@intrinsic
def _trailing_zeros(_: Any, bits: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return types.int64(types.int64), generate


@overload(lowest_bit)
def _compiled_lowest_bit(bits):  # type: ignore[no-untyped-def]  # numba compares these arguments with those of the rule
    return lambda bits: _trailing_zeros(bits)  # type: ignore[call-arg]  # noqa: PLW0108
