"""Matrix multiplication as a piece of work: how much it computes and how much it must move at least."""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import InputError, UnknownNameError

DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "tf32": 4, "fp32": 4, "fp64": 8}
"""Bytes per element of the number formats that matrix units take; tf32 is fp32 data, rounded as it is multiplied."""
OUTPUT_DTYPES = {"fp8": "bf16", "int8": "bf16", "tf32": "fp32"}
"""What a product of 8-bit operands is written as: kernels scale their 32-bit sums and round them to 16 bits."""


@dataclass(frozen=True)
class Gemm:
    """C = A x B with A of M x K and B of K x N elements of `dtype`, and C of M x N of `output_dtype`.

    C has the operands' format, but for 8-bit operands (fp8, int8): there it is bf16, as inference and training
    libraries write it. Sums are kept in 32 bits (fp64 in 64). Raises InputError for a dimension that is no whole number
    above zero, UnknownNameError for an unknown dtype.

    >>> Gemm(m=8192, n=4256, k=2128).flops
    148386086912
    >>> Gemm(m=8192, n=4256, k=2128, dtype="fp8").output_dtype
    'bf16'
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
        """Size of one element of A or B [bytes]."""
        return DTYPE_BYTES[self.dtype]

    @property
    def output_dtype(self) -> str:
        """Number format of C."""
        return OUTPUT_DTYPES.get(self.dtype, self.dtype)

    @property
    def output_element_bytes(self) -> int:
        """Size of one element of C [bytes]."""
        return DTYPE_BYTES[self.output_dtype]

    @property
    def accumulator_bytes(self) -> int:
        """Size of one partial sum [bytes]."""
        return max(4, self.element_bytes)

    @property
    def output_bytes(self) -> int:
        """Size of C [bytes]."""
        return self.m * self.n * self.output_element_bytes

    @property
    def bytes(self) -> int:
        """Least traffic: A and B read once, C written once [bytes]."""
        return (self.m * self.k + self.k * self.n) * self.element_bytes + self.output_bytes

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k} {self.dtype}"
