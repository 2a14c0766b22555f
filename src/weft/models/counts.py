"""Parameters and floating-point operations of a Transformer, counted from its operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from weft.core.errors import check_name, check_whole
from weft.graph import DTYPE_BYTES, Attention, Gemm, GroupedGemm, Scan
from weft.models.block import LAYERS, FusionStyle, LayerOp, Tokens, embedding, head, layer

if TYPE_CHECKING:
    from weft.models.transformer import Transformer


@dataclass(frozen=True)
class Parameters:
    """Numbers of weights: of the embedding, of all layers, of the head, and of layers that predict decode tokens.

    Of those of the layers, `experts` belong to routed experts; each token visits the part `visited` of these.
    """

    embedding: int
    layers: int
    head: int
    prediction: int
    experts: int
    visited: float

    @property
    def total(self) -> int:
        """All weights but those of layers that predict decode tokens, as models are named by."""
        return self.embedding + self.layers + self.head

    @property
    def active(self) -> int:
        """Weights that compute one token, the embedding included."""
        return self.total - round(self.experts * (1 - self.visited))


def parameters(model: Transformer) -> Parameters:
    """Return the numbers of a model's weights, biases and scales, by its parts."""
    tokens, style = _one(model), FusionStyle()
    counts = {kind: list(layer(model, kind, tokens, style, "bf16")) for kind in dict.fromkeys(model.layer_kinds)}
    ends = list(head(model, tokens, style, "bf16"))
    every = [piece for kind in model.layer_kinds for piece in counts[kind]]
    return Parameters(
        _count_parameters(embedding(model, tokens, style, "bf16")),
        _count_parameters(every),
        _count_parameters(piece for piece in ends if piece.module != "prediction"),
        _count_parameters(piece for piece in ends if piece.module == "prediction"),
        _count_parameters(piece for piece in every if piece.cut.startswith("expert")),
        model.experts_per_token / model.experts if model.experts else 1.0,
    )


def _one(model: Transformer) -> Tokens:
    return Tokens(1, 1, source=1 if model.encoder_layers else 0)


def _count_parameters(pieces: Iterable[LayerOp]) -> int:
    return sum(piece.parameters for piece in pieces)


_INDEX_SCALE = 4
"""The scale of a token's key in the indexer's cache, in fp32 (vLLM's DeepseekV32IndexerCache: 128 + 4 bytes)."""


def index_bytes(model: Transformer) -> int:
    """Return the bytes of a token in the 8-bit cache of a layer's indexer, which every GPU holds in full."""
    return model.index_head + _INDEX_SCALE if model.index_heads else 0


def kv_bytes(model: Transformer, length: int, ranks: int = 1, kv_dtype: str = "bf16") -> int:
    """Return the KV-cache bytes of a sequence of `length` tokens on one of `ranks` tensor-parallel ranks.

    Layers with a window keep that of it alone; latent attention keeps its compressed form on every rank, and the
    indexer of sparse attention has a cache of its own. Linear layers keep no tokens (`state_bytes`).
    """
    size = indexed = 0
    each = -(-model.key_heads // ranks) * (model.head_size + model.value_size)
    if model.kv_rank:
        each = model.kv_rank + model.rotary_head
    for kind, layers in Counter(model.layer_kinds).items():
        if LAYERS[kind].attends:
            size += layers * each * (min(length, model.window) if LAYERS[kind].window else length)
            indexed += layers * length * index_bytes(model)
    return size * DTYPE_BYTES[kv_dtype] + indexed


def state_bytes(model: Transformer, ranks: int = 1) -> int:
    """Return the bytes of states that linear layers keep of a sequence of any length on one of `ranks` ranks."""
    layers = sum(LAYERS[kind].linear for kind in model.layer_kinds)
    return layers * model.mixer.state_bytes(ranks) if layers else 0


@dataclass(frozen=True)
class Convention:
    """What a source counts as FLOPs of a step: attention in `full` or its causal half, the `embedding` as a GEMM.

    Selective recomputation counts the forward pass of attention `again` times.
    """

    about: str
    source: str
    full: bool = False
    embedding: bool = False
    again: int = 1


CONVENTIONS: Mapping[str, Convention] = {
    "causal": Convention(
        "each query sees half of the keys: 6 L h s a token", "Megatron-Bridge and NeMo AutoModel, 2025 and 2026"
    ),
    "full": Convention("each query sees all keys: 12 L h s a token", "arXiv:2104.04473, appendix; NeMo 24.07", True),
    "full-embedding": Convention(
        "as full, and the embedding as if it were a GEMM: 6 N + 12 L h s", "llm-foundry, throughput tables", True, True
    ),
    "megatron-2022": Convention(
        "as full; recomputed attention counts three times", "arXiv:2205.05198, appendix A", True, again=3
    ),
}
"""Conventions by name; times tell more than the rates that they make of them."""
Recomputed = Literal["none", "selective", "operators", "full"]


def forward_flops(
    model: Transformer, sequence: int, convention: str = "causal", source: int = 0, names: Collection[str] | None = None
) -> Mapping[str, float]:
    """Floating-point operations of GEMMs in the forward pass of one sequence: of layers, their mixers, and the head.

    A multiply-add counts as two; `source` are the tokens of an encoder. Only operators with these `names` are counted
    (None: all). Raises UnknownNameError for an unknown convention.
    """
    check_name("convention of FLOPs", convention, CONVENTIONS)
    check_whole("sequence", sequence, 1, 2048)
    counted, flops = CONVENTIONS[convention], dict.fromkeys(("layers", "attention", "head"), 0.0)
    for part, times, piece in _pieces(model, Tokens(1, sequence, source=source)):
        if names is not None and piece.name not in names:
            continue
        if isinstance(piece.op, Gemm | GroupedGemm):
            flops[part] += times * piece.op.flops
        elif isinstance(piece.op, Attention):
            flops["attention"] += times * _scores(piece.op, counted.full)
        elif isinstance(piece.op, Scan):
            flops["attention"] += times * piece.op.flops
    if counted.embedding:
        flops["head"] += 2.0 * sequence * model.vocabulary * model.hidden
    return flops


def _pieces(model: Transformer, tokens: Tokens) -> Iterator[tuple[str, int, LayerOp]]:
    style = FusionStyle()
    for kind, times in Counter(model.layer_kinds).items():
        for piece in layer(model, kind, tokens, style, "bf16"):
            yield "layers", times, piece
    for piece in head(model, tokens, style, "bf16"):
        yield "head", 1, piece


def _scores(op: Attention, full: bool) -> float:
    """Return the FLOPs of QK^T and of scores times values: all unless a causal mask halves them and not `full`.

    With a sliding window, only scores inside the window count.
    """
    each = 2.0 * op.batch * op.heads * (op.head + op.value_head)
    if op.window:
        return each * (op.query * op.window if full else op.pairs)
    return each * op.query * op.keys / (2 if op.causal and not full else 1)


def model_flops(model: Transformer, sequence: int, convention: str = "causal", source: int = 0) -> float:
    """Floating-point operations of a training step on one sequence: three times those of the forward pass.

    For GPT, "full" is 72 s L h^2 (1 + s / 6 h + V / 12 h L) (arXiv:2205.05198, appendix A).
    """
    return 3 * sum(forward_flops(model, sequence, convention, source).values())


def hardware_flops(
    model: Transformer,
    sequence: int,
    recompute: Recomputed | tuple[str, ...],
    convention: str = "causal",
    source: int = 0,
) -> float:
    """Floating-point operations of a training step on one sequence with those that recomputation adds.

    Full recomputation repeats the forward pass of all layers, selective recomputation that of attention, that by
    operators every second GEMM: about half of the layers without attention, and that of named operators theirs.
    """
    if isinstance(recompute, tuple):
        forward = forward_flops(model, sequence, convention, source)
        named = forward_flops(model, sequence, convention, source, recompute)
        return 3 * sum(forward.values()) + named["layers"] + named["attention"]
    check_name("recomputation", recompute, get_args(Recomputed))
    forward = forward_flops(model, sequence, convention, source)
    again = {
        "none": 0.0,
        "selective": CONVENTIONS[convention].again * forward["attention"],
        "operators": 0.5 * forward["layers"],
        "full": forward["layers"] + forward["attention"],
    }
    return 3 * sum(forward.values()) + again[recompute]


def utilisation(flops: float, seconds: float, peak: float) -> float:
    """Share of the peak rate [FLOP/s] that `flops` in `seconds` reach: MFU of model FLOPs, HFU of hardware FLOPs.

    >>> utilisation(10**12, 10, 10**13)
    0.01
    """
    return flops / seconds / peak
