"""A Transformer's parts as operators on unsplit data, each with how parallelism may cut it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from weft.core.errors import InputError, check_name
from weft.core.fields import check_fields
from weft.graph import Attention, Gemm, GroupedGemm, Op, Scan, Streaming
from weft.graph.op import Role, check_dtype

if TYPE_CHECKING:
    from weft.models.transformer import Transformer

Cut = Literal[
    "columns", "rows", "heads", "width", "tokens", "vocabulary", "classes", "expert_columns", "expert_rows", "routed",
    "dispatch", "combine", "whole",
]  # fmt: skip
"""How parallelism cuts an operator. Tensor parallelism: a GEMM by output columns or by rows of its weight, attention
and what works on its heads by heads, an element-wise operator between the two by its width, one outside by tokens (with
sequence parallelism), an embedding by rows of its table ("vocabulary"), a loss by classes. Expert parallelism: grouped
GEMMs by experts, and what is between them by the tokens "routed" to a rank; a "dispatch" ends with the exchange of
tokens, a "combine" begins with it. Without sequence parallelism tensor-parallel ranks see the same tokens: they cut
each expert by columns and rows. Or not at all ("whole")."""


@dataclass(frozen=True)
class FusionStyle:
    """How a framework writes a layer's operators.

    `flash` attention is one kernel of a `generation` (see `Attention`), otherwise batched GEMMs with a softmax between;
    with `dropout` after attention and each sub-layer. `fused` element-wise operators share kernels with their
    neighbours: bias with GeLU, bias with dropout and residual sum. An `eager` framework runs every operator by itself:
    scale and mask of the scores, projections of queries, keys and values, gradients of a norm's parameters. With `wide`
    scores, the kernels of scale, mask and softmax are in fp32, between copies; biases `apart` from what follows them
    are kernels of their own. Heads are `copied` apart before batched products, where these do not read them in strides.
    `loss` names the kernels of the cross entropy. Shared experts may run `beside` the dispatch or combine, which travel
    in the number format `dispatched`, the gradients of their results in `returned` (none: that of the model). Keys
    of latent attention are `joined` from the part that is rotated and the rest by a copy. What Transformer Engine has
    no kernel for is `elementary`, several kernels of PyTorch: rotations that also scale, limits of the inputs of an
    activation, biases of experts that the router weighs. It launches `each_expert`'s GEMM by itself,
    and the host waits for the numbers of their tokens.
    """

    flash: bool = True
    generation: int = 0
    dropout: bool = False
    fused: bool = True
    eager: bool = False
    wide: bool = False
    apart: bool = False
    copied: bool = False
    loss: Literal["cross_entropy", "eager_cross_entropy", "compiled_cross_entropy", "fused_cross_entropy"] = (
        "cross_entropy"
    )
    beside: bool = False
    joined: bool = False
    dispatched: str = ""
    returned: str = ""
    elementary: bool = False
    each_expert: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        for name in filter(None, (self.dispatched, self.returned)):
            check_dtype(name)


@dataclass(frozen=True)
class Tokens:
    """The tokens that a layer works on: `batch` sequences of `sequence` tokens, split over `context` ranks.

    The decoder of an encoder-decoder also attends to `source` tokens of each; `cached` tokens precede these in the KV
    cache.
    """

    batch: int
    sequence: int
    context: int = 1
    source: int = 0
    cached: int = 0

    @property
    def count(self) -> int:
        """Tokens on each rank."""
        return self.batch * self.queries

    @property
    def queries(self) -> int:
        """Tokens of each sequence on each rank."""
        return -(-self.sequence // self.context)

    @property
    def of_encoder(self) -> Tokens:
        """The tokens of the encoder; InputError if there are none."""
        if not self.source:
            raise InputError("an encoder-decoder needs the number of tokens of its encoder; give source")
        return replace(self, sequence=self.source, source=0, cached=0)


@dataclass(frozen=True)
class Routing:
    """So many `tokens` of `hidden` elements go to `each` of `experts`; see `FusionStyle` for the rest.

    The experts of a token are of `reach` out of `groups` groups (0: of all).
    """

    experts: int
    each: int
    hidden: int
    dtype: str
    tokens: int = 1
    reach: int = 0
    groups: int = 0


PREDICTION = "prediction"
"""The module of layers that predict decode tokens, and of what surrounds them."""
INPUT, PREVIOUS = "input", "previous"
"""What a piece reads beside the outputs of others: the input of its part of the model, or of the piece before it."""


@dataclass(frozen=True)
class LayerOp:
    """One operator of a model before it is split: its name, its part of the model, its cut, and its parameters.

    It `reads` the outputs of other pieces by their names, or INPUT, or PREVIOUS, first what it keeps most of.
    `parameters` counts the weights that it owns before the cut, the smaller ones (scales, biases) included. Where its
    input `forks`, the backward pass adds up two gradients. A piece `beside` the dispatch or combine does not wait for
    it; `routing` says what is exchanged. Columns or rows that are cut stay together by `unit`, as those of a head do.
    Code asks for its `role`, never for its name.
    """

    name: str
    op: Op
    module: str
    cut: Cut
    parameters: int = 0
    forks: bool = False
    beside: bool = False
    routing: Routing | None = None
    unit: int = 1
    reads: tuple[str, ...] = (PREVIOUS,)
    role: Role = Role.NONE


def sources(pieces: Sequence[LayerOp]) -> list[list[int]]:
    """The places of the pieces whose outputs each piece reads; -1 is the input of the part of the model."""
    places = {piece.name: at for at, piece in enumerate(pieces)} | {INPUT: -1}
    found = []
    for at, piece in enumerate(pieces):
        read = (at - 1 if name == PREVIOUS else places[name] for name in piece.reads)
        found.append(list(dict.fromkeys(read)))
    return found


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer by its two sub-layers, the mixer of tokens and the feed-forward network, one of which may lack.

    The mixer `attends`, within a `window` or to all tokens before, as an encoder or with `cross` attention; or it is
    the model's `linear` one; or both work on the same input. The network is an MLP or a `mixture` of experts (MoE).
    """

    mixture: bool = False
    window: bool = False
    cross: bool = False
    encodes: bool = False
    linear: bool = False
    attends: bool = True
    feeds: bool = True


LAYERS: Mapping[str, LayerKind] = {
    "dense": LayerKind(),
    "dense-window": LayerKind(window=True),
    "dense-linear": LayerKind(linear=True, attends=False),
    "dense-both": LayerKind(linear=True),
    "moe": LayerKind(mixture=True),
    "moe-window": LayerKind(mixture=True, window=True),
    "moe-linear": LayerKind(mixture=True, linear=True, attends=False),
    "encoder": LayerKind(encodes=True),
    "decoder": LayerKind(cross=True),
    "attention": LayerKind(feeds=False),
    "linear": LayerKind(linear=True, attends=False, feeds=False),
    "mlp": LayerKind(attends=False),
    "experts": LayerKind(mixture=True, attends=False),
}
"""The kinds of layers by name."""


def compose_pattern(mixers: Sequence[str], networks: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds of layers from the mixer of each ("", "window", "linear") and its network ("dense", "moe").

    The shortest beginning that repeats stands for all.

    >>> compose_pattern(["linear", "linear", ""] * 2, ["moe"] * 6)
    ('moe-linear', 'moe-linear', 'moe')
    """
    pairs = zip(networks, mixers, strict=True)
    kinds = tuple(f"{network}-{mixer}" if mixer else network for network, mixer in pairs)
    # the length of the longest end that is also a beginning, for each beginning (Knuth, Morris and Pratt)
    borders = [0] * len(kinds)
    for at in range(1, len(kinds)):
        size = borders[at - 1]
        while size and kinds[at] != kinds[size]:
            size = borders[size - 1]
        borders[at] = size + (kinds[at] == kinds[size])
    return kinds[: len(kinds) - borders[-1]] if kinds else ()


def layer(model: Transformer, kind: str, tokens: Tokens, style: FusionStyle, dtype: str) -> Iterator[LayerOp]:
    """Yield the operators of one layer of a kind (see `Transformer.layer_kinds`), in the order of execution.

    Sources: the layer of GPT-2 and Megatron-LM (arXiv:1909.08053, 2205.05198); Llama (arXiv:2307.09288); latent
    attention and mixtures: DeepSeek-V2 (arXiv:2405.04434); parallel blocks: PaLM (arXiv:2204.02311), whose first and
    last GEMMs are one each. Raises UnknownNameError for an unknown kind.
    """
    check_name("kind of layer", kind, LAYERS)
    of = LAYERS[kind]
    on = tokens.of_encoder if of.encodes else tokens
    yield from _Layer(model, of, on, style, dtype).pieces()


_ATTENTION_NORM, _MLP_NORM = "norm1", "norm2"
_QUERY = Role.QUERY_DOWN, Role.QUERY_NORM, Role.QUERY_UP
_KV = Role.KV_DOWN, Role.KV_NORM, Role.KV_UP
_SUMS: tuple[Cut, Cut] = ("columns", "rows")
_BY_HEADS: Cut = "heads"
_BY_WIDTH: Cut = "width"
_NORM_ROLES = {_ATTENTION_NORM: Role.ATTENTION_NORM, _MLP_NORM: Role.MLP_NORM}


@dataclass(frozen=True)
class _Layer:
    """Writes the operators of a layer; its fields are what all of them share."""

    model: Transformer
    kind: LayerKind
    tokens: Tokens
    style: FusionStyle
    dtype: str

    def pieces(self) -> Iterator[LayerOp]:
        if self.model.parallel:
            yield from self.parallel()
            return
        mixers = {(True, True): self.both, (True, False): self.attention, (False, True): self.linear}
        mixer = mixers.get((self.kind.attends, self.kind.linear))
        bodies = {"1": mixer} if mixer else {}
        if self.kind.cross:
            bodies["_cross"] = self.cross_attention
        if self.kind.feeds:
            bodies["2"] = self.mixture if self.kind.mixture else self.mlp
        entry, last = INPUT, "norm" if self.model.norms == "after" else "residual"
        for suffix, body in bodies.items():
            before = entry if self.model.norms == "after" else f"norm{suffix}"
            yield from self.sublayer(f"norm{suffix}", f"residual{suffix}", body(before), entry)
            entry = f"{last}{suffix}"

    def sublayer(self, norm: str, residual: str, body: Iterator[LayerOp], entry: str) -> Iterator[LayerOp]:
        """Yield a sub-layer with its norms and the sum with its own input, the output of the piece `entry`."""
        pieces = list(body)
        module, where = pieces[0].module, self.model.norms
        if where == "after":
            pieces[0] = replace(pieces[0], forks=True)
        else:
            yield replace(self.norm(norm, module, forks=True), reads=(entry,))
        yield from pieces
        if where == "both":
            role = Role.MLP_POST_NORM if norm == _MLP_NORM else Role.NONE
            yield replace(self.norm(f"{norm}_after", module), role=role)
        yield from self.residual(residual, module, entry)
        if where == "after":
            yield self.norm(norm, module)

    def parallel(self) -> Iterator[LayerOp]:
        """Attention and MLP on one input: the GEMMs that are added up are one, and so are those after a common norm."""
        model, count, bias = self.model, self.tokens.count, self.bias()
        wide, first, hidden = query_key_value(model), _mlp_columns(model, model.wide), model.hidden
        both = wide * (hidden + self.bias("qkv")), first * (hidden + bias)
        yield self.norm("norm1", "attention", forks=True)
        if model.parallel_norms == 1:
            yield LayerOp(
                "qkv_fc1", self.gemm(wide + first, hidden), "attention", "columns", sum(both), role=Role.QKV_MLP_UP
            )
        else:
            yield LayerOp("qkv", self.gemm(wide, hidden), "attention", "columns", both[0], role=Role.QKV)
            yield replace(self.norm("norm2", "mlp", forks=True), reads=(INPUT,))
            yield LayerOp("fc1", self.gemm(first, hidden), "mlp", "columns", both[1], role=Role.MLP_UP)
        first_gemm, columns = ("qkv_fc1", "qkv_fc1") if model.parallel_norms == 1 else ("qkv", "fc1")
        yield from self.heads((first_gemm,))
        activated = self.activation(count * model.wide)
        yield LayerOp("activation", activated, "mlp", "width", reads=(columns,), role=Role.ACTIVATION)
        inner = model.inner + model.wide
        owned = model.hidden * (inner + 2 * bias)
        both_read = ("activation", "attention" if self.style.flash else "context")
        yield LayerOp(
            "projection_fc2",
            self.gemm(model.hidden, inner),
            "mlp",
            "rows",
            owned,
            reads=both_read,
            role=Role.OUT_MLP_DOWN,
        )
        yield from self.residual("residual1", "mlp", INPUT)

    def attention(self, entry: str) -> Iterator[LayerOp]:
        """Attention on the output of `entry`: projections, what works on single heads, and the projection back."""
        model = self.model
        projected: tuple[str, ...] = ("qkv",)
        if model.kv_rank:
            yield from self.latent(entry)
            projected = ("q_up" if model.query_rank else "q", "kv_up", "kv_down")
        elif self.style.eager:
            yield from self.apart(entry)
            projected = "query", "key", "value"
        else:
            wide = query_key_value(model) + model.gate_columns
            owned = wide * (model.hidden + self.bias("qkv"))
            alike = model.key_heads == model.attention_heads
            unit = wide // model.attention_heads if alike else 1
            gemm = self.gemm(wide, model.hidden)
            yield LayerOp("qkv", gemm, "attention", "columns", owned, unit=unit, reads=(entry,), role=Role.QKV)
        yield from self.heads(projected)
        if model.attention_gate:
            gated = Streaming("sigmoid_gate", self.tokens.count * model.inner, 1, self.dtype)
            yield LayerOp("attention_gate", gated, "attention", "width", reads=(PREVIOUS, projected[0]))
        owned = model.hidden * (model.inner + self.bias())
        unit = model.inner // model.attention_heads
        gemm = self.gemm(model.hidden, model.inner)
        yield LayerOp("projection", gemm, "attention", "rows", owned, unit=unit, role=Role.OUT_PROJECTION)

    def apart(self, entry: str) -> Iterator[LayerOp]:
        """Projections of queries, keys and values as GEMMs of their own, whose gradients are added up."""
        model, bias = self.model, self.bias("qkv")
        keys, values = model.key_heads * model.head_size, model.key_heads * model.value_size
        queries = model.attention_heads * model.head_size + model.gate_columns
        for role, wide in ((Role.QUERY, queries), (Role.KEY, keys), (Role.VALUE, values)):
            owned = wide * (model.hidden + bias)
            gemm, forks = self.gemm(wide, model.hidden), role is not Role.QUERY
            yield LayerOp(role.value, gemm, "attention", "columns", owned, forks=forks, reads=(entry,), role=role)

    def latent(self, entry: str) -> Iterator[LayerOp]:
        """Queries, and keys and values, through GEMMs of low rank with a norm between (MLA, arXiv:2405.04434)."""
        model = self.model
        wide = model.attention_heads * model.head_size
        if model.query_rank:
            yield from self.compress("q", model.query_rank, model.query_rank, wide, entry, _QUERY)
        else:
            owned = wide * model.hidden
            yield LayerOp("q", self.gemm(wide, model.hidden), "attention", "columns", owned, reads=(entry,))
        if model.index_heads:  # DeepSeek-V3.2-Exp, inference/model.py: its queries, its key, and weights of its heads
            wide, keys = model.index_heads * model.index_head, model.index_head + model.index_heads
            up, down = wide * model.query_rank, keys * model.hidden
            queries = self.gemm(wide, model.query_rank)
            yield LayerOp("index_query", queries, "attention", "tokens", up, reads=("q_norm",))
            yield LayerOp("index_key", self.gemm(keys, model.hidden), "attention", "tokens", down, True, reads=(entry,))
        plain = model.head_size - model.rotary_head + model.value_size
        down = model.kv_rank + model.rotary_head
        yield from self.compress("kv", down, model.kv_rank, model.attention_heads * plain, entry, _KV)

    def compress(
        self, name: str, down: int, rank: int, up: int, entry: str, roles: Sequence[Role]
    ) -> Iterator[LayerOp]:
        """A GEMM of the output of `entry` to `down` columns, a norm of `rank` of them, and a GEMM to `up` columns.

        `roles` are those of the three; the input of keys and values is that of queries, too.
        """
        hidden = self.model.hidden
        gemm = self.gemm(down, hidden)
        forks, owned = roles is _KV, down * hidden
        yield LayerOp(f"{name}_down", gemm, "attention", "tokens", owned, forks=forks, reads=(entry,), role=roles[0])
        norm = Streaming(self.model.norm, self.tokens.count, rank, self.dtype)
        yield LayerOp(f"{name}_norm", norm, "attention", "tokens", rank, role=roles[1])
        yield LayerOp(f"{name}_up", self.gemm(up, rank), "attention", "columns", up * rank, role=roles[2])

    def heads(self, projected: tuple[str, ...]) -> Iterator[LayerOp]:
        """Yield what works on single heads: norms of queries and keys, rotation, attention.

        `projected` are the pieces that make queries, keys and values, the last one values, which are not rotated.
        """
        model, count = self.model, self.tokens.count
        every = count * (model.attention_heads + model.key_heads)
        if model.qk_norm:
            norm = Streaming(model.norm, every, model.head_size, self.dtype)
            yield LayerOp("qk_norm", norm, "attention", "heads", 2 * model.head_size)
        if model.positions == "rotary":
            rotated = count * (model.attention_heads + 1) * model.rotary_head or every * model.head_size
            turned = projected[:-1] if len(projected) > 1 and not model.qk_norm else (PREVIOUS,)
            name = "scaled_rotary" if model.rotary_scaled and self.style.elementary else "rotary"
            op = Streaming(name, rotated, 1, self.dtype)
            yield LayerOp("rotary", op, "attention", "width", reads=turned, role=Role.ROTARY)
        if self.style.joined and model.kv_rank:
            joined = Streaming("transpose", count * model.attention_heads * model.head_size, 1, self.dtype)
            yield LayerOp("keys", joined, "attention", "width", role=Role.KEY_COPY)
        if self.style.copied:
            apart = Streaming("transpose", count * query_key_value(model), 1, self.dtype)
            yield LayerOp("heads", apart, "attention", "width", role=Role.SPLIT_HEADS)
        read = (PREVIOUS, *projected)
        yield LayerOp("attention", self.attend(), "attention", "heads", reads=read, role=Role.ATTENTION_CORE)
        if not self.style.flash:
            # Batched products return the heads of each token apart: a copy brings them together.
            copied = Streaming("transpose", count * model.inner, 1, self.dtype)
            yield LayerOp("context", copied, "attention", "width", role=Role.JOIN_HEADS)

    def attend(self) -> Attention:
        """The attention of all heads to the tokens themselves and to what is cached."""
        model, tokens = self.model, self.tokens
        causal = int(self.style.flash and model.causal and not self.kind.encodes and tokens.sequence > 1)
        keys = tokens.sequence + tokens.cached
        window = model.window if self.kind.window and model.window < keys else 0
        if window and not causal:  # a query of decode, or kernels that compute whole rows of scores
            return self._attend(window if tokens.sequence == 1 else keys, causal)
        return replace(self._attend(keys, causal), window=window)

    def _attend(self, keys: int, causal: int) -> Attention:
        model, tokens, flash = self.model, self.tokens, self.style.flash
        shared = model.key_heads if flash and model.key_heads != model.attention_heads else 0
        sizes = tokens.batch, model.attention_heads, tokens.sequence, keys, model.head_size
        value = model.value_size if model.value_size != model.head_size else 0
        dropped = self.style.dropout and not flash
        generation = self.style.generation if flash else 0
        eager = self.style.eager and not flash
        return Attention(
            *sizes, shared, causal, self.dtype, flash, dropped, value=value, generation=generation, eager=eager,
            wide=self.style.wide and not flash,
        )  # fmt: skip

    def both(self, entry: str) -> Iterator[LayerOp]:
        """Yield attention and a linear mixer on the output of `entry`, and the sum of both (Falcon-H1)."""
        yield from self.attention(entry)
        first, *others = self.linear(entry)
        yield replace(first, forks=True)
        yield from others
        total = Streaming("residual_add", self.tokens.count * self.model.hidden, 1, self.dtype)
        yield LayerOp("mixers_add", total, "attention", "tokens", reads=("projection", "linear_out"))

    def linear(self, entry: str) -> Iterator[LayerOp]:
        """Yield a layer with a state of constant size on the output of `entry`.

        One GEMM for what the scan and its gates read, a short causal convolution of it, the scan, a norm with a gate,
        and the projection back. Source: transformers' modelling code of the families, and the papers `Scan` names.
        """
        model, count, tokens, of = self.model, self.tokens.count, self.tokens, self.model.mixer
        # Megatron Core has layers of their own for Mamba, and other linear attention in the place of self-attention
        module = "mamba" if of.rule in ("mamba", "mamba2") else "attention"
        first, owned = self.gemm(of.projected, model.hidden), of.projected * model.hidden
        yield LayerOp("linear_in", first, module, "columns", owned, reads=(entry,), role=Role.LINEAR_IN)
        if of.conv:
            convolved = Streaming("causal_conv1d", count, of.channels, self.dtype)
            yield LayerOp("linear_conv", convolved, module, "width", of.conv_parameters, reads=("linear_in",))
        for small in of.low_rank:
            gemm, cut = self.gemm(small.columns, small.rows), _SUMS[small.sums]
            yield LayerOp(small.name, gemm, module, cut, small.parameters, reads=(small.reads,))
        chunk = 0 if tokens.sequence == 1 else of.chunk
        scan = Scan(of.rule, tokens.batch, tokens.queries, of.heads, of.head, of.state, of.groups, chunk, self.dtype)
        yield LayerOp("scan", scan, module, "heads", of.scan_parameters, reads=of.reads, role=Role.LINEAR_CORE)
        gate = "gate_up" if of.rule == "kimi_delta" else "linear_in"
        if of.normed:
            op, by = Streaming("gated_rmsnorm", count * of.inner // of.normed, of.normed, self.dtype), _BY_HEADS
            by = by if of.normed < of.inner else _BY_WIDTH
        else:
            op, by = Streaming("swiglu", count * of.inner, 1, self.dtype), _BY_WIDTH
        yield LayerOp("linear_norm", op, module, by, of.norm_parameters, reads=("scan", gate))
        back, owned = self.gemm(model.hidden, of.inner), model.hidden * of.inner
        yield LayerOp("linear_out", back, module, "rows", owned, role=Role.LINEAR_OUT)

    def cross_attention(self, entry: str) -> Iterator[LayerOp]:
        """Attention of the output of `entry` to that of the encoder, which is part of the layer's input."""
        model, bias = self.model, self.bias("qkv")
        inner, source = model.inner, self.tokens.of_encoder
        owned = inner * (model.hidden + bias)
        queries = self.gemm(inner, model.hidden)
        yield LayerOp("cross_q", queries, "cross", "columns", owned, reads=(entry,), role=Role.CROSS_QUERY)
        keys = Gemm(source.count, 2 * inner, model.hidden, self.dtype)
        yield LayerOp("cross_kv", keys, "cross", "columns", 2 * owned, forks=True, reads=(INPUT,))
        attended = self._attend(source.sequence, 0)
        yield LayerOp("cross_attention", attended, "cross", "heads", reads=("cross_kv", "cross_q"))
        owned = model.hidden * (inner + self.bias())
        yield LayerOp("cross_projection", self.gemm(model.hidden, inner), "cross", "rows", owned)

    def mlp(self, entry: str) -> Iterator[LayerOp]:
        """Yield a plain MLP on the output of `entry`."""
        yield from self.perceptron("", self.model.wide, entry)

    def perceptron(self, prefix: str, wide: int, entry: str) -> Iterator[LayerOp]:
        """Yield a plain MLP on the output of `entry`; `prefix` precedes the names of its operators."""
        hidden, bias = self.model.hidden, self.bias()
        first = _mlp_columns(self.model, wide)
        owned = first * (hidden + bias)
        count, up, down = self.tokens.count, self.gemm(first, hidden), self.gemm(hidden, wide)
        yield LayerOp(f"{prefix}fc1", up, "mlp", "columns", owned, reads=(entry,), role=Role.MLP_UP)
        yield from self.add_bias(f"{prefix}activation_bias", count * wide, "mlp", "width", Role.ACTIVATION_BIAS)
        yield LayerOp(f"{prefix}activation", self.activation(count * wide), "mlp", "width", role=Role.ACTIVATION)
        yield LayerOp(f"{prefix}fc2", down, "mlp", "rows", hidden * (wide + bias), role=Role.MLP_DOWN)

    def mixture(self, entry: str) -> Iterator[LayerOp]:
        """Router, dispatch or combine, experts as grouped GEMMs, and experts that all tokens share, on the output of
        `entry`.

        Tokens spread evenly over the experts, until a plan's loads say otherwise.
        """
        model, bias, count = self.model, self.bias(), self.tokens.count
        experts, each, hidden, wide = model.experts, model.experts_per_token, model.hidden, model.expert_wide
        own = self.perceptron("shared_", model.shared_experts * wide, entry) if model.shared_experts else ()
        shared = [replace(piece, role=Role.SHARED_EXPERT) for piece in own]
        if shared:
            shared[0] = replace(shared[0], forks=True)
        limit = model.groups_per_token, model.expert_groups
        sent = model.routed_hidden
        routing = Routing(experts, each, sent, self.style.dispatched or self.dtype, count, *limit)
        owned = experts * (hidden + bias)
        router, top = self.gemm(experts, hidden), Streaming("top_k", count, experts, self.dtype)
        yield LayerOp("router", router, "moe", "tokens", owned, forks=True, reads=(entry,), role=Role.ROUTER)
        yield LayerOp("top_k", top, "moe", "tokens", role=Role.TOP_K)
        if model.expert_hidden:
            yield LayerOp("latent_down", self.gemm(sent, hidden), "moe", "tokens", sent * hidden, True, reads=(entry,))
        permuted = Streaming("permute", count, sent, self.dtype, outputs=each)
        read = "latent_down" if model.expert_hidden else entry, "top_k"
        yield LayerOp("permute", permuted, "moe", "dispatch", routing=routing, reads=read)
        if self.style.beside:
            yield from (replace(piece, beside=True) for piece in shared)
        yield from (replace(piece, routing=routing) for piece in self.experts())
        restored = Streaming("unpermute", count, sent, self.dtype, inputs=each)
        back = replace(routing, dtype=self.style.returned or self.dtype)
        yield LayerOp("unpermute", restored, "moe", "combine", routing=back)
        if model.expert_hidden:
            yield LayerOp("latent_up", self.gemm(hidden, sent), "moe", "tokens", sent * hidden, reads=("unpermute",))
        if not self.style.beside:
            yield from shared
        if shared:
            total = Streaming("residual_add", count * hidden, 1, self.dtype)
            read = ("shared_fc2", "latent_up" if model.expert_hidden else "unpermute")
            yield LayerOp("shared_add", total, "moe", "tokens", reads=read, role=Role.SHARED_EXPERT)

    def experts(self) -> Iterator[LayerOp]:
        model, bias = self.model, self.bias()
        experts, hidden, wide = model.experts, model.routed_hidden, model.expert_wide
        routed, first = self.tokens.count * model.experts_per_token, _mlp_columns(model, wide)
        up = GroupedGemm(experts, routed, first, hidden, self.dtype, fused=not self.style.each_expert)
        owned = experts * first * (hidden + bias)
        yield LayerOp("experts_fc1", up, "moe", "expert_columns", owned, reads=("permute",), role=Role.EXPERT_UP)
        if model.activation_clamped and self.style.elementary:
            clamp = Streaming("clamp", routed * first, 1, self.dtype)
            yield LayerOp("experts_clamp", clamp, "moe", "routed", role=Role.EXPERT_INNER)
        activation, inner = self.activation(routed * wide), Role.EXPERT_INNER
        yield LayerOp("experts_activation", activation, "moe", "routed", role=inner)
        down = replace(up, n=hidden, k=wide)
        owned = experts * hidden * (wide + bias)
        yield LayerOp("experts_fc2", down, "moe", "expert_rows", owned, role=Role.EXPERT_DOWN)
        if bias and self.style.elementary:
            added = Streaming("weighted_bias_add", routed * hidden, 1, self.dtype)
            yield LayerOp("experts_fc2_bias", added, "moe", "routed", role=inner)

    def activation(self, elements: int) -> Streaming:
        """Return the activation function for `elements` elements of its output."""
        name, fused = self.model.activation, self.style.fused and self.model.biases == "all"
        if self.model.is_gated:
            return Streaming("swiglu", elements, 1, self.dtype)  # GeGLU moves the same bytes
        if name in ("relu", "relu2"):
            return Streaming("elementwise", elements, 1, self.dtype)
        return Streaming("bias_gelu" if fused else "gelu", elements, 1, self.dtype)

    def add_bias(self, name: str, elements: int, module: str, cut: Cut, role: Role) -> Iterator[LayerOp]:
        """Yield the bias of a linear layer, where a kernel of its own adds it."""
        if self.style.apart and self.bias():
            yield LayerOp(name, Streaming("bias_add", elements, 1, self.dtype), module, cut, role=role)

    def residual(self, name: str, module: str, entry: str) -> Iterator[LayerOp]:
        """Yield the sum of the output of the piece before with that of `entry`, and what precedes it."""
        elements, style = self.tokens.count * self.model.hidden, self.style
        yield from self.add_bias(f"{name}_bias", elements, module, "tokens", Role.RESIDUAL)
        if style.dropout and not style.fused:
            dropped = Streaming("dropout", elements, 1, self.dtype)
            yield LayerOp(f"{name}_dropout", dropped, module, "tokens", role=Role.RESIDUAL)
        kind = "bias_dropout_add" if style.dropout and style.fused else "residual_add"
        op = Streaming(kind, elements, 1, self.dtype)
        yield LayerOp(name, op, module, "tokens", reads=(PREVIOUS, entry), role=Role.RESIDUAL)

    def gemm(self, n: int, k: int) -> Gemm:
        return Gemm(self.tokens.count, n, k, self.dtype)

    def norm(self, name: str, module: str, forks: bool = False) -> LayerOp:
        piece = _norm(self.model, name, self.tokens.count, self.dtype, module, forks)
        piece = replace(piece, role=_NORM_ROLES.get(name, Role.NONE))
        if self.style.eager and self.model.norm == "layernorm":
            rows = self.tokens.count
            return replace(piece, op=Streaming("eager_layernorm", rows, self.model.hidden, self.dtype))
        return piece

    def bias(self, of: str = "all") -> int:
        """1 if linear layers have a bias; for "qkv" also if only those of attention's input have one."""
        return int(self.model.biases in ("all", of))


def query_key_value(model: Transformer) -> int:
    """Return the columns of the QKV projection."""
    return (model.attention_heads + model.key_heads) * model.head_size + model.key_heads * model.value_size


def _mlp_columns(model: Transformer, wide: int) -> int:
    return 2 * wide if model.is_gated else wide


def _norm(model: Transformer, name: str, rows: int, dtype: str, module: str, forks: bool = False) -> LayerOp:
    scales = model.hidden * (2 if model.norm == "layernorm" else 1)
    return LayerOp(name, Streaming(model.norm, rows, model.hidden, dtype), module, "tokens", scales, forks)


def embedding(model: Transformer, tokens: Tokens, style: FusionStyle, dtype: str) -> Iterator[LayerOp]:
    """Yield what precedes the first layer: rows of the embedding table, positions, token types, norm, dropout."""
    hidden = model.hidden
    count = tokens.count + (tokens.of_encoder.count if model.encoder_layers else 0)
    table = Streaming("embedding", count, hidden, dtype)
    yield LayerOp("embedding", table, "embedding", "vocabulary", model.vocabulary * hidden)
    added = Streaming("residual_add", count * hidden, 1, dtype)
    if model.positions == "learned":
        yield LayerOp("positions", added, "embedding", "tokens", model.sequence_length * hidden)
    if model.masked:
        yield LayerOp("token_types", added, "embedding", "tokens", 2 * hidden)
    if model.embedding_norm:
        yield _norm(model, "embedding_norm", count, dtype, "embedding")
    if style.dropout:
        dropped = Streaming("dropout", count * hidden, 1, dtype)
        yield LayerOp("embedding_dropout", dropped, "embedding", "tokens")


def head(model: Transformer, tokens: Tokens, style: FusionStyle, dtype: str) -> Iterator[LayerOp]:
    """Yield the operators after the last layer: MTP layers, the last norm, the logits and their loss."""
    for number in range(1, model.predict_layers + 1):
        yield from prediction(model, f"predict{number}_", tokens, style, dtype)
    if model.norms != "after":
        yield _norm(model, "norm", tokens.count, dtype, "head")
    rows = max(round(tokens.count * model.predicted), 1)
    if model.masked:
        yield from _masked_ops(model, rows, tokens.batch, dtype)
    yield from _logits(model, "", rows, style, dtype, model.tied)


def _logits(
    model: Transformer, prefix: str, rows: int, style: FusionStyle, dtype: str, tied: bool
) -> Iterator[LayerOp]:
    owned = 0 if tied else model.vocabulary * model.hidden
    owned += model.vocabulary if model.masked else 0
    logits, loss = (
        Gemm(rows, model.vocabulary, model.hidden, dtype),
        Streaming(style.loss, rows, model.vocabulary, dtype),
    )
    yield LayerOp(f"{prefix}logits", logits, "head", "columns", owned, role=Role.LOGITS)
    yield LayerOp(f"{prefix}loss", loss, "head", "classes", role=Role.LOSS)


def _masked_ops(model: Transformer, rows: int, batch: int, dtype: str) -> Iterator[LayerOp]:
    """BERT's pooler and classifier of the first token, and the transform of the masked ones (arXiv:1810.04805)."""
    hidden = model.hidden
    yield LayerOp("pooler", Gemm(batch, hidden, hidden, dtype), "head", "whole", hidden * (hidden + 1), forks=True)
    yield LayerOp("next_sentence", Gemm(batch, 2, hidden, dtype), "head", "whole", 2 * (hidden + 1))
    yield LayerOp("transform", Gemm(rows, hidden, hidden, dtype), "head", "whole", hidden * (hidden + 1))
    yield LayerOp("transform_gelu", Streaming("gelu", rows * hidden, 1, dtype), "head", "whole")
    yield replace(_norm(model, "transform_norm", rows, dtype, "head"), cut="whole")


def _prediction_kind(model: Transformer) -> str:
    """Return the kind of a layer that predicts one more token: the last, or attention with a network of its own."""
    last = LAYERS[model.layer_kinds[-1]]
    if last.attends and last.feeds and not last.linear:
        return model.layer_kinds[-1]
    return "moe" if model.experts else "dense"


def prediction(model: Transformer, prefix: str, tokens: Tokens, style: FusionStyle, dtype: str) -> Iterator[LayerOp]:
    """Yield a layer that predicts one more token: from the last layer's output and the embedding of the token after it.

    Source: multi-token prediction of DeepSeek-V3 (arXiv:2412.19437, section 2.2); embedding and logits share weights.
    """
    count, hidden = tokens.count, model.hidden
    table = Streaming("embedding", count, hidden, dtype)
    yield LayerOp(f"{prefix}embedding", table, PREDICTION, "vocabulary")
    for name in ("embedding_norm", "hidden_norm"):
        yield _norm(model, f"{prefix}{name}", count, dtype, PREDICTION, forks=name == "hidden_norm")
    joined = Gemm(count, hidden, 2 * hidden, dtype)
    yield LayerOp(f"{prefix}join", joined, PREDICTION, "tokens", 2 * hidden * hidden)
    for piece in layer(model, _prediction_kind(model), tokens, style, dtype):
        reads = tuple(name if name == PREVIOUS else f"{prefix}{name}" for name in piece.reads)
        reads = tuple(f"{prefix}join" if name == f"{prefix}{INPUT}" else name for name in reads)
        yield replace(piece, name=f"{prefix}{piece.name}", module=PREDICTION, reads=reads)
    yield _norm(model, f"{prefix}norm", count, dtype, PREDICTION)
    for piece in _logits(model, prefix, count, style, dtype, tied=True):
        yield replace(piece, module=PREDICTION)
