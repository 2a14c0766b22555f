"""A GEMM and the ring collectives of its output: kernel after kernel, or fused by T3's tracker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from weft.engine import layout as y
from weft.errors import InputError
from weft.graph import Collective, Gemm, Graph, Node, TrackedDirect, TrackedRing
from weft.hardware import Gpu
from weft.kernels import (
    GemmTiling,
    gather_kernel,
    gemm_kernel,
    near_memory_reduce_kernel,
    operands,
    reduce_kernel,
    tile_table,
)
from weft.kernels.gemm import in_parts, owner_by_owner
from weft.kernels.ring import (
    RING,
    direct_reduce_scatter,
    exchanged,
    forwarded,
    fused_reduce_scatter,
    two_level_reduce_scatter,
)
from weft.lower.fit import check_tile, check_whole
from weft.lower.independent import in_order
from weft.options import RunOptions
from weft.program import Buffer, ChunkRule, Command, Kernel, PlacedKernel, Plan, Wait, tiles_of
from weft.program.plan import CACHED_STORE, Work


@dataclass(frozen=True)
class RingSubLayer:
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
    def even(self) -> bool:
        """Whether all chunks of the ring have the same size."""
        return len(set(self._sizes(self.tiles))) == 1

    def _tiles_of(self, rank: int) -> Work:
        each = self.ranks // self.nodes
        node, place = divmod(rank, each)
        first = (node + 1) % self.nodes * each + (place + 1) % each
        return tile_table(self.gemm, replace(self.tiling, splits=1), self.ranks, first, self.nodes)

    def _work(self, gpus: int) -> tuple[Work, ...]:
        """The output tiles of every simulated GPU."""
        return self.tiles, *map(self._tiles_of, range(1, gpus))

    def _tracked(self, tiles: Work, *, direct: bool) -> Work:
        """The workgroups that make output tiles under T3: owner by owner if `direct`, else chunk by chunk."""
        if direct:  # so that a stage's stores take the links to all owners
            return in_parts(owner_by_owner(tiles, self.gemm, self.tiling), self.gemm, self.tiling)
        work = in_parts(tiles, self.gemm, self.tiling)
        ordered: Work = work[np.argsort(work[:, y.WORK_REGION], kind="stable")]
        return ordered

    def _sizes(self, tiles: Work) -> tuple[int, ...]:
        """Sizes of the output chunks in the order in which a GPU computes them [bytes]."""
        return tuple(np.bincount(tiles[:, y.WORK_REGION], tiles[:, y.WORK_BYTES]).astype(int).tolist())

    def sequential(self, graph: Graph, gpus: int = 1) -> Plan:
        """The kernels of the graph's steps, each after its dependencies and after the previous one of its stream.

        The output is stored through the cache and written back before others read it. Raises InputError for a step
        that waits for tiles, and for K in parts.
        """
        check_whole(self.tiling)
        reduce = reduce_kernel(self.ranks, self.gpu, RING, self.gemm.output_element_bytes)
        gather = gather_kernel(self.ranks, self.gpu, RING, own=("result", 0))

        def step(node: Node) -> PlacedKernel:
            if not isinstance(node.op, Collective):
                # AMD's caches are written back at a kernel's end; NVIDIA's L2, which all SMs share, keeps its lines.
                return PlacedKernel(self.product, release=self.gpu.vendor != "nvidia")
            return PlacedKernel(reduce if node.op.reduces else gather)

        for node in graph:
            if tiles := [edge.node for edge in node.edges if edge.by == "tile"]:
                raise InputError(
                    f"'{node.id}', a step of a ring, waits for '{tiles[0]}' by tile; let it wait by kernel"
                )
        kernels = in_order(graph, self.gpu, lambda node: [step(node)])
        work = self._work(gpus)
        sizes = tuple(map(self._sizes, work))
        received = Buffer("received", sizes, forwarded("received", "reduce_scatter", self.ranks))
        result = Buffer("result", tuple((own[-1],) for own in sizes))
        return self._plan(kernels, _gathers(graph), work, (CACHED_STORE,) * self.ranks, received, result)

    def track_and_trigger(self, graph: Graph, kernel: TrackedRing | TrackedDirect, gpus: int = 1) -> Plan:
        """T3 (arXiv:2401.16677): the address map does the reduce-scatter; GEMM and all-gather are kernels.

        Tiles go around the ring or, with a direct kernel, straight to their owners. Over several nodes, DMA engines
        take them from one to the other: half of all, so that the links inside a node never wait for the network
        [assumed].
        """
        last = self.ranks - 1
        parts, direct = self.tiling.splits, isinstance(kernel, TrackedDirect)
        if isinstance(kernel, TrackedDirect):
            summed, engines = kernel.in_switch, self.gpu.dma.engines if kernel.by_dma else 0
            if summed:
                check_whole(self.tiling)
                self._check_merged()
            rules = direct_reduce_scatter(self.ranks, parts, engines, summed=summed, merged=self.merges)
        elif self.nodes > 1:
            far = tuple(range(-(-self.gpu.dma.engines // 2)))
            rules = two_level_reduce_scatter(self.ranks, self.nodes, parts, far)
        else:
            rules = fused_reduce_scatter(self.ranks, parts)
        gather = gather_kernel(self.ranks, self.gpu, RING, own=("output", last), nodes=self.nodes)
        sent = (
            range(last) if direct else {*range(self.ranks // self.nodes - 1, last, self.ranks // self.nodes), last - 1}
        )
        # The reduce-scatter ends on a GPU when its own chunk is reduced and the last chunk for others has been sent.
        over = (Wait("output", last), *(Wait("output", p, sent=True) for p in sent if rules[p].dma))
        kernels, gathers = [PlacedKernel(self.product, monitor=True, operator="gemm")], _gathers(graph)
        if gathers:
            kernels.append(PlacedKernel(gather, after=(0,), after_chunks=over, operator="all_gather"))
        if gathers and self.nodes > 1:
            commands = tuple(Command((("own", q),)) for q in range(self.nodes - 1))
            copies = Kernel("all_gather over nodes", 0, 0, 0, 0, (), copies=commands)
            kernels.append(PlacedKernel(copies, (0,), over, stream=1, operator="all_gather"))
        work = tuple(self._tracked(tiles, direct=direct) for tiles in self._work(gpus))
        return self._plan(tuple(kernels), gathers, work, rules)

    def _check_merged(self) -> None:
        """Raise InputError for wavefronts' parts of tiles that begin between the places of merged requests."""
        grain = y.MERGE_GRAIN * self.tiling.wavefronts(self.gpu)
        odd = next((int(size) for size in self.tiles[:, y.WORK_BYTES] if size % grain), None)
        if self.merges and odd is not None:
            raise InputError(
                f"a tile of {odd} B gives each of {self.tiling.wavefronts(self.gpu)} wavefronts no multiple of "
                f"{y.MERGE_GRAIN} B, which requests need that the switch merges; choose a tile that divides the "
                "output, or set merge_window to 0"
            )

    def near_memory_scatter(self, gpus: int = 1) -> Plan:
        """The reduce-scatter alone: one kernel sends each chunk on, as updates, once its data have arrived."""
        check_whole(self.tiling)
        updates = forwarded("output", "reduce_scatter", self.ranks, update=True)
        output = Buffer("output", tuple(map(self._sizes, self._work(gpus))), updates)
        kernel = near_memory_reduce_kernel(self.ranks, self.gpu, RING)
        return Plan((PlacedKernel(kernel, operator="reduce_scatter"),), (output,), ())

    @property
    def product(self) -> Kernel:
        """The GEMM's kernel, the same under every overlap."""
        return gemm_kernel(self.gemm, self.gpu, self.tiling, self.options)

    def _plan(
        self, kernels: tuple[PlacedKernel, ...], all_gathers: bool, work: tuple[Work, ...],
        rules: tuple[ChunkRule, ...], *others: Buffer,
    ) -> Plan:  # fmt: skip
        """The plan: the GEMM stores its output by `rules`; `others` are additional buffers.

        With `all_gathers` there are buffers of the all-gather behind it.
        """
        sizes = tuple(map(self._sizes, map(tiles_of, work)))
        # The all-gather begins with a GPU's own chunk, which it computed last.
        each, nodes = self.ranks // self.nodes, self.nodes
        places = [(q - 1) % nodes * each + (s - 1) % each for q in range(nodes) for s in range(each)]
        own_first = tuple(tuple(own[p] for p in places) for own in sizes)
        gathered = Buffer("gathered", own_first, forwarded("gathered", "all_gather", self.ranks, nodes=nodes))
        gathers = [gathered] * all_gathers
        if gathers and nodes > 1:
            last = self.ranks - 1
            copied = tuple((own[last],) * (nodes - 1) for own in sizes)
            gathers.append(Buffer("own", copied, exchanged(self.ranks, nodes), within=("output", last)))
        buffers = (
            *operands(self.gemm, self.tiling),
            Buffer("output", sizes, rules),
            *others,
            *gathers,
        )
        return Plan(kernels, buffers, work, self.tiling.wavefronts(self.gpu))


def _gathers(graph: Graph) -> bool:
    """Whether an all-gather follows the reduce-scatter."""
    return any(isinstance(node.op, Collective) and not node.op.reduces for node in graph)
