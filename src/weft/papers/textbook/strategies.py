"""How the operators of a part of a model may be spread over a mesh: what each way computes, moves and holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from weft.core.errors import InputError
from weft.core.options import SUSTAINED
from weft.graph import DTYPE_BYTES, Attention, Collective, Gemm, GroupedGemm, Op, Streaming, Tensor
from weft.graph.op import Role
from weft.hardware import System
from weft.models.block import FusionStyle, LayerOp
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan
from weft.step.durations import OperatorTimes

REPLICATED: Literal["replicated"] = "replicated"
PARTIAL: Literal["partial"] = "partial"
Placement = int | Literal["replicated", "partial"]
"""On one axis of a mesh: a tensor split along a dimension, the same on all ranks, or a sum that ranks hold in parts."""
Layout = tuple[Placement, ...]
"""The placement on each axis of a mesh."""


@dataclass(frozen=True)
class LayoutChange:
    """A collective `kind` among the ranks of an axis of the mesh, with its buffer as `Collective` counts it [bytes].

    A rank sends `sent` bytes.
    """

    axis: int
    kind: str
    bytes: float
    sent: float


def resharding(tensor: Tensor, before: Layout, after: Layout, mesh: Sequence[int]) -> tuple[LayoutChange, ...]:
    """Return the collectives that bring a tensor from one layout to another on `mesh`, the number of ranks along each
    axis.

    For q ranks and n bytes (arXiv:2201.12023, table 3), each rank sends: replicated to split 0, split to replicated
    (all-gather) (q - 1) / q n, split to another split (all-to-all) (q - 1) / q^2 n, partial to replicated (all-reduce)
    2 (q - 1) / q n, partial to split (reduce-scatter) (q - 1) / q n; n is what the other axes leave. Axes go one after
    the other, those first that make the tensor smaller. Raises InputError for a dimension that is not there or does not
    divide, and for a target that is partial but not the source.

    >>> resharding(Tensor((1024, 1024)), (0,), ("replicated",), [4])
    (LayoutChange(axis=0, kind='all_gather', bytes=2097152.0, sent=1572864.0),)
    """
    for layout in (before, after):
        _check(tensor, layout, mesh)
    local = tensor.bytes / _ranks(before, mesh)
    steps = [(_kind(before[axis], after[axis]), axis) for axis in range(len(mesh)) if mesh[axis] > 1]
    moves = []
    for kind, axis in sorted((step for step in steps if step[0]), key=lambda step: (_ORDER.index(step[0]), step[1])):
        q = mesh[axis]
        whole = local * q if kind == "all_gather" else local
        if kind != "slice":
            moves.append(LayoutChange(axis, kind, whole, _SENT[kind] * (q - 1) / q * whole))
        local = whole if kind == "all_gather" else local / q if kind in ("slice", "reduce_scatter") else local
    return tuple(moves)


_ORDER = ("slice", "reduce_scatter", "all_reduce", "all_to_all", "all_gather")
_SENT = {"reduce_scatter": 1, "all_reduce": 2, "all_to_all": 1, "all_gather": 1}


def _kind(before: Placement, after: Placement) -> str:
    if before == after:
        return ""
    if before == PARTIAL:
        return "all_reduce" if after == REPLICATED else "reduce_scatter"
    if after == PARTIAL:
        raise InputError(f"a tensor that is {before} cannot become a sum in parts; choose replicated or a dimension")
    if before == REPLICATED:
        return "slice"
    return "all_gather" if after == REPLICATED else "all_to_all"


def _check(tensor: Tensor, layout: Layout, mesh: Sequence[int]) -> None:
    if len(layout) != len(mesh):
        raise InputError(f"the layout {layout} has {len(layout)} placements; give one for each of {len(mesh)} axes")
    for dimension, size in enumerate(tensor.shape):
        ranks = math.prod(q for q, place in zip(mesh, layout, strict=True) if place == dimension)
        if size % ranks:
            raise InputError(f"dimension {dimension} has {size} elements, which {ranks} ranks cannot split evenly")
    for place in layout:
        if isinstance(place, int) and not 0 <= place < len(tensor.shape):
            raise InputError(f"dimension {place} is not one of the {len(tensor.shape)} of the tensor")


def _ranks(layout: Layout, mesh: Sequence[int]) -> int:
    """Return how many ranks share the tensor."""
    return math.prod(q for q, place in zip(mesh, layout, strict=True) if isinstance(place, int))


Roles = Mapping[str, tuple[Placement, Placement]]
"""What an axis of the mesh may do for a kind of operator: its placement in the input, and in the output. Dimension 0
are tokens, 1 is the width (or heads), 2 are experts."""
_WHOLE: Roles = {"whole": (REPLICATED, REPLICATED)}
_TOKENS: Roles = {"tokens": (0, 0), **_WHOLE}
_MATRIX: Roles = {"columns": (REPLICATED, 1), "inner": (1, REPLICATED), **_TOKENS}
_CUTS_WEIGHTS = ("columns", "inner", "experts", "vocabulary")


_ALPA = Framework("alpa", gradients="fp16", accumulates=False, style=FusionStyle(flash=False))
"""What Alpa trains with: fp16 gradients beside fp32 master weights and Adam's states, unfused attention
(alpa-projects/alpa, benchmark/alpa)."""


@dataclass(frozen=True)
class Mesh:
    """`outer` x `inner` GPUs of a system: neighbours along the inner axis are neighbours in the machine."""

    system: System
    outer: int
    inner: int

    @property
    def shape(self) -> tuple[int, int]:
        """The ranks along the outer and the inner axis."""
        return self.outer, self.inner


@dataclass(frozen=True)
class Training:
    """What is trained: `micro_batches` per step of `dtype`, all recomputed in the backward pass or not.

    With `scatter` gradients are reduced and scattered once a step and updated weights gathered, so that replicas share
    the optimizer's states (ZeRO's stage 1, Alpa's pass after its ILP); without, they are all-reduced.
    """

    micro_batches: int
    dtype: str = "fp16"
    recompute: bool = True
    scatter: bool = True
    framework: Framework = _ALPA


class MeshPrices:
    """Seconds of operators on one GPU, and of collectives along the axes of meshes of one shape."""

    def __init__(self, mesh: Mesh, compute: OperatorTimes | None = None) -> None:
        plan = TrainingPlan(tp=mesh.inner, dp=mesh.outer, batch=mesh.outer)
        self.mesh = mesh
        self.compute = compute or OperatorTimes(mesh.system, plan, SUSTAINED)
        self._moved = OperatorTimes(mesh.system, plan, SUSTAINED)

    def of(self, ops: Iterable[Op]) -> float:
        """Return the seconds of operators, serially."""
        return sum(self.compute.of(op) for op in ops)

    def moves(self, moves: Iterable[LayoutChange], dtype: str) -> float:
        """Return the seconds of collectives, serially."""
        return sum(self.move(move, dtype) for move in moves)

    def move(self, move: LayoutChange, dtype: str) -> float:
        """Return the seconds of a collective among the ranks of its axis."""
        ranks = self.mesh.shape[move.axis]
        size = max(math.ceil(move.bytes), ranks)
        return self._moved.of(Collective(move.kind, size, ranks, dtype), ("dp", "tp")[move.axis])


@dataclass(frozen=True)
class MergedOperators:
    """An operator with weights, or attention, and the element-wise ones and norms merged into it.

    Without a `main` operator it is the part's input. `source` is the group that it reads, `residual` the one whose
    output it adds; `tensor` is its output: tokens x width x experts.
    """

    name: str
    main: LayerOp | None
    tensor: Tensor
    merged: tuple[LayerOp, ...] = ()
    source: int | None = None
    residual: int | None = None


@dataclass(frozen=True)
class Strategy:
    """One way to spread a group over a mesh.

    `roles` names what each axis does. Its input has the layout `entry`, its output `exit`. Of `seconds` a micro-batch,
    `communication` are collectives; `moves` are those of a micro-batch, `sync` those of the gradients once a step. It
    holds `states`; the backward pass needs `saved` activations, and the `widest` output is live beside them [bytes].
    """

    roles: tuple[str, ...]
    entry: Layout
    exit: Layout
    seconds: float
    communication: float
    moves: tuple[LayoutChange, ...]
    sync: tuple[LayoutChange, ...]
    states: float
    saved: float
    widest: float


def groups(pieces: Sequence[LayerOp], dtype: str, entry: tuple[int, int] | None) -> list[MergedOperators]:
    """The groups of a part, in order; `entry` is the shape of its input, tokens x width (None: it reads tokens only).

    Element-wise operators and norms go to the group whose output they read, a residual sum to that of its second
    operand. A router does not pass its output on. Raises InputError for operators that read several others: those of
    latent attention, shared experts, and projections of queries, keys and values apart.
    """
    found: list[MergedOperators] = []
    last, stream = None, None
    if entry is not None:
        found.append(MergedOperators("input", None, Tensor((*entry, 1), dtype)))
        last = stream = 0
    for piece in pieces:
        if last is not None and _merges(piece):
            if piece.forks:
                stream = last
            residual = stream if piece.role is Role.RESIDUAL else found[last].residual
            found[last] = replace(found[last], merged=(*found[last].merged, piece), residual=residual)
            continue
        if piece.forks and piece.role is not Role.ROUTER:
            raise InputError(
                f"{piece.name} shares its input with another operator, which per-operator sharding does not know; plan "
                "models without latent attention and shared experts, with one projection of queries, keys and values"
            )
        found.append(MergedOperators(piece.name, piece, _output(piece, dtype), source=last))
        if piece.role is not Role.ROUTER:
            last = len(found) - 1
    return found


def _merges(piece: LayerOp) -> bool:
    return isinstance(piece.op, Streaming) and piece.cut not in ("dispatch", "combine", "vocabulary")


def _output(piece: LayerOp, dtype: str) -> Tensor:
    match piece.op:
        case GroupedGemm() as op:
            return Tensor((op.rows // op.groups, op.n, op.groups), dtype)
        case Gemm() as op:
            return Tensor((op.m, op.n, 1), dtype)
        case Attention() as op:
            return Tensor((op.batch * op.query, op.heads * op.value_head, 1), dtype)
        case Streaming() as op if piece.cut == "dispatch" and piece.routing is not None:
            experts = piece.routing.experts
            return Tensor((op.rows * piece.routing.each // experts, op.columns, experts), dtype)
        case Streaming() as op:
            return Tensor((op.rows, op.columns, 1), dtype)
    raise TypeError(f"no layout is known of the output of {piece.name}")


def _roles(group: MergedOperators) -> Roles:
    if group.main is None:
        return _TOKENS
    match group.main.op:
        case GroupedGemm():
            return {"experts": (2, 2), **_MATRIX}
        case Gemm():
            return _MATRIX
        case Attention():
            return {"heads": (1, 1), **_TOKENS}
    if group.main.cut == "vocabulary":
        return {"columns": (REPLICATED, 1), "vocabulary": (REPLICATED, REPLICATED), **_TOKENS}
    return _TOKENS


def strategies(group: MergedOperators, prices: MeshPrices, training: Training) -> list[Strategy]:
    """Return every way to spread a group: a role for each axis of the mesh, where its dimensions divide evenly."""
    roles, mesh = _roles(group), prices.mesh.shape
    each = (list(roles) if q > 1 else ["whole"] for q in mesh)
    found = (_strategy(group, chosen, roles, prices, training) for chosen in product(*each))
    return [one for one in found if one is not None]


def _strategy(
    group: MergedOperators, chosen: tuple[str, ...], roles: Roles, prices: MeshPrices, training: Training
) -> Strategy | None:
    mesh = prices.mesh.shape
    entry, exit_ = (tuple(roles[role][side] for role in chosen) for side in (0, 1))
    if not divides(group.tensor, exit_, mesh):
        return None
    ops: list[Op] = []
    forward: list[LayoutChange] = []
    backward: list[LayoutChange] = []
    if group.main is not None:
        op = _local(group.main.op, chosen, mesh)
        if op is None:
            return None
        ops.append(op)
        forward, backward = _inside(group, op, chosen, mesh)
    exit_, whole = _after_norms(group, exit_, mesh)
    forward += whole
    shares = [(piece, _share_merged(piece.op, exit_, mesh)) for piece in group.merged]
    ops += [op for _, op in shares]
    forward += _of_loss(group, exit_, mesh)
    passes = 2 if training.recompute else 1
    moves = (*forward * passes, *backward)
    sync, states, added = _weights(group, chosen, mesh, training)
    communication = prices.moves(moves, training.dtype)
    communication += prices.moves(sync, training.framework.reduce_dtype) / training.micro_batches
    compute = passes * prices.of(ops) + prices.of([*_gradients(ops, group), *added])
    saved = float(sum(tensor.bytes for op in ops for tensor in op.saved))
    widest = float(max((_bytes(op.writes) for op in ops), default=0))
    return Strategy(chosen, entry, exit_, compute + communication, communication, moves, sync, states, saved, widest)


def split_over(layout: Layout, mesh: Sequence[int], *places: int) -> int:
    """Return how many ranks split a tensor along the given dimensions, or along any."""
    every = (
        q for q, place in zip(mesh, layout, strict=True) if isinstance(place, int) and place in (places or (place,))
    )
    return math.prod(every)


def divides(tensor: Tensor, layout: Layout, mesh: Sequence[int]) -> bool:
    """Return whether a tensor's dimensions divide evenly into a layout."""
    return all(size % split_over(layout, mesh, at) == 0 for at, size in enumerate(tensor.shape))


def _share(chosen: Sequence[str], mesh: Sequence[int], *roles: str) -> int:
    return math.prod(q for q, role in zip(mesh, chosen, strict=True) if role in roles)


def _local(op: Op, chosen: Sequence[str], mesh: Sequence[int]) -> Op | None:
    """Return one rank's share of an operator; None if a dimension does not divide."""
    tokens, columns, inner, experts, heads = (
        _share(chosen, mesh, role) for role in ("tokens", "columns", "inner", "experts", "heads")
    )
    match op:
        case GroupedGemm():
            parts = {"groups": experts, "rows": tokens * experts, "n": columns, "k": inner}
        case Gemm():
            parts = {"m": tokens, "n": columns, "k": inner}
        case Attention():
            parts = {"batch": tokens, "heads": heads}
        case _:
            parts = {"rows": tokens, "columns": columns}
    if any(getattr(op, name) % ranks for name, ranks in parts.items()):
        return None
    sizes = {name: getattr(op, name) // ranks for name, ranks in parts.items()}
    return replace(op, **sizes)  # type: ignore[type-var]


def _inside(
    group: MergedOperators, op: Op, chosen: Sequence[str], mesh: Sequence[int]
) -> tuple[list[LayoutChange], list[LayoutChange]]:
    """The all-reduces of sums in parts: of outputs in the forward pass, and of inputs' gradients in the backward."""
    whole = _bytes(op.writes)
    forward = [_move(axis, "all_reduce", mesh, whole) for axis in _axes(chosen, mesh, "inner", "vocabulary")]
    if not isinstance(op, Gemm | GroupedGemm):
        return forward, []
    read = op.reads[0].bytes
    return forward, [_move(axis, "all_reduce", mesh, read) for axis in _axes(chosen, mesh, "columns")]


def _axes(chosen: Sequence[str], mesh: Sequence[int], *roles: str) -> list[int]:
    return [axis for axis, role in enumerate(chosen) if role in roles and mesh[axis] > 1]


def _move(axis: int, kind: str, mesh: Sequence[int], size: float) -> LayoutChange:
    q = mesh[axis]
    return LayoutChange(axis, kind, float(size), (2 if kind == "all_reduce" else 1) * (q - 1) / q * size)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.bytes for tensor in tensors)


def _after_norms(group: MergedOperators, layout: Layout, mesh: Sequence[int]) -> tuple[Layout, list[LayoutChange]]:
    """Return the layout once norms have what they need: whole rows, for which a split width is gathered."""
    if not any(isinstance(piece.op, Streaming) and "norm" in piece.op.name for piece in group.merged):
        return layout, []
    rows: Layout = tuple(REPLICATED if place == 1 else place for place in layout)
    return rows, list(resharding(group.tensor, layout, rows, mesh))


def _of_loss(group: MergedOperators, layout: Layout, mesh: Sequence[int]) -> list[LayoutChange]:
    """Return all-reduces of each row's maximum, own class and sum, for a loss whose classes are split."""
    rows = [piece.op.rows for piece in group.merged if piece.cut == "classes" and isinstance(piece.op, Streaming)]
    size = 4 * sum(rows) / split_over(layout, mesh, 0)
    return [_move(axis, "all_reduce", mesh, size) for axis, place in enumerate(layout) if rows and place == 1] * 3


def _share_merged(op: Op, layout: Layout, mesh: Sequence[int]) -> Op:
    """Return one rank's share of an element-wise operator, a norm or a loss on a tensor of a layout."""
    if not isinstance(op, Streaming):
        raise TypeError(f"{op} cannot be merged into another operator")
    if op.columns == 1:
        return replace(op, rows=-(-op.rows // split_over(layout, mesh)))
    rows = -(-op.rows // (split_over(layout, mesh, 0) * split_over(layout, mesh, 2)))
    return replace(op, rows=rows, columns=-(-op.columns // split_over(layout, mesh, 1)))


def _gradients(ops: Sequence[Op], group: MergedOperators) -> Iterator[Op]:
    """Yield the backward pass of operators, and the sums of gradients where inputs fork."""
    for op in ops:
        yield from (*op.backward.inputs, *op.backward.weights)
    forks = sum(piece.forks for piece in group.merged)
    for op in ops[-1:]:
        for _ in range(forks):
            count = math.prod(op.writes[0].shape)
            yield Streaming("residual_add", count, 1, op.writes[0].dtype)


def _weights(
    group: MergedOperators, chosen: Sequence[str], mesh: Sequence[int], training: Training
) -> tuple[tuple[LayoutChange, ...], float, list[Op]]:
    """Return what the weights cost: collectives of gradients once a step, bytes of states, and adding up gradients."""
    framework, main = training.framework, group.main.parameters if group.main else 0
    count = main / _share(chosen, mesh, *_CUTS_WEIGHTS) + sum(piece.parameters for piece in group.merged)
    if not count:
        return (), 0.0, []
    gradients, replicas = DTYPE_BYTES[framework.gradients], _share(chosen, mesh, "tokens")
    kinds = ("reduce_scatter", "all_gather") if training.scatter else ("all_reduce",)
    size = count * DTYPE_BYTES[framework.reduce_dtype]
    sync = tuple(_move(axis, kind, mesh, size) for axis in _axes(chosen, mesh, "tokens") for kind in kinds)
    optimizer = framework.optimizer_bytes / (replicas if training.scatter else 1)
    states = count * (DTYPE_BYTES[framework.weights or training.dtype] + gradients + optimizer)
    if framework.accumulates or training.micro_batches == 1:
        return sync, states, []
    return sync, states, [Streaming("elementwise", math.ceil(count), 1, framework.gradients, inputs=2)]
