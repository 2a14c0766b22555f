"""What it takes to move a tensor from one layout on a mesh to another: the collective of each axis, and its bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from weft.core.errors import InputError
from weft.graph import Tensor

REPLICATED: Literal["replicated"] = "replicated"
PARTIAL: Literal["partial"] = "partial"
Placement = int | Literal["replicated", "partial"]
"""On one axis of a mesh: a tensor split along a dimension, the same on all ranks, or a sum that ranks hold in parts."""
Layout = tuple[Placement, ...]
"""The placement on each axis of a mesh."""


@dataclass(frozen=True)
class Move:
    """A collective `kind` among the ranks of an axis of the mesh, with its buffer as `Collective` counts it [bytes].

    A rank sends `sent` bytes.
    """

    axis: int
    kind: str
    bytes: float
    sent: float


def resharding(tensor: Tensor, before: Layout, after: Layout, mesh: Sequence[int]) -> tuple[Move, ...]:
    """The collectives that bring a tensor from one layout to another on a mesh of so many ranks along each axis.

    For q ranks and n bytes (arXiv:2201.12023, table 3), each rank sends: replicated to split 0, split to replicated
    (all-gather) (q - 1) / q n, split to another split (all-to-all) (q - 1) / q^2 n, partial to replicated (all-reduce)
    2 (q - 1) / q n, partial to split (reduce-scatter) (q - 1) / q n; n is what the other axes leave. Axes go one after
    the other, those first that make the tensor smaller. Raises InputError for a dimension that is not there or does not
    divide, and for a target that is partial but not the source.

    >>> resharding(Tensor((1024, 1024)), (0,), ("replicated",), [4])
    (Move(axis=0, kind='all_gather', bytes=2097152.0, sent=1572864.0),)
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
            moves.append(Move(axis, kind, whole, _SENT[kind] * (q - 1) / q * whole))
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
    """How many ranks share the tensor."""
    return math.prod(q for q, place in zip(mesh, layout, strict=True) if isinstance(place, int))
