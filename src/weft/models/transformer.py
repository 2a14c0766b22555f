"""Transformers by their dimensions, from the catalogue of models or from a user's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from weft.catalog import Count, CountOrNone, Shelf, Sourced, broken_rule
from weft.errors import check_name, check_type
from weft.graph import Gemm, Graph, Node
from weft.models.layer import How, Phase, check_layer, operators, uneven

# Elements of an attention head if a model does not state them: the value of most large models.
_HEAD = 128


class Transformer(Sourced):
    """A Transformer's dimensions: hidden size H, layers, context length, attention heads, feed-forward width.

    Without `heads`, they have 128 elements each; without `head`, they span H together; without `ffn`, the feed-forward
    layers are H x `ffn_multiple` H. `kv_heads` heads of keys and values serve all query heads. A `gated` MLP has a
    second first matrix. `vocabulary` rows of the embedding; `tied` shares them with the head. A mixture has `experts`
    of width `expert_ffn`, `experts_per_token` of which compute a token beside `shared_experts`; its first
    `dense_layers` layers have a plain MLP. Latent attention (MLA) has the ranks `query_rank` and `kv_rank`, and heads
    whose keys have `head` elements and `rotary_head` more that all share. Every `window_every`-th layer sees `window`
    tokens. `encoder_layers` precede the layers of an encoder-decoder, whose layers then also attend to the encoder.
    `batch` and `tensor_parallel` are those that T3's study runs.
    """

    _texts: ClassVar[tuple[str, ...]] = (
        "tensor_parallel", "gated", "tied", "causal", "biases", "norm", "activation", "positions",
    )  # fmt: skip
    title: str
    hidden: Count
    layers: Count
    sequence_length: Count
    batch: Count = 1
    ffn_multiple: Count = 4
    ffn: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head: Count | None = None
    gated: bool = False
    activation: Literal["gelu", "swiglu", "relu"] = "gelu"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    positions: Literal["learned", "rotary", "alibi", "relative", "none"] = "learned"
    causal: bool = True
    biases: bool = True
    vocabulary: Count = 51200
    tied: bool = True
    experts: CountOrNone = 0
    experts_per_token: CountOrNone = 0
    expert_ffn: Count | None = None
    shared_experts: CountOrNone = 0
    dense_layers: CountOrNone = 0
    query_rank: CountOrNone = 0
    kv_rank: CountOrNone = 0
    rotary_head: CountOrNone = 0
    value_head: CountOrNone = 0
    window: CountOrNone = 0
    window_every: Count = 1
    encoder_layers: CountOrNone = 0
    tensor_parallel: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens per step: sequence length x batch."""
        return self.sequence_length * self.batch

    @property
    def attention_heads(self) -> int:
        """Number of attention heads."""
        return self.heads or max(self.hidden // _HEAD, 1)

    @property
    def head_size(self) -> int:
        """Elements of an attention head's query and key."""
        return self.head or self.hidden // self.attention_heads

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.kv_heads or self.attention_heads

    @property
    def wide(self) -> int:
        """Width of the feed-forward layers."""
        return self.ffn or self.ffn_multiple * self.hidden

    def layer(
        self,
        *,
        tp: int = 1,
        batch: int = 1,
        sequence: int = 2048,
        phase: Phase = "prefill",
        attention: How = "batched",
        dtype: str = "fp16",
    ) -> Graph:
        """One layer's forward pass on each of `tp` GPUs; labels note what does not divide evenly.

        `prefill` computes all `sequence` tokens of `batch` sequences; `decode` computes one token of each, which
        attends to `sequence` of them. Biases and residual additions count as fused into their neighbours. Raises
        UnknownNameError for an unknown phase, attention or dtype, InputError for sizes that do not fit.

        >>> len(load_model("gpt-3").layer(tp=8))
        12
        """
        check_layer(self, tp, batch, sequence, phase, attention)
        work = list(operators(self, tp, batch, sequence, phase, attention, dtype))
        names = [name for name, _ in work]
        nodes = tuple(Node(op, name, after=tuple(names[at - 1 : at])) for at, (name, op) in enumerate(work))
        what = "tokens" if phase == "prefill" else "tokens of context"
        title = f"{self.name}, one layer, {phase}, TP {tp}, batch {batch} x {sequence} {what}, {dtype}"
        return Graph(nodes, tp, title, {"model": self.name, "layer": phase, **uneven(self, tp)})

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.heads and not self.head and self.hidden % self.heads:
            raise broken_rule(
                f"heads ({self.heads}) cannot share hidden ({self.hidden}) evenly; give heads that divide it"
            )
        return self

    @field_validator("tensor_parallel", mode="before")
    @classmethod
    def _check_degrees(cls, degrees: Any) -> Any:
        listed = isinstance(degrees, list | tuple) and len(degrees) > 0
        if not listed or not all(type(degree) is int and degree > 1 for degree in degrees):
            raise broken_rule(f"{degrees!r} must be a list of whole numbers above 1; write it like [8, 16]")
        return degrees


_SHELF = Shelf("model", "weft.models", "catalog", ("name", "title"), Transformer.rules())


def model_names() -> list[str]:
    """The models of the catalogue."""
    return _SHELF.names()


def load_model(name_or_path: str | Path) -> Transformer:
    """Load a model by its name in the catalogue, or from a TOML file.

    Raises UnknownNameError, InputError or ConfigError, which names the file, the field and an example.
    """
    check_type("the model", name_or_path, (str, Path), "give a name like 't-nlg', or a TOML file")
    found = _SHELF.read(name_or_path)
    return Transformer.from_leaves(found.about, found.leaves, found.file)


@dataclass(frozen=True)
class SubLayerKind:
    """A kind of sub-layer: title, and K as a multiple of H (None: the feed-forward multiple)."""

    title: str
    multiple: int | None


SUBLAYERS: Mapping[str, SubLayerKind] = {
    "op": SubLayerKind("OP (forward)", 1),
    "fc2": SubLayerKind("FC-2 (forward)", None),
    "fc1": SubLayerKind("FC-1 (backward)", None),
    "ip": SubLayerKind("IP (backward)", 3),
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
    def custom(cls, m: int, n: int, k: int, dtype: str = "fp16", name: str = "custom") -> Self:
        """A sub-layer from the dimensions of its unsplit GEMM; InputError if one cannot be used."""
        return cls(model="custom", name=name, title=f"{name} ({m} x {n} x {k})", gemm=Gemm(m, n, k, dtype))


def sublayer(model: Transformer | str | Path, name: str, dtype: str = "fp16") -> SubLayer:
    """A sub-layer of a model (given itself, by name or by file), unsplit; UnknownNameError for an unknown one.

    >>> sublayer("t-nlg", "fc2").gemm
    Gemm(m=8192, n=4256, k=17024, dtype='fp16')
    """
    check_name("sub-layer", name, SUBLAYERS)
    transformer = model if isinstance(model, Transformer) else load_model(model)
    kind = SUBLAYERS[name]
    k = (kind.multiple or transformer.ffn_multiple) * transformer.hidden
    gemm = Gemm(m=transformer.tokens, n=transformer.hidden, k=k, dtype=dtype)
    return SubLayer(model=transformer.name, name=name, title=kind.title, gemm=gemm)
