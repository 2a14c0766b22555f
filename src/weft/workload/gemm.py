"""Matrix multiplication as a piece of work: how much it computes and how much it must move at least."""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import InputError, UnknownNameError

DTYPE_BYTES = {"fp16": 2, "bf16": 2}
"""Bytes per element of the number formats that the matrix units take."""


@dataclass(frozen=True)
class Gemm:
    """C = A x B with A of M x K, B of K x N and C of M x N elements of `dtype`.

    Raises InputError for a dimension that is no whole number above zero, UnknownNameError for an unknown
    dtype.

    >>> Gemm(m=8192, n=4256, k=2128).flops
    148386086912
    """

    m: int
    n: int
    k: int
    dtype: str = "fp16"

    def __post_init__(self) -> None:
        dimensions: dict[str, object] = {"M": self.m, "N": self.n, "K": self.k}
        for name, value in dimensions.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"GEMM dimension {name} is {value!r}; it must be a whole number above zero")
        if self.dtype not in DTYPE_BYTES:
            raise UnknownNameError("dtype", self.dtype, DTYPE_BYTES)

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add as two: 2 M N K."""
        return 2 * self.m * self.n * self.k

    @property
    def element_bytes(self) -> int:
        """Size of one element [bytes]."""
        return DTYPE_BYTES[self.dtype]

    @property
    def output_bytes(self) -> int:
        """Size of C [bytes]."""
        return self.m * self.n * self.element_bytes

    @property
    def bytes(self) -> int:
        """Least traffic: A and B read once, C written once [bytes]."""
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return elements * self.element_bytes

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k} {self.dtype}"
