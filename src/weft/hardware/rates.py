"""How fast a GPU computes: operations per clock by data type, and the clocks that go with them."""

from __future__ import annotations

from typing import Literal, get_args

from weft.hardware.fields import CountOrNone, Hertz
from weft.hardware.parts import Part

Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
"""Data types of a matrix product; the sums are kept in FP32 (FP64 for fp64, INT32 for int8)."""
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
"""Every data type of a matrix product."""
ClockState = Literal["peak", "boost", "sustained"]
"""Which clock a rate assumes: the data sheet's, the highest, or that of a long run at the power limit."""


class Rates(Part):
    """Dense matrix operations per clock and compute unit [FLOP]; 0 where a data type is not supported.

    `fp32` and `fp64` are what a plain product uses: the vector units for fp32 on NVIDIA, matrix units
    elsewhere.
    """

    fp64: CountOrNone
    fp32: CountOrNone
    tf32: CountOrNone
    fp16: CountOrNone
    bf16: CountOrNone
    fp8: CountOrNone
    int8: CountOrNone


class Clocks(Part):
    """Clocks beside the highest boost clock: behind the data sheet's matrix peak, and at the power limit."""

    matrix_peak: Hertz
    sustained: Hertz
