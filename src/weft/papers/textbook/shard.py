"""Per-operator sharding of a layer on a mesh: Alpa's intra-operator plan (arXiv:2201.12023, section 4) as an ILP."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft import hardware
from weft.core.errors import InputError
from weft.core.units import Dimension, parse
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.models.block import LayerOp, Tokens, layer
from weft.papers.textbook.strategies import (
    Layout,
    LayoutChange,
    MergedOperators,
    Mesh,
    MeshPrices,
    Strategy,
    Training,
    divides,
    groups,
    resharding,
    split_over,
    strategies,
)
from weft.plan.program import LinearProgram

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ChoiceCosts:
    """Costs of the choices of each node and of pairs of choices along edges; and sizes, whose sum may have a limit.

    `edges` maps two different nodes to a matrix, a row for each choice of the first.
    """

    costs: Sequence[FloatArray]
    sizes: Sequence[FloatArray]
    edges: Mapping[tuple[int, int], FloatArray] = field(default_factory=dict)

    def cost(self, chosen: Sequence[int]) -> float:
        """Return the cost of one choice for each node."""
        nodes = sum(float(costs[at]) for costs, at in zip(self.costs, chosen, strict=True))
        return nodes + sum(float(matrix[chosen[u], chosen[v]]) for (u, v), matrix in self.edges.items())

    def size(self, chosen: Sequence[int]) -> float:
        """Return the size of one choice for each node."""
        return sum(float(sizes[at]) for sizes, at in zip(self.sizes, chosen, strict=True))


def cheapest(problem: ChoiceCosts, limit: float = math.inf) -> tuple[int, ...] | None:
    """Return the choices of least cost whose sizes add up to at most `limit`; None if there are none.

    A 0-1 variable for each choice, exactly one being 1 per node; the product of two choices along an edge is a
    variable of its own, whose sums over rows and columns are the choices' variables (arXiv:2201.12023, section 4.2).
    Exponential in the worst case; a layer of a Transformer takes tens of milliseconds.
    """
    pairs = [(u, v, np.asarray(matrix)) for (u, v), matrix in problem.edges.items() if np.any(matrix)]
    most = max((float(np.abs(costs).max()) for costs in (*problem.costs, *(matrix for *_, matrix in pairs))), default=0)
    scale = most or 1.0  # where all choices are free
    program = LinearProgram()
    nodes = [program.unknowns(costs / scale).tolist() for costs in problem.costs]
    products = [program.unknowns(matrix / scale, whole=False) for *_, matrix in pairs]
    for choices in nodes:
        program.row(dict.fromkeys(choices, 1.0), 1.0, 1.0)
    for (u, v, _), places in zip(pairs, products, strict=True):
        for node, along in ((u, places), (v, places.T)):
            for choice, both in zip(nodes[node], along.tolist(), strict=True):
                program.row({**dict.fromkeys(both, 1.0), choice: -1.0}, 0.0, 0.0)
    if math.isfinite(limit):
        sizes = np.concatenate(problem.sizes) / max(limit, 1.0)
        program.row(dict(zip(chain(*nodes), sizes.tolist(), strict=True)), high=limit / max(limit, 1.0))
    found = program.solve()
    return None if found is None else tuple(int(found[choices].argmax()) for choices in nodes)


class Block(NamedTuple):
    """Operators up to one that adds to the residual stream, such as attention or an MLP.

    `seconds` of a micro-batch; `states`, activations `saved` for the backward pass, and the `widest` output [bytes].
    """

    seconds: float
    states: float
    saved: float
    widest: float


@dataclass(frozen=True)
class Sharding:
    """The strategy of each operator of a part of a model, and what the part costs with them.

    `seconds` of a micro-batch, forward and backward, with its share of the gradients' synchronisation, of which
    `communication` are collectives; `states` and the rank's part of the `input` of a micro-batch [bytes]. `reshards`
    are the moves between operators in the forward pass, by (producer, consumer); `blocks` have the costs of its
    sub-layers, which add up to those of the part.
    """

    operators: tuple[tuple[str, Strategy], ...]
    reshards: tuple[tuple[str, str, LayoutChange], ...]
    seconds: float
    communication: float
    states: float
    input: float
    blocks: tuple[Block, ...]


class ShardedPart:
    """A part of a model on a mesh: the strategies of its groups, the costs between them, and the best choice.

    A part that `repeats`, as a layer does, ends in the layout in which it begins; `entry` and `exit` fix the layouts at
    its ends.
    """

    def __init__(
        self,
        pieces: Sequence[LayerOp],
        shape: tuple[int, int] | None,
        prices: MeshPrices,
        training: Training,
        *,
        repeats: bool = True,
        ends: tuple[Layout | None, Layout | None] = (None, None),
    ) -> None:
        self.prices, self.training = prices, training
        self.groups = groups(pieces, training.dtype, shape)
        self.ways = [strategies(group, prices, training) for group in self.groups]
        entry, self.exit = ends
        if entry is not None:
            self.ways[0] = [way for way in self.ways[0] if way.exit == entry]
        for group, ways in zip(self.groups, self.ways, strict=True):
            if not ways:
                raise InputError(
                    f"no way to spread {group.name} over {prices.mesh.outer} x {prices.mesh.inner} GPUs divides its "
                    "dimensions; choose another mesh"
                )
        self.repeats = repeats and shape is not None

    @cached_property
    def problem(self) -> ChoiceCosts:
        """The integer linear program: seconds of strategies and of moves between them, and bytes of states."""
        costs = [np.array([way.seconds for way in ways]) for ways in self.ways]
        sizes = [np.array([way.states for way in ways]) for ways in self.ways]
        if self.exit is not None:
            costs[-1] = costs[-1] + [self._both(self.groups[-1], way.exit, self.exit) for way in self.ways[-1]]
        edges: dict[tuple[int, int], FloatArray] = {}
        for producer, consumer, side in self._edges():
            first, others = self.groups[producer], self.ways[consumer]
            rows = [
                [self._both(first, one.exit, getattr(other, side)) for other in others] for one in self.ways[producer]
            ]
            key = (producer, consumer)
            edges[key] = edges.get(key, 0.0) + np.array(rows)
        return ChoiceCosts(costs, sizes, edges)

    def _edges(self) -> Iterator[tuple[int, int, str]]:
        """Producer and consumer, and the layout of the consumer that the producer's output must have."""
        for at, group in enumerate(self.groups):
            if group.source is not None:
                yield group.source, at, "entry"
            if group.residual is not None and group.residual != at:
                yield group.residual, at, "exit"
        if self.repeats and len(self.groups) > 1:
            yield len(self.groups) - 1, 0, "exit"

    def _both(self, producer: MergedOperators, before: Layout, after: Layout) -> float:
        """Return seconds of moving a tensor in the forward pass, again if it is recomputed, and its gradient back."""
        mesh, dtype = self.prices.mesh.shape, self.training.dtype
        if not (divides(producer.tensor, before, mesh) and divides(producer.tensor, after, mesh)):
            return _NEVER
        there = self.prices.moves(resharding(producer.tensor, before, after, mesh), dtype)
        back = self.prices.moves(resharding(producer.tensor, after, before, mesh), dtype)
        return (2 if self.training.recompute else 1) * there + back

    def best(self, limit: float = math.inf) -> Sharding | None:
        """Return the fastest choice whose states take at most `limit` bytes; None if there is none."""
        chosen = cheapest(self.problem, limit)
        if chosen is None or self.problem.cost(chosen) >= _NEVER:
            return None
        ways = [ways[at] for ways, at in zip(self.ways, chosen, strict=True)]
        seconds = self.problem.cost(chosen)
        computing = sum(way.seconds - way.communication for way in ways)
        return Sharding(
            tuple((group.name, way) for group, way in zip(self.groups, ways, strict=True)),
            tuple(self._layout_changes(ways)),
            seconds,
            seconds - computing,
            sum(way.states for way in ways),
            self._input(ways[0]),
            tuple(self._blocks(chosen, ways)),
        )

    def _blocks(self, chosen: Sequence[int], ways: Sequence[Strategy]) -> Iterator[Block]:
        """Yield the costs of each sub-layer, moves into it and those that close a repeated part included."""
        seconds = [way.seconds for way in ways]
        for (producer, consumer), matrix in self.problem.edges.items():
            seconds[max(producer, consumer)] += float(matrix[chosen[producer], chosen[consumer]])
        ends = [at for at, group in enumerate(self.groups) if group.residual is not None and group.main is not None]
        begin = 0
        for end in ends or [len(ways) - 1]:
            mine = ways[begin : end + 1]
            states, saved = sum(way.states for way in mine), sum(way.saved for way in mine)
            yield Block(sum(seconds[begin : end + 1]), states, saved, max(way.widest for way in mine))
            begin = end + 1

    def _input(self, way: Strategy) -> float:
        """Return one rank's part of the part's input [bytes]; 0 for a part that reads tokens."""
        group, mesh = self.groups[0], self.prices.mesh.shape
        if group.main is not None:
            return 0.0
        return group.tensor.bytes / split_over(way.exit, mesh)

    def _layout_changes(self, ways: Sequence[Strategy]) -> Iterator[tuple[str, str, LayoutChange]]:
        for producer, consumer, side in self._edges():
            first, second = self.groups[producer], self.groups[consumer]
            after = getattr(ways[consumer], side)
            for move in resharding(first.tensor, ways[producer].exit, after, self.prices.mesh.shape):
                yield first.name, second.name, move

    @property
    def least(self) -> float:
        """The smallest states of any choice [bytes]; a little more, for what rounding may add."""
        return sum(float(sizes.min()) for sizes in self.problem.sizes) * (1 + 1e-9)

    def front(self, ratio: float = 0.95) -> list[Sharding]:
        """The fastest choice, then the fastest with at most `ratio` of the states of the one before, to the last."""
        found: list[Sharding] = []
        limit = math.inf
        while (one := self.best(limit)) is not None:
            found.append(one)
            limit = ratio * one.states
            if not one.states:
                break
        return found


_NEVER = 1e6
"""Cost of a pair of strategies whose layouts do not divide a tensor [s]: more than any micro-batch takes."""


def shard_layer(
    model: Transformer | str | Path,
    system: Described,
    mesh: tuple[int, int],
    micro_batch: int,
    *,
    sequence: int | None = None,
    limit: str | None = None,
    training: Training | None = None,
) -> Sharding:
    """Return the fastest way to spread the operators of a model's first layer over a mesh: outer x inner GPUs.

    A micro-batch of `micro_batch` sequences passes the whole mesh. `limit` bounds the layer's weights, gradients and
    optimizer states on each GPU, such as "500 MB". Raises InputError if no way fits, and for a mesh that the system
    does not hold.

    >>> found = shard_layer("gpt-3.6b", "8xv100-16gb", (1, 8), 1, sequence=1024)
    >>> [way.roles[1] for name, way in found.operators if name in ("qkv", "attention", "projection")]
    ['columns', 'heads', 'inner']
    """
    found = load_model(model)
    where = hardware.system(system)
    outer, inner = mesh
    if outer * inner > where.gpus:
        raise InputError(f"a mesh of {outer} x {inner} needs {outer * inner} GPUs, but the system has {where.gpus}")
    how = training or Training(1)
    most = math.inf if limit is None else parse(limit, Dimension.BYTES)
    tokens = Tokens(micro_batch, sequence or found.sequence_length)
    pieces = list(layer(found, found.layer_kinds[0], tokens, how.framework.style, how.dtype))
    part = ShardedPart(pieces, (tokens.count, found.hidden), MeshPrices(Mesh(where, outer, inner)), how)
    best = part.best(most)
    if best is None:
        raise InputError(
            f"no way to spread a layer of {found.title} over {outer} x {inner} GPUs keeps its states within "
            f"{most:g} bytes; raise the limit, or give a larger mesh"
        )
    return best
