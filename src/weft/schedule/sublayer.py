"""A GEMM and the collective of its own output: one after the other, joined tile by tile, or ideal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from weft.errors import InputError, check_name, check_type
from weft.graph import (
    Collective,
    Edge,
    FusedChunks,
    FusedTiles,
    Gemm,
    Graph,
    KernelChoice,
    LibraryCollective,
    MoEExchange,
    NearMemoryRing,
    Node,
    PaperRing,
    RemoteLoads,
    TrackedArrivals,
    TrackedDirect,
    TrackedMoEExchange,
    TrackedRing,
)
from weft.graph.choice import InSubLayer, LibraryAlgorithm
from weft.graph.graph import Granularity
from weft.graph.moe import MoELayer, moe_layer
from weft.hardware import Gpu
from weft.library.collectives import KERNELS
from weft.schedule.arbiters import COMPUTE_FIRST, CRITICAL_FIRST
from weft.schedule.base import Ideal, Pass

TRACKED = ("tracker", "near-memory update", "triggered DMA")
LIBRARY = "library"
"""The algorithm that the vendor's library would choose."""
PLAIN = KernelChoice(PaperRing())


def produced(graph: Graph) -> tuple[Node, Node]:
    """The GEMM of a sub-layer and the all-reduce or reduce-scatter of its output; InputError for any other graph."""
    pair = _pair(graph, ("gemm",), ("all_reduce", "reduce_scatter"))
    if pair is None:
        raise InputError(
            f"{graph} is no GEMM followed by the all-reduce or reduce-scatter of its output; "
            "give a sub-layer, or choose a way to share a GPU, such as 'streams'"
        )
    return pair


def consumed(graph: Graph) -> tuple[Node, Node] | None:
    """The all-gather of an operand and the GEMM that waits for it; None for any other graph."""
    return _pair(graph, ("all_gather",), ("gemm",))


def _pair(graph: Graph, *wanted: tuple[str, ...]) -> tuple[Node, Node] | None:
    """The two nodes of a graph if the second waits for the first and their kinds are as asked; else None."""
    found = [node.op.name if isinstance(node.op, Collective) else node.op.kind for node in graph]
    if len(found) != 2 or not all(name in names for name, names in zip(found, wanted, strict=True)):
        return None
    first, second = graph.nodes
    return (first, second) if [edge.node for edge in second.edges] == [first.id] else None


def routed(graph: Graph) -> MoELayer:
    """Return the nodes of an MoE layer; InputError for any other graph."""
    layer = moe_layer(graph)
    if layer is None:
        raise InputError(
            f"{graph} is no layer of experts; give one, like weft.experts(weft.Routing(4096, 8, 256, 8), hidden=7168, "
            "ffn=2048), or choose an overlap of a GEMM and its collective, such as 't3'"
        )
    return layer


def _is_all_reduce(node: Node) -> bool:
    return isinstance(node.op, Collective) and node.op.name == "all_reduce"


def scattered(graph: Graph, kernel: InSubLayer, by: Granularity = "kernel") -> Graph:
    """A sub-layer whose all-reduce becomes a reduce-scatter, joined `by` kernel or tile, and an all-gather."""
    gemm, collective = produced(graph)
    op = collective.op
    assert isinstance(op, Collective)
    reduce = Node(
        replace(op, name="reduce_scatter"), "reduce_scatter", after=(Edge(gemm.id, by),), choice=KernelChoice(kernel)
    )
    if op.name == "reduce_scatter":
        return replace(graph, nodes=(gemm, reduce))
    gather = Node(replace(op, name="all_gather"), "all_gather", after=("reduce_scatter",), choice=PLAIN)
    return replace(graph, nodes=(gemm, reduce, gather))


class _OfSubLayer(Pass):
    def _check(self, graph: Graph) -> None:
        produced(graph)


@dataclass(frozen=True)
class _Scattering(_OfSubLayer):
    """A GEMM, the reduce-scatter of its output, and the all-gather behind it if the graph has an all-reduce.

    `kernel` is that of the reduce-scatter, which waits for the GEMM `by` kernel or by tile. `algorithm` takes the
    library's kernels of both collectives in place of the paper's ring: "ring", "direct", "nvls", or "library" (the one
    that it would choose).
    """

    kernel: InSubLayer = field(default_factory=PaperRing)
    by: Granularity = "kernel"
    algorithm: LibraryAlgorithm | Literal["library"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("kernel", self.kernel, get_args(InSubLayer), "give one of a reduce-scatter behind its GEMM")
        if self.algorithm is not None:
            check_name("algorithm", self.algorithm, (*KERNELS, LIBRARY))

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The GEMM, the reduce-scatter, then the all-gather."""
        found, choice = scattered(graph, self.kernel, self.by), self._of_library()
        if choice is None:
            return found
        return found.map(lambda node: replace(node, choice=choice) if isinstance(node.op, Collective) else node)

    def _of_library(self) -> KernelChoice | None:
        """The library's kernels that `algorithm` asks for; None without one."""
        match self.algorithm:
            case None:
                return None
            case "library":
                return KernelChoice()
            case algorithm:
                return KernelChoice(LibraryCollective(algorithm))


@dataclass(frozen=True)
class Sequential(_Scattering):
    """GEMM with cached stores, cache write-back, then ring reduce-scatter and all-gather on compute units.

    An all-gather before the GEMM runs on compute units, too, by the vendor's library if there is one, and ends before
    the GEMM begins; a layer of experts runs its exchanges and GEMMs one after the other.
    """

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The GEMM, the reduce-scatter, then the all-gather; the all-gather, then the GEMM; or experts as they are."""
        self._check(graph)
        if moe_layer(graph) is not None:
            return graph
        pair = consumed(graph)
        if pair is None:
            return super().apply(graph, gpu)
        choice = self._of_library() or (PLAIN if gpu.vendor == "none" else KernelChoice())
        return replace(graph, nodes=(replace(pair[0], choice=choice), pair[1]))

    def _check(self, graph: Graph) -> None:
        if moe_layer(graph) is None:
            if consumed(graph) is None:
                super()._check(graph)
        elif self.algorithm is not None:
            raise InputError(
                f"the exchanges of {graph} are those of the vendor's library, but algorithm is '{self.algorithm}'; "
                "leave it out"
            )


@dataclass(frozen=True)
class InNetwork(Pass):
    """The GEMM, then one all-reduce whose sums and copies the switch makes (NVLS), as the vendor's library runs it."""

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The GEMM, then the all-reduce."""
        self._check(graph)
        gemm, collective = produced(graph)
        return replace(graph, nodes=(gemm, replace(collective, choice=KernelChoice(LibraryCollective("nvls")))))

    def _check(self, graph: Graph) -> None:
        if not _is_all_reduce(produced(graph)[1]):
            raise InputError(
                f"'{self.name}' shortens all-reduces, but behind this GEMM is a reduce_scatter, which moves no byte "
                "less through a switch that adds; choose another overlap, or a sub-layer that ends with an all_reduce"
            )


@dataclass(frozen=True)
class TrackTrigger(_Scattering):
    """T3 (ASPLOS 2024, arXiv:2401.16677): the GEMM's stores trigger the reduce-scatter without a kernel.

    Stores are near-memory updates, the tracker counts them, and DMA sends complete tiles. The all-gather begins when
    the GPU's part of the reduce-scatter ends.
    """

    kernel: InSubLayer = field(default_factory=TrackedRing)
    by: Granularity = "tile"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm is not None:
            raise InputError(
                f"'{self.name}' sends tiles by the address map and has no algorithm, but algorithm is "
                f"'{self.algorithm}'; leave it out, or choose 'sequential'"
            )


@dataclass(frozen=True)
class TrackedExchange(Pass):
    """T3's mechanisms around a layer of experts: arriving tokens start tiles, and finished tiles update their tokens.

    DMA engines send the tokens, expert by expert; the memory of each token's owner adds up what its experts answer.
    """

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The layer with copies that the first GEMM awaits by tile, and a second GEMM whose tiles are the combine."""
        layer = routed(graph)
        for node in (layer.dispatch, layer.combine):
            if node.choice.kernel not in (MoEExchange(layer.routing), TrackedMoEExchange(layer.routing)):
                raise InputError(
                    f"'{self.name}' sends tokens by DMA engines that T3's tracker triggers, but the kernel of "
                    f"'{node.id}' states a dispatcher, channels or another routing; leave them out"
                )
        tracked = KernelChoice(TrackedMoEExchange(layer.routing))
        copied = replace(layer.dispatch, choice=tracked, stream="communication")
        up = replace(layer.up, after=(Edge(layer.dispatch.id, "tile"),))
        combine = replace(layer.combine, after=(Edge(layer.down.id, "tile"),), choice=tracked)
        return replace(graph, nodes=(copied, up, layer.down, combine))

    def _check(self, graph: Graph) -> None:
        routed(graph)


@dataclass(frozen=True)
class PerRank(Pass):
    """A layer of experts in sequence, whose exchanges a library carries out that sends a token once to each GPU.

    The exchanges take the library's compute units; results of experts on one GPU are added up there.
    """

    library: str = "deepep"

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The layer with the library's exchanges."""
        choice = KernelChoice(MoEExchange(routed(graph).routing, self.library))
        return graph.map(lambda node: replace(node, choice=choice) if isinstance(node.op, Collective) else node)

    def _check(self, graph: Graph) -> None:
        routed(graph)


@dataclass(frozen=True)
class NearMemoryScatter(_OfSubLayer):
    """The reduce-scatter alone, its additions done by the memory."""

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """One kernel that sends each chunk on, as updates, once it has been fully updated."""
        gemm, _ = produced(graph)
        assert isinstance(gemm.op, Gemm)
        reduce = scattered(graph, NearMemoryRing(gemm.op, gemm.choice.tiling)).nodes[1]
        return replace(graph, nodes=(replace(reduce, after=()),))


@dataclass(frozen=True)
class IdealSubLayer(Ideal, _OfSubLayer):
    """max(GEMM, reduce-scatter) + all-gather."""

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The GEMM and the reduce-scatter in streams of their own, then the all-gather."""
        gemm, reduce, *gather = scattered(graph, PaperRing()).nodes
        moved = replace(reduce, after=(), stream="communication")
        after = (replace(node, after=(gemm.id, reduce.id)) for node in gather)
        return replace(graph, nodes=(gemm, moved, *after))


@dataclass(frozen=True)
class Fused(Pass):
    """GEMM and collective as one kernel (Flux, arXiv:2406.06858).

    A collective after the GEMM: tiles are stored at the GPU that owns their rows, which adds up the tiles of all GPUs.
    An all-gather before it: DMA engines copy its chunks, nearest peer first, and a tile begins when its chunk has
    arrived or, with `TrackedArrivals`, as soon as so many rows of tiles of the chunk have: first the GPU's own, then in
    the order in which DMA engines send them. With `RemoteLoads` nothing is copied: tiles load their rows, the cache
    keeps lines of other GPUs' memory, and a switch may merge requests of several GPUs (CAIS, arXiv:2605.05628).
    """

    kernel: FusedTiles | FusedChunks | TrackedArrivals | RemoteLoads = field(default_factory=FusedTiles)

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = FusedTiles, FusedChunks, TrackedArrivals, RemoteLoads
        check_type("kernel", self.kernel, kinds, "give one that is fused with a GEMM")

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Both nodes, joined by tiles; an all-reduce ends with a ring all-gather."""
        self._check(graph)
        pair = consumed(graph)
        if pair is None:
            assert isinstance(self.kernel, FusedTiles | FusedChunks)
            return scattered(graph, self.kernel, by="tile")
        gather, gemm = pair
        first = replace(gather, choice=KernelChoice(self.kernel), stream="communication")
        return replace(graph, nodes=(first, replace(gemm, after=(Edge(gather.id, "tile"),))))

    def _check(self, graph: Graph) -> None:
        if consumed(graph) is not None:
            return
        moved = produced(graph)[1]
        if isinstance(self.kernel, TrackedArrivals | RemoteLoads):
            raise InputError(
                f"'{self.name}' joins an all-gather and the GEMM behind it, but {graph} is no such pair; give one, "
                "like weft.parallel.dependent('ag_gemm', gemm, ranks), or choose 't3'"
            )
        if isinstance(self.kernel, FusedChunks) and _is_all_reduce(moved):
            raise InputError(
                f"'{self.name}' sends parts of a reduce-scatter and has no all-gather behind it; "
                "give a GEMM followed by a reduce_scatter, or choose 'flux'"
            )


_TRACK = "GEMM fused with the reduce-scatter by track and trigger; memory arbitration: "
SUBLAYER_PASSES: tuple[Pass, ...] = (
    Sequential(
        "sequential",
        "Sequential",
        "GEMM, then ring reduce-scatter, then ring all-gather on the compute units: the baseline",
    ),
    Fused(
        "flux",
        "Flux",
        "one kernel: tiles are stored at their owners as fast as software does, or wait for their rows (Flux)",
    ),
    Fused(
        "userbuffers",
        "Userbuffers",
        "chunks of the GEMM and of the collective on several streams (TransformerEngine's userbuffers)",
        kernel=FusedChunks(),
    ),
    InNetwork(
        "in-network",
        "In-network",
        "switches add, so that the bytes of an all-reduce cross each link once; nothing runs beside it",
        ("switches that add",),
    ),
    TrackTrigger("t3", "T3", f"{_TRACK}round-robin", TRACKED),
    TrackTrigger("t3-mca", "T3-MCA", f"{_TRACK}compute-first", TRACKED, COMPUTE_FIRST),
    TrackTrigger("t3-critical", "T3-critical", f"{_TRACK}critical-first", TRACKED, CRITICAL_FIRST),
    TrackTrigger(
        "t3-direct",
        "T3-direct",
        "as t3, each tile straight to its owner: for full meshes and switches",
        ("tracker", "near-memory update"),
        kernel=TrackedDirect(),
    ),
    TrackTrigger(
        "t3-direct-dma",
        "T3-direct by DMA",
        "as t3-mca, DMA sends each tile straight to its owner: for full meshes and switches",
        TRACKED,
        COMPUTE_FIRST,
        kernel=TrackedDirect(by_dma=True),
    ),
    TrackTrigger(
        "t3-nvls",
        "T3-NVLS",
        "as t3-direct, the switch adds up the tiles of all GPUs on their way to the owner",
        ("tracker", "near-memory update", "switch that adds stores"),
        kernel=TrackedDirect(in_switch=True),
    ),
    TrackTrigger(
        "t3-two-level",
        "T3 on two levels",
        "as t3-mca, around a ring inside each node, then by DMA from node to node: for several nodes",
        TRACKED,
        COMPUTE_FIRST,
        kernel=TrackedRing(two_level=True),
    ),
    TrackTrigger(
        "t3-split-k",
        "T3-split-K",
        "as t3, K cut into parts that memory adds up: for outputs of few tiles",
        TRACKED,
        kernel=TrackedRing(split_k=True),
    ),
    Fused(
        "t3-all-gather",
        "T3-all-gather",
        "a GEMM behind an all-gather: its tiles begin as tile lines arrive, the GPU's own chunk first",
        ("tracker",),
        kernel=TrackedArrivals(),
    ),
    Fused(
        "remote-loads",
        "Remote loads",
        "a GEMM behind an all-gather: its tiles load their rows from the GPUs that have them, which a switch may merge",
        ("cache of other GPUs' memory",),
        kernel=RemoteLoads(),
    ),
    TrackedExchange(
        "t3-all-to-all",
        "T3-all-to-all",
        "experts: tiles start as their tokens arrive, and finished tiles update their tokens at the owner",
        TRACKED,
    ),
    PerRank(
        "deepep",
        "DeepEP",
        "experts: each token is sent once to each GPU that it reaches, and comes back as one sum, by DeepEP's channels",
    ),
    IdealSubLayer(
        "ideal-overlap",
        "Ideal-GEMM-RS-Overlap",
        "max(GEMM, RS) + AG of the sequential run's isolated times: perfect overlap, no contention",
    ),
    IdealSubLayer(
        "ideal-rs-nmc",
        "Ideal-RS+NMC",
        "as ideal-overlap, with the reduce-scatter's additions made near memory",
        ("near-memory update",),
        taken=(("reduce_scatter", "rs-nmc"),),
    ),
    NearMemoryScatter(
        "rs-nmc", "RS + NMC", "ring reduce-scatter alone, its stores being near-memory updates", ("near-memory update",)
    ),
)
"""The passes of a sub-layer, the baseline first."""
