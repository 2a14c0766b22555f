"""The baseline: a GEMM and its collective run serially, as do the GEMMs and exchanges of an MoE layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from weft.core.errors import InputError, check_name
from weft.core.options import RunOptions
from weft.core.units import to_fs
from weft.engine.program import Buffer, ChunkLoad, ChunkStore, Kernel, Phase, PlacedKernel, Plan, Wait
from weft.engine.program.plan import CACHED_STORE
from weft.graph import Collective, Graph, KernelChoice, LibraryCollective, MoEExchange, Node, PaperRing
from weft.graph.choice import Kernel as ChosenKernel
from weft.graph.choice import LibraryAlgorithm
from weft.graph.moe import moe_layer
from weft.hardware import Gpu, System
from weft.kernels import gather_kernel, reduce_kernel, sum_kernel, tile_table
from weft.kernels.channels import ChannelTiling
from weft.kernels.library.collectives import KERNELS
from weft.kernels.ring import RING, forward_rules
from weft.overlaps.base import SEQUENTIAL
from weft.overlaps.graphs import (
    PAPER_RING,
    Pattern,
    find_consumed,
    find_moe_layer,
    scatter,
    with_exchanges,
)
from weft.overlaps.joined import GatheredPair, JoinedNodes, find_joined, fit_rows
from weft.overlaps.lower import Lowered
from weft.overlaps.lower.collectives import cu_collective
from weft.overlaps.lower.fit import check_whole, tiling_for
from weft.overlaps.lower.gpus import count_simulated, slow_links
from weft.overlaps.lower.independent import in_order
from weft.overlaps.moe import ExpertLayer, ExpertMethod, Piece, Slot
from weft.overlaps.pairs import PairTimes
from weft.overlaps.ring import RingPair, has_gather

LIBRARY = "library"
"""The algorithm that the vendor's library would choose."""


@dataclass(frozen=True)
class Sequential(ExpertMethod):
    """GEMM with cached stores, cache write-back, then ring reduce-scatter and all-gather on compute units.

    An all-gather before the GEMM runs on compute units, too, by the vendor's library if there is one, and ends before
    the GEMM begins; an MoE layer runs its exchanges and GEMMs serially. `algorithm` takes the library's
    kernels of both collectives in place of the paper's ring: "ring", "direct", "nvls", or "library" (the one that it
    would choose).
    """

    name: str = SEQUENTIAL
    title: str = "Sequential"
    summary: str = "GEMM, then ring reduce-scatter, then ring all-gather on the compute units: the baseline"
    algorithm: LibraryAlgorithm | Literal["library"] | None = None

    joins: ClassVar[str] = "nothing: one after the other"
    patterns: ClassVar[tuple[Pattern, ...]] = (
        "ag_gemm", "gemm_rs", "gemm_ar", "gemm_ag", "gemm_a2a", "moe_layer", "tp", "dp",
    )  # fmt: skip
    closed_forms: ClassVar[tuple[Pattern, ...]] = patterns

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm is not None:
            check_name("algorithm", self.algorithm, (*KERNELS, LIBRARY))

    @property
    def joins_gemms(self) -> bool:
        """Return False: every collective waits for its GEMM."""
        return False

    @property
    def in_sequence(self) -> bool:
        """Return True."""
        return True

    def framework_changes(self, axis: str) -> dict[str, Any]:
        """Return a framework without its own overlap on the axis."""
        if axis == "tp":
            return {"async_tp": False, "tp": ""}
        return {"dp_overlap": False, "gather_overlap": False} if axis == "dp" else {}

    def check(self, graph: Graph) -> None:
        """Raise InputError, too, for an algorithm of the exchanges of an MoE layer."""
        super().check(graph)
        if self.algorithm is not None and moe_layer(graph) is not None:
            raise InputError(
                f"the exchanges of {graph} are those of the vendor's library, but algorithm is '{self.algorithm}'; "
                "leave it out"
            )

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Return the GEMM, the reduce-scatter, then the all-gather; the all-gather, then the GEMM; or experts alike."""
        self.check(graph)
        if moe_layer(graph) is not None:
            return graph
        pair, choice = find_consumed(graph), self._library_kernel()
        if pair is None:
            whole = scatter(graph, PaperRing())
            return whole if choice is None else with_exchanges(whole, choice)
        choice = choice or (PAPER_RING if gpu.vendor == "none" else KernelChoice())
        return replace(graph, nodes=(replace(pair[0], choice=choice), pair[1]))

    def _library_kernel(self) -> KernelChoice | None:
        """Return the library's kernel that `algorithm` asks for; None without one."""
        match self.algorithm:
            case None:
                return None
            case "library":
                return KernelChoice()
            case algorithm:
                return KernelChoice(LibraryCollective(algorithm))

    def estimate(self, pair: PairTimes, costs: Mapping[str, float]) -> Any:
        """Return the sum, and the gap between two streams of a framework."""
        return pair.gemm + pair.collective + pair.framework * costs["sequential.gap"]

    def lowers(self, kernel: ChosenKernel | None) -> bool:
        """Return whether a kernel is a step of the paper's ring or an exchange by the vendor's library."""
        return isinstance(kernel, PaperRing) or (isinstance(kernel, MoEExchange) and kernel.dispatcher is None)

    def lower_joined(self, graph: Graph, system: System, options: RunOptions) -> Lowered:
        """Return the plan of kernels that wait for each other."""
        if moe_layer(graph) is not None:
            return self.lower_experts(graph, system, options)
        nodes, gpu, ranks = find_joined(graph), system.gpu, graph.ranks
        if nodes.reduce is None:
            return _lower_gathered(graph, nodes, system, options)
        product = nodes.product
        tiling = nodes.tiling or tiling_for(product, gpu, options, ranks)
        ring = SequentialRing(product, ranks, gpu, tiling, options)
        gpus = count_simulated(graph, system, options, uneven=ring.uneven)
        return Lowered(graph.with_tiling(tiling), ring.plan(graph, gpus), system, gpus)

    @property
    def layer_class(self) -> type[ExpertLayer]:
        """Return the kernels of an MoE layer in sequence."""
        return SequentialExperts

    def cut_exchanges(self, graph: Graph, system: System) -> tuple[tuple[ChannelTiling, ...], System]:
        """Return how the vendor's library cuts an exchange, and the system whose links have its rate."""
        if system.gpu.vendor == "none":
            return super().cut_exchanges(graph, system)
        moved = find_moe_layer(graph).dispatch
        assert isinstance(moved.op, Collective)
        assert isinstance(moved.choice.kernel, MoEExchange)
        op, channels = moved.op, moved.choice.kernel.channels
        moves = cu_collective(op.name, op.bytes, graph.ranks, system, op.dtype, channels)
        assert isinstance(moves.tiling, ChannelTiling)
        return (moves.tiling,), slow_links(system, moves.tiling.link)


def _lower_gathered(graph: Graph, nodes: JoinedNodes, system: System, options: RunOptions) -> Lowered:
    """Return the plan of an all-gather in steps of the paper's ring, then its GEMM."""
    assert nodes.gemm is not None
    assert nodes.gather is not None
    gpus = count_simulated(graph, system, options)
    if any(edge.by == "tile" for edge in nodes.gemm.edges):
        raise InputError(
            f"'{nodes.gemm.id}' waits for tiles of '{nodes.gather.id}', a step of a ring; let it wait by kernel"
        )
    product = nodes.product
    tiling = fit_rows(product, nodes.tiling or tiling_for(product, system.gpu, options), graph.ranks)
    plan = GatherFirst(product, tiling, graph.ranks, options).plan(system.gpu)
    return Lowered(graph.with_tiling(tiling), plan, system, gpus)


@dataclass(frozen=True)
class GatherFirst(GatheredPair):
    """C = gather(A) x B in sequence: a ring's kernel on compute units gathers A, then the GEMM runs."""

    def plan(self, gpu: Gpu) -> Plan:
        """Return the all-gather, then the GEMM, whose tiles run in the order of a GEMM alone."""
        self._check_chunks()
        kernels = (
            PlacedKernel(gather_kernel(self.ranks, gpu, RING, own=("a", 0), buffer="a"), operator="all_gather"),
            PlacedKernel(self._product(gpu), after=(0,), operator="gemm"),
        )
        data = self._data(forward_rules("a", "all_gather", self.ranks))
        return self._plan(gpu, kernels, data, tile_table(self.gemm, self.tiling, 1))


@dataclass(frozen=True)
class SequentialRing(RingPair):
    """A GEMM, then the paper's ring reduce-scatter of its output and the all-gather behind it, kernel after kernel."""

    def plan(self, graph: Graph, gpus: int = 1) -> Plan:
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
        received = Buffer("received", sizes, forward_rules("received", "reduce_scatter", self.ranks))
        result = Buffer("result", tuple((own[-1],) for own in sizes))
        return self._plan(kernels, has_gather(graph), work, (CACHED_STORE,) * self.ranks, received, result)


@dataclass(frozen=True)
class SequentialExperts(ExpertLayer):
    """Dispatch, both GEMMs and combine of an MoE layer, serially."""

    def plan(self) -> Plan:
        """Channels put and signal, both GEMMs, channels put and signal, and a kernel that adds."""
        works, products = self._products()
        passes = tuple(("returned", p) for p in range(self.routing.top_k))
        add = sum_kernel("sum", passes, self.gpu, RING, self.row_bytes // self.up.k, "combine")
        kernels = (
            PlacedKernel(self._exchange("dispatch", "sent", "arriving", back=False), operator="dispatch"),
            *products,
            PlacedKernel(self._exchange("combine", "leaving", "coming", back=True), operator="combine"),
            PlacedKernel(add, operator="combine", iteration=0),
        )
        placed = tuple(replace(one, after=(k - 1,) if k else ()) for k, one in enumerate(kernels))
        size = self.routing.tokens * self.row_bytes
        buffers = (
            *self._inputs(self._rules("arriving", "dispatch", back=False)),
            self._outputs(),
            self._alias("leaving", ("output", 1), self._rules("coming", "combine", back=True), self._in_lines),
            Buffer("returned", ((size,) * self.routing.top_k,)),
            self._alias("coming", ("returned", 0), (), self._in_passes),
            Buffer("result", ((size,),)),
        )
        return Plan(placed, buffers, works, self.tiling.wavefronts(self.gpu))

    def _exchange(self, operator: str, source: str, target: str, *, back: bool) -> Kernel:
        """Return all pieces from `source` to `target`: channels for each peer put its pieces there and signal.

        A channel then waits for what the peer on the other side puts; `back`: results go to where tokens came from.
        """
        ranks, tiling = self.routing.ranks, self.channels
        parts = max(tiling.channels // ranks, 1)
        by_gpu: list[list[tuple[Phase, ...]]] = []
        for g in range(self.gpus):
            each = []
            for distance in range(ranks):
                slots = [(p, slot) for p, slot in enumerate(self.slots) if slot.distance == distance]
                sizes = {
                    p: piece.rows * self.row_bytes for p, slot in slots if (piece := self._of(g, slot, sent=not back))
                }
                waits = [p for p, slot in slots if distance and self._of(g, slot, sent=back)]
                ways = operator, source, target if not distance else source, target
                each += [self._channel(*ways, sizes, waits, parts, part) for part in range(parts)]
            by_gpu.append(each)
        return self._of_scripts(operator, by_gpu, tiling)

    def _of(self, g: int, slot: Slot, *, sent: bool) -> Piece | None:
        return self.sent_piece(g, slot) if sent else self.came(g, slot)

    def _channel(
        self, operator: str, source: str, stored: str, awaited: str, sizes: dict[int, int], waits: Iterable[int],
        parts: int, part: int,
    ) -> tuple[Phase, ...]:  # fmt: skip
        """The script of one of `parts` channels of a peer: its part of each piece of `sizes`, then the wait for others.

        Pieces are stored under the name `stored`, which the address map sends away, and come under that of `awaited`.
        """
        found, delay = [], self.channels.start
        for p, size in sizes.items():
            each = -(-size // (parts * 128)) * 128
            begin = min(part * each, size)
            if move := min(each, size - begin):
                loop = self.channels.move(move)
                load = loop.access(ChunkLoad, source, p, operator, offset=begin)
                store = loop.access(ChunkStore, stored, p, operator, offset=begin)
                found.append(loop.phase([load], [store], None, delay))
                delay = 0.0
        signals = [Phase(0, 1, 0, wait=Wait(awaited, p)) for p in waits]
        if signals:
            signals[-1] = replace(signals[-1], delay_fs=to_fs(self.channels.sync))
        return (*found, *signals)
