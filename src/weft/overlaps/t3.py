"""T3 (ASPLOS 2024, arXiv:2401.16677): a GEMM's stores trigger the reduce-scatter of its output, tile by tile."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from weft.core.errors import InputError, check_type
from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import DmaCommand, Kernel, PlacedKernel, Plan, Wait
from weft.engine.program.plan import Work
from weft.graph import Graph, TrackedDirect, TrackedRing
from weft.graph.choice import Kernel as ChosenKernel
from weft.hardware import Gpu, System
from weft.kernels import gather_kernel
from weft.kernels.gemm import in_parts, owner_by_owner
from weft.kernels.ring import RING, direct_reduce_scatter, fused_reduce_scatter, two_level_reduce_scatter
from weft.models.parallel.deployment import Deployment
from weft.overlaps.arbiters import COMPUTE_FIRST, CRITICAL_FIRST
from weft.overlaps.base import OverlapMethod
from weft.overlaps.graphs import Pattern, scatter
from weft.overlaps.joined import find_joined
from weft.overlaps.lower import Lowered
from weft.overlaps.lower.fit import check_whole, parts_of_k, tiling_for
from weft.overlaps.lower.gpus import check_adjacent, count_simulated
from weft.overlaps.lower.machine import fabric_of, nodes_among, of_levels
from weft.overlaps.ring import RingPair, has_gather

TRACKED = ("tracker", "near-memory update", "triggered DMA")
_FUSED = "GEMM fused with the reduce-scatter by track and trigger; memory arbitration: "


@dataclass(frozen=True)
class T3(OverlapMethod):
    """The GEMM's stores trigger the reduce-scatter without a kernel.

    Stores are near-memory updates, the tracker counts them, and DMA sends complete tiles. The all-gather begins when
    the GPU's part of the reduce-scatter ends. `kernel` says which way tiles go: around a ring, or straight to the GPUs
    that own them.
    """

    name: str = "t3"
    title: str = "T3"
    summary: str = f"{_FUSED}round-robin"
    hardware_needs: tuple[str, ...] = TRACKED
    kernel: TrackedRing | TrackedDirect = field(default_factory=TrackedRing)

    joins: ClassVar[str] = "tiles of a GEMM and its reduce-scatter"
    patterns: ClassVar[tuple[Pattern, ...]] = ("gemm_rs", "gemm_ar", "tp")
    kernels: ClassVar[tuple[type[ChosenKernel], ...]] = (TrackedRing, TrackedDirect)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("kernel", self.kernel, (TrackedRing, TrackedDirect), "give one of a reduce-scatter that T3 triggers")

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return the GEMM and the reduce-scatter, joined by tiles, then the all-gather."""
        return scatter(graph, self.kernel, by="tile")

    def check_plan(self, axis: str, plan: Deployment, system: System) -> None:
        """Raise InputError for tiles that are stored at owners in other nodes."""
        if isinstance(self.kernel, TrackedDirect):
            self.check_in_node(axis, "stores tiles at their owners, among", plan, system, "t3 or t3-mca")

    def lower_joined(self, graph: Graph, system: System, options: RunOptions) -> Lowered:
        """Return the plan of a GEMM whose tiles are reduced on their way."""
        nodes = find_joined(graph)
        kernel, product, given = nodes.kernel, nodes.product, nodes.tiling
        tiling, levels, merges = given or tiling_for(product, system.gpu, options, graph.ranks), 1, False
        if isinstance(kernel, TrackedRing):
            if given is None and kernel.split_k:
                tiling = replace(tiling, splits=parts_of_k(product, tiling, system.gpu, options))
            if kernel.two_level:
                system = of_levels(system)
                levels = nodes_among(system, graph.ranks)
        else:
            assert isinstance(kernel, TrackedDirect)
            merges = kernel.in_switch and fabric_of(system).merges
        ring = TrackedPair(product, graph.ranks, system.gpu, tiling, options, levels, merges)
        gpus = count_simulated(graph, system, options, uneven=ring.uneven)
        if isinstance(kernel, TrackedDirect):
            _check_direct(kernel, graph.ranks, system)
        return Lowered(graph.with_tiling(tiling), ring.plan(graph, kernel, gpus), system, gpus)


def _check_direct(kernel: TrackedDirect, ranks: int, system: System) -> None:
    """Raise InputError for a system whose GPUs do not reach each other, or whose switch does not add what passes it."""
    what = "a direct reduce-scatter stores every tile at its owner"
    check_adjacent(system, ranks, what, ", or send tiles around the ring, like 't3'")
    if kernel.in_switch and not fabric_of(system).reduces:
        raise InputError(
            f"{system.name} has no switch that adds what passes it, as tiles of all GPUs on their way to an "
            "owner need; choose a node like dgx-h100, a fabric that adds, or 't3-direct'"
        )


T3_METHODS = (
    T3(),
    T3("t3-mca", "T3-MCA", f"{_FUSED}compute-first", arbiter=COMPUTE_FIRST),
    T3("t3-critical", "T3-critical", f"{_FUSED}critical-first", arbiter=CRITICAL_FIRST),
    T3(
        "t3-direct",
        "T3-direct",
        "as t3, each tile straight to its owner: for full meshes and switches",
        ("tracker", "near-memory update"),
        kernel=TrackedDirect(),
    ),
    T3(
        "t3-direct-dma",
        "T3-direct by DMA",
        "as t3-mca, DMA sends each tile straight to its owner: for full meshes and switches",
        arbiter=COMPUTE_FIRST,
        kernel=TrackedDirect(by_dma=True),
    ),
    T3(
        "t3-nvls",
        "T3-NVLS",
        "as t3-direct, the switch adds up the tiles of all GPUs on their way to the owner",
        ("tracker", "near-memory update", "switch that adds stores"),
        kernel=TrackedDirect(in_switch=True),
    ),
    T3(
        "t3-two-level",
        "T3 on two levels",
        "as t3-mca, around a ring inside each node, then by DMA from node to node: for several nodes",
        arbiter=COMPUTE_FIRST,
        kernel=TrackedRing(two_level=True),
    ),
    T3(
        "t3-split-k",
        "T3-split-K",
        "as t3, K cut into parts that memory adds up: for outputs of few tiles",
        kernel=TrackedRing(split_k=True),
    ),
)
"""T3 with three arbitration policies, and with other ways of its tiles."""


@dataclass(frozen=True)
class TrackedPair(RingPair):
    """A GEMM whose stores the tracker counts, its reduce-scatter by the address map, and the all-gather behind both."""

    def _track_tiles(self, tiles: Work, *, direct: bool) -> Work:
        """Return the workgroups that make output tiles under T3: owner by owner if `direct`, else chunk by chunk."""
        if direct:  # so that a stage's stores take the links to all owners
            return in_parts(owner_by_owner(tiles, self.gemm, self.tiling), self.gemm, self.tiling)
        work = in_parts(tiles, self.gemm, self.tiling)
        ordered: Work = work[np.argsort(work[:, y.WORK_REGION], kind="stable")]
        return ordered

    def plan(self, graph: Graph, kernel: TrackedRing | TrackedDirect, gpus: int = 1) -> Plan:
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
        kernels, gathers = [PlacedKernel(self.product, monitor=True, operator="gemm")], has_gather(graph)
        if gathers:
            kernels.append(PlacedKernel(gather, after=(0,), after_chunks=over, operator="all_gather"))
        if gathers and self.nodes > 1:
            commands = tuple(DmaCommand((("own", q),)) for q in range(self.nodes - 1))
            copies = Kernel("all_gather over nodes", 0, 0, 0, 0, (), copies=commands)
            kernels.append(PlacedKernel(copies, (0,), over, stream=1, operator="all_gather"))
        work = tuple(self._track_tiles(tiles, direct=direct) for tiles in self._work(gpus))
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
