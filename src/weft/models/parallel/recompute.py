"""Recomputation operator by operator: what a part of a model keeps if some of its operators run again.

The output of an operator that runs again is not kept. It runs from its own inputs, which are kept, or come from other
operators that run again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import get_args

from weft.core.errors import InputError, UnknownNameError
from weft.graph import Attention, Op, Scan, Streaming
from weft.graph.op import Role
from weft.models.block import LayerOp, sources
from weft.models.parallel.plan import Recompute

INPUT = -1
"""In place of an operator: the input of the part, which is always kept where it is needed."""
_FIXED = ("dispatch", "combine")
"""Cuts of operators that exchange tokens with other ranks, which recomputation by name does not repeat."""


@dataclass(frozen=True)
class OperatorSaves:
    """What one operator of a part leaves in memory for its own backward pass [bytes], and for others.

    `own` it makes itself: masks, sums of rows. `kept` are the bytes of the output of each source, another operator of
    the part by its place or INPUT; sources of 0 bytes are read only when it runs again. `output` is the size of its
    output.
    """

    name: str
    own: int
    kept: tuple[tuple[int, int], ...]
    output: int


def list_saves(
    pieces: Sequence[LayerOp], ops: Sequence[Op], whole: Sequence[int], output: Callable[[LayerOp, Op], int]
) -> list[OperatorSaves]:
    """Return what each operator of a part leaves, of the bytes that it keeps in a `whole` pass without recomputation.

    Raises InputError for layers whose operators do not follow one another: attention beside an MLP, cross attention,
    and queries, keys and values apart.
    """
    found: list[OperatorSaves] = []
    _check_chain(pieces)
    for piece, op, size, reads in zip(pieces, ops, whole, sources(pieces), strict=True):
        own = own_bytes(op, size)
        left, kept = size - own, []
        for source in reads:
            most = left if source == INPUT or source == reads[-1] else min(left, found[source].output)
            kept.append((source, most))
            left -= most
        found.append(OperatorSaves(piece.name, own, tuple(kept), output(piece, op)))
    return found


def own_bytes(op: Op, size: int) -> int:
    """Return the bytes that an operator keeps of what it makes itself, not of its inputs."""
    if isinstance(op, Attention | Scan):
        return max(size - sum(tensor.bytes for tensor in op.reads), 0)
    if isinstance(op, Streaming):
        return sum(tensor.bytes for tensor in op.saved if tensor.dtype != op.dtype)
    return 0


_APART = (Role.QUERY, Role.CROSS_QUERY, Role.QKV_MLP_UP, Role.OUT_MLP_DOWN)


def _check_chain(pieces: Sequence[LayerOp]) -> None:
    apart = [piece.name for piece in pieces if piece.role in _APART]
    if apart:
        raise InputError(
            f"recomputation by operator knows layers whose operators follow one another, not those with '{apart[0]}'; "
            "say recompute='selective', 'operators' or 'full'"
        )


def check_recomputed(pieces: Sequence[LayerOp], again: Collection[str]) -> None:
    """Raise InputError for operators that cannot run again by name: those that exchange tokens, or run beside that."""
    for piece in pieces:
        if piece.name in again and (piece.cut in _FIXED or piece.beside):
            raise InputError(
                f"'{piece.name}' takes part in the exchange of tokens, which is not repeated; leave it out of recompute"
            )


def check_known(known: Collection[str], again: Collection[str]) -> None:
    """Raise UnknownNameError for a name that no operator of a model's layers has; it lists the policies, too."""
    for name in again:
        if name not in known:
            raise UnknownNameError("recomputation", name, dict.fromkeys([*get_args(Recompute), *known]))


def saved_bytes(found: Sequence[OperatorSaves], again: Collection[str]) -> dict[str, int]:
    """Return the bytes that each operator leaves in memory if those named in `again` run again.

    An output that only they read, and that no other operator keeps, is kept for them: it counts to the one that made
    it.
    """
    redone = [one.name in again for one in found]
    left = {}
    for one, twice in zip(found, redone, strict=True):
        own = 0 if twice else one.own
        left[one.name] = own + sum(size for source, size in one.kept if source == INPUT or not redone[source])
    for source in extra_sources(found):
        readers = (twice for one, twice in zip(found, redone, strict=True) if source in dict(one.kept))
        if not redone[source] and any(readers):
            left[found[source].name] += found[source].output
    return left


def extra_sources(found: Sequence[OperatorSaves]) -> list[int]:
    """Return the operators whose output is read by others but kept by none without recomputation."""
    kept: dict[int, int] = {}
    for one in found:
        for source, size in one.kept:
            kept[source] = kept.get(source, 0) + size
    return [source for source, size in kept.items() if source != INPUT and not size]
