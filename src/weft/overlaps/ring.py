"""A GEMM and the ring collectives of its output: tiles, chunks and buffers of methods that send them around a ring."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import Buffer, ChunkRule, Kernel, PlacedKernel, Plan, tiles_of
from weft.engine.program.plan import Work
from weft.graph import Collective, Gemm, Graph
from weft.hardware import Gpu
from weft.kernels import (
    GemmTiling,
    gemm_kernel,
    operands,
    tile_table,
)
from weft.kernels.ring import (
    exchange_rules,
    forward_rules,
)
from weft.overlaps.lower.fit import check_tile


@dataclass(frozen=True)
class RingPair:
    """One GPU's share of a GEMM whose output `ranks` GPUs reduce around a ring, or in each of `nodes` nodes.

    The switch `merges` stores one by one, or adds up whole tiles.

    `options` give the clock of the compute units. Raises InputError for tiles that the GPU cannot hold, and for fewer
    tiles than GPUs.
    """

    gemm: Gemm
    ranks: int
    gpu: Gpu
    tiling: GemmTiling
    options: RunOptions
    nodes: int = 1
    merges: bool = False

    def __post_init__(self) -> None:
        tiles = check_tile(self.gemm, self.tiling, self.gpu) // self.tiling.splits
        if tiles < self.ranks:
            raise InputError(
                f"the output of {self.gemm} has {tiles} tiles of {self.tiling.rows} x {self.tiling.columns}, fewer "
                f"than the {self.ranks} GPUs that reduce it; choose a smaller tile, fewer GPUs or a larger GEMM"
            )

    @cached_property
    def tiles(self) -> Work:
        """The output tiles of GPU 0 in order; GPU g computes chunk g + 1 first, of several nodes the next one's."""
        return self._tiles_of(0)

    @property
    def uneven(self) -> str:
        """Return why one GPU cannot represent all; empty if it can."""
        if self.merges:
            return "the switch merges what their stores bring at the same time"
        return "" if self.even else "their chunks differ in size"

    @property
    def even(self) -> bool:
        """Whether all chunks of the ring have the same size."""
        return len(set(self._sizes(self.tiles))) == 1

    def _tiles_of(self, rank: int) -> Work:
        each = self.ranks // self.nodes
        node, place = divmod(rank, each)
        first = (node + 1) % self.nodes * each + (place + 1) % each
        return tile_table(self.gemm, replace(self.tiling, splits=1), self.ranks, first, self.nodes)

    def _work(self, gpus: int) -> tuple[Work, ...]:
        """Return the output tiles of every simulated GPU."""
        return self.tiles, *map(self._tiles_of, range(1, gpus))

    def _sizes(self, tiles: Work) -> tuple[int, ...]:
        """Return the sizes of the output chunks in the order in which a GPU computes them [bytes]."""
        return tuple(np.bincount(tiles[:, y.WORK_REGION], tiles[:, y.WORK_BYTES]).astype(int).tolist())

    @property
    def product(self) -> Kernel:
        """The GEMM's kernel, the same under every overlap."""
        return gemm_kernel(self.gemm, self.gpu, self.tiling, self.options)

    def _plan(
        self, kernels: tuple[PlacedKernel, ...], all_gathers: bool, work: tuple[Work, ...],
        rules: tuple[ChunkRule, ...], *others: Buffer,
    ) -> Plan:  # fmt: skip
        """Return the plan: the GEMM stores its output by `rules`; `others` are additional buffers.

        With `all_gathers` there are buffers of the all-gather behind it.
        """
        sizes = tuple(map(self._sizes, map(tiles_of, work)))
        # The all-gather begins with a GPU's own chunk, which it computed last.
        each, nodes = self.ranks // self.nodes, self.nodes
        places = [(q - 1) % nodes * each + (s - 1) % each for q in range(nodes) for s in range(each)]
        own_first = tuple(tuple(own[p] for p in places) for own in sizes)
        gathered = Buffer("gathered", own_first, forward_rules("gathered", "all_gather", self.ranks, nodes=nodes))
        gathers = [gathered] * all_gathers
        if gathers and nodes > 1:
            last = self.ranks - 1
            copied = tuple((own[last],) * (nodes - 1) for own in sizes)
            gathers.append(Buffer("own", copied, exchange_rules(self.ranks, nodes), within=("output", last)))
        buffers = (
            *operands(self.gemm, self.tiling),
            Buffer("output", sizes, rules),
            *others,
            *gathers,
        )
        return Plan(kernels, buffers, work, self.tiling.wavefronts(self.gpu))


def has_gather(graph: Graph) -> bool:
    """Return whether an all-gather follows the reduce-scatter."""
    return any(isinstance(node.op, Collective) and not node.op.reduces for node in graph)
