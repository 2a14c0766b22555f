"""Attention: queries that look at keys and values, in three kernels or in one that keeps the scores on chip."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from weft.core.errors import InputError
from weft.core.fields import check_fields
from weft.graph.gemm import Gemm
from weft.graph.op import Gradients, Op, Tensor, check_dtype, check_sizes, plain
from weft.graph.streaming import Streaming


@dataclass(frozen=True)
class Attention(Op):
    """`heads` heads of `batch` sequences, `head` elements wide: `query` tokens of each look at `keys` tokens.

    `fused` attention is one kernel, else it is `kernels`. A fused kernel may share `kv_heads` heads of keys and
    values among the query heads (0: each has its own), and be `causal` (1): a query sees the keys up to its own, the
    last one all of them; of these, the nearest `window` (0: all). Values have `value` elements a head (0: as many as
    keys), as in latent attention. A fused kernel is of a `generation` of FlashAttention (0: the newest on its GPU).
    Unfused attention may have `dropout` of its scores; `eager`, their scale and mask are kernels of their own;
    `wide`, these and the softmax are in fp32, between copies to it and back. Keys and values may be kept in a
    `kv_dtype` ("": as the queries), and a fused kernel be of a `library` of inference (`weft.kernels.library.served`;
    "": a tuned kernel). The `gradient` is the backward pass: fused, it computes the scores again and does five products
    where the forward pass does two (FlashAttention-2, arXiv:2307.08691). Raises InputError for sizes that do not fit,
    UnknownNameError for an unknown dtype.

    >>> Attention(batch=8, heads=32, query=2048, keys=2048, head=128).flops
    549755813888
    """

    kind: ClassVar[str] = "attention"

    batch: int
    heads: int
    query: int
    keys: int
    head: int
    kv_heads: int = 0
    causal: int = 0
    dtype: str = "bf16"
    fused: bool = True
    dropout: bool = False
    gradient: bool = False
    window: int = 0
    value: int = 0
    generation: int = 0
    eager: bool = False
    wide: bool = False
    kv_dtype: str = ""
    library: str = ""

    def __post_init__(self) -> None:
        least = dict.fromkeys(("batch", "heads", "query", "keys", "head"), 1)
        least |= dict.fromkeys(("kv_heads", "causal", "window", "value", "generation"), 0)
        check_sizes(self, "{} of attention", least)
        check_fields(self, sizes=False)
        check_dtype(self.dtype)
        check_dtype(self.kv_dtype or self.dtype)
        if self.library and not (self.fused and not self.gradient):
            raise InputError(f"library {self.library} goes with fused attention, forward; leave it out")
        heads, shared, causal, window = np.broadcast_arrays(self.heads, self.kv_heads, self.causal, self.window)
        odd = (shared > 0) & (heads % np.maximum(shared, 1) != 0)
        if np.any(causal > 1):
            raise InputError(f"causal is {np.max(causal):g}; it must be 0 (every key is seen) or 1 (masked)")
        if np.any(odd):
            raise InputError(
                f"kv_heads is {shared[odd][0]:g}; it must divide the {heads[odd][0]:g} query heads, "
                "like heads=32,kv_heads=8"
            )
        if np.any((window > 0) & (causal == 0)):
            raise InputError("window goes with causal attention; say causal=1, or leave the window out")
        if not self.fused and np.any(shared + causal):
            raise InputError("kv_heads and causal go with fused attention; leave them out, or let it be fused")

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        return cast(int, _where(self.kv_heads, self.kv_heads, self.heads))

    @property
    def value_head(self) -> int:
        """Elements of a head of values."""
        return cast(int, _where(self.value, self.value, self.head))

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Queries, keys and values; for the gradient also the output, its gradient, and a sum for each row."""
        inputs = self._query, self._keys, self._values
        return (*inputs, self._output, self._output, self._sums) if self.gradient else inputs

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """One output row per query, or the gradients of queries, keys and values; scores may stay on the chip."""
        return (self._query, self._keys, self._values) if self.gradient else (self._output,)

    @property
    def _query(self) -> Tensor:
        return Tensor((self.batch, self.heads, self.query, self.head), self.dtype)

    @property
    def _keys(self) -> Tensor:
        return Tensor((self.batch, self.key_heads, self.keys, self.head), self.kv_dtype or self.dtype)

    @property
    def _values(self) -> Tensor:
        return Tensor((self.batch, self.key_heads, self.keys, self.value_head), self.kv_dtype or self.dtype)

    @property
    def _output(self) -> Tensor:
        return Tensor((self.batch, self.heads, self.query, self.value_head), self.dtype)

    @property
    def _sums(self) -> Tensor:
        return Tensor((self.batch, self.heads, self.query), "fp32")

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """Queries, keys, values and the sum of each row; unfused: also the scores after softmax, mask and dropout."""
        kept = (self._query, self._keys, self._values)
        if self.fused:
            return *kept, self._sums
        scores = Tensor((self.batch, self.heads, self.query, self.keys), self.dtype)
        in_fp32 = (replace(scores, dtype="fp32"),) if self.wide else ()
        dropped = (replace(scores, dtype="int8"), *(() if self.wide else (scores,))) if self.dropout else ()
        return *kept, *in_fp32, scores, *dropped

    @property
    def backward(self) -> Gradients:
        """Its gradient, one kernel or several."""
        return Gradients((replace(self, gradient=True),))

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of one head and sequence."""
        asking = np.minimum(self.query, self.keys)
        most = np.where(np.greater(self.window, 0), np.minimum(self.window, self.keys), self.keys)
        # A query sees one key more than the one before it, up to the most that any sees.
        fewer = np.maximum(most - (self.keys - asking + 1), 0)
        return cast(int, _where(self.causal, asking * most - fewer * (fewer + 1) / 2, self.query * self.keys))

    @property
    def flops(self) -> int:
        """Two products for each pair of a query and a key that it sees; four, or fused five, for the gradient."""
        over_keys, over_values = (1, 1) if not self.gradient else (3, 2) if self.fused else (2, 2)
        each = over_keys * self.head + over_values * self.value_head
        return cast(int, plain(2 * each * self.batch * self.heads * self.pairs))

    @property
    def matrix_dtype(self) -> str:
        """The dtype of the operands."""
        return self.dtype

    @property
    def kernels(self) -> tuple[Gemm | Streaming, ...]:
        """The operators of unfused attention: queries times keys, softmax (and dropout), scores times values.

        The gradient's: each one's own, from the last to the first.
        """
        count = self.batch * self.heads
        rows = count * self.query, self.keys
        scores = tuple(Streaming(name, *rows, dtype) for name, dtype in self._scores)
        forward: tuple[Gemm | Streaming, ...] = (
            Gemm(self.query, self.keys, self.head, self.dtype, count),
            *scores,
            Gemm(self.query, self.value_head, self.keys, self.dtype, count),
        )
        if not self.gradient:
            return forward
        each = (part for kernel in reversed(forward) for part in (*kernel.backward.inputs, *kernel.backward.weights))
        return cast("tuple[Gemm | Streaming, ...]", tuple(each))

    @property
    def _scores(self) -> tuple[tuple[str, str], ...]:
        """The kernels between the two products, and the dtypes that they work in.

        Those in fp32 are of Megatron-LM without its fused kernel (megatron/model/fused_softmax.py).
        """
        own = self.dtype
        dropped = (("dropout", own),) if self.dropout else ()
        if self.wide:
            inside = (("scale", "fp32"), ("masked_fill", "fp32"), ("eager_softmax", "fp32"))
            return ("widen", own), *inside, ("cast", own), *dropped
        names = ("scale", "mask", "eager_softmax") if self.eager else ("softmax",)
        return *((name, own) for name in names), *dropped

    def __str__(self) -> str:
        how = "fused" if self.fused else "batched"
        return f"{how}, {self.batch * self.heads} heads, {self.query} x {self.keys} x {self.head}"


def _where(condition: Any, value: Any, other: Any) -> Any:
    """`numpy.where` for sizes: a value where a condition is positive, else the other; int unless arrays are given."""
    return plain(np.where(np.greater(condition, 0), value, other))
