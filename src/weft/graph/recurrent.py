"""Recurrent layers and the CTC loss as operators: what every step of a sequence computes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np

from weft.core.errors import InputError, check_name
from weft.core.fields import check_fields
from weft.graph.gemm import Gemm
from weft.graph.op import Gradients, Op, Tensor, check_dtype, check_sizes

Cell = Literal["vanilla", "lstm", "gru"]
Pass = Literal["forward", "data", "weights"]
"""The forward pass, and the gradients of inputs and states, and of weights."""
GATES = {"vanilla": 1, "lstm": 4, "gru": 3}
"""Vectors of `hidden` elements that a step computes from the state, by cell."""


@dataclass(frozen=True)
class Recurrent(Op):
    """A layer of `hidden` cells over `batch` sequences of `steps` steps, in one direction.

    Each step multiplies the state with gates x hidden x hidden weights and waits for the step before. `inputs` is the
    width of the layer's input, whose products for all steps are one GEMM (0: that GEMM is not part of the operator).
    A `persistent` kernel keeps the weights in registers. `computes` is the forward pass or the gradients of the "data"
    or of the "weights". A bidirectional layer is two of them. Raises InputError for sizes that are no whole numbers
    above zero, UnknownNameError for an unknown cell, pass or dtype.

    >>> Recurrent("gru", hidden=2560, batch=32, steps=375).flops
    471859200000
    """

    kind: ClassVar[str] = "recurrent"

    cell: Cell
    hidden: int
    batch: int
    steps: int
    inputs: int = 0
    dtype: str = "bf16"
    persistent: bool = False
    computes: Pass = "forward"

    def __post_init__(self) -> None:
        check_name("recurrent cell", self.cell, GATES)
        check_name("pass of a recurrent layer", self.computes, get_args(Pass))
        least = dict.fromkeys(("hidden", "batch", "steps"), 1)
        check_sizes(self, f"{{}} of {self.cell} layer", {**least, "inputs": 0})
        check_fields(self, sizes=False)
        check_dtype(self.dtype)
        if self.persistent and self.computes == "weights":
            raise InputError(
                "the gradient of weights is one GEMM after the steps; a persistent kernel is for the steps"
            )

    @property
    def gates(self) -> int:
        """Vectors of `hidden` elements that a step computes."""
        return GATES[self.cell]

    @property
    def outputs(self) -> int:
        """Rows of the weights: gates x hidden."""
        return self.gates * self.hidden

    @property
    def input_product(self) -> Gemm | None:
        """The GEMM of the inputs, or of their gradients, of all steps; None if it is not part of the operator."""
        if np.ndim(self.inputs) == 0 and self.inputs == 0:
            return None
        rows = self.batch * self.steps
        forward = Gemm(rows, self.outputs, self.inputs, self.dtype)
        return forward.backward.inputs[0] if self.computes == "data" else forward  # type: ignore[return-value]

    @property
    def weight_product(self) -> Gemm:
        """The GEMM of the gradients of all weights, a sum over sequences and steps."""
        return Gemm(self.outputs, self.inputs + self.hidden, self.batch * self.steps, self.dtype)

    @property
    def weight(self) -> Tensor:
        """Weights of inputs and state."""
        return Tensor((self.outputs, self.inputs + self.hidden), self.dtype, "weight")

    @property
    def _sequences(self) -> Tensor:
        width = self.inputs if self.input_product is not None else self.outputs
        return Tensor((self.steps, self.batch, width), self.dtype)

    @property
    def _states(self) -> Tensor:
        return Tensor((self.steps, self.batch, self.hidden), self.dtype)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Inputs and weights; for gradients of data, those of the states, what was saved and the weights."""
        if self.computes == "forward":
            return self._sequences, self.weight
        if self.computes == "data":
            return self._states, *self.saved, self.weight
        return self._sequences, *self.saved, self._states

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The states of all steps; the gradients of the inputs; those of the weights."""
        if self.computes == "forward":
            return (self._states,)
        return (self._sequences,) if self.computes == "data" else (replace(self.weight, role="gradient"),)

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """The gates of all steps."""
        return (Tensor((self.steps, self.batch, self.outputs), self.dtype),)

    @property
    def backward(self) -> Gradients:
        """The gradients of inputs and states, step by step backwards, and those of the weights in one GEMM."""
        weights = replace(self, computes="weights", persistent=False)
        return Gradients((replace(self, computes="data"),), (weights,))

    @property
    def flops(self) -> int:
        """Those of the products: 2 gates hidden (inputs + hidden) for each sequence and step, in every pass."""
        return self.weight_product.flops

    @property
    def matrix_dtype(self) -> str:
        """The dtype of the operands."""
        return self.dtype

    def __str__(self) -> str:
        what = {"forward": "", "data": ", gradients of data", "weights": ", gradients of weights"}[self.computes]
        return f"{self.cell} of {self.hidden}, {self.batch} x {self.steps} steps {self.dtype}{what}"


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
