"""Matrix products as operators: GEMM, GEMV and the grouped GEMM of experts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError, check_whole, show_value
from weft.core.fields import check_fields
from weft.graph.op import DTYPE_BYTES, OUTPUT_DTYPES, Gradients, Op, Tensor, check_dtype, check_sizes, plain


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
            raise InputError(f"scaled is {show_value(self.scaled)}; a GEMM has 0, 1 or 2 operands scaled by parts of K")
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


@dataclass(frozen=True)
class Gemv(Op):
    """y = A x with A of `rows` x `columns` elements of `dtype`, row by row, `stride` elements from one to the next.

    With a stride of 0 rows follow each other without gaps; a larger one leaves out the rest of a wider matrix, such as
    the other heads of a key cache. Raises InputError for sizes that are no whole numbers above zero and for a stride
    that is shorter than a row, UnknownNameError for an unknown dtype.

    >>> Gemv(8192, 1024, stride=16384).least_bytes
    16795648
    """

    kind: ClassVar[str] = "gemv"

    rows: int
    columns: int
    stride: int = 0
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        check_sizes(self, "{} of a GEMV", {"rows": 1, "columns": 1, "stride": 0})
        check_fields(self, sizes=False)
        check_dtype(self.dtype)
        if np.any((np.asarray(self.stride) > 0) & (np.asarray(self.stride) < self.columns)):
            raise InputError(
                f"the stride of a GEMV is {self.stride}, but its rows have {self.columns} elements; give at least as "
                "many, or 0 for rows without gaps"
            )

    @property
    def step(self) -> int:
        """Elements from one row to the next."""
        return int(plain(np.where(np.asarray(self.stride) > 0, self.stride, self.columns)))

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The matrix, without the gaps, and the vector."""
        return Tensor((self.rows, self.columns), self.dtype, "weight"), Tensor((self.columns,), self.dtype)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The product."""
        return (Tensor((self.rows,), self.dtype),)

    @property
    def flops(self) -> int:
        """A multiply-add for each element of the matrix."""
        return 2 * self.rows * self.columns

    def __str__(self) -> str:
        wider = f" of rows {self.stride} apart" if np.ndim(self.stride) or self.stride else ""
        return f"gemv {self.rows} x {self.columns}{wider} {self.dtype}"


@dataclass(frozen=True)
class GroupedGemm(Op):
    """C_g = A_g x B_g for `groups` experts, whose A_g have `rows` rows in all; each B_g has K x N elements.

    The experts' tokens are spread evenly, unless `busiest` says how many rows the fullest group has (0: an even share).
    One launch computes all groups if `fused`, else each has its own. With `over_rows` it is the gradient of weights,
    B_g (K x N) = A_g^T x C_g, a sum over the rows of each group; with `accumulates` it is added to fp32 sums. Formats
    and `scaled` operands are those of `Gemm`. Raises InputError for a dimension that is no whole number above zero and
    for a fullest group that has more rows than there are or fewer than an even share, UnknownNameError for an unknown
    dtype.

    >>> GroupedGemm(groups=8, rows=8192, n=4096, k=1024).flops
    68719476736
    """

    kind: ClassVar[str] = "grouped_gemm"

    groups: int
    rows: int
    n: int
    k: int
    dtype: str = "bf16"
    busiest: int = 0
    fused: bool = True
    over_rows: bool = False
    accumulates: bool = False
    scaled: int = 0

    def __post_init__(self) -> None:
        least = dict.fromkeys(("groups", "rows", "n", "k"), 1) | {"busiest": 0}
        check_sizes(self, "{} of a grouped GEMM", least, n="N", k="K")
        check_whole("scaled", self.scaled, 0, 2)
        if self.scaled > 2:
            raise InputError(f"scaled is {self.scaled}; a GEMM has 0, 1 or 2 operands scaled by parts of K")
        check_fields(self, sizes=False)
        check_dtype(self.dtype)
        most, rows, groups = np.broadcast_arrays(self.busiest, self.rows, self.groups)
        odd = (most > 0) & ((most > rows) | (most * groups < rows))
        if np.any(odd):
            raise InputError(
                f"busiest of a grouped GEMM is {most[odd][0]:g}; the fullest of {groups[odd][0]:g} groups has "
                f"{np.ceil(rows[odd][0] / groups[odd][0]):g} to {rows[odd][0]:g} of {rows[odd][0]:g} rows"
            )

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Rows of A and all B; for the gradient of weights rows of A and of C, and the sums if it accumulates."""
        if not self.over_rows:
            return self._rows(self.k), replace(self._weights, dtype=self.dtype)
        return self._rows(self.k), self._rows(self.n), *(self.writes if self.accumulates else ())

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """Rows of C, or all gradients of weights."""
        return (self._weights,) if self.over_rows else (replace(self._rows(self.n), dtype=self.output_dtype),)

    def _rows(self, width: int) -> Tensor:
        return Tensor((self.rows, width), self.dtype)

    @property
    def _weights(self) -> Tensor:
        return Tensor((self.groups, self.k, self.n), self.output_dtype, "gradient" if self.over_rows else "weight")

    @property
    def output_dtype(self) -> str:
        """Number format of the products."""
        return "fp32" if self.accumulates else OUTPUT_DTYPES.get(self.dtype, self.dtype)

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """A, from which the gradients of B are computed."""
        return (self._rows(self.k),)

    @property
    def backward(self) -> Gradients:
        """The gradients of A, row by row, and those of every B, over its rows."""
        return Gradients(
            (replace(self, n=self.k, k=self.n),), (replace(self, over_rows=True, scaled=2 if self.scaled else 0),)
        )

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add as two."""
        return 2 * self.rows * self.n * self.k

    @property
    def matrix_dtype(self) -> str:
        """The dtype of the operands."""
        return self.dtype

    def __str__(self) -> str:
        return f"{self.groups} groups, {self.rows} rows x {self.n} x {self.k} {self.dtype}"
