"""Transformers by their dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from weft.core.catalog import Count, CountOrNone, Share, Sourced, broken_rule
from weft.core.errors import InputError, join_or, show_value
from weft.graph.scan import Rule
from weft.models.block import LAYERS
from weft.models.counts import parameters
from weft.models.formats import WeightFormat
from weft.models.mixer import LinearMixer

# Elements of an attention head if a model does not state them: the value of most large models.
_HEAD = 128


class Transformer(Sourced):
    """A Transformer's dimensions: `layers` layers of hidden size `hidden` (H) on sequences of `sequence_length` tokens.

    Models that were trained further on longer sequences, after pre-training, serve `max_position_embeddings` tokens.

    Attention has `heads` heads of `head` elements (without `heads`, of 128; without `head`, they span H together), and
    `kv_heads` heads of keys and values that serve all of them. `qk_norm` normalises each head of queries and keys.
    Latent attention (MLA) has the ranks `query_rank` and `kv_rank`, `rotary_head` elements of each query and key beside
    `head`, of which all heads share the key's, and values of `value_head` elements. The indexer of sparse attention
    has `index_heads` heads of `index_head` elements, one key for all; in inference a query then sees the `index_topk`
    tokens with the best scores, in training all of them. With a
    `window` a query sees that many tokens, in every layer unless a `pattern` says in which.

    Models whose layers differ list their kinds (`weft.models.block.LAYERS`) in a `pattern`, which repeats until there
    are `layers`: attention or a linear mixer, with an MLP, with experts, or either alone. The `linear` mixer keeps a
    state of constant size in place of keys and values (`weft.graph.Scan`): `linear_heads` heads of `linear_state` x
    `linear_head` elements, `linear_groups` heads of queries and keys, a convolution over `linear_conv` tokens, chunks
    of `linear_chunk` tokens; `linear_rank` is that of Mamba's step sizes and of Kimi's gates. An `attention_gate`
    multiplies what attention returns by the sigmoid of a part of its projection.

    The MLP is `ffn` wide, or `ffn_multiple` x H; a gated `activation` (SwiGLU, GeGLU) has a second first matrix, and
    limits of its inputs in experts if it is `activation_clamped`. A mixture has `experts` of width `expert_ffn`
    on tokens of hidden size, or projected to `expert_hidden` elements before they are sent and back behind (LatentMoE),
    `experts_per_token` of which compute a token beside `shared_experts`, all out of `groups_per_token` of
    `expert_groups` groups, if these are stated (group-limited routing); the first `dense_layers` layers have a plain
    MLP, and so do all but every `moe_every`-th of the others, unless a `pattern` says which have experts.

    `norms` stand before or after attention and MLP, or at both places; a `parallel` block adds attention and MLP to the
    same input, after `parallel_norms` norms. Rotations may also scale (`rotary_scaled`: YaRN with an attention factor
    other than 1). `biases` are those of all linear layers, of the QKV projection, or none.
    `vocabulary` counts the rows of the embedding; `tied` shares them with the head. A share of `predicted` tokens
    reaches the head; that of `masked` language models has a transform of its own, and their embedding token types
    (BERT). Further `predict_layers` each predict one more token (MTP). `encoder_layers` precede the layers of an
    encoder-decoder, which then also attend to the encoder. `batch` and `tensor_parallel` are those that T3's study
    runs, and `dtype` the number format of its sub-layers where none is given. `weight_format` is the one in which its
    weights were released, which servers load.

    A dimension that a file leaves out has the value that it has in GPT-2.
    """

    _texts: ClassVar[tuple[str, ...]] = (
        "tensor_parallel", "tied", "causal", "biases", "norm", "norms", "activation", "activation_clamped", "positions",
        "rotary_scaled", "qk_norm", "parallel", "masked", "embedding_norm", "dtype", "weight_format",
        "pattern", "linear", "attention_gate",
    )  # fmt: skip
    title: str
    hidden: Count
    layers: Count
    sequence_length: Count
    max_position_embeddings: CountOrNone = 0
    batch: Count = 1
    heads: Count | None = None
    kv_heads: Count | None = None
    head: Count | None = None
    qk_norm: bool = False
    query_rank: CountOrNone = 0
    kv_rank: CountOrNone = 0
    rotary_head: CountOrNone = 0
    value_head: Count | None = None
    index_heads: CountOrNone = 0
    index_head: CountOrNone = 0
    index_topk: CountOrNone = 0
    window: CountOrNone = 0
    pattern: tuple[str, ...] = ()
    linear: Rule | Literal[""] = ""
    linear_heads: CountOrNone = 0
    linear_head: CountOrNone = 0
    linear_state: CountOrNone = 0
    linear_groups: CountOrNone = 0
    linear_conv: CountOrNone = 0
    linear_rank: CountOrNone = 0
    linear_chunk: CountOrNone = 0
    attention_gate: bool = False
    ffn_multiple: Count = 4
    ffn: Count | None = None
    activation: Literal["gelu", "relu", "relu2", "swiglu", "geglu"] = "gelu"
    activation_clamped: bool = False
    experts: CountOrNone = 0
    experts_per_token: CountOrNone = 0
    expert_groups: CountOrNone = 0
    groups_per_token: CountOrNone = 0
    expert_ffn: Count | None = None
    expert_hidden: CountOrNone = 0
    shared_experts: CountOrNone = 0
    dense_layers: CountOrNone = 0
    moe_every: Count = 1
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norms: Literal["before", "after", "both"] = "before"
    parallel: bool = False
    parallel_norms: Count = 1
    positions: Literal["learned", "rotary", "alibi", "relative", "none"] = "learned"
    rotary_scaled: bool = False
    causal: bool = True
    biases: Literal["all", "qkv", "none"] = "all"
    vocabulary: Count = 51200
    tied: bool = True
    embedding_norm: bool = False
    masked: bool = False
    predicted: Share = 1.0
    predict_layers: CountOrNone = 0
    encoder_layers: CountOrNone = 0
    tensor_parallel: tuple[int, ...] = ()
    dtype: Literal["fp16", "bf16"] = "bf16"
    weight_format: WeightFormat = "bf16"

    @property
    def tokens(self) -> int:
        """Tokens per step: sequence length x batch."""
        return self.sequence_length * self.batch

    @property
    def context_limit(self) -> int:
        """Most tokens of a sequence that a server reads."""
        return self.max_position_embeddings or self.sequence_length

    @property
    def attention_heads(self) -> int:
        """Number of attention heads."""
        return self.heads or max(self.hidden // _HEAD, 1)

    @property
    def head_size(self) -> int:
        """Elements of an attention head's query and key."""
        return (self.head or self.hidden // self.attention_heads) + self.rotary_head

    @property
    def value_size(self) -> int:
        """Elements of an attention head's value."""
        return self.value_head or self.head or self.hidden // self.attention_heads

    @property
    def inner(self) -> int:
        """Elements that all heads of attention return together."""
        return self.attention_heads * self.value_size if self.head or self.value_head else self.hidden

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.kv_heads or self.attention_heads

    @property
    def gate_columns(self) -> int:
        """Columns of the QKV projection that gate what attention returns."""
        return self.inner if self.attention_gate else 0

    @cached_property
    def mixer(self) -> LinearMixer:
        """The mixer of its linear layers; InputError if it has none."""
        if not self.linear:
            raise InputError(f"{self.name} has no linear layers; give linear, and its sizes")
        groups = self.linear_groups or self.linear_heads
        return LinearMixer(
            self.linear, self.linear_heads, self.linear_head, self.linear_state, groups, self.linear_conv,
            self.linear_rank, self.linear_chunk,
        )  # fmt: skip

    @property
    def wide(self) -> int:
        """Width of the MLP."""
        return self.ffn or self.ffn_multiple * self.hidden

    @property
    def expert_wide(self) -> int:
        """Width of an expert."""
        return self.expert_ffn or self.wide

    @property
    def routed_hidden(self) -> int:
        """Elements of a token as routed experts see it."""
        return self.expert_hidden or self.hidden

    @property
    def is_gated(self) -> bool:
        """Whether the activation function takes a second tensor."""
        return self.activation in ("swiglu", "geglu")

    @cached_property
    def layer_kinds(self) -> tuple[str, ...]:
        """The kind of each layer in its order (see `weft.models.block.LAYERS`): equal kinds are equal layers.

        >>> from weft.models import load_model
        >>> load_model("deepseek-v3").layer_kinds[2:4]
        ('dense', 'moe')
        """
        if self.pattern:
            kinds = self.pattern if self.window else [kind.removesuffix("-window") for kind in self.pattern]
            return tuple(kinds[at % len(kinds)] for at in range(self.layers))
        encoder = ("encoder",) * self.encoder_layers
        return encoder + tuple(self._kind(at) for at in range(self.layers))

    def _kind(self, at: int) -> str:
        if self.encoder_layers:
            return "decoder"
        routed = self.experts and at >= self.dense_layers and (at + 1) % self.moe_every == 0
        kind = "moe" if routed else "dense"
        return f"{kind}-window" if self.window else kind

    @property
    def parameters(self) -> int:
        """Number of weights, without the layers that predict decode tokens."""
        return parameters(self).total

    @property
    def active_parameters(self) -> int:
        """Number of weights that compute one token: all but the experts that a token does not visit."""
        return parameters(self).active

    @model_validator(mode="after")
    def _check(self) -> Self:
        for broken, sentence in _broken(self):
            if broken:
                raise broken_rule(sentence)
        return self

    @field_validator("pattern", mode="before")
    @classmethod
    def _check_pattern(cls, pattern: Any) -> Any:
        listed = isinstance(pattern, list | tuple) and all(isinstance(kind, str) for kind in pattern)
        wrong = [kind for kind in pattern if kind not in _KINDS] if listed else [pattern]
        if wrong:
            example = 'a list like ["moe-linear", "moe-linear", "moe-linear", "moe"]'
            raise broken_rule(f"{show_value(wrong[0])} is no kind of layer; give {example}, of {join_or(_KINDS)}")
        return tuple(pattern)

    @field_validator("tensor_parallel", mode="before")
    @classmethod
    def _check_degrees(cls, degrees: Any) -> Any:
        if degrees == ():  # none are studied
            return degrees
        listed = isinstance(degrees, list | tuple) and len(degrees) > 0
        if not listed or not all(type(degree) is int and degree > 1 for degree in degrees):
            raise broken_rule(f"{degrees!r} must be a list of whole numbers above 1; write it like [8, 16]")
        return degrees


_KINDS = tuple(name for name, kind in LAYERS.items() if not (kind.encodes or kind.cross))
"""The kinds of layers that a pattern may name."""


def _broken_pattern(model: Transformer) -> Iterator[tuple[bool, str]]:
    """Yield the rules of patterns and linear mixers."""
    kinds = [LAYERS[kind] for kind in dict.fromkeys(model.pattern)]
    names = "moe_every", "dense_layers", "encoder_layers"
    other = [name for name in names if getattr(model, name) > (name == "moe_every")]
    yield bool(kinds and other), f"pattern names the kind of each layer; leave out {', '.join(other)}"
    beside = all(kind.attends and kind.feeds and not kind.mixture for kind in kinds)
    yield model.parallel and not beside, "parallel blocks have attention and an MLP; leave parallel or the pattern out"
    linear = any(kind.linear for kind in kinds)
    yield linear and not model.linear, "pattern has linear layers; give linear, such as mamba2, and its sizes"
    yield bool(model.linear and not linear), "linear goes with a pattern that has linear layers; give both, or neither"
    of, sizes = model.linear, ("linear_heads", "linear_head", "linear_state")
    missing = [name for name in sizes if linear and not getattr(model, name)]
    yield bool(missing), f"linear layers need {', '.join(missing)}; give whole numbers above zero"
    heads, groups = model.linear_heads, model.linear_groups
    yield bool(groups and heads % groups), f"linear_groups is {groups}; it must divide the {heads} linear_heads"
    ranked, chunked = of in ("mamba", "kimi_delta"), of != "mamba"
    yield bool(of and ranked and not model.linear_rank), f"{of} layers need linear_rank; give a whole number above zero"
    yield (
        bool(of and chunked and not model.linear_chunk),
        f"{of} layers need linear_chunk, the tokens of a chunk; give a whole number above zero, such as 64",
    )
    yield of == "mamba" and model.linear_head != 1, f"linear_head is {model.linear_head}; Mamba's channels have 1"
    experts = any(kind.mixture for kind in kinds)
    yield bool(kinds) and experts != bool(model.experts), "experts and layers of pattern with them go together"
    window = any(kind.window for kind in kinds)
    yield (
        bool(kinds and model.window) and not window,
        "no layer of pattern has a window; name some, or leave window out",
    )


def _broken(model: Transformer) -> Iterator[tuple[bool, str]]:
    """Yield each rule between dimensions: whether the model breaks it, and what to say then."""
    heads, shared = model.attention_heads, model.key_heads
    uneven = bool(model.heads and not model.head and not model.kv_rank and model.hidden % model.heads)
    yield uneven, f"heads ({heads}) cannot share hidden ({model.hidden}) evenly; give heads that divide it, or head"
    yield heads % shared > 0, f"kv_heads is {shared}; it must divide the {heads} heads"
    count, each = model.experts, model.experts_per_token
    yield bool(count) != bool(each), "experts and experts_per_token go together; give both, or neither"
    yield each > count, f"experts_per_token is {each}; there are {count} experts"
    groups, few = model.expert_groups, model.groups_per_token
    yield bool(groups) != bool(few), "expert_groups and groups_per_token go together; give both, or neither"
    if groups and few:
        yield count % groups > 0, f"expert_groups is {groups}, which does not divide {count} experts"
        yield few > groups, f"groups_per_token is {few}; there are {groups} groups of experts"
        yield few * count < each * groups, f"{few} of {groups} groups of experts have fewer than {each} experts"
    yield bool(model.expert_hidden and not count), "expert_hidden goes with experts; give both, or neither"
    yield bool(model.shared_experts and not count), "shared_experts go with experts; give both, or neither"
    yield bool(count and model.encoder_layers), "experts in an encoder-decoder are not modelled; leave one of them out"
    latent = bool(model.query_rank or model.rotary_head or model.value_head) and not model.kv_rank
    yield latent, "query_rank, rotary_head and value_head belong to latent attention; give kv_rank, too"
    needed = "index_heads", "index_head", "index_topk"
    indexed = [name for name in needed if getattr(model, name)]
    lacks = [name for name in (*needed, "query_rank") if not getattr(model, name)]
    yield (
        bool(indexed and lacks),
        f"an indexer has {', '.join(indexed)}, and lacks {', '.join(lacks)}; give all of them",
    )
    yield bool(model.kv_rank and not model.head), "latent attention needs head, the elements of a key without rotation"
    most = model.layers
    yield model.dense_layers > most, f"dense_layers is {model.dense_layers}; the model has {most} layers"
    every, dense = model.moe_every, model.dense_layers
    plain = bool(count) and not model.pattern and most // every == dense // every
    where = f"moe_every is {every}, dense_layers {dense} of {most}"
    yield plain, f"experts are in no layer: {where}; give a smaller moe_every or dense_layers, or no experts"
    yield from _broken_pattern(model)
