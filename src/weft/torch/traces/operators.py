"""Weft's operators of PyTorch's calls: rules for captured and recorded ones, and those that a profiler recorded."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, Protocol

from weft.core.errors import InputError
from weft.core.files import packaged_toml
from weft.graph import Attention, Call, Collective, Convolution, Gemm, Op, Streaming, Tensor
from weft.graph.op import DTYPE_BYTES

TABLES = packaged_toml("weft.torch.traces", "operators.toml")
"""Names of PyTorch's operators, collectives and number formats."""
DTYPES: Mapping[str, str] = {type_: known["name"] for known in TABLES["dtypes"].values() for type_ in known["types"]}
"""Weft's names of the C++ types of elements, as traces spell them in lower case."""
_ENDINGS = re.compile("(out|coalesced|intotensor|tensor|single|base|oop)+$")


class ListedCollective(NamedTuple):
    """Weft's `name` of a collective of PyTorch, and whether its input or its output ("in", "out") is the whole."""

    name: str
    whole: str


COLLECTIVES: Mapping[str, ListedCollective] = {
    call: ListedCollective(known["name"], known["whole"]) for known in TABLES["collectives"] for call in known["calls"]
}
"""Collectives by PyTorch's names without underscores and endings."""


def operators_that(rule: str) -> frozenset[str]:
    """Return the names of operators in a list of the table, such as those that "reduces" holds."""
    return frozenset(TABLES[rule]["operators"])


def collective_named(name: str) -> ListedCollective | None:
    """Return the collective of PyTorch's name, such as "_allgather_base_"; None for another name."""
    return COLLECTIVES.get(_ENDINGS.sub("", name.lower().replace("_", "")))


class NotThisOneError(Exception):
    """A rule does not fit: an argument that it needs is no tensor of known shape."""


class AnyCall(Protocol):
    """A call of PyTorch, captured or recorded: its name without namespace and overload, and its arguments by place."""

    @property
    def base(self) -> str:
        """The name without namespace and overload: "addmm" of "aten::addmm"."""

    def __getitem__(self, place: int) -> Tensor:
        """The tensor at a place. Raises NotThisOneError if it is none of known shape."""

    def value(self, place: int) -> Any:
        """The value of an argument that is no tensor; None if it is not known."""


@dataclass(frozen=True)
class RecordedCall:
    """A recorded call: the operator's `name`, the shapes and C++ types of its arguments, and their values as texts.

    A list of tensors has a tuple of shapes; what is no tensor has the shape ().
    """

    name: str
    shapes: tuple[Any, ...]
    types: tuple[str, ...]
    values: tuple[str, ...] = ()

    @classmethod
    def of_texts(cls, name: str, shapes: str, types: str, values: str) -> RecordedCall:
        """A call from the texts of its lists of shapes, types and values; lists that cannot be read are empty."""
        named = tuple(_type(str(each)) for each in parse_list(types))
        return cls(name, _frozen(parse_list(shapes)), named, tuple(map(str, parse_list(values))))

    @property
    def base(self) -> str:
        """The name without namespace and overload: "addmm" of "aten::addmm"."""
        return self.name.rsplit("::", 1)[-1].split(".", 1)[0]

    @cached_property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """Its arguments that are single tensors; None for all others."""
        pairs = zip(self.shapes, self.types, strict=False)
        return tuple(_tensor(shape, type_) for shape, type_ in pairs)

    @cached_property
    def arguments(self) -> tuple[tuple[Tensor, ...], ...]:
        """The tensors of each argument; those of lists, whose types are not recorded, are taken for fp32."""
        return tuple(
            (single,) if single is not None else _in_list(shapes, type_)
            for single, shapes, type_ in zip(self.tensors, self.shapes, self.types, strict=False)
        )

    def value(self, place: int) -> Any:
        """The value of an argument that is no tensor; None if it was not recorded."""
        text = self.values[place] if place < len(self.values) else ""
        try:
            return ast.literal_eval(text.replace("true", "True").replace("false", "False"))
        except (ValueError, SyntaxError):
            return None

    def __getitem__(self, place: int) -> Tensor:
        tensor = self.tensors[place] if place < len(self.tensors) else None
        if tensor is None:
            raise NotThisOneError
        return tensor


_COMPILED = ("CompiledFunction", "Torch-Compiled Region", "CompiledFxGraph")
"""Regions of torch.compile: what their kernels compute is not recorded."""


_LISTS = ("TensorList", "GenericList", "Tensor[]")
OVERWRITES, _REDUCES = operators_that("overwrites"), operators_that("reduces")


@cache
def parse_list(text: str) -> Sequence[Any]:
    """Return a list as a trace wrote it; () for what is none, such as one that holds "nan"."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ()
    return value if isinstance(value, list | tuple) else ()


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _type(text: str) -> str:
    """Return a type as the profiler writes it, without the "Tensor(...)" of execution traces."""
    if text.startswith("GenericList[Tensor"):
        return "GenericList"
    return text[len("Tensor(") : -1] if text.startswith("Tensor(") else text


def _in_list(shapes: Any, type_: str) -> tuple[Tensor, ...]:
    if not isinstance(shapes, tuple) or type_ not in _LISTS:
        return ()
    return tuple(filter(None, (_tensor(shape, "float") for shape in shapes)))


def _tensor(shape: Any, type_: str) -> Tensor | None:
    dtype = DTYPES.get(type_.lower())
    flat = isinstance(shape, tuple) and all(isinstance(size, int) for size in shape)
    if dtype is None or not shape or not flat or 0 in shape:
        return None
    return Tensor(shape, dtype)


Rule = Callable[[Any], Op | None]


def by_rule(called: AnyCall, rules: Mapping[str, Rule]) -> Op | None:
    """Return the operator that the rule of a call's name makes; None without a rule, or if it does not fit."""
    rule = rules.get(called.base)
    try:
        return rule(called) if rule is not None else None
    except (NotThisOneError, InputError):
        return None


def operator_of(called: RecordedCall) -> Op | None:
    """Return the operator of a call; None if no tensor of it has a known shape.

    Products, convolutions, attention, norms and softmax are what they compute. All others move their tensors; as
    outputs are not recorded, they are taken to write as much as their largest input, or what they update in place.
    """
    known = by_rule(called, RULES)
    if known is not None:
        return known
    every = tuple(itertools.chain.from_iterable(called.arguments))
    base, namespace = called.base, called.name.partition("::")[0]
    if not every or namespace not in (base, "aten") or base.startswith(_COMPILED):
        return None
    work = max(math.prod(one.shape) for one in every)
    if base.startswith("triton_"):  # its arguments are inputs and outputs alike
        return Call(called.name, every, (), operations=work)
    if namespace == base:
        return None
    return Call(called.name, *_moved_tensors(called, base, every), operations=work)


def _moved_tensors(
    called: RecordedCall, base: str, every: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return what a call reads and writes, by its name: outputs are not recorded."""
    first, *others = called.arguments
    if base in OVERWRITES:
        return tuple(itertools.chain.from_iterable(others)), first
    if base in _REDUCES:
        return every, ()
    if base.startswith("_fused_"):  # an optimizer's step: gradients are the second list
        return every, (*first, *itertools.chain.from_iterable(others[1:]))
    if base.endswith("_") or base.startswith("_foreach_"):
        return every, first or every[:1]
    if base in ("cat", "stack"):
        return every, every
    return every, (max(every, key=lambda one: one.bytes),)


def collective_of(args: Mapping[str, Any]) -> Collective | None:
    """Return the collective of NCCL's metadata on a kernel or on the call around it; None if something is missing."""
    known = collective_named(str(args.get("Collective name", "")))
    if known is None:
        return None
    count, ranks = args.get("In msg nelems" if known.whole == "in" else "Out msg nelems"), args.get("Group size")
    dtype = DTYPES.get(str(args.get("dtype", "")).lower())
    if dtype is None or not isinstance(count, int) or not isinstance(ranks, int) or ranks < 2 or count < 1:
        return None
    return Collective(known.name, Tensor((count,), dtype).bytes, ranks, dtype if dtype in DTYPE_BYTES else "int8")


@cache
def _gemm(a: Tensor, b: Tensor) -> Gemm:
    """Return the product of (batches of) matrices, or vectors."""
    rows = a.shape[-2] if len(a.shape) > 1 else 1
    inner, columns = b.shape[-2:] if len(b.shape) > 1 else (b.shape[0], 1)
    if a.shape[-1] != inner or a.dtype not in DTYPE_BYTES:
        raise NotThisOneError
    return Gemm(rows, columns, inner, a.dtype, math.prod(a.shape[:-2]))


def _product(left: int) -> Rule:
    """Return the rule of a product of the arguments at `left` and behind it."""
    return lambda called: _gemm(called[left], called[left + 1])


def _linear(called: RecordedCall) -> Op:
    rows, weights = called[0], called[1]
    if len(weights.shape) != 2 or rows.shape[-1] != weights.shape[1] or rows.dtype not in DTYPE_BYTES:
        raise NotThisOneError
    return Gemm(math.prod(rows.shape[:-1]), weights.shape[0], weights.shape[1], rows.dtype)


def _matmul(called: RecordedCall) -> Op:
    a, b = called[0], called[1]
    if len(b.shape) == 2 and len(a.shape) > 2:
        a = Tensor((math.prod(a.shape[:-1]), a.shape[-1]), a.dtype)
    return _gemm(a, b)


def _windows(images: Tensor, filters: Tensor, stride: Any, padding: Any, computes: Any) -> Op:
    two = len(images.shape) == 4 == len(filters.shape) and images.dtype in DTYPE_BYTES
    if not two or not _pair(stride) or not _pair(padding):
        raise NotThisOneError
    (batch, channels, height, width), (count, depth, high, wide) = images.shape, filters.shape
    filters_of_group, first, last = count // (channels // depth), (stride[0], padding[0]), (stride[-1], padding[-1])
    whole = Convolution(
        batch, depth, filters_of_group, height, width, high, *first, images.dtype, wide, *last, computes=computes
    )
    if channels == depth:
        return whole
    product = whole.product  # one of a group
    each = Gemm(product.m, product.n, product.k, product.dtype, channels // depth)
    return Call(f"convolution of {channels // depth} groups", (images, filters), (images,), (each,))


def _pair(values: Any) -> bool:
    return isinstance(values, list) and len(values) in (1, 2) and all(isinstance(one, int) for one in values)


def _convolution(stride: int, padding: int) -> Rule:
    def rule(called: RecordedCall) -> Op:
        if called.value(6) is True:  # transposed
            raise NotThisOneError
        return _windows(called[0], called[1], called.value(stride), called.value(padding), "forward")

    return rule


def _convolution_backward(called: RecordedCall) -> Op:
    images, filters, mask = called[1], called[2], called.value(10) or [True, True, True]
    passes = [name for name, wanted in zip(("data", "weights"), mask, strict=False) if wanted]
    parts = [_windows(images, filters, called.value(4), called.value(5), name) for name in passes]
    products = [part.product if isinstance(part, Convolution) else part.products[0] for part in parts]  # type: ignore[attr-defined]
    return Call(called.name, (called[0], images, filters), (images, filters), tuple(products))


def _attention(causal: int, backward: bool = False, tokens_first: bool = False) -> Rule:
    """Fused attention on (batch, heads, tokens, head), or, `tokens_first`, on (batch, tokens, heads, head).

    Of a `backward` pass, queries, keys and values follow the output's gradient; the argument at `causal` says whether
    there is a causal mask.
    """

    def rule(called: AnyCall) -> Op:
        query, key, value = (called[place + backward] for place in range(3))
        if min(len(query.shape), len(key.shape), len(value.shape)) < 3 + tokens_first:
            raise NotThisOneError  # sequences that are packed into one have lengths that no trace tells
        if tokens_first:
            query, key, value = (_heads_first(one) for one in (query, key, value))
        return _attention_op(query, key, value, bool(called.value(causal)), backward)

    return rule


def _heads_first(of: Tensor) -> Tensor:
    batch, tokens, heads, head = of.shape
    return replace(of, shape=(batch, heads, tokens, head))


@cache
def _attention_op(query: Tensor, key: Tensor, value: Tensor, causal: bool, gradient: bool) -> Attention:
    *outer, heads, tokens, head = query.shape
    (of_keys, keys, _), wide = key.shape[-3:], value.shape[-1]
    return Attention(
        math.prod(outer),
        heads,
        tokens,
        keys,
        head,
        kv_heads=of_keys if of_keys != heads else 0,
        causal=int(causal),
        dtype=query.dtype,
        value=wide if wide != head else 0,
        gradient=gradient,
    )


def _rows(kind: str, place: int, axis: int) -> Rule:
    """Return a kind that sweeps rows: the innermost dimensions, which the argument at `axis` lists, or its last one."""

    def rule(called: AnyCall) -> Op:
        tensor, along = called[place], called.value(axis)
        if isinstance(along, int) and along not in (-1, len(tensor.shape) - 1):
            raise NotThisOneError
        columns = math.prod(tensor.shape[-len(along) :] if isinstance(along, list | tuple) else tensor.shape[-1:])
        return _streaming(kind, math.prod(tensor.shape) // columns, columns, tensor.dtype)

    return rule


@cache
def _streaming(kind: str, rows: int, columns: int, dtype: str) -> Streaming:
    return Streaming(kind, rows, columns, dtype)


def _gather_op(called: RecordedCall, table: int, indices: int, axis: int = 0) -> Op:
    """Return the entries of a table along an axis that a list of indices picks: read where they are, and written."""
    whole, places = called[table], called[indices]
    count = math.prod(whole.shape) // whole.shape[axis]
    out = Tensor((math.prod(places.shape), count), whole.dtype)
    return Call(called.name, (places, out), (out,))


def _embedding(called: RecordedCall) -> Op:
    return _gather_op(called, 0, 1)


def _index_select(called: RecordedCall) -> Op:
    axis = called.value(1)
    return _gather_op(called, 0, 2, axis if isinstance(axis, int) else 0)


COMMON: Mapping[str, Rule] = {
    **dict.fromkeys(("mm", "bmm", "dot", "mv", "_int_mm"), _product(0)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addmm_", "baddbmm_"), _product(1)),
    "native_layer_norm": _rows("layernorm", 0, 1),
    "native_layer_norm_backward": _rows("layernorm_backward", 1, 2),
    "_softmax": _rows("softmax", 0, 1),
    "_softmax_backward_data": _rows("softmax_backward", 0, 2),
    "attention": _attention(5),
    "attention_backward": _attention(8, backward=True),
}
"""What a captured or a recorded call computes, by its base name; "attention" is that of captures."""
RULES: Mapping[str, Rule] = {
    **COMMON,
    "_addmm_activation": _product(1),
    "_scaled_mm": _product(0),
    "linear": _linear,
    "matmul": _matmul,
    **dict.fromkeys(("convolution", "_convolution", "conv2d", "cudnn_convolution_relu"), _convolution(3, 4)),
    "cudnn_convolution": _convolution(3, 2),
    "miopen_convolution": _convolution(4, 3),
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention": _attention(4),
    "_scaled_dot_product_flash_attention_backward": _attention(11, backward=True),
    "_flash_attention_forward": _attention(8, tokens_first=True),
    "_flash_attention_backward": _attention(11, backward=True, tokens_first=True),
    "_scaled_dot_product_efficient_attention": _attention(6),
    "_scaled_dot_product_efficient_attention_backward": _attention(11, backward=True),
    "_efficient_attention_forward": _attention(9, tokens_first=True),
    "_efficient_attention_backward": _attention(14, backward=True, tokens_first=True),
    "_scaled_dot_product_cudnn_attention": _attention(6),
    "_scaled_dot_product_cudnn_attention_backward": _attention(14, backward=True),
    "_cudnn_attention_forward": _attention(10),
    "_cudnn_attention_backward": _attention(14, backward=True),
    "embedding": _embedding,
    "index_select": _index_select,
}
"""What a recorded call computes, by its base name."""
