"""Which parts of a model a rank runs: its layers by kind, the embedding, the head, and the stage of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.errors import InputError
from weft.models import Transformer
from weft.models.block import Tokens, embedding, head, layer
from weft.parallel.again import check_known
from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism
from weft.parallel.rank import RankPart, part
from weft.schedule.pipeline import Schedule


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


def chunks_of(model: Transformer, stages: int, plan: Parallelism) -> list[list[str]]:
    """The names of the parts of each stage: as many layers as the plan says, or equal numbers.

    The last stages, which have the head, get what is left if the number of stages does not divide that of layers.
    Raises InputError for a plan whose layers do not add up.
    """
    kinds = model.layer_kinds
    each = -(-len(kinds) // stages)
    counts = plan.layers or [min(max(len(kinds) - each * place, 0), each) for place in range(stages)]
    if len(counts) != stages or sum(counts) != len(kinds):
        raise InputError(
            f"the plan gives {len(counts)} stages {sum(counts)} layers, but {model.name} has {len(kinds)} and the "
            f"schedule {stages} stages; list the layers of each stage, or leave them out"
        )
    ends = [sum(counts[: place + 1]) for place in range(stages)]
    chunks = [list(kinds[end - count : end]) for count, end in zip(counts, ends, strict=True)]
    chunks[0].insert(0, "embedding")
    chunks[-1].append("head")
    return chunks


def stages_on(order: Schedule, device: int) -> list[int]:
    """The stages whose weights a pipeline device holds."""
    return [stage for stage in range(order.stages) if (order.placement[:, stage] == device).any()]
