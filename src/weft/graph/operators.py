"""The declared operators by the names and dimensions that people give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from weft.errors import InputError, check_name
from weft.graph.attention import Attention
from weft.graph.op import Op
from weft.graph.streaming import STREAMING, Streaming

_EXAMPLES = {
    "elements": 16777216,
    "parameters": 100000000,
    "tokens": 8192,
    "batch": 8,
    "heads": 32,
    "query": 2048,
    "keys": 2048,
    "head": 128,
}
_ATTENTION = {
    "batch": "sequences",
    "heads": "query heads on this GPU",
    "query": "tokens that ask, per sequence",
    "keys": "tokens that are looked at, per sequence",
    "head": "elements per head",
}


@dataclass(frozen=True)
class Operator:
    """A declared operator: what it is, its dimensions with their meaning, and those that have a default."""

    name: str
    about: str
    dimensions: Mapping[str, str]
    make: Callable[..., Op]
    defaults: Mapping[str, int] = field(default_factory=dict)

    @property
    def example(self) -> str:
        """Its dimensions as a user would give them."""
        return ",".join(f"{name}={_EXAMPLES.get(name, 4096)}" for name in self.dimensions if name not in self.defaults)

    @property
    def usage(self) -> str:
        """Its dimensions, in brackets those that may be left out, with their defaults."""
        optional = self.defaults
        return ", ".join(f"[{name}={optional[name]}]" if name in optional else name for name in self.dimensions)


def _streaming(name: str, dtype: str, **sizes: Any) -> Streaming:
    named = dict(zip(STREAMING[name].dimensions, ("rows", "columns"), strict=False))
    return Streaming(name, dtype=dtype, **{named.get(key, key): size for key, size in sizes.items()})


_STREAMING = {
    name: Operator(name, kind.about, kind.dimensions, partial(_streaming, name)) for name, kind in STREAMING.items()
}
OPERATORS: Mapping[str, Operator] = {
    **_STREAMING,
    "elementwise": replace(
        _STREAMING["elementwise"],
        dimensions={**STREAMING["elementwise"].dimensions, "inputs": "tensors read", "outputs": "tensors written"},
        defaults={"inputs": 1, "outputs": 1},
    ),
    "attention_batched": Operator(
        "attention_batched",
        "Attention as two batched GEMMs with a softmax between: three kernels.",
        _ATTENTION,
        partial(Attention, fused=False),
    ),
    "attention_fused": Operator(
        "attention_fused",
        "Attention as one kernel that keeps the scores on chip.",
        _ATTENTION | {"kv_heads": "key and value heads (0: as many as query heads)", "causal": "1: masked"},
        Attention,
        {"kv_heads": 0, "causal": 0},
    ),
}
"""The declared operators by name."""


def operator(name: str, dtype: str = "fp16", **sizes: Any) -> Op:
    """The declared operator of that name with its dimensions, whole numbers or arrays of them that broadcast.

    Raises UnknownNameError for an unknown operator or dtype, InputError for dimensions that are missing, unknown, no
    whole numbers or contradict each other.

    >>> operator("softmax", rows=4096, columns=2048).least_bytes
    33554432
    """
    check_name("operator", name, OPERATORS)
    declared = OPERATORS[name]
    unknown = [key for key in sizes if key not in declared.dimensions]
    missing = [key for key in declared.dimensions if key not in sizes and key not in declared.defaults]
    if unknown or missing:
        problem = f"has no dimension '{unknown[0]}'" if unknown else f"lacks its dimension '{missing[0]}'"
        raise InputError(f"operator '{name}' {problem}; give it like {declared.example}")
    return declared.make(dtype=dtype, **sizes)
