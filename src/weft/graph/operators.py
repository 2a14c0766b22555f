"""The operators that users can name, with their dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from weft.core.errors import InputError, check_name
from weft.graph.attention import Attention
from weft.graph.gemm import Gemv
from weft.graph.op import Op
from weft.graph.scan import Rule, Scan
from weft.graph.streaming import MANY, STREAMING, Streaming, StreamingKind

_EXAMPLES = {
    "elements": 16777216,
    "parameters": 100000000,
    "tokens": 8192,
    "batch": 8,
    "heads": 32,
    "query": 2048,
    "keys": 2048,
    "head": 128,
    "experts": 64,
    "channels": 8192,
    "steps": 8192,
    "state": 128,
}
_ATTENTION = {
    "batch": "sequences",
    "heads": "query heads on this GPU",
    "query": "tokens that ask, per sequence",
    "keys": "tokens that are looked at, per sequence",
    "head": "elements per head",
}


_SCAN = {
    "batch": "sequences",
    "steps": "tokens of each sequence",
    "heads": "heads of values on this GPU; of Mamba channels",
    "head": "elements of a value",
    "state": "elements of a key",
    "groups": "heads of queries and keys (0: as many as of values)",
    "chunk": "tokens of a chunk (0: token by token, as in decode)",
}
_SCANS: Mapping[Rule, tuple[str, int]] = {
    "gated_delta": ("Gated DeltaNet (Qwen3-Next), in chunks: five products within them, three with the state.", 64),
    "kimi_delta": ("Kimi delta attention, in chunks, with a decay for each element of a key.", 64),
    "mamba2": ("Mamba-2 in chunks: states, their pass, scores, outputs.", 128),
    "lightning": ("Lightning attention (MiniMax-01) in chunks, with fixed decays.", 256),
    "mamba": ("Mamba's selective scan on vector units.", 0),
}
"""What each rule of a scan is, and the tokens of a chunk as its models have them."""


@dataclass(frozen=True)
class Operator:
    """An operator that users can name: description, dimensions with their meaning, those that have a default, and what
    else it takes, in `words`.
    """

    name: str
    about: str
    dimensions: Mapping[str, str]
    make: Callable[..., Op]
    defaults: Mapping[str, int] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def example(self) -> str:
        """An example of its dimensions as a user types them."""
        return ",".join(f"{name}={_EXAMPLES.get(name, 4096)}" for name in self.dimensions if name not in self.defaults)

    @property
    def usage(self) -> str:
        """Its dimensions; optional ones in brackets, with their defaults."""
        optional = self.defaults
        return ", ".join(f"[{name}={optional[name]}]" if name in optional else name for name in self.dimensions)


def _streaming(name: str, dtype: str, **sizes: Any) -> Streaming:
    named = dict(zip(STREAMING[name].dimensions, ("rows", "columns"), strict=False))
    return Streaming(name, dtype=dtype, **{named.get(key, key): size for key, size in sizes.items()})


def _make_operator(name: str, kind: StreamingKind) -> Operator:
    """Return the operator of a kind, with the counts of tensors that may differ."""
    counts = {"inputs": "tensors read"} if MANY in kind.reads else {}
    counts |= {"outputs": "tensors written"} if MANY in kind.writes else {}
    dimensions = {**kind.dimensions, **counts}
    return Operator(name, kind.about, dimensions, partial(_streaming, name), dict.fromkeys(counts, 1))


def _make_scan(rule: Rule) -> Operator:
    """Return the scan of a rule; Mamba's channels have one element and no chunks."""
    about, chunk = _SCANS[rule]
    if rule == "mamba":
        dimensions = {name: _SCAN[name] for name in ("batch", "steps", "heads", "state")}
        return Operator(f"scan_{rule}", about, dimensions, partial(Scan, rule, head=1, groups=1))
    return Operator(f"scan_{rule}", about, _SCAN, partial(Scan, rule), {"groups": 0, "chunk": chunk})


OPERATORS: Mapping[str, Operator] = {
    **{name: _make_operator(name, kind) for name, kind in STREAMING.items()},
    **{f"scan_{rule}": _make_scan(rule) for rule in _SCANS},
    "gemv": Operator(
        "gemv",
        "A matrix times a vector, the matrix row by row, perhaps as a part of a wider one.",
        {
            "rows": "rows of the matrix",
            "columns": "elements of a row",
            "stride": "elements from row to row (0: no gap)",
        },
        Gemv,
        {"stride": 0},
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
        _ATTENTION
        | {
            "kv_heads": "key and value heads (0: as many as query heads)",
            "causal": "1: masked",
            "window": "keys that a query sees at most (0: all)",
            "value": "elements of a head of values (0: as of keys)",
        },
        Attention,
        {"kv_heads": 0, "causal": 0, "window": 0, "value": 0},
        ("kv_dtype", "library"),
    ),
}
"""The operators that users can name."""


def operator(name: str, dtype: str = "bf16", **sizes: Any) -> Op:
    """Return the declared operator of that name with its dimensions, whole numbers or arrays of them that broadcast.

    Fused attention also takes a `library` of inference and the `kv_dtype` of its keys and values.

    Raises UnknownNameError for an unknown operator or dtype, InputError for dimensions that are missing, unknown, no
    whole numbers or contradict each other.

    >>> operator("softmax", rows=4096, columns=2048).least_bytes
    33554432
    """
    check_name("operator", name, OPERATORS)
    declared = OPERATORS[name]
    unknown = [key for key in sizes if key not in declared.dimensions and key not in declared.words]
    missing = [key for key in declared.dimensions if key not in sizes and key not in declared.defaults]
    if unknown or missing:
        problem = f"has no dimension '{unknown[0]}'" if unknown else f"lacks its dimension '{missing[0]}'"
        raise InputError(f"operator '{name}' {problem}; give it like {declared.example}")
    return declared.make(dtype=dtype, **{**declared.defaults, **sizes})
