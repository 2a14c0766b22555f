"""The sub-layers of a Transformer whose output tensor parallelism must all-reduce, as unsplit GEMMs.

The output is always tokens x H; K is a multiple of H (T3, ASPLOS 2024, arXiv:2401.16677; Megatron-LM,
arXiv:1909.08053): forward, the attention output projection and the second feed-forward layer; backward, the
gradients of the inputs of the first feed-forward layer and of the query-key-value projection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from weft.errors import check_name
from weft.graph.gemm import Gemm
from weft.models.transformer import Transformer, load_model


@dataclass(frozen=True)
class SubLayerKind:
    """A kind of sub-layer: title, direction, and K as a multiple of H (None: the feed-forward multiple)."""

    title: str
    direction: str
    multiple: int | None

    def k_multiple(self, model: Transformer) -> int:
        """K / H for this model."""
        return model.ffn_multiple if self.multiple is None else self.multiple


SUBLAYERS: Mapping[str, SubLayerKind] = {
    "op": SubLayerKind("OP (forward)", "forward", 1),
    "fc2": SubLayerKind("FC-2 (forward)", "forward", None),
    "fc1": SubLayerKind("FC-1 (backward)", "backward", None),
    "ip": SubLayerKind("IP (backward)", "backward", 3),
}
"""The four sub-layers by name."""


@dataclass(frozen=True)
class SubLayer:
    """One sub-layer before it is split: its GEMM, and the names of the model and of itself."""

    model: str
    name: str
    title: str
    gemm: Gemm

    @classmethod
    def custom(cls, m: int, n: int, k: int, dtype: str = "fp16", name: str = "custom") -> Self:
        """A sub-layer from the dimensions of its unsplit GEMM; InputError if one cannot be used."""
        return cls(model="custom", name=name, title=f"{name} ({m} x {n} x {k})", gemm=Gemm(m, n, k, dtype))


def sublayer(model: Transformer | str | Path, name: str, dtype: str = "fp16") -> SubLayer:
    """A sub-layer of a model (given itself, by name or by file), unsplit; UnknownNameError if there is none.

    >>> sublayer("t-nlg", "fc2").gemm
    Gemm(m=8192, n=4256, k=17024, dtype='fp16')
    """
    check_name("sub-layer", name, SUBLAYERS)
    transformer = model if isinstance(model, Transformer) else load_model(model)
    kind = SUBLAYERS[name]
    k = kind.k_multiple(transformer) * transformer.hidden
    gemm = Gemm(m=transformer.tokens, n=transformer.hidden, k=k, dtype=dtype)
    return SubLayer(model=transformer.name, name=name, title=kind.title, gemm=gemm)
