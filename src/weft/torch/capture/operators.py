"""Weft's operator for each call of PyTorch: products and attention as such, the rest by its tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from weft.graph import Call, Gemm, GroupedGemm, Op, Streaming
from weft.graph.op import DTYPE_BYTES
from weft.graph.op import Tensor as Described
from weft.torch.capture import tensors
from weft.torch.traces.operators import COMMON, OVERWRITES, TABLES, NotThisOneError, Rule, by_rule, operators_that


@dataclass(frozen=True)
class CapturedCall:
    """A call of PyTorch: the operator's `name` and `base` name, arguments, results, and what it writes in place."""

    name: str
    base: str
    func: Any
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    results: tuple[Tensor, ...]
    written: tuple[Tensor, ...]

    def __getitem__(self, place: int) -> Described:
        """The tensor at a place, as it is. Raises NotThisOneError if it has no elements, or is none."""
        tensor = self.args[place]
        if not isinstance(tensor, Tensor) or 0 in tensor.shape:
            raise NotThisOneError
        return tensors.make_tensor(tuple(tensor.shape), tensors.dtype_of(tensor.dtype))

    def value(self, place: int) -> Any:
        """Return the argument at a place; None if it is left out."""
        return self.args[place] if place < len(self.args) else None

    @property
    def reads(self) -> tuple[Described, ...]:
        """The tensors that the call reads, each once; of a tensor that it reads in part, only the part counts."""
        part = PARTLY_READ.get(self.base)
        listed = []
        for place, one in enumerate((*self.args, *self.named.values())):
            for tensor in tensors.find_tensors(one):
                if not (any(tensor is other for other in self.written) and self._overwrites):
                    of = self.results[0] if place == part and self.results else tensor
                    listed.append(tensors.describe_tensor(of))
        return tuple(one for one in listed if one is not None)

    @property
    def writes(self) -> tuple[Described, ...]:
        """The tensors that the call writes: those that it changes in place, else its results."""
        part = PARTLY_WRITTEN.get(self.base)
        if part is not None and self.written:
            return tuple(
                one for one in map(tensors.describe_tensor, tensors.find_tensors(self.args[part])) if one is not None
            )
        return tuple(one for one in map(tensors.describe_tensor, self.written or self.results) if one is not None)

    @property
    def _overwrites(self) -> bool:
        return self.base in OVERWRITES or self.base in PARTLY_WRITTEN or self.name.endswith(".out")


PARTLY_READ, PARTLY_WRITTEN = (
    {name: place for name, place in TABLES[rule].items() if name != "about"} for rule in ("reads_part", "writes_part")
)
"""Operators that read one argument, or write their first one, only in part, by the place of the argument that says."""
MOVES, SWEEPS = operators_that("moves"), operators_that("sweeps")
_TAGGED = frozenset((torch.Tag.pointwise, torch.Tag.reduction))


def operator_of(called: CapturedCall) -> Op | None:
    """Weft's operator of a call; None for one of which it does not know what it computes."""
    known = by_rule(called, RULES)
    if known is not None:
        return known
    reads, writes = called.reads, called.writes
    if called.base in MOVES:
        return _make_call(called.name, reads, writes)
    if (
        called.base in SWEEPS
        or _TAGGED & set(called.func.tags)
        or called.base.startswith(("_foreach_", "_fused_adam", "_fused_sgd"))
    ):
        return _make_call(called.name, reads, writes, (), _largest(reads, writes))
    return None


@cache
def _make_call(
    name: str,
    reads: tuple[Described, ...],
    writes: tuple[Described, ...],
    products: tuple[Gemm, ...] = (),
    work: int = 0,
) -> Call:
    return Call(name, reads, writes, products, work)


def _largest(reads: tuple[Described, ...], writes: tuple[Described, ...]) -> int:
    """Elements of all that is written, or of the largest input if that is more: one operation for each."""
    return max(sum(math.prod(one.shape) for one in writes), max((math.prod(one.shape) for one in reads), default=0))


def _with(called: CapturedCall, *products: Gemm | None) -> Call:
    return _make_call(called.name, called.reads, called.writes, tuple(one for one in products if one is not None))


@cache
def _gemm(m: int, n: int, k: int, dtype: str, batch: int = 1) -> Gemm | None:
    """Return the product; None for one without elements, or of numbers that matrix units do not multiply."""
    return Gemm(m, n, k, dtype, batch) if min(m, n, k, batch) and dtype in DTYPE_BYTES else None


def _convolution(called: CapturedCall) -> Op:
    images, filters, transposed, groups = called.args[0], called.args[1], called.args[6], called.args[8]
    return _with(called, _windows(images, filters, called.results[0], transposed, groups))


def _windows(images: Tensor, filters: Tensor, output: Tensor, transposed: bool, groups: int) -> Gemm | None:
    """Return the product of every window with every filter of its group: an implicit GEMM."""
    places = images if transposed else output
    rows = places.shape[0] * math.prod(places.shape[2:])
    first, depth = filters.shape[0] // groups, math.prod(filters.shape[1:])
    return _gemm(rows, first, depth, tensors.dtype_of(images.dtype), groups)


def _convolution_backward(called: CapturedCall) -> Op:
    gradient, images, filters = called.args[:3]
    transposed, groups, (of_images, of_filters, _) = called.args[7], called.args[9], called.args[10]
    forward = _windows(images, filters, gradient, transposed, groups)
    if forward is None:
        return _with(called)
    m, n, k, dtype = forward.m, forward.n, forward.k, forward.dtype
    return _with(
        called,
        _gemm(m, k, n, dtype, groups) if of_images else None,
        _gemm(k, n, m, dtype, groups) if of_filters else None,
    )


def _grouped_product(called: CapturedCall) -> Op | None:
    """Return a product for each group: rows of one operand, or sums over rows for the gradient of weights."""
    a, b = called.args[:2]
    ends = called.args[2] if len(called.args) > 2 else called.named.get("offs")
    dtype = tensors.dtype_of(a.dtype)
    if ends is None:
        return _gemm(a.shape[-2], b.shape[-1], a.shape[-1], dtype, a.shape[0])
    groups, fullest = ends.shape[0], _fullest(ends)
    if a.dim() == 2 and b.dim() == 2:
        return GroupedGemm(groups, a.shape[1], b.shape[1], a.shape[0], dtype, fullest, over_rows=True)
    rows, n = (a.shape[0], b.shape[-1]) if a.dim() == 2 else (b.shape[1], a.shape[1])
    return GroupedGemm(groups, rows, n, a.shape[-1], dtype, fullest)


def _fullest(ends: Tensor) -> int:
    """Return rows of the fullest group, if these are known and not an even share; else 0."""
    if type(ends) is not Tensor:
        return 0
    with unset_fake_temporarily():
        bounds = [0, *ends.tolist()]
    sizes = [stop - start for start, stop in itertools.pairwise(bounds)]
    return 0 if max(sizes) == -(-bounds[-1] // len(sizes)) else max(sizes)


def _embedding(called: CapturedCall) -> Op:
    table, places = called[0], called[1]
    return _gather_op(math.prod(places.shape), table.shape[1], table.dtype)


@cache
def _gather_op(rows: int, columns: int, dtype: str) -> Streaming:
    return Streaming("embedding", rows, columns, dtype)


def _recurrent(called: CapturedCall) -> Op:
    """One layer of an LSTM, GRU or RNN over all tokens: products with inputs and with states of all its gates."""
    x, of_inputs, of_states = called.args[0], called.args[1], called.args[2]
    tokens, dtype = x.numel() // x.shape[-1], tensors.dtype_of(x.dtype)
    forward = [_gemm(tokens, one.shape[0], one.shape[1], dtype) for one in (of_inputs, of_states)]
    if not called.base.endswith("backward"):
        return _with(called, *forward)
    kept = [one for one in forward if one is not None]
    each = (_gemm(*sizes, dtype) for one in kept for sizes in ((one.m, one.k, one.n), (one.k, one.n, one.m)))
    return _with(called, *each)


RULES: Mapping[str, Rule] = {
    **COMMON,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_grouped_mm": _grouped_product,
    "embedding": _embedding,
    **dict.fromkeys(("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"), _recurrent),
}
"""What computes more than its tensors' elements, or what Weft times better than by bytes, by PyTorch's name."""
