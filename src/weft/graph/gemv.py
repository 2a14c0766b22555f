"""A matrix times a vector, the matrix stored row by row, perhaps as a part of a wider one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weft.core.errors import InputError
from weft.core.fields import check_fields
from weft.graph.op import Op, Tensor, check_dtype, check_sizes, plain


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
