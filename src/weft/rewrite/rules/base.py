"""What a rule is, and what rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from weft.graph import Graph, Node, Streaming
from weft.rewrite.flow import Flow, MatchedPlace


@dataclass(frozen=True)
class Rule:
    """A rewriting: `find` yields the places that it could change, with the change or the reason against it.

    `example` draws a graph of small random shapes that the rule applies to, for the proof that both sides are equal.
    """

    name: str
    about: str
    find: Callable[[Flow], Iterator[MatchedPlace]]
    example: Callable[[np.random.Generator], Graph]


def streaming(flow: Flow, *names: str) -> Iterator[Node]:
    """Yield the streaming nodes of some names that run every time."""
    for node in flow.graph:
        if isinstance(node.op, Streaming) and node.op.name in names and node.outputs and node.phase != "load":
            yield node


def is_streaming(node: Node | None, *names: str) -> bool:
    """Return whether a node is a streaming operator of one of the names."""
    return node is not None and isinstance(node.op, Streaming) and node.op.name in names


def refuse_place(why: str, *nodes: Node) -> MatchedPlace:
    """Return a place at which a rule is refused, and the reason."""
    return MatchedPlace(tuple(node.id for node in nodes), None, why)


def find_follower(flow: Flow, node: Node, name: str) -> tuple[Node | None, tuple[MatchedPlace, ...]]:
    """The one streaming operator of a name that reads a node's output; None, with a refusal if others read it, too."""
    after, why = flow.next_of(node)
    if after is None and any(is_streaming(one, name) for one in flow.readers(node.outputs[0])):
        return None, (refuse_place(why, node),)
    return (after if is_streaming(after, name) else None), ()


def size(draw: np.random.Generator, *, multiple: int = 1) -> int:
    """Return a small random dimension."""
    return multiple * int(draw.integers(1, 6))
