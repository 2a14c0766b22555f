"""The declared operators, memory-bound ones and attention: dimensions, checks, and which model tells their time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from weft.errors import InputError, UnknownNameError
from weft.hardware.rates import DTYPES
from weft.predict.attention import fused_attention
from weft.predict.gemm import Clock
from weft.predict.memory_bound import (
    ERF,
    RANDOM,
    STATE_BYTES,
    Model,
    Shape,
    adam,
    batched,
    elementwise,
    embedding,
    lamb,
    normalised,
    simple,
    softmax,
)
from weft.predict.prediction import FloatArray, Prediction
from weft.workload import DTYPE_BYTES

if TYPE_CHECKING:
    from weft.hardware import Gpu


@dataclass(frozen=True)
class Operator:
    """A declared operator: what it is, its dimensions with their meaning, and those that have a default.

    `least_bytes` is the traffic that cannot be avoided, inputs read and outputs written once; `flops` what its products
    compute, if it has any.
    """

    name: str
    about: str
    dimensions: Mapping[str, str]
    model: Model
    least_bytes: Callable[[Shape, int], FloatArray]
    defaults: Mapping[str, int] = field(default_factory=dict)
    flops: Callable[[Shape], FloatArray] | None = None

    @property
    def example(self) -> str:
        """Its dimensions as a user would give them."""
        return self.example_with()

    def example_with(self, *optional: str) -> str:
        """Its dimensions as a user would give them, with some of those that have a default."""
        shown = [name for name in self.dimensions if name not in self.defaults or name in optional]
        return ",".join(f"{name}={_EXAMPLES.get(name, 1)}" for name in shown)

    @property
    def usage(self) -> str:
        """Its dimensions, in brackets those that may be left out, with their defaults."""
        marked = (
            f"[{name}={self.defaults[name]}]" if name in self.defaults else name for name in self.dimensions
        )
        return ", ".join(marked)


_LARGEST = 1e15
"""Largest dimension of an operator: up to here whole numbers and their neighbours differ as floats."""
_EXAMPLES = {
    "elements": 16777216,
    "rows": 4096,
    "columns": 4096,
    "parameters": 100000000,
    "tokens": 8192,
    "hidden": 4096,
    "batch": 8,
    "heads": 32,
    "query": 2048,
    "keys": 2048,
    "head": 128,
    "kv_heads": 8,
}


def operator(
    name: str, gpu: Gpu, *, dtype: str = "fp16", clock: Clock = "short", **shape: npt.ArrayLike
) -> Prediction:
    """The time of a declared operator on `gpu`; dimensions are whole numbers or arrays that broadcast.

    Operands that fit into the last-level cache are taken to be there. `clock` is "short" or "sustained", as for GEMMs.
    Raises UnknownNameError for an unknown operator or dtype, InputError for a dtype that the GPU lacks and for
    dimensions that are missing, unknown, no whole numbers above zero or at odds with each other.
    """
    if name not in OPERATORS:
        raise UnknownNameError("operator", name, OPERATORS)
    if dtype not in DTYPE_BYTES:
        raise UnknownNameError("dtype", dtype, DTYPE_BYTES)
    if dtype == "fp8" and not gpu.supports(dtype):
        known = ", ".join(one for one in DTYPES if gpu.supports(one))
        raise InputError(f"{gpu.name} does not compute in fp8; choose one of {known}")
    declared = OPERATORS[name]
    return declared.model(_checked(declared, shape), gpu, dtype, clock)


def least_bytes(name: str, dtype: str, **shape: npt.ArrayLike) -> FloatArray:
    """What a declared operator must move at least, inputs read and outputs written once [bytes]; errors as there."""
    if name not in OPERATORS:
        raise UnknownNameError("operator", name, OPERATORS)
    declared = OPERATORS[name]
    return declared.least_bytes(_checked(declared, shape), DTYPE_BYTES[dtype])


def matrix_flops(name: str, **shape: npt.ArrayLike) -> FloatArray | None:
    """What the products of a declared operator compute, masked parts left out [FLOP]; None if it has no products."""
    if name not in OPERATORS:
        raise UnknownNameError("operator", name, OPERATORS)
    declared = OPERATORS[name]
    return declared.flops(_checked(declared, shape)) if declared.flops else None


def _checked(declared: Operator, given: Mapping[str, npt.ArrayLike]) -> dict[str, FloatArray]:
    """Every dimension as an array of whole numbers of one shape; InputError if one is missing, unknown or no such."""
    unknown = [key for key in given if key not in declared.dimensions]
    missing = [key for key in declared.dimensions if key not in given and key not in declared.defaults]
    if unknown or missing:
        problem = f"has no dimension '{unknown[0]}'" if unknown else f"lacks its dimension '{missing[0]}'"
        raise InputError(f"operator '{declared.name}' {problem}; give it like {declared.example}")
    values = [_whole(declared, key, {**declared.defaults, **given}[key]) for key in declared.dimensions]
    try:
        shape = dict(zip(declared.dimensions, np.broadcast_arrays(*values), strict=True))
    except ValueError:
        sizes = ", ".join(
            f"{key} {value.shape}" for key, value in zip(declared.dimensions, values, strict=True)
        )
        raise InputError(
            f"the dimensions of operator '{declared.name}' do not fit together: {sizes}"
        ) from None
    _check_together(declared, shape)
    return shape


def _check_together(declared: Operator, shape: Shape) -> None:
    """Raise InputError for a switch that is neither on nor off, heads that cannot be grouped, and nothing to move."""
    if "causal" in shape and np.any(shape["causal"] > 1):
        raise InputError(
            f"causal is {np.max(shape['causal']):g}; it must be 0 (every key is seen) or 1 (masked)"
        )
    if "kv_heads" in shape:
        heads, kv_heads = shape["heads"], shape["kv_heads"]
        odd = (kv_heads > 0) & (heads % np.maximum(kv_heads, 1) != 0)
        if np.any(odd):
            raise InputError(
                f"kv_heads is {kv_heads[odd][0]:g}; it must divide the {heads[odd][0]:g} query heads, "
                f"like {declared.example_with('kv_heads')}"
            )
    if "inputs" in shape and np.any(shape["inputs"] + shape["outputs"] == 0):
        raise InputError(
            f"operator '{declared.name}' has neither inputs nor outputs; give at least one of them a tensor"
        )


def _whole(declared: Operator, key: str, value: npt.ArrayLike) -> FloatArray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except OverflowError:
        raise InputError(f"{key} of operator '{declared.name}' must be at most {_LARGEST:.0f}") from None
    except (TypeError, ValueError):
        raise InputError(
            f"{key} of operator '{declared.name}' is {value!r}; it must be a whole number"
        ) from None
    if np.any(array > _LARGEST):
        raise InputError(
            f"{key} of operator '{declared.name}' is {np.max(array):.4g}; it must be at most {_LARGEST:.0f}"
        )
    low = 0 if key in declared.defaults else 1
    wrong = array[~(np.isfinite(array) & (array == np.floor(array)) & (array >= low))]
    if wrong.size:
        raise InputError(
            f"{key} of operator '{declared.name}' is {wrong.flat[0]:g}; it must be a whole number of at least {low}, "
            f"like {declared.example_with(key)}"
        )
    return array


def _attention_bytes(shape: Shape, size: int) -> FloatArray:
    """Queries and outputs, keys and values; the scores need not leave the chip."""
    kv_heads = shape.get("kv_heads", np.zeros(()))
    kv = np.where(kv_heads > 0, kv_heads, shape["heads"])
    return 2 * size * shape["batch"] * shape["head"] * (shape["heads"] * shape["query"] + kv * shape["keys"])


def _attention_flops(shape: Shape) -> FloatArray:
    """Two products for each pair of a query and a key that it sees; with a mask, the last query sees every key."""
    asking = np.minimum(shape["query"], shape["keys"])
    masked = asking * (shape["keys"] - (asking - 1) / 2)
    pairs = np.where(shape.get("causal", np.zeros(())) > 0, masked, shape["query"] * shape["keys"])
    return 4 * shape["batch"] * shape["heads"] * pairs * shape["head"]


def _per(key: str, tensors: int, extra: int = 0) -> Callable[[Shape, int], FloatArray]:
    """So many tensors of `shape[key]` elements, and `extra` bytes beside each element."""
    return lambda shape, size: (tensors * size + extra) * shape[key]


def _rows_bytes(shape: Shape, size: int) -> FloatArray:
    return 2 * size * shape["rows"] * shape["columns"]


_ELEMENTS = {"elements": "elements of each tensor"}
_ROWS = {"rows": "rows, each normalised by itself", "columns": "elements of a row"}
_PARAMETERS = {"parameters": "parameters updated on this GPU"}
_TOKENS = {"tokens": "rows gathered", "hidden": "elements of a row"}
_ATTENTION = {
    "batch": "sequences",
    "heads": "query heads on this GPU",
    "query": "tokens that ask, per sequence",
    "keys": "tokens that are looked at, per sequence",
    "head": "elements per head",
}
_DECLARED = (
    Operator(
        "elementwise",
        "A function of `inputs` tensors that makes `outputs` tensors.",
        _ELEMENTS | {"inputs": "tensors read", "outputs": "tensors written"},
        elementwise,
        lambda shape, size: size * (shape["inputs"] + shape["outputs"]) * shape["elements"],
        {"inputs": 1, "outputs": 1},
    ),
    Operator("gelu", "GeLU by the error function.", _ELEMENTS, simple(1, 1, 5 + ERF, 1), _per("elements", 2)),
    Operator(
        "bias_gelu", "A bias added, then GeLU.", _ELEMENTS, simple(1, 1, 6 + ERF, 1), _per("elements", 2)
    ),
    Operator(
        "dropout",
        "Random zeros, with a mask of a byte per element.",
        _ELEMENTS,
        simple(1, 1, 2 + RANDOM, 0, 1),
        _per("elements", 2, 1),
    ),
    Operator("residual_add", "The sum of two tensors.", _ELEMENTS, simple(2, 1, 1), _per("elements", 3)),
    Operator("softmax", "Softmax over rows, fp32 inside.", _ROWS, softmax, _rows_bytes),
    Operator("layernorm", "LayerNorm with scale and shift.", _ROWS, normalised(8, 4, 2), _rows_bytes),
    Operator("rmsnorm", "RMSNorm with scale.", _ROWS, normalised(2, 3, 1), _rows_bytes),
    Operator(
        "adam",
        "An Adam step: fp32 master weights and moments, gradients and a copy of the weights in the dtype.",
        _PARAMETERS,
        adam,
        _per("parameters", 1, 2 * STATE_BYTES),
    ),
    Operator(
        "lamb",
        "A LAMB step: as Adam, with the norms of weights and update between its two kernels.",
        _PARAMETERS,
        lamb,
        _per("parameters", 1, 2 * STATE_BYTES),
    ),
    Operator(
        "embedding",
        "Rows gathered from a table.",
        _TOKENS,
        embedding,
        lambda shape, size: 2 * size * shape["tokens"] * shape["hidden"] + 8 * shape["tokens"],
    ),
    Operator(
        "attention_batched",
        "Attention as two batched GEMMs with a softmax between: three kernels.",
        _ATTENTION,
        batched,
        _attention_bytes,
        flops=_attention_flops,
    ),
    Operator(
        "attention_fused",
        "Attention as one kernel that keeps the scores on chip.",
        _ATTENTION | {"kv_heads": "key and value heads (0: as many as query heads)", "causal": "1: masked"},
        fused_attention,
        _attention_bytes,
        {"kv_heads": 0, "causal": 0},
        _attention_flops,
    ),
)
OPERATORS: Mapping[str, Operator] = {entry.name: entry for entry in _DECLARED}
"""The declared operators by name."""
