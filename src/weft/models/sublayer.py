"""Sub-layers of a Transformer that end in an all-reduce: their GEMMs before they are split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from weft.core.errors import check_name
from weft.graph import Gemm
from weft.models.load import load_model
from weft.models.transformer import Transformer


@dataclass(frozen=True)
class SubLayerKind:
    """A kind of sub-layer: title, and the sum that tensor parallelism splits: K of its GEMM."""

    title: str
    inner: Callable[[Transformer], int]


def _query_key_value(model: Transformer) -> int:
    shared = 2 * model.key_heads * (model.inner // model.attention_heads)
    return 3 * model.inner if model.key_heads == model.attention_heads else model.inner + shared


SUBLAYERS: Mapping[str, SubLayerKind] = {
    "op": SubLayerKind("OP (forward)", lambda model: model.inner),
    "fc2": SubLayerKind("FC-2 (forward)", lambda model: model.wide),
    "fc1": SubLayerKind("FC-1 (backward)", lambda model: (1 + model.is_gated) * model.wide),
    "ip": SubLayerKind("IP (backward)", _query_key_value),
}
"""The four sub-layers by name."""


@dataclass(frozen=True)
class SubLayer:
    """One sub-layer before it is split: its GEMM, its name, and the name of its model."""

    model: str
    name: str
    title: str
    gemm: Gemm

    @classmethod
    def custom(cls, m: int, n: int, k: int, dtype: str = "bf16", name: str = "custom") -> Self:
        """Return a sub-layer from the dimensions of its unsplit GEMM; InputError if one cannot be used."""
        return cls(model="custom", name=name, title=f"{name} ({m} x {n} x {k})", gemm=Gemm(m, n, k, dtype))


def sublayer(model: Transformer | str | Path, name: str, dtype: str | None = None) -> SubLayer:
    """Return a sub-layer of a model (given itself, by name or by file), unsplit; UnknownNameError for an unknown one.

    Without a `dtype` it is in the number format of the model.

    >>> sublayer("t-nlg", "fc2").gemm
    Gemm(m=8192, n=4256, k=17024, dtype='fp16')
    """
    check_name("sub-layer", name, SUBLAYERS)
    transformer = load_model(model)
    kind = SUBLAYERS[name]
    gemm = Gemm(
        m=transformer.tokens,
        n=transformer.hidden,
        k=kind.inner(transformer),
        dtype=transformer.dtype if dtype is None else dtype,
    )
    return SubLayer(model=transformer.name, name=name, title=kind.title, gemm=gemm)
