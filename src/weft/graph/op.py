"""What an operator is: work with known FLOPs and a least number of bytes to move, on no machine yet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from weft.graph.tensor import Tensor


class Op(ABC):
    """An operator: a frozen dataclass of its dimensions, equal to every operator of equal content.

    `kind` is its name in files and tables. `reads` and `writes` are its tensors, `flops` counts floating-point
    operations (a multiply-add as two). Dimensions are whole numbers; closed forms also take arrays of them, which
    broadcast (`weft.estimate.estimate`). To add a kind: write one file with a frozen dataclass, and its line in KINDS.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def reads(self) -> tuple[Tensor, ...]:
        """What it reads."""

    @property
    @abstractmethod
    def writes(self) -> tuple[Tensor, ...]:
        """What it writes."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations."""

    @property
    def matrix_dtype(self) -> str | None:
        """The number format in which matrix units compute its FLOPs; None: vector units do."""
        return None

    @property
    def least_bytes(self) -> int:
        """Least memory traffic: everything read once, everything written once [bytes]."""
        return sum(tensor.bytes for tensor in (*self.reads, *self.writes))
