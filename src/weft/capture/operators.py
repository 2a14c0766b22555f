"""Weft's operator for each call of PyTorch: products and attention as such, the rest by its tensors."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from weft.capture import tensors
from weft.graph import Attention, Call, Gemm, GroupedGemm, Op, Streaming
from weft.graph.op import DTYPE_BYTES
from weft.graph.op import Tensor as Described


@dataclass(frozen=True)
class Called:
    """A call of PyTorch: the operator's `name` and `base` name, arguments, results, and what it writes in place."""

    name: str
    base: str
    func: Any
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    results: tuple[Tensor, ...]
    written: tuple[Tensor, ...]

    @property
    def reads(self) -> tuple[Described, ...]:
        """What it reads, each tensor once; one that it reads in part counts with the part."""
        part = PARTLY_READ.get(self.base)
        listed = []
        for place, one in enumerate((*self.args, *self.named.values())):
            for tensor in tensors.found(one):
                if not (any(tensor is other for other in self.written) and self._overwrites):
                    of = self.results[0] if place == part and self.results else tensor
                    listed.append(tensors.described(of))
        return tuple(one for one in listed if one is not None)

    @property
    def writes(self) -> tuple[Described, ...]:
        """What it writes: tensors in place, else its results."""
        part = PARTLY_WRITTEN.get(self.base)
        if part is not None and self.written:
            return tuple(one for one in map(tensors.described, tensors.found(self.args[part])) if one is not None)
        return tuple(one for one in map(tensors.described, self.written or self.results) if one is not None)

    @property
    def _overwrites(self) -> bool:
        return self.base in OVERWRITING or self.base in PARTLY_WRITTEN or self.name.endswith(".out")


Rule = Callable[[Called], Op | None]
PARTLY_READ = dict.fromkeys(
    ("embedding", "index", "gather", "index_select", "nll_loss_forward", "nll_loss_backward"), 0
)
PARTLY_READ["nll_loss_backward"] = 1
"""Operators that read one of their arguments only in part, as much as they write."""
PARTLY_WRITTEN = {
    "index_put_": 2, "_index_put_impl_": 2, "index_add_": 3, "scatter_": 3, "scatter_add_": 3, "index_copy_": 3,
}  # fmt: skip
"""Operators that write a part of their first argument, as large as another one."""
OVERWRITING = frozenset(
    ("copy_", "zero_", "fill_", "uniform_", "normal_", "bernoulli_", "random_", "exponential_", "_foreach_copy_",
     "_foreach_zero_")
)  # fmt: skip
"""Operators that write a tensor without reading it."""
_LISTS = tomllib.loads(files("weft.capture").joinpath("operators.toml").read_text(encoding="utf-8"))
MOVES = frozenset(_LISTS["moves"]["operators"])
"""Operators that only move data."""
SWEEPS = frozenset(_LISTS["sweeps"]["operators"])
"""Operators that compute a few vector operations on each element, in sweeps over their tensors."""
TAGGED = frozenset((torch.Tag.pointwise, torch.Tag.reduction))


def operator_of(called: Called) -> Op | None:
    """Weft's operator of a call; None for one of which it does not know what it computes."""
    rule = RULES.get(called.base)
    if rule is not None and (found := rule(called)) is not None:
        return found
    reads, writes = called.reads, called.writes
    if called.base in MOVES:
        return _made(called.name, reads, writes)
    if (
        called.base in SWEEPS
        or TAGGED & set(called.func.tags)
        or called.base.startswith(("_foreach_", "_fused_adam", "_fused_sgd"))
    ):
        return _made(called.name, reads, writes, (), _largest(reads, writes))
    return None


@cache
def _made(
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


def _with(called: Called, *products: Gemm | None) -> Call:
    return _made(called.name, called.reads, called.writes, tuple(one for one in products if one is not None))


@cache
def _gemm(m: int, n: int, k: int, dtype: str, batch: int = 1) -> Gemm | None:
    """The product; None for one without elements, or of numbers that matrix units do not multiply."""
    return Gemm(m, n, k, dtype, batch) if min(m, n, k, batch) and dtype in DTYPE_BYTES else None


def _product(left: int) -> Rule:
    """The rule of a product of the arguments at `left` and behind it, matrices or batches of them."""

    def rule(called: Called) -> Op | None:
        a, b = called.args[left], called.args[left + 1]
        batch = math.prod(a.shape[:-2])
        columns = b.shape[-1] if b.dim() > 1 else 1
        rows = a.shape[-2] if a.dim() > 1 else 1
        return _gemm(rows, columns, a.shape[-1], tensors.dtype_of(a.dtype), batch)

    return rule


def _convolution(called: Called) -> Op:
    images, filters, transposed, groups = called.args[0], called.args[1], called.args[6], called.args[8]
    return _with(called, _windows(images, filters, called.results[0], transposed, groups))


def _windows(images: Tensor, filters: Tensor, output: Tensor, transposed: bool, groups: int) -> Gemm | None:
    """The product of every window with every filter of its group: an implicit GEMM."""
    places = images if transposed else output
    rows = places.shape[0] * math.prod(places.shape[2:])
    first, depth = filters.shape[0] // groups, math.prod(filters.shape[1:])
    return _gemm(rows, first, depth, tensors.dtype_of(images.dtype), groups)


def _convolution_backward(called: Called) -> Op:
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


def _grouped(called: Called) -> Op | None:
    """A product for each group: rows of one operand, or sums over rows for the gradient of weights."""
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
    """Rows of the fullest group, if these are known and not an even share; else 0."""
    if type(ends) is not Tensor:
        return 0
    with unset_fake_temporarily():
        bounds = [0, *ends.tolist()]
    sizes = [stop - start for start, stop in itertools.pairwise(bounds)]
    return 0 if max(sizes) == -(-bounds[-1] // len(sizes)) else max(sizes)


def _attention(called: Called) -> Op | None:
    """Fused attention, forward or backward; masks other than causal ones leave every pair to be computed."""
    gradient = called.base == "attention_backward"
    query, key, value = called.args[gradient : 3 + gradient]
    causal = called.args[8 if gradient else 5]
    *outer, heads, rows, head = query.shape
    return _attended(
        math.prod(outer), heads, rows, key.shape[-2], head, key.shape[-3], int(causal), value.shape[-1],
        tensors.dtype_of(query.dtype), gradient,
    )  # fmt: skip


@cache
def _attended(
    batch: int, heads: int, rows: int, keys: int, head: int, shared: int, causal: int, value: int, dtype: str,
    gradient: bool,
) -> Attention:  # fmt: skip
    return Attention(
        batch, heads, rows, keys, head, shared if shared != heads else 0, causal, dtype, gradient=gradient,
        value=value if value != head else 0,
    )  # fmt: skip


def _rows(name: str, like: int) -> Rule:
    """The rule of a normalisation over the last axis of the argument at `like`."""

    def rule(called: Called) -> Op | None:
        x = called.args[like]
        columns = _columns(called, x)
        if not x.numel() or not columns or tensors.dtype_of(x.dtype) not in DTYPE_BYTES:
            return None
        return _streaming(name, x.numel() // columns, columns, tensors.dtype_of(x.dtype))

    return rule


def _columns(called: Called, x: Tensor) -> int:
    """Elements of a row that is normalised; 0 if it is not the innermost."""
    if "layer_norm" in called.base:
        return math.prod(called.args[2 if called.base.endswith("backward") else 1])
    axis = called.args[2 if called.base.endswith("data") else 1]
    return x.shape[-1] if axis in (-1, x.dim() - 1) else 0


def _embedding(called: Called) -> Op | None:
    table, places = called.args[:2]
    return _streaming("embedding", places.numel(), table.shape[1], tensors.dtype_of(table.dtype))


@cache
def _streaming(name: str, rows: int, columns: int, dtype: str) -> Streaming:
    return Streaming(name, rows, columns, dtype)


def _recurrent(called: Called) -> Op:
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
    **dict.fromkeys(("mm", "bmm", "dot", "mv", "_int_mm"), _product(0)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addmm_", "baddbmm_"), _product(1)),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_grouped_mm": _grouped,
    "attention": _attention,
    "attention_backward": _attention,
    "_softmax": _rows("softmax", 0),
    "_softmax_backward_data": _rows("softmax_backward", 0),
    "native_layer_norm": _rows("layernorm", 0),
    "native_layer_norm_backward": _rows("layernorm_backward", 1),
    "embedding": _embedding,
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": _recurrent,
}
"""What computes more than its tensors' elements, or what Weft times better than by bytes, by PyTorch's name."""
