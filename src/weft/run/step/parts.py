"""Which parts of a model a rank runs: its layers by kind, the embedding and the head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.models import Transformer
from weft.models.block import Tokens, embedding, head, layer
from weft.parallel.again import check_known
from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism
from weft.parallel.rank import RankPart, part


def rank_parts(
    model: Transformer, plan: Parallelism, framework: Framework, like: Mapping[str, RankPart] | None = None
) -> dict[str, RankPart]:
    """One rank's share of every distinct part of a model: "embedding", each kind of layer, "head".

    `like` are those of a plan that only recomputes otherwise, if they are known.
    """
    like = like or {}
    source = model.sequence_length if model.encoder_layers else 0
    tokens = Tokens(plan.micro_batch, plan.sequence, plan.cp, source)
    arguments = model, tokens, framework.style, plan.dtype
    ends = replace(plan, recompute="none")
    kinds = {kind: tuple(layer(model, kind, *arguments[1:])) for kind in dict.fromkeys(model.layer_kinds)}
    if isinstance(plan.recompute, tuple):
        check_known([piece.name for pieces in kinds.values() for piece in pieces], plan.recompute)
    return {
        "embedding": like.get("embedding") or part("embedding", tuple(embedding(*arguments)), ends, framework),
        **{kind: part(kind, pieces, plan, framework, like.get(kind)) for kind, pieces in kinds.items()},
        "head": like.get("head") or part("head", tuple(head(*arguments)), ends, framework),
    }
