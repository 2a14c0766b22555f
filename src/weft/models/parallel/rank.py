"""One rank's share of a model's parts: its passes as graphs, its parameters, and what it must remember."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

from weft.graph import Gemm, Graph, GroupedGemm, Op
from weft.graph.op import Role
from weft.models.block import LayerOp
from weft.models.parallel.chain import RankGraphBuilder
from weft.models.parallel.cut import cut, expert_tp, local
from weft.models.parallel.deployment import Deployment
from weft.models.parallel.framework import Framework
from weft.models.parallel.memory import SavedActivations, remaining, save_activations
from weft.models.parallel.plan import TrainingPlan
from weft.models.parallel.precision import is_narrow, narrow_ops


@dataclass(frozen=True)
class RankPart:
    """One rank's work on a part of a model, such as a layer: passes as graphs, parameters, and what it must remember.

    Of the parameters `experts` belong to routed experts, `narrow` to GEMMs on a recipe's operands of 8 or 4 bits.
    `write` and `write_again` make the graphs when they are asked for: plans that do not fit the memory need none, and
    servers no backward pass.
    Streams are named by what runs on them: "compute", and collectives of the axes "tp", "cp" and "ep". `pieces` are the
    operators before and after they are split, `list_again` returns those that the backward pass computes again.
    """

    name: str
    write: Callable[[Literal["forward", "backward"]], Graph]
    write_again: Callable[[], Graph | None]
    parameters: int = 0
    kept: SavedActivations = field(default_factory=SavedActivations)
    experts: int = 0
    narrow: int = 0
    pieces: Sequence[tuple[LayerOp, Op]] = ()
    list_again: Callable[[], Sequence[tuple[LayerOp, Op]]] = list

    @cached_property
    def forward(self) -> Graph:
        """The forward pass."""
        return self.write("forward")

    @cached_property
    def backward(self) -> Graph:
        """The backward pass."""
        return self.write("backward")

    @cached_property
    def recompute(self) -> Graph | None:
        """What is recomputed before the backward pass; None if nothing is."""
        return self.write_again()


def forward_graph(
    name: str, pieces: Sequence[LayerOp], plan: Deployment, framework: Framework, products: str = ""
) -> Graph:
    """Return one rank's forward pass over the pieces in their order, without what a backward pass would need.

    GEMMs are of the number format `products`, if one is given, but for routers; what quantises their inputs counts as
    fused into the operator before them.
    """
    mine = [(piece, cut(piece, plan)) for piece in narrow_ops(pieces, plan.recipe, framework.attention)]
    if products:
        mine = [(piece, _in_format(piece, op, products)) for piece, op in mine]
    return _pass(name, mine, plan, framework, "forward")


def _in_format(piece: LayerOp, op: Op, dtype: str) -> Op:
    """Return an operator with the number format of the products of layers."""
    if piece.role is Role.ROUTER or not isinstance(op, Gemm | GroupedGemm) or op.dtype == dtype:
        return op
    return replace(op, dtype=dtype)


def part(
    name: str, pieces: Sequence[LayerOp], plan: TrainingPlan, framework: Framework, like: RankPart | None = None
) -> RankPart:
    """Return one rank's share of the pieces in their order; `like` is that of a plan that only recomputes otherwise."""
    pieces = narrow_ops(pieces, plan.recipe, framework.attention)
    mine = [(piece, cut(piece, plan)) for piece in pieces]
    write = partial(getattr, like) if like else partial(_pass, name, mine, plan, framework)
    list_again = partial(_again, mine, plan, framework)
    again = partial(_recompute_graph, name, list_again, plan, framework)
    remembered = save_activations(pieces, [local(op, plan) for _, op in mine], plan, framework.style.fused)
    owned = sum(_rank_parameters(piece, plan) for piece in pieces)
    experts = sum(_rank_parameters(piece, plan) for piece in pieces if piece.cut.startswith("expert"))
    narrow = (
        sum(_rank_parameters(piece, plan) for piece in pieces if is_narrow(piece.op)) if plan.recipe.operands else 0
    )
    return RankPart(name, write, again, owned, remembered, experts, narrow, mine, list_again)


def _pass(
    name: str,
    mine: Sequence[tuple[LayerOp, Op]],
    plan: Deployment,
    framework: Framework,
    direction: Literal["forward", "backward"],
) -> Graph:
    """Return the forward or the backward pass."""
    chain = RankGraphBuilder(plan, framework)
    append = chain.forward if direction == "forward" else chain.backward
    for piece, op in mine if direction == "forward" else _reverse_order(mine):
        append(piece, op)
    return chain.graph(f"{name}, {direction}")


def _recompute_graph(
    name: str, list_again: Callable[[], Sequence[tuple[LayerOp, Op]]], plan: TrainingPlan, framework: Framework
) -> Graph | None:
    """Return the pass over what is recomputed; None if nothing is."""
    chain = RankGraphBuilder(plan, framework, "recompute")
    for piece, op in list_again():
        chain.forward(piece, op)
    return chain.graph(f"{name}, again") if chain.nodes else None


def _again(
    mine: Sequence[tuple[LayerOp, Op]], plan: TrainingPlan, framework: Framework
) -> Sequence[tuple[LayerOp, Op]]:
    """The operators that the backward pass computes again, of full recomputation those up to the last one that it runs.

    Where it `stops_early`, it ends with the last tensor that the backward pass needs: the input of a last GEMM.
    """
    if plan.recompute == "none":
        return ()
    remains = {id(op) for op in remaining([piece for piece, _ in mine], [op for _, op in mine], plan)}
    run = mine
    if framework.stops_early and plan.recompute == "full":
        end = max((place for place, (_, op) in enumerate(mine, 1) if op.saved), default=0)
        run = mine[: end - 1] if end and isinstance(mine[end - 1][1], Gemm) else mine[:end]
    return [one for one in run if id(one[1]) not in remains]


def _reverse_order(mine: Sequence[tuple[LayerOp, Op]]) -> Iterator[tuple[LayerOp, Op]]:
    """Yield the order of the backward pass: what runs beside an exchange of tokens follows the first one there, too."""
    beside = [one for one in reversed(mine) if one[0].beside]
    for one in reversed(mine):
        if not one[0].beside:
            yield one
        if one[0].cut == "combine":
            yield from beside


def _rank_parameters(piece: LayerOp, plan: TrainingPlan) -> int:
    """Parameters of a piece on one rank; what is not cut by weights is replicated."""
    experts = plan.ep * expert_tp(plan)
    ranks = dict.fromkeys(("columns", "rows", "vocabulary", "width"), plan.tp)
    ranks |= dict.fromkeys(("expert_columns", "expert_rows"), experts)
    return -(-piece.parameters // ranks.get(piece.cut, 1))
