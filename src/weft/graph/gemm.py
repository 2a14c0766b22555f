"""Matrix multiplication as an operator: its FLOPs, tensors and least traffic."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, check_whole, shown
from weft.core.fields import check_fields
from weft.graph.op import DTYPE_BYTES, OUTPUT_DTYPES, Gradients, Op, Tensor, check_dtype, check_sizes


@dataclass(frozen=True)
class Gemm(Op):
    """C = A x B with A of M x K and B of K x N elements of `dtype`, and C of M x N of `output_dtype`; `batch` of them.

    C has the operands' format, but for operands of 8 bits or fewer: there it is bf16, as inference and training
    libraries write it. Sums are kept in 32 bits (fp64 in 64). With `accumulates` it is C += A x B on an fp32 C, as
    training adds up the gradients of weights over micro-batches. So many operands are `scaled` by 128 elements along K
    of each row of A or column of B, others by blocks of 128 x 128 or as a whole. Raises InputError for a dimension that
    is no whole number above zero, UnknownNameError for an unknown dtype.

    >>> Gemm(m=8192, n=4256, k=2128).flops
    148386086912
    >>> Gemm(m=8192, n=4256, k=2128, dtype="fp8").output_dtype
    'bf16'
    """

    kind: ClassVar[str] = "gemm"

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    batch: int = field(default=1, repr=False)
    accumulates: bool = field(default=False, repr=False)
    scaled: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        least = dict.fromkeys(("m", "n", "k", "batch"), 1)
        check_sizes(self, "GEMM dimension {}", least, m="M", n="N", k="K")
        check_whole("scaled", self.scaled, 0, 2)
        if self.scaled > 2:
            raise InputError(f"scaled is {shown(self.scaled)}; a GEMM has 0, 1 or 2 operands scaled by parts of K")
        check_fields(self, sizes=False)
        check_dtype(self.dtype)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """A and B, and C if it accumulates."""
        a, b = Tensor((self.batch, self.m, self.k), self.dtype), (self.batch, self.k, self.n)
        return a, Tensor(b, self.dtype, "weight"), *(self.writes if self.accumulates else ())

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """C."""
        return (Tensor((self.batch, self.m, self.n), self.output_dtype),)

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """A, from which the gradient of B is computed."""
        return (Tensor((self.batch, self.m, self.k), self.dtype),)

    @property
    def backward(self) -> Gradients:
        """The gradient of A (M x K, sum over N) and that of B (K x N, sum over M)."""
        inputs = replace(self, n=self.k, k=self.n)
        return Gradients((inputs,), (replace(self, m=self.k, k=self.m, scaled=2 if self.scaled else 0),))

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add as two: 2 M N K of each product."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def matrix_dtype(self) -> str:
        """The dtype of the operands."""
        return self.dtype

    @property
    def element_bytes(self) -> int:
        """Size of one element of A or B [bytes]; InputError for formats with block scales, which no kernel runs."""
        if self.dtype not in DTYPE_BYTES:
            raise InputError(f"no kernel multiplies {self.dtype} request by request; use weft.estimate, or fp8")
        return DTYPE_BYTES[self.dtype]

    @property
    def output_dtype(self) -> str:
        """Number format of C."""
        if self.accumulates:
            return "fp32"
        return OUTPUT_DTYPES.get(self.dtype, self.dtype)

    @property
    def output_element_bytes(self) -> int:
        """Size of one element of C [bytes]."""
        return DTYPE_BYTES[self.output_dtype]

    @property
    def accumulator_bytes(self) -> int:
        """Size of one partial sum [bytes]: at least that of fp32."""
        return max(4, DTYPE_BYTES.get(self.dtype, 0))

    @property
    def output_bytes(self) -> int:
        """Size of C [bytes]."""
        return self.m * self.n * self.batch * self.output_element_bytes

    def __str__(self) -> str:
        shape = f"{self.m} x {self.n} x {self.k} {self.dtype}"
        return shape if np.ndim(self.batch) == 0 and self.batch == 1 else f"{self.batch} x {shape}"


def gemm(m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, dtype: str = "bf16", batch: npt.ArrayLike = 1) -> Gemm:
    """C[m,n] = A[m,k] B[k,n], `batch` times; arrays broadcast in closed forms. Raises as `Gemm` does.

    >>> gemm(8192, 8192, 1024).flops
    137438953472
    """
    return Gemm(cast(int, m), cast(int, n), cast(int, k), dtype, cast(int, batch))
