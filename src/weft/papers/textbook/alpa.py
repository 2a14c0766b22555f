"""Stages on meshes of their own, each sharded operator by operator: Alpa's two levels (arXiv:2201.12023) together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from weft import hardware
from weft.core.errors import InputError, check_whole
from weft.graph.op import Role
from weft.hardware import System
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.models.block import LayerOp, Tokens, embedding, head, layer
from weft.models.parallel.check import divisors
from weft.papers.textbook.meshes import MeshPlan, StageCosts, cluster_operators, cost_of, mesh_plans
from weft.papers.textbook.shard import Block, ShardedPart, Sharding
from weft.papers.textbook.strategies import Layout, Mesh, MeshPrices, Training

FloatArray = npt.NDArray[np.float64]
_USABLE = 0.9
"""Share of a GPU's memory that XLA's allocator takes; the process and the collective library have the rest
(alpa-projects/alpa, alpa/global_env.py)."""


_LONGEST = 8
"""Most layers of a repeated pattern: one integer program covers them all."""


@dataclass(frozen=True)
class MeshUse:
    """One use of a mesh: its logical shape, the sharding of the repeated layers, and that of the ends."""

    shape: tuple[int, int]
    unit: Sharding
    first: Sharding
    last: Sharding

    @property
    def devices(self) -> int:
        """GPUs of the mesh."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class MeshSearch:
    """The best plans of stages on meshes, and what any other one costs.

    `groups` are the sub-layers of each group that no border cuts, the embedding and the head counted as one each.
    `plans` differ in how many stages have meshes of each size; their order, borders, logical shapes and shardings are
    the best ones.
    """

    model: Transformer
    system: System
    batch: int
    micro_batches: int
    groups: tuple[int, ...]
    ways: tuple[MeshUse, ...]
    costs: StageCosts
    plans: tuple[MeshPlan, ...]

    def of(self, meshes: Sequence[int]) -> MeshPlan:
        """Return the best plan whose stages have these numbers of GPUs; InputError if none fits."""
        return cost_of(self.costs, meshes, self.micro_batches)

    def rank(self, meshes: Sequence[int], *, within: float = 0.0, most: int = 32) -> int:
        """Return the place of a plan, from 1: how many others are faster by more than `within`, a share of its time.

        Plans are alike if as many stages have meshes of each size, whatever their order; each counts with its best.
        `most` + 1 if more than `most` are faster.
        """
        found = mesh_plans(self.costs, self.system.gpus, self.micro_batches, most)
        alike = (plan.seconds for plan in found if sorted(plan.meshes) == sorted(meshes))
        own = next(alike, math.inf)
        own = own if math.isfinite(own) else self.of(meshes).seconds
        return 1 + sum(plan.seconds < own * (1 - within) for plan in found)

    def stages(self, plan: MeshPlan) -> Iterator[dict[str, Any]]:
        """The stages of a plan as plain data: sub-layers, mesh, what each axis does for operators, time and memory."""
        for place, stage in enumerate(plan.stages):
            way, at = self.ways[stage.choice], (stage.first, stage.last, stage.choice)
            flight = len(plan.stages) - place
            yield {
                "sublayers": sum(self.groups[stage.first : stage.last + 1]),
                "gpus": stage.devices,
                "logical_mesh": list(way.shape),
                "operators": {name: "/".join(one.roles) for name, one in way.unit.operators},
                "micro_batch_s": stage.seconds,
                "peak_bytes": float(self.costs.states[at] + flight * self.costs.kept[at]),
            }


def alpa(
    model: Transformer | str | Path,
    system: Described,
    batch: int,
    micro_batches: int,
    *,
    sequence: int | None = None,
    groups: int = 16,
    best: int = 10,
    training: Training | None = None,
    usable: float = _USABLE,
) -> MeshSearch:
    """Search stages, their meshes and the sharding of every operator: the `best` plans by estimated time.

    Attention and MLPs, the embedding and the head are joined to `groups` of about equal time, between which borders
    lie. Meshes have 1, 2, 4, ... GPUs of a node, or 1, 2, 4, ... whole nodes; a mesh is used in every logical shape,
    with the ILP's sharding and leaner ones. Sends between stages are left out, as in Alpa. `training` without a value
    is Alpa's; stages fit the share `usable` of the memory. Raises InputError if no plan fits the memory, and for models
    whose layers do not repeat, or have operators that read several others.
    """
    found = load_model(model)
    where = hardware.system(system)
    check_whole("micro_batches", micro_batches, 1, 64)
    check_whole("batch", batch, micro_batches, 1024)
    if batch % micro_batches:
        raise InputError(f"batch {batch} does not divide into {micro_batches} micro-batches; give a divisor of it")
    if not 0 < usable <= 1:
        raise InputError(f"usable is {usable:g}; give the share of the memory that tensors may take, such as 0.9")
    tokens = Tokens(batch // micro_batches, sequence or found.sequence_length)
    how = replace(training, micro_batches=micro_batches) if training else Training(micro_batches)
    parts = _Parts(found, tokens, how)
    ways = tuple(way for size in mesh_sizes(where) for way in parts.ways(where, size))
    held = _group_layers(ways, parts, groups)
    costs = _costs(ways, parts, held, usable * where.gpu.memory.capacity)
    plans = mesh_plans(costs, where.gpus, micro_batches, best)
    return MeshSearch(found, where, batch, micro_batches, held, ways, costs, plans)


def mesh_sizes(system: System) -> tuple[int, ...]:
    """GPUs of the meshes that stages may have: powers of two within a node, and 1, 2, 4, ... nodes."""
    each = min(system.gpus_per_node, system.gpus)
    inside = [1 << power for power in range(each.bit_length()) if 1 << power <= each]
    nodes = [each << power for power in range(system.nodes.bit_length()) if 1 << power <= system.nodes]
    return tuple(sorted({*inside, *nodes}))


class _Parts:
    """The repeated layers of a model and its ends, on any mesh."""

    def __init__(self, model: Transformer, tokens: Tokens, training: Training) -> None:
        self.training, self.shape = training, (tokens.count, model.hidden)
        style, dtype = training.framework.style, training.dtype
        kinds = model.layer_kinds
        period = next(size for size in divisors(len(kinds)) if kinds == kinds[:size] * (len(kinds) // size))
        if period > _LONGEST:
            raise InputError(
                f"the layers of {model.title} repeat only after {period}; stages on meshes need a pattern of at most "
                f"{_LONGEST} layers"
            )
        self.repeats = len(kinds) // period
        arguments = tokens, style, dtype
        self.unit = [piece for kind in kinds[:period] for piece in layer(model, kind, *arguments)]
        self.first = list(embedding(model, *arguments))
        self.last = [_with_table(piece, model) for piece in head(model, *arguments)]
        self.sublayers = sum(piece.role is Role.RESIDUAL for piece in self.unit)
        self.compute: MeshPrices | None = None

    def blocks(self, way: MeshUse) -> list[Block]:
        """Return the costs of the embedding, of every sub-layer in order, and of the head."""
        return [*way.first.blocks, *way.unit.blocks * self.repeats, *way.last.blocks]

    def ways(self, system: System, size: int) -> Iterator[MeshUse]:
        """Yield every use of a mesh of `size` GPUs: each logical shape with each sharding of layers and ends.

        The ends take their fastest sharding, and the one with the smallest states. A mesh of n x 1 is one of 1 x n.
        """
        for outer in divisors(size)[: -1 if size > 1 else None]:
            prices = MeshPrices(Mesh(system, outer, size // outer), self.compute.compute if self.compute else None)
            self.compute = self.compute or prices
            ends: dict[Layout, list[tuple[Sharding, Sharding]]] = {}
            for unit in ShardedPart(self.unit, self.shape, prices, self.training).front():
                entry = unit.operators[0][1].exit
                if entry not in ends:
                    ends[entry] = list(self._ends(prices, entry))
                yield from (MeshUse(prices.mesh.shape, unit, *pair) for pair in ends[entry])

    def _ends(self, prices: MeshPrices, entry: Layout) -> Iterator[tuple[Sharding, Sharding]]:
        first = ShardedPart(self.first, None, prices, self.training, repeats=False, ends=(None, entry))
        last = ShardedPart(self.last, self.shape, prices, self.training, repeats=False, ends=(entry, None))
        fast, lean = ((first.best(), last.best()), (first.best(first.least), last.best(last.least)))
        yield from ((one, other) for one, other in dict.fromkeys((fast, lean)) if one and other)


def _with_table(piece: LayerOp, model: Transformer) -> LayerOp:
    """Return the head's GEMM with its own copy of a table that it shares with the embedding on another stage."""
    if piece.role is not Role.LOGITS or not model.tied:
        return piece
    return replace(piece, parameters=piece.parameters + model.vocabulary * model.hidden)


def _group_layers(ways: Sequence[MeshUse], parts: _Parts, groups: int) -> tuple[int, ...]:
    """Sub-layers of each group, so that groups are as equal as can be on one GPU; the ends count as sub-layers."""
    alone = min((way for way in ways if way.devices == 1), key=lambda way: way.unit.seconds)
    times = [block.seconds for block in parts.blocks(alone)]
    return cluster_operators(times, min(groups, len(times)))


def _costs(ways: Sequence[MeshUse], parts: _Parts, groups: Sequence[int], capacity: float) -> StageCosts:
    """Return the costs of every stage of consecutive groups on every way to use a mesh."""
    ends = np.concatenate([[0], np.cumsum(groups)])
    seconds, states, kept = [], [], []
    for way in ways:
        every = np.array(parts.blocks(way))
        time, state, saved = (np.add.reduceat(every[:, column], ends[:-1]) for column in range(3))
        widest = np.maximum.reduceat(every[:, 3], ends[:-1])
        seconds.append(_range_sums(time))
        if parts.training.recompute:
            inputs = np.full(len(groups), way.unit.input)
            inputs[0] = 0.0
            states.append(_range_sums(state) + _largest(saved + widest))
            kept.append(_range_sums(inputs))
        else:
            states.append(_range_sums(state) + _largest(widest))
            kept.append(_range_sums(saved))
    time, held, each = (np.stack(one, axis=-1) for one in (seconds, states, kept))
    return StageCosts(time, held, each, tuple(way.devices for way in ways), capacity)


def _range_sums(values: FloatArray) -> FloatArray:
    """Return the sums of values i to j, as an array [i, j]."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(sums[None, 1:] - sums[:-1, None])


def _largest(values: FloatArray) -> FloatArray:
    """Return the largest of values i to j, as an array [i, j]."""
    count = len(values)
    return np.array([[values[i : j + 1].max() if i <= j else 0.0 for j in range(count)] for i in range(count)])
