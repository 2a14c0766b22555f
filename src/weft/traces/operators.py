"""Weft's operator of a call that a profiler recorded by name, shapes and types, without the tensors themselves."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from weft.errors import InputError
from weft.graph import Attention, Call, Collective, Convolution, Gemm, Op, Streaming, Tensor
from weft.graph.op import DTYPE_BYTES

DTYPES: Mapping[str, str] = {
    "float": "fp32", "double": "fp64", "c10::half": "fp16", "half": "fp16", "c10::bfloat16": "bf16", "bfloat16": "bf16",
    "c10::float8_e4m3fn": "fp8", "c10::float8_e5m2": "fp8", "signed char": "int8", "char": "int8",
    "unsigned char": "uint8", "byte": "uint8", "bool": "bool", "int": "int32", "long": "int64", "long int": "int64",
    "long long": "int64", "short": "int16", "short int": "int16", "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}  # fmt: skip
"""Weft's names of the C++ types of elements, as traces spell them in lower case."""
COLLECTIVES: Mapping[str, tuple[str, str]] = {
    "allreduce": ("all_reduce", "in"), "allreduce_coalesced": ("all_reduce", "in"),
    "allgather": ("all_gather", "out"), "_allgather_base": ("all_gather", "out"),
    "all_gather_into_tensor_coalesced": ("all_gather", "out"),
    "reduce_scatter": ("reduce_scatter", "in"), "_reduce_scatter_base": ("reduce_scatter", "in"),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", "in"),
    "all_to_all": ("all_to_all", "in"), "all_to_allv": ("all_to_all", "in"), "broadcast": ("broadcast", "in"),
    "_broadcast_oop": ("broadcast", "in"), "reduce": ("all_reduce", "in"), "send": ("send_recv", "in"),
    "recv": ("send_recv", "out"),
}  # fmt: skip
"""Weft's collective of PyTorch's names, and whether its input or its output is the whole buffer."""


@dataclass(frozen=True)
class Called:
    """A recorded call: the operator's `name`, the shapes and C++ types of its arguments, and their values as texts.

    A list of tensors has a tuple of shapes; what is no tensor has the shape ().
    """

    name: str
    shapes: tuple[Any, ...]
    types: tuple[str, ...]
    values: tuple[str, ...] = ()

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
            (one,) if one is not None else tuple(filter(None, (_tensor(shape, "float") for shape in given)))
            if isinstance(given, tuple) and type_ in _LISTS else ()
            for one, given, type_ in zip(self.tensors, self.shapes, self.types, strict=False)
        )  # fmt: skip

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
            raise _NotThisOneError
        return tensor


_COMPILED = ("CompiledFunction", "Torch-Compiled Region", "CompiledFxGraph")
"""Regions of torch.compile: what their kernels compute is not recorded."""


_LISTS = ("TensorList", "GenericList", "Tensor[]")
_OVERWRITES = frozenset(
    ("copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "_foreach_zero_", "_foreach_copy_")
)
"""Calls that write their first argument without reading it."""
_REDUCES = frozenset(
    ("sum", "mean", "max", "min", "amax", "amin", "argmax", "argmin", "norm", "linalg_vector_norm", "all", "any",
     "nll_loss_forward", "mse_loss", "count_nonzero", "_foreach_norm", "var_mean", "std_mean", "prod",
     "binary_cross_entropy_with_logits", "_local_scalar_dense", "_amp_foreach_non_finite_check_and_unscale_")
)  # fmt: skip
"""Calls whose output is small beside what they read."""


class _NotThisOneError(Exception):
    """A rule does not fit: an argument that it needs is no tensor of known shape."""


def _tensor(shape: Any, type_: str) -> Tensor | None:
    dtype = DTYPES.get(type_.lower())
    flat = isinstance(shape, tuple) and all(isinstance(size, int) for size in shape)
    if dtype is None or not shape or not flat or 0 in shape:
        return None
    return Tensor(shape, dtype)


def operator_of(called: Called) -> Op | None:
    """The operator of a call; None if no tensor of it has a known shape.

    Products, convolutions, attention, norms and softmax are what they compute. All others move their tensors; as
    outputs are not recorded, they are taken to write as much as their largest input, or what they update in place.
    """
    rule = RULES.get(called.base)
    if rule is not None:
        try:
            return rule(called)
        except (_NotThisOneError, InputError):
            pass
    every = tuple(itertools.chain.from_iterable(called.arguments))
    base, namespace = called.base, called.name.partition("::")[0]
    if not every or namespace not in (base, "aten") or base.startswith(_COMPILED):
        return None
    work = max(math.prod(one.shape) for one in every)
    if base.startswith("triton_"):  # its arguments are inputs and outputs alike
        return Call(called.name, every, (), operations=work)
    if namespace == base:
        return None
    return Call(called.name, *_moved(called, base, every), operations=work)


def _moved(called: Called, base: str, every: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What a call reads and writes, by its name: outputs are not recorded."""
    first, *others = called.arguments
    if base in _OVERWRITES:
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
    """The collective of NCCL's metadata on a kernel or on the call around it; None if something is missing."""
    name, whole = COLLECTIVES.get(str(args.get("Collective name", "")).lower(), ("", ""))
    count = args.get("In msg nelems" if whole == "in" else "Out msg nelems")
    ranks, dtype = args.get("Group size"), DTYPES.get(str(args.get("dtype", "")).lower())
    if not name or not isinstance(count, int) or not isinstance(ranks, int) or ranks < 2 or count < 1:
        return None
    if dtype not in DTYPE_BYTES:
        size = {"int64": 8, "int32": 4, "uint8": 1, "bool": 1, "int16": 2}.get(dtype or "", 0)
        return Collective(name, count * size, ranks, "int8") if size else None
    return Collective(name, count * DTYPE_BYTES[dtype], ranks, dtype)


def _gemm(a: Tensor, b: Tensor) -> Gemm:
    """The product of (batches of) matrices."""
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2] or a.dtype not in DTYPE_BYTES:
        raise _NotThisOneError
    return Gemm(a.shape[-2], b.shape[-1], a.shape[-1], a.dtype, math.prod(a.shape[:-2]))


def _product(left: int) -> Callable[[Called], Op]:
    return lambda called: _gemm(called[left], called[left + 1])


def _linear(called: Called) -> Op:
    rows, weights = called[0], called[1]
    if len(weights.shape) != 2 or rows.shape[-1] != weights.shape[1] or rows.dtype not in DTYPE_BYTES:
        raise _NotThisOneError
    return Gemm(math.prod(rows.shape[:-1]), weights.shape[0], weights.shape[1], rows.dtype)


def _matmul(called: Called) -> Op:
    a, b = called[0], called[1]
    if len(b.shape) == 2 and len(a.shape) > 2:
        a = Tensor((math.prod(a.shape[:-1]), a.shape[-1]), a.dtype)
    return _gemm(a, b)


def _vector(called: Called) -> Op:
    matrix, vector = called[0], called[1]
    return _gemm(matrix, Tensor((*vector.shape, 1), vector.dtype))


def _windows(images: Tensor, filters: Tensor, stride: Any, padding: Any, computes: Any) -> Op:
    two = len(images.shape) == 4 == len(filters.shape) and images.dtype in DTYPE_BYTES
    if not two or not _pair(stride) or not _pair(padding):
        raise _NotThisOneError
    (batch, channels, height, width), (count, depth, high, wide) = images.shape, filters.shape
    whole = Convolution(
        batch, depth, count // (channels // depth), height, width, high, stride[0], padding[0], images.dtype, wide,
        stride[-1], padding[-1], computes=computes,
    )  # fmt: skip
    if channels == depth:
        return whole
    product = whole.product  # one of a group
    each = Gemm(product.m, product.n, product.k, product.dtype, channels // depth)
    return Call(f"convolution of {channels // depth} groups", (images, filters), (images,), (each,))


def _pair(values: Any) -> bool:
    return isinstance(values, list) and len(values) in (1, 2) and all(isinstance(one, int) for one in values)


def _convolution(stride: int, padding: int) -> Callable[[Called], Op]:
    def rule(called: Called) -> Op:
        if called.value(6) is True:  # transposed
            raise _NotThisOneError
        return _windows(called[0], called[1], called.value(stride), called.value(padding), "forward")

    return rule


def _convolution_backward(called: Called) -> Op:
    images, filters, mask = called[1], called[2], called.value(10) or [True, True, True]
    passes = [name for name, wanted in zip(("data", "weights"), mask, strict=False) if wanted]
    parts = [_windows(images, filters, called.value(4), called.value(5), name) for name in passes]
    products = [part.product if isinstance(part, Convolution) else part.products[0] for part in parts]  # type: ignore[attr-defined]
    return Call(called.name, (called[0], images, filters), (images, filters), tuple(products))


def _attention(causal: int, backward: bool = False) -> Callable[[Called], Op]:
    """Fused attention on (batch, heads, tokens, head): queries, keys and values follow the output's gradient."""

    def rule(called: Called) -> Op:
        query, key, value = (called[place + backward] for place in range(3))
        if len(query.shape) != 4 or len(key.shape) != 4:
            raise _NotThisOneError
        batch, heads, tokens, head = query.shape
        return Attention(
            batch, heads, tokens, key.shape[2], head, kv_heads=key.shape[1], causal=int(bool(called.value(causal))),
            dtype=query.dtype, value=value.shape[3], gradient=backward,
        )  # fmt: skip

    return rule


def _rows(kind: str, place: int = 0, axis: int | None = None) -> Callable[[Called], Op]:
    """A kind that sweeps rows: its input's last dimension, or those that the argument at `axis` lists."""

    def rule(called: Called) -> Op:
        of = called[place]
        given = called.shapes[axis] if axis is not None and axis < len(called.shapes) else ()
        listed = called.value(axis) if axis is not None and not given else None
        count = len(listed) if isinstance(listed, list) else 1
        columns = math.prod(of.shape[-count:])
        return Streaming(kind, math.prod(of.shape) // columns, columns, of.dtype)

    return rule


def _gathered(called: Called, table: int, indices: int, axis: int = 0) -> Op:
    """The entries of a table along an axis that a list of indices picks: read where they are, and written."""
    of, listed = called[table], called[indices]
    count = math.prod(of.shape) // of.shape[axis]
    out = Tensor((math.prod(listed.shape), count), of.dtype)
    return Call(called.name, (listed, out), (out,))


def _embedding(called: Called) -> Op:
    return _gathered(called, 0, 1)


def _index_select(called: Called) -> Op:
    axis = called.value(1)
    return _gathered(called, 0, 2, axis if isinstance(axis, int) else 0)


RULES: Mapping[str, Callable[[Called], Op]] = {
    "mm": _product(0), "bmm": _product(0), "addmm": _product(1), "baddbmm": _product(1), "addmm_": _product(1),
    "_addmm_activation": _product(1), "_scaled_mm": _product(0), "_int_mm": _product(0), "linear": _linear,
    "matmul": _matmul, "mv": _vector,
    "convolution": _convolution(3, 4), "_convolution": _convolution(3, 4), "conv2d": _convolution(3, 4),
    "cudnn_convolution": _convolution(3, 2), "miopen_convolution": _convolution(4, 3),
    "cudnn_convolution_relu": _convolution(3, 4), "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention": _attention(4),
    "_scaled_dot_product_flash_attention_backward": _attention(11, backward=True),
    "_scaled_dot_product_efficient_attention": _attention(6),
    "_scaled_dot_product_efficient_attention_backward": _attention(11, backward=True),
    "_scaled_dot_product_cudnn_attention": _attention(6),
    "native_layer_norm": _rows("layernorm", axis=1),
    "native_layer_norm_backward": _rows("layernorm_backward", 1, axis=2),
    "embedding": _embedding, "index_select": _index_select,
    "_softmax": _rows("softmax"), "_softmax_backward_data": _rows("softmax_backward"),
}  # fmt: skip
"""What a call computes, by its base name."""
