"""Grouped matrix multiplication: one product for each expert of a mixture, on the tokens that were sent to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from weft.core.errors import InputError, check_whole
from weft.core.fields import check_fields
from weft.graph.op import OUTPUT_DTYPES, Gradients, Op, Tensor, check_dtype, check_sizes


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
