"""Data that operators read and write: shape, number format, and what it is to the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from weft.errors import InputError, check_name
from weft.graph.sizes import is_one

DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "tf32": 4, "fp32": 4, "fp64": 8}
"""Bytes per element of the number formats that matrix units take; tf32 is fp32 data, rounded as it is multiplied."""
OUTPUT_DTYPES = {"fp8": "bf16", "int8": "bf16", "tf32": "fp32"}
"""What a product of 8-bit operands is written as: kernels scale their 32-bit sums and round them to 16 bits."""
Role = Literal["activation", "weight", "gradient", "state", "buffer"]
"""What a tensor is to the model; a buffer is scratch memory of one operator."""


@dataclass(frozen=True)
class Tensor:
    """An array of `shape` elements of `dtype`.

    In closed forms dimensions may be arrays. Raises InputError for an empty or negative dimension, UnknownNameError for
    an unknown dtype or role.

    >>> Tensor((8192, 4256), "fp16").bytes
    69730304
    """

    shape: tuple[int, ...]
    dtype: str = "bf16"
    role: Role = "activation"

    def __post_init__(self) -> None:
        for size in self.shape:
            if is_one(size) and size < 1:
                raise InputError(f"a tensor has the shape {self.shape}; every dimension must be at least 1")
        check_dtype(self.dtype)
        check_name("role of a tensor", self.role, get_args(Role))

    @property
    def bytes(self) -> int:
        """Size of the data [bytes]."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def check_dtype(dtype: str) -> None:
    """Raise UnknownNameError for a number format that there is not."""
    check_name("dtype", dtype, DTYPE_BYTES)
