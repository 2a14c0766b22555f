"""T3 before a GEMM: the tracker counts the rows that DMA engines copy, and a tile begins when its own have arrived."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from weft.core.errors import InputError, check_type
from weft.core.options import RunOptions
from weft.engine.program import Buffer, ChunkRule, DmaCommand, DmaMap, PlacedKernel, Wait
from weft.engine.program.plan import PLAIN_STORE
from weft.graph import Graph, TrackedArrivals
from weft.graph.choice import Kernel as ChosenKernel
from weft.hardware import Gpu, System
from weft.overlaps.base import OverlapMethod
from weft.overlaps.flux import GatherGemm
from weft.overlaps.graphs import Pattern, join_gather
from weft.overlaps.joined import copying_kernel, find_joined, fit_rows
from weft.overlaps.lower import Lowered
from weft.overlaps.lower.fit import tiling_for
from weft.overlaps.lower.gpus import count_simulated
from weft.overlaps.lower.machine import fabric_of

_PASSING_ENGINES = 2
"""DMA engines that pass lines on in turn [assumed; 1 to 16]: one is set up while the other one's line is on the link.

With more, lines share the link and come out of the order of the tiles.
"""


@dataclass(frozen=True)
class T3AllGather(OverlapMethod):
    """A GEMM whose tiles begin as soon as `kernel.tile_rows` rows of tiles of a chunk have arrived.

    The GPU's own rows come first, then the others in the order in which DMA engines send them.
    """

    name: str = "t3-all-gather"
    title: str = "T3-all-gather"
    summary: str = "a GEMM behind an all-gather: its tiles begin as tile lines arrive, the GPU's own chunk first"
    hardware_needs: tuple[str, ...] = ("tracker",)
    kernel: TrackedArrivals = field(default_factory=TrackedArrivals)

    joins: ClassVar[str] = "tile lines of an all-gather and its GEMM"
    patterns: ClassVar[tuple[Pattern, ...]] = ("ag_gemm", "tp")
    kernels: ClassVar[tuple[type[ChosenKernel], ...]] = (TrackedArrivals,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("kernel", self.kernel, TrackedArrivals, "give a weft.graph.TrackedArrivals")

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return the all-gather by copies, and the GEMM, whose tiles wait for their rows."""
        self.check(graph)
        return join_gather(graph, self.kernel)

    def lower_joined(self, graph: Graph, system: System, options: RunOptions) -> Lowered:
        """Return the plan of a GEMM that waits for rows: sent to each peer or, without links to all, around a ring."""
        nodes, ranks, fabric = find_joined(graph), graph.ranks, fabric_of(system)
        kernel = nodes.kernel
        assert isinstance(kernel, TrackedArrivals)
        gpus, product = count_simulated(graph, system, options), nodes.product
        tiling = fit_rows(product, nodes.tiling or tiling_for(product, system.gpu, options), ranks)
        made = GatherByLines if fabric.adjacent(ranks) else PassedLines
        plan = made(product, tiling, ranks, options, bool(fabric.striped), kernel.tile_rows).plan(system.gpu)
        return Lowered(graph.with_tiling(tiling), plan, system, gpus)


@dataclass(frozen=True)
class GatherByLines(GatherGemm):
    """C = gather(A) x B in one GEMM, whose rows of A are awaited as soon as `lines` tile lines of a chunk have arrived.

    The tiles run in the order in which these do.
    """

    lines: int = 1

    @property
    def _pieces(self) -> int:
        """Pieces of a chunk; InputError for lines that do not divide a chunk's."""
        of_chunk = self.gemm.m // self.ranks // self.tiling.rows
        if of_chunk % self.lines:
            raise InputError(
                f"a chunk of {self.gemm.m // self.ranks} rows has {of_chunk} tile lines of {self.tiling.rows}, which "
                f"{self.lines} at a time do not divide; choose a divisor of {of_chunk}, such as 1"
            )
        return max(of_chunk // self.lines, 1)


@dataclass(frozen=True)
class PassedLines(GatherByLines):
    """The same, with lines that go around the ring: each is sent to the neighbour, which passes it on on arrival."""

    def _copies(self, gpu: Gpu) -> tuple[list[PlacedKernel], tuple[Buffer, ...]]:
        """Return the copies of the GPU's own pieces to its neighbour and of pieces that it passes on, and all buffers.

        The arrival of a piece triggers its copy, without the host.
        """
        pieces, engines = self._pieces, min(_PASSING_ENGINES, gpu.dma.engines)
        last = len(self._peers) * pieces
        sends = [DmaCommand((("a", p),), engine=p % engines) for p in range(last)]
        own, *others = sends[:pieces], *([send] for send in sends[pieces:])
        copies = [PlacedKernel(copying_kernel(0, own), operator="all_gather")]
        for p, each in enumerate(others, pieces):
            passed = replace(copying_kernel(p, each), completion_fs=0)
            copies.append(PlacedKernel(passed, after_chunks=(Wait("a", p),), operator="all_gather"))
        passing = tuple(ChunkRule(dma=DmaMap("a", p + pieces, False, "all_gather")) for p in range(last))
        return copies, self._data((*passing, *[PLAIN_STORE] * pieces))
