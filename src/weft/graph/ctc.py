"""The loss over all alignments of a sequence with its labels (CTC), step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from weft.core.fields import check_fields
from weft.graph.op import Gradients, Op, Tensor, check_dtype, check_sizes


@dataclass(frozen=True)
class Ctc(Op):
    """Connectionist temporal classification of `batch` sequences of `steps` steps, each with `labels` of `classes`.

    Sums of probabilities over the 2 labels + 1 states of an alignment are carried from step to step, forwards for the
    loss, backwards for the `gradient` (Graves et al., ICML 2006); each step waits for the one before. Raises InputError
    for sizes that are no whole numbers above zero, UnknownNameError for an unknown dtype.

    >>> Ctc(batch=64, steps=400, labels=150, classes=29).states
    301
    """

    kind: ClassVar[str] = "ctc"

    batch: int
    steps: int
    labels: int
    classes: int
    dtype: str = "fp32"
    gradient: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "{} of CTC", dict.fromkeys(("batch", "steps", "labels", "classes"), 1))
        check_fields(self, sizes=False)
        check_dtype(self.dtype)

    @property
    def states(self) -> int:
        """States of an alignment: the labels, and a blank before, between and behind them."""
        return 2 * self.labels + 1

    @property
    def _probabilities(self) -> Tensor:
        return Tensor((self.steps, self.batch, self.classes), self.dtype)

    @property
    def _sums(self) -> Tensor:
        return Tensor((self.batch, self.steps, self.states), self.dtype)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The logarithms of probabilities; for the gradient also the sums of the forward pass."""
        return (self._probabilities, self._sums) if self.gradient else (self._probabilities,)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The sums of all steps; or those backwards, and the gradients of the probabilities."""
        return (self._sums, self._probabilities) if self.gradient else (self._sums,)

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """The sums of all steps."""
        return (self._sums,)

    @property
    def backward(self) -> Gradients:
        """The gradient of the probabilities."""
        return Gradients((replace(self, gradient=True),))

    @property
    def flops(self) -> int:
        """Three additions in logarithms for each state and step."""
        return 3 * self.batch * self.steps * self.states

    def __str__(self) -> str:
        what = ", gradient" if self.gradient else ""
        return f"CTC of {self.batch} x {self.steps} steps, {self.labels} labels of {self.classes}{what}"
