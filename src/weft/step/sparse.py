"""Sparse attention in inference (DSA of DeepSeek-V3.2): an indexer scores all tokens, and queries see the best of them.

Sources: DeepSeek-V3.2-Exp (2025, technical report and inference/model.py): scores in 8 bits of `index_heads` queries
with one key per token, a weighted sum of their positive parts, then attention on the compressed cache of the best ones.
"""

from __future__ import annotations

from weft.graph import Attention, Opaque
from weft.hardware import Gpu
from weft.models import Transformer
from weft.models.counts import index_bytes

_SWEEPS = 2
"""Times that a selection of the best reads all scores [assumed, 1 to 4: radix selection of fp32 in few passes]."""


def is_sparse(model: Transformer, keys: int) -> bool:
    """Return whether queries that could see `keys` tokens see only the best of them."""
    return bool(model.index_heads) and keys > model.index_topk


def index_ops(model: Transformer, sequences: int, new: int, cached: int, gpu: Gpu) -> tuple[Opaque, Opaque]:
    """Return the scores of `new` queries of each sequence behind `cached` tokens, and the selection of the best.

    Every rank of tensor parallelism computes all of them, as servers do. Scores go through memory in fp32.
    """
    pairs = sequences * (new * cached + new * (new + 1) // 2)
    read = sequences * (cached + new) * index_bytes(model)
    scores, chosen = 4 * pairs, 4 * sequences * new * model.index_topk
    flops = 2 * pairs * model.index_heads * model.index_head
    dtype = "fp8" if gpu.supports("fp8") else "bf16"
    return (
        Opaque("index_scores", flops, read + scores, scores, dtype),
        Opaque("index_top_k", 0, _SWEEPS * scores + chosen, chosen),
    )


def best_tokens(model: Transformer, op: Attention) -> Attention:
    """Return attention of the queries of an operator to the best tokens of each, on the compressed cache."""
    wide = model.kv_rank + model.rotary_head
    return Attention(
        op.batch * op.query, op.heads, 1, model.index_topk, wide, 1, dtype=op.dtype, value=model.kv_rank,
        generation=op.generation,
    )  # fmt: skip
