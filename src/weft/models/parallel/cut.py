"""One rank's share of an operator under a plan, and what it exchanges with the other ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from weft.graph import DTYPE_BYTES, EXCHANGES, Attention, Gemm, GroupedGemm, Op, Scan, Streaming, TokenExchange
from weft.graph.collective import Copies
from weft.graph.routing import Loads, count_reached
from weft.graph.routing import Routing as Routed
from weft.models import Transformer
from weft.models.block import LayerOp, Routing
from weft.models.parallel.deployment import Deployment
from weft.models.parallel.plan import TrainingPlan


def cut(piece: LayerOp, plan: Deployment) -> Op:
    """Return one rank's share of an operator; dimensions that do not divide are rounded up, as for the fullest rank.

    Equal shares are one object, so that what follows from an operator is found once for all plans that have it.
    """
    ep, loads = (plan.ep, plan.expert_load or ()) if piece.routing else (1, ())
    return _cut(piece, plan.tp, token_ranks(plan), expert_tp(plan), ep, loads)


@lru_cache(maxsize=1 << 14)
def _cut(piece: LayerOp, tp: int, tokens: int, experts: int, ep: int, loads: Loads) -> Op:
    """Return one rank's share for the number of ranks that split heads, tokens, expert columns and experts."""
    op = piece.op
    match op:
        case GroupedGemm() if piece.cut != "whole":
            mine = replace(op, groups=-(-op.groups // ep), rows=-(-op.rows // tokens))
            if loads:
                most = _fullest(routing_of(piece), tokens, ep, loads)
                mine = replace(mine, rows=sum(most), busiest=max(most))
            if piece.cut == "expert_columns":
                return replace(mine, n=-(-op.n // experts))
            return replace(mine, k=-(-op.k // experts))
        case Gemm() if piece.cut == "columns":
            return replace(op, n=_share(op.n, tp, piece.unit))
        case Gemm() if piece.cut == "rows":
            return replace(op, k=_share(op.k, tp, piece.unit))
        case Gemm() if piece.cut == "tokens":
            return replace(op, m=-(-op.m // tokens))
        case Attention() if piece.cut == "heads":
            return _heads(op, tp)
        case Scan() if piece.cut == "heads":
            shared = -(-op.key_heads // tp)  # ranks beyond the heads of keys hold copies of them
            return replace(op, heads=-(-op.heads // (tp * shared)) * shared, groups=shared)
        case Streaming() if piece.cut == "heads":
            return replace(op, rows=-(-op.rows // tp))
        case Streaming() if piece.cut in ("width", "classes"):
            return _narrow_op(op, tp)
        case Streaming() if piece.cut == "routed":
            return replace(op, rows=math.ceil(-(-op.rows // tp) * _crowding(piece, tokens, ep, loads)))
        case Streaming() if piece.cut in ("tokens", "dispatch", "combine"):
            return replace(op, rows=-(-op.rows // tokens))
    return op


def routing_under(model: Transformer, plan: TrainingPlan) -> Routed:
    """Return how a micro-batch's tokens of each rank reach the experts of an MoE layer under the plan's loads."""
    tokens = -(-plan.micro_batch * plan.sequence // (plan.cp * token_ranks(plan)))
    return Routed.under(plan.expert_load, tokens, model.experts_per_token, model.experts, plan.ep)


@lru_cache(maxsize=1 << 10)
def _fullest(routing: Routing, token_ranks: int, ep: int, loads: Loads) -> tuple[int, ...]:
    """The rows of each expert of the rank that gets most."""
    tokens = -(-routing.tokens // token_ranks)
    return tuple(map(int, Routed.under(loads, tokens, routing.each, routing.experts, ep).fullest))


def _crowding(piece: LayerOp, token_ranks: int, ep: int, loads: Loads) -> float:
    if not loads:
        return 1.0
    routing = routing_of(piece)
    return sum(_fullest(routing, token_ranks, ep, loads)) / (-(-routing.tokens // token_ranks) * routing.each)


def crowding(piece: LayerOp, plan: Deployment) -> float:
    """Return rows that the experts of the rank with most get, over the mean of all ranks."""
    return _crowding(piece, token_ranks(plan), plan.ep, plan.expert_load or ())


def _share(size: int, ranks: int, unit: int) -> int:
    """Return the largest part of a dimension that is cut between units."""
    return -(-size // (unit * ranks)) * unit


def expert_tp(plan: Deployment) -> int:
    """Ranks that share each expert: those of tensor parallelism, if they see the same tokens."""
    return 1 if plan.sp else plan.tp


def token_ranks(plan: Deployment) -> int:
    """Ranks of a tensor-parallel group that hold different tokens between its GEMMs."""
    return plan.tp if plan.sp else 1


def _heads(op: Attention, ranks: int) -> Attention:
    """Attention of a part of the heads: each rank has as many for every head of keys."""
    shared = -(-op.kv_heads // ranks)
    heads = -(-op.heads // ranks)
    return replace(op, heads=-(-heads // shared) * shared if shared else heads, kv_heads=shared)


def _narrow_op(op: Streaming, tp: int) -> Streaming:
    """Return a `tp`-th of the columns, or of a flat operator's elements."""
    return replace(op, rows=-(-op.rows // tp)) if op.columns == 1 else replace(op, columns=-(-op.columns // tp))


def output_of(op: Op) -> tuple[int, int, str]:
    """Return rows, columns and number format of an operator's output."""
    if isinstance(op, Gemm):
        return op.m, op.n, op.output_dtype
    assert isinstance(op, Streaming)
    return op.rows, op.columns, op.dtype


def input_of(op: Op) -> tuple[int, int, str]:
    """Return rows, columns and number format of what an operator reads."""
    return (op.m, op.k, op.output_dtype) if isinstance(op, Gemm) else output_of(op)


def query_bytes(op: Op) -> int:
    """Return the size of attention's queries [bytes]."""
    return op.reads[0].bytes


def key_bytes(op: Op) -> int:
    """Return the size of attention's keys, and of its values [bytes]."""
    return op.reads[1].bytes


def hops(op: Attention, ranks: int) -> list[Attention]:
    """The parts of attention on one of `ranks` ranks in a ring: to its own keys, then to those of each other rank.

    Causal attention is balanced: each rank has a part from the start and one from the end of a sequence, and computes
    half of the pairs with each other rank (arXiv:2310.01889; Megatron-LM's context parallelism). Of windows only those
    of the first queries of both parts reach into keys of other ranks.
    """
    query, keys = -(-op.query // ranks), -(-op.keys // ranks)
    first = replace(op, query=query, keys=keys)
    if op.window:
        reached = min(-(-(op.window - 1) // keys), ranks - 1)
        edge = replace(first, query=min(2 * op.window, query), keys=min(op.window, keys), causal=0, window=0)
        return [first] + [edge] * reached
    other = replace(first, keys=-(-keys // 2), causal=0) if op.causal else first
    return [first] + [other] * (ranks - 1)


def local(op: Op, plan: Deployment) -> Op:
    """Return attention of one rank's own tokens, or its part of the heads; any other operator unchanged."""
    if plan.cp == 1 or not isinstance(op, Attention):
        return op
    return _heads(op, plan.cp) if plan.context == "all_to_all" else hops(op, plan.cp)[0]


def of_context(op: Attention, plan: Deployment) -> Attention:
    """Return one rank's attention over the full KV sequence, sharded by query (ring) or by head (all-to-all).

    A causal query sees half of the keys on average, or its window.
    """
    if plan.context == "all_to_all":
        return _heads(op, plan.cp)
    query = -(-op.query // plan.cp)
    if not op.causal:
        return replace(op, query=query)
    seen = min(op.window or op.keys, -(-op.keys // 2))
    return replace(op, query=query, keys=seen, causal=0, window=0)


def routing_of(piece: LayerOp) -> Routing:
    """Return how a piece that dispatches or combines tokens routes them."""
    assert piece.routing is not None
    return piece.routing


def routed_tokens(piece: LayerOp, plan: Deployment) -> int:
    """Return tokens that one rank routes."""
    return -(-output_of(piece.op)[0] // token_ranks(plan))


def exchange(
    routing: Routing,
    tokens: int,
    ranks: int,
    operation: Literal["dispatch", "combine"],
    library: str = "nccl",
    units: int = 0,
    crowding: float = 1.0,
) -> TokenExchange:
    """The exchange by which a library brings a rank's `tokens` to their experts, which `ranks` ranks share evenly.

    The rank that gets `crowding` times as many rows as the mean counts; where a token is sent once to each rank, it
    gets at most all tokens.
    """
    sent = copies(routing, ranks, EXCHANGES[library])
    reach = routing.reach, routing.groups
    if crowding > 1:
        tokens = round(tokens * min(crowding, ranks / sent if EXCHANGES[library] == "rank" else math.inf))
    size = tokens * sent * routing.hidden * DTYPE_BYTES[routing.dtype]
    what = operation, library, tokens, routing.hidden, routing.each, routing.experts, units, *reach
    return TokenExchange("all_to_all", max(round(size), 1), ranks, routing.dtype, *what)


def copies(routing: Routing, ranks: int, sent: Copies) -> float:
    """Return how many copies of a token are sent on average, one to its own rank included.

    One for each expert, or one for each rank that has at least one of the token's experts.
    """
    if sent == "expert":
        return routing.each
    limit = (routing.reach, routing.groups) if routing.reach else None
    return float(count_reached(ranks, routing.experts, routing.each, limit))
