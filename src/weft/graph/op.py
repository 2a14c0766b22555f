"""The dimensions of operators, whole numbers or arrays of them, and their roles in a model."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import numpy as np

from weft.core.errors import InputError, check_name, check_type, show_value
from weft.core.units import Dimension, parse

_SHOWN_AXES = 8
_IN_BYTES = ("bytes", "written")
"""Fields of operators that are amounts of data."""
LARGEST = 2**50
"""Largest dimension of an operator: up to here every whole number has its own float."""


def check_sizes(op: object, subject: str, least: Mapping[str, int], **called: str) -> None:
    """Check fields of an operator by their `least` value: each a whole number, or an array of whole numbers.

    Arrays become arrays of floats, texts like "64 MiB" whole numbers of bytes. `subject` is the phrase for a field in
    messages, such as "{} of operator 'gelu'"; `called` gives fields other names there. Raises InputError for any other
    value, and for arrays that do not broadcast.
    """
    arrays: dict[str, tuple[int, ...]] = {}
    for name, low in least.items():
        value = getattr(op, name)
        if isinstance(value, str) and name in _IN_BYTES:
            value = round(parse(value, Dimension.BYTES))
            object.__setattr__(op, name, value)
        if type(value) is not int or not low <= value <= LARGEST:
            value = _sizes(subject.format(called.get(name, name)), value, low)
            object.__setattr__(op, name, value)
        if not isinstance(value, int):
            arrays[name] = value.shape
    if not arrays:
        return
    try:
        np.broadcast_shapes(*arrays.values())
    except ValueError:
        shapes = ", ".join(f"{name} {shape}" for name, shape in arrays.items())
        raise InputError(f"{subject.format('the dimensions')} do not fit together: {shapes}") from None


def _sizes(what: str, value: Any, low: int) -> Any:
    rule = "it must be a whole number " + ("above zero" if low == 1 else f"of at least {low}")
    try:
        if np.asarray(value).dtype.kind not in "biufO":  # numpy reads numbers in texts, too
            raise InputError(f"{what} is {show_value(value)}; {rule}")
        sizes = np.asarray(value, dtype=np.float64)
    except OverflowError:
        raise InputError(f"{what} is {show_value(value)}; it must be at most {LARGEST}") from None
    except (TypeError, ValueError):
        raise InputError(f"{what} is {show_value(value)}; {rule}") from None
    if not sizes.size:
        raise InputError(f"{what} is empty; {rule}, or an array of such numbers")
    wrong = sizes[~((sizes >= low) & (sizes == np.floor(sizes)) & np.isfinite(sizes))]
    if wrong.size or isinstance(value, bool):
        raise InputError(
            f"{what} is {f'{wrong.flat[0]:g}' if wrong.size and sizes.ndim else show_value(value)}; {rule}"
        )
    if np.any(sizes > LARGEST):
        largest = f"{np.max(sizes):.4g}" if sizes.ndim else show_value(value)
        raise InputError(f"{what} is {largest}; it must be at most {LARGEST}")
    return sizes if sizes.ndim else int(sizes)


def plain(value: Any) -> Any:
    """Return a number computed from dimensions as an int; an array unchanged."""
    return value if np.ndim(value) else int(value)


DTYPE_BYTES = {"fp16": 2, "bf16": 2, "fp8": 1, "int8": 1, "tf32": 4, "fp32": 4, "fp64": 8}
"""Bytes per element of the number formats of matrix units; tf32 is fp32 data that is rounded when it is multiplied."""
BLOCK_BYTES = {"mxfp8": 1 + 1 / 32, "mxfp4": 1 / 2 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}
"""Bytes per element of formats whose blocks of 32 (OCP Microscaling Formats 1.0) or 16 elements (NVFP4) share a scale
of a byte, which counts here."""
_DATA_BYTES = {
    "bool": 1, "uint8": 1, "int16": 2, "int32": 4, "int64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes per element of data that matrix units do not multiply: masks, indices, complex numbers."""
OUTPUT_DTYPES = {"fp8": "bf16", "int8": "bf16", "tf32": "fp32", **dict.fromkeys(BLOCK_BYTES, "bf16")}
"""Output format of products of operands of 8 bits or fewer: kernels scale their 32-bit sums and round them to 16."""
TensorRole = Literal["activation", "weight", "gradient", "state", "buffer"]
"""The role of a tensor in the model; a buffer is scratch memory of one operator."""
_ROLES = get_args(TensorRole)
_OF_PRODUCTS = (*DTYPE_BYTES, *BLOCK_BYTES)
_OF_DATA = (*_OF_PRODUCTS, *_DATA_BYTES)


@dataclass(frozen=True)
class Tensor:
    """An array of `shape` elements of `dtype`.

    In closed forms dimensions may be arrays. Raises InputError for an empty or negative dimension, UnknownNameError for
    an unknown dtype or role.

    >>> Tensor((8192, 4256), "fp16").bytes
    69730304
    """

    shape: tuple[int, ...]
    dtype: str = "bf16"
    role: TensorRole = "activation"

    def __post_init__(self) -> None:
        check_type("the shape of a tensor", self.shape, tuple, "give a tuple of whole numbers, like (8192, 4096)")
        for size in self.shape:
            if type(size) is int:
                is_size = 1 <= size <= LARGEST
            else:
                is_size = np.asarray(size).dtype.kind in "iuf" and bool(np.all(np.asarray(size) >= 1))
            if not is_size:
                told = show_value(self.shape) if len(self.shape) > _SHOWN_AXES else self.shape
                raise InputError(f"a tensor has the shape {told}; every dimension must be at least 1")
        check_name("dtype", self.dtype, _OF_DATA)
        check_name("role of a tensor", self.role, _ROLES)

    @property
    def bytes(self) -> int:
        """Size of the data [bytes]."""
        count, whole = math.prod(self.shape), DTYPE_BYTES.get(self.dtype) or _DATA_BYTES.get(self.dtype)
        return count * whole if whole else cast(int, plain(np.ceil(count * width(self.dtype))))


def width(dtype: str) -> float:
    """Return the bytes per element of a number format, its share of a block's scale included."""
    whole = DTYPE_BYTES.get(dtype) or _DATA_BYTES.get(dtype)
    return whole or BLOCK_BYTES[dtype]


def check_dtype(dtype: str) -> None:
    """Raise UnknownNameError for an unknown number format."""
    check_name("dtype", dtype, _OF_PRODUCTS)


class Gradients(NamedTuple):
    """The operators of a backward pass: those of the gradients of inputs, then those of the gradients of weights."""

    inputs: tuple[Op, ...] = ()
    weights: tuple[Op, ...] = ()


class Op:
    """An operator: a frozen dataclass of its dimensions, equal to every operator of equal content.

    `kind` is its name in files and tables. `reads` and `writes` are its tensors, `flops` counts floating-point
    operations (a multiply-add as two). Dimensions are whole numbers; closed forms also take arrays of them, which
    broadcast (`weft.estimate.estimate`). To add a kind: write one file with a frozen dataclass, and its line in KINDS.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Raise TypeError for a kind that names no tensors.

        A metaclass of abstract classes would say so, too, and make each test of an operator's kind three times slower.
        """
        lost = [name for name in ("reads", "writes") if getattr(cls, name) is getattr(Op, name)]
        if lost:
            raise TypeError(f"the operator {cls.__name__} has no {' and no '.join(lost)}; define each as a property")

    @property
    @abstractmethod
    def reads(self) -> tuple[Tensor, ...]:
        """The tensors that it reads."""

    @property
    @abstractmethod
    def writes(self) -> tuple[Tensor, ...]:
        """The tensors that it writes."""

    @property
    def flops(self) -> int:
        """Floating-point operations; 0 unless a kind overrides it."""
        return 0

    @property
    def matrix_dtype(self) -> str | None:
        """The number format in which matrix units compute its FLOPs; None if vector units do."""
        return None

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """The tensors that it keeps for its backward pass, other than its outputs; none unless a kind overrides it."""
        return ()

    @property
    def backward(self) -> Gradients:
        """The operators that compute its gradients; none unless a kind overrides it."""
        return Gradients()

    @property
    def least_bytes(self) -> int:
        """Least memory traffic: everything read once, everything written once [bytes]."""
        return sum(tensor.bytes for tensor in (*self.reads, *self.writes))


@dataclass(frozen=True)
class Opaque(Op):
    """An operator `name` known only by its `flops` and its `bytes` moved in all; it writes `written` of these bytes.

    Matrix units compute it in `matrix_dtype` (None: vector units do). `seconds` is the measured time [s] of an operator
    about which nothing else is known, the same on every GPU (0: not measured). Raises InputError for what is no whole
    number of at least 0 and for a time that is negative or not finite, UnknownNameError for an unknown dtype.

    >>> Opaque("top-k", flops=10**9, bytes=1 << 28).least_bytes
    268435456
    """

    kind: ClassVar[str] = "opaque"

    name: str
    flops: int = 0
    bytes: int = 0
    written: int = 0
    matrix_dtype: str | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        check_type("the name of an operator", self.name, str, "give a text, like 'top-k'")
        measured: object = self.seconds
        if isinstance(measured, bool) or not isinstance(measured, int | float) or not 0 <= measured < math.inf:
            rule = "it must be a finite number of seconds of at least 0"
            raise InputError(f"the measured time of operator '{self.name}' is {show_value(measured)}; {rule}")
        check_sizes(self, f"{{}} of operator '{self.name}'", {"flops": 0, "bytes": 0, "written": 0})
        if self.matrix_dtype is not None:
            check_dtype(self.matrix_dtype)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The bytes that it reads, as one tensor."""
        return _bytes(self.bytes - self.written)

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """The bytes that it writes, as one tensor."""
        return _bytes(self.written)

    def __str__(self) -> str:
        return self.name


def _bytes(count: int) -> tuple[Tensor, ...]:
    return () if np.ndim(count) == 0 and count == 0 else (Tensor((count,), "int8", "buffer"),)


class Role(StrEnum):
    """What an operator of a model, and the nodes of a rank that carry it out, are for; NONE where nobody asks.

    Nodes also say their `phase`, their `module` (a layer that predicts decode tokens has the module "prediction") and
    the `operator` of the model to whose work they belong.
    """

    NONE = ""
    ATTENTION_NORM = "attention_norm"
    MLP_NORM = "mlp_norm"
    MLP_POST_NORM = "mlp_post_norm"
    QKV = "qkv"
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    QUERY_DOWN = "query_down"
    QUERY_NORM = "query_norm"
    QUERY_UP = "query_up"
    KV_DOWN = "kv_down"
    KV_NORM = "kv_norm"
    KV_UP = "kv_up"
    KEY_COPY = "key_copy"
    ROTARY = "rotary"
    SPLIT_HEADS = "split_heads"
    ATTENTION_CORE = "attention_core"
    JOIN_HEADS = "join_heads"
    LINEAR_IN = "linear_in"
    LINEAR_CORE = "linear_core"
    LINEAR_OUT = "linear_out"
    OUT_PROJECTION = "out_projection"
    CROSS_QUERY = "cross_query"
    QKV_MLP_UP = "qkv_mlp_up"
    OUT_MLP_DOWN = "out_mlp_down"
    MLP_UP = "mlp_up"
    ACTIVATION_BIAS = "activation_bias"
    ACTIVATION = "activation"
    MLP_DOWN = "mlp_down"
    ROUTER = "router"
    TOP_K = "top_k"
    EXPERT_UP = "expert_up"
    EXPERT_INNER = "expert_inner"
    EXPERT_DOWN = "expert_down"
    SHARED_EXPERT = "shared_expert"
    RESIDUAL = "residual"
    LOGITS = "logits"
    LOSS = "loss"
    KEPT_CAST = "kept_cast"
    """A cast whose result is only kept for the backward pass."""
