"""Operators as a framework called them: tensors, matrix products, and vector operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from weft.core.errors import check_type, check_whole
from weft.graph.gemm import Gemm
from weft.graph.op import Op, Tensor


@dataclass(frozen=True)
class Call(Op):
    """The operator `name` of a framework, such as "aten.add.Tensor", as it was called once.

    It moves `inputs` and `outputs`, and computes `products` on matrix units or, without any, `operations` on vector
    units. A tensor that it only reads in part, such as the table of an embedding, counts with that part. Raises
    InputError for a count of operations that is no whole number of at least 0.

    >>> x = Tensor((4096, 4096))
    >>> Call("aten.mul.Tensor", (x, x), (x,), operations=4096 * 4096).least_bytes
    100663296
    """

    kind: ClassVar[str] = "call"

    name: str
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    products: tuple[Gemm, ...] = ()
    operations: int = 0

    def __post_init__(self) -> None:
        check_type("the name of an operator", self.name, str, "give a text, like 'aten.add.Tensor'")
        for what in ("inputs", "outputs", "products"):
            check_type(f"{what} of operator '{self.name}'", getattr(self, what), tuple, "give a tuple")
            for one in getattr(self, what):
                kind = Gemm if what == "products" else Tensor
                check_type(
                    f"one of the {what} of operator '{self.name}'", one, kind, f"give a weft.graph.{kind.__name__}"
                )
        check_whole(f"operations of operator '{self.name}'", self.operations, 0, 1)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Its inputs."""
        return self.inputs

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """Its outputs."""
        return self.outputs

    @property
    def flops(self) -> int:
        """Those of its products; without any, its vector operations."""
        return sum(product.flops for product in self.products) if self.products else self.operations

    @property
    def matrix_dtype(self) -> str | None:
        """The dtype of its products' operands; None without products."""
        return self.products[0].dtype if self.products else None

    def __str__(self) -> str:
        return self.name
