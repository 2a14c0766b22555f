"""An operator of any kind, known by what it computes and what it moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.errors import check_type
from weft.graph.op import Op
from weft.graph.sizes import check_sizes, is_one
from weft.graph.tensor import Tensor, check_dtype


@dataclass(frozen=True)
class Opaque(Op):
    """`name` computes `flops`, and moves `bytes` in all, of which it writes `written`.

    Matrix units compute it in `matrix_dtype` (None: vector units do). Raises InputError for what is no whole number of
    at least 0, UnknownNameError for an unknown dtype.

    >>> Opaque("top-k", flops=10**9, bytes=1 << 28).least_bytes
    268435456
    """

    kind: ClassVar[str] = "opaque"

    name: str
    flops: int = 0
    bytes: int = 0
    written: int = 0
    matrix_dtype: str | None = None

    def __post_init__(self) -> None:
        check_type("the name of an operator", self.name, str, "give a text, like 'top-k'")
        check_sizes(self, f"{{}} of operator '{self.name}'", {"flops": 0, "bytes": 0, "written": 0})
        if self.matrix_dtype is not None:
            check_dtype(self.matrix_dtype)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """What it reads, as bytes."""
        return _bytes(self.bytes - self.written)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """What it writes, as bytes."""
        return _bytes(self.written)

    def __str__(self) -> str:
        return self.name


def _bytes(count: int) -> tuple[Tensor, ...]:
    return () if is_one(count) and count == 0 else (Tensor((count,), "int8", "buffer"),)
