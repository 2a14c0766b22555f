"""A GEMM and the collective of its own output: one after the other, joined tile by tile, or ideal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from weft.errors import InputError, check_name
from weft.graph import Collective, Edge, Graph, KernelChoice, Node
from weft.graph.graph import Granularity
from weft.graph.routing import routing_of
from weft.hardware import Gpu
from weft.library.collectives import KERNELS
from weft.schedule.arbiters import COMPUTE_FIRST, CRITICAL_FIRST
from weft.schedule.base import Ideal, Pass

TRACKED = ("tracker", "near-memory update", "triggered DMA")
LIBRARY = "library"
"""The kernel that the vendor's library would choose."""
PLAIN = KernelChoice(kernel="plain-ring")
"""The paper's ring kernel: on every compute unit, without slices or staging."""
TRIGGERED = KernelChoice("tracker", near_memory=True)
"""DMA engines triggered by the tracker; the memory does the additions."""
TO_OWNERS = replace(TRIGGERED, kernel="direct")
"""Tiles stored at the GPUs that own them; their memory does the additions."""
IN_PARTS = replace(TRIGGERED, kernel="split-k")
"""As TRIGGERED, of a GEMM whose K is cut into parts: the memory adds these up, too."""


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


def routed(graph: Graph) -> Graph:
    """A layer of experts; InputError for any other graph."""
    if routing_of(graph) is None:
        raise InputError(
            f"{graph} is no layer of experts; give one, like weft.experts(weft.Routing(4096, 8, 256, 8), hidden=7168, "
            "ffn=2048), or choose an overlap of a GEMM and its collective, such as 't3'"
        )
    return graph


def scattered(graph: Graph, choice: KernelChoice, by: Granularity = "kernel") -> Graph:
    """A sub-layer whose all-reduce becomes a reduce-scatter, joined `by` kernel or tile, and an all-gather."""
    gemm, collective = produced(graph)
    op = collective.op
    assert isinstance(op, Collective)
    reduce = Node(replace(op, name="reduce_scatter"), "reduce_scatter", after=(Edge(gemm.id, by),), choice=choice)
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

    `choice` is the kernel choice of the reduce-scatter, which waits for the GEMM `by` kernel or by tile. `algorithm`
    takes the library's kernels of both collectives in place of the plain ring: "ring", "direct", "nvls", or "library"
    (the one that it would choose).
    """

    choice: KernelChoice = PLAIN
    by: Granularity = "kernel"
    algorithm: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm is not None:
            check_name("algorithm", self.algorithm, (*KERNELS, LIBRARY))

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The GEMM, the reduce-scatter, then the all-gather."""
        found = scattered(graph, self.choice, self.by)
        if self.algorithm is None:
            return found
        kernel = KernelChoice(kernel=self.algorithm)
        return found.map(lambda node: replace(node, choice=kernel) if isinstance(node.op, Collective) else node)


@dataclass(frozen=True)
class Sequential(_Scattering):
    """GEMM with cached stores, cache write-back, then ring reduce-scatter and all-gather on compute units.

    An all-gather before the GEMM runs on compute units, too, by the vendor's library if there is one, and ends before
    the GEMM begins; a layer of experts runs its exchanges and GEMMs one after the other.
    """

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The GEMM, the reduce-scatter, then the all-gather; the all-gather, then the GEMM; or experts as they are."""
        self._check(graph)
        if routing_of(graph) is not None:
            return graph
        pair = consumed(graph)
        if pair is None:
            return super().apply(graph, gpu)
        choice = PLAIN if gpu.vendor == "none" else KernelChoice()
        if self.algorithm is not None:
            choice = KernelChoice(kernel=self.algorithm)
        return replace(graph, nodes=(replace(pair[0], choice=choice), pair[1]))

    def _check(self, graph: Graph) -> None:
        if routing_of(graph) is None:
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
        return replace(graph, nodes=(gemm, replace(collective, choice=KernelChoice(kernel="nvls"))))

    def _check(self, graph: Graph) -> None:
        if produced(graph)[1].name == "reduce_scatter":
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

    choice: KernelChoice = TRIGGERED
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
        dispatch, up, down, combine = routed(graph).nodes
        copied = replace(dispatch, choice=replace(dispatch.choice, driver="dma"), stream="communication")
        up = replace(up, after=(Edge(dispatch.id, "tile"),))
        tracked = replace(combine.choice, driver="tracker", near_memory=True)
        return replace(
            graph, nodes=(copied, up, down, replace(combine, after=(Edge(down.id, "tile"),), choice=tracked))
        )

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

        def chosen(node: Node) -> Node:
            moves = isinstance(node.op, Collective)
            return replace(node, choice=replace(node.choice, kernel=self.library)) if moves else node

        return routed(graph).map(chosen)

    def _check(self, graph: Graph) -> None:
        routed(graph)


@dataclass(frozen=True)
class NearMemoryScatter(_OfSubLayer):
    """The reduce-scatter alone, its additions done by the memory."""

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """One kernel that sends each chunk on, as updates, once it has been fully updated."""
        gemm, _ = produced(graph)
        choice = replace(PLAIN, near_memory=True, tiles_of=gemm.op, tiling=gemm.choice.tiling)
        return replace(graph, nodes=(replace(scattered(graph, choice)["reduce_scatter"], after=()),))


@dataclass(frozen=True)
class IdealSubLayer(Ideal, _OfSubLayer):
    """max(GEMM, reduce-scatter) + all-gather."""

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The GEMM and the reduce-scatter in streams of their own, then the all-gather."""
        gemm, reduce, *gather = scattered(graph, PLAIN).nodes
        moved = replace(reduce, after=(), stream="communication")
        after = (replace(node, after=(gemm.id, reduce.id)) for node in gather)
        return replace(graph, nodes=(gemm, moved, *after))


@dataclass(frozen=True)
class Fused(Pass):
    """GEMM and collective as one kernel (Flux, arXiv:2406.06858).

    A collective after the GEMM: tiles are stored at the GPU that owns their rows, which adds up the tiles of all GPUs.
    An all-gather before it: DMA engines copy its chunks, nearest peer first, and a tile begins when its chunk has
    arrived.
    """

    how: Literal["tiles", "chunks"] = "tiles"

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Both nodes, joined by tiles; an all-reduce ends with a ring all-gather."""
        self._check(graph)
        pair = consumed(graph)
        if pair is None:
            return scattered(graph, KernelChoice("tiles", kernel=self.how), by="tile")
        gather, gemm = pair
        first = replace(gather, choice=KernelChoice("dma", kernel=self.how), stream="communication")
        return replace(graph, nodes=(first, replace(gemm, after=(Edge(gather.id, "tile"),))))

    def _check(self, graph: Graph) -> None:
        if consumed(graph) is None and produced(graph)[1].name != "reduce_scatter" and self.how == "chunks":
            raise InputError(
                f"'{self.name}' sends parts of a reduce-scatter and has no all-gather behind it; "
                "give a GEMM followed by a reduce_scatter, or choose 'flux'"
            )


class _BehindGather(Fused):
    def _check(self, graph: Graph) -> None:
        if consumed(graph) is None:
            raise InputError(
                f"'{self.name}' joins an all-gather and the GEMM behind it, but {graph} is no such pair; give one, "
                "like weft.parallel.dependent('ag_gemm', gemm, ranks), or choose 't3'"
            )


@dataclass(frozen=True)
class LoadsOfRows(_BehindGather):
    """An all-gather and the GEMM behind it without copies: its tiles load their rows from the GPUs that have them.

    The last-level cache keeps lines of other GPUs' memory. A switch with a table and a window merges the requests of
    several GPUs for one place (CAIS, arXiv:2605.05628).
    """

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Both nodes, joined by tiles."""
        gather, gemm = super().apply(graph, gpu).nodes
        return replace(graph, nodes=(replace(gather, choice=KernelChoice("tiles", kernel="loads")), gemm))


@dataclass(frozen=True)
class LineByLine(_BehindGather):
    """An all-gather and the GEMM behind it as under T3's tracker, which counts what arrives of every tile line.

    The GPU's own rows come first; then tiles begin as soon as `lines` lines of a chunk are there (0: all of them, which
    is what `flux` waits for), in the order in which DMA engines send them.
    """

    lines: int = 1

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """Both nodes, joined by tiles."""
        gather, gemm = super().apply(graph, gpu).nodes
        copies = (("lines", self.lines),) if self.lines else ()
        return replace(graph, nodes=(replace(gather, choice=replace(gather.choice, copies=copies)), gemm))


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
        how="chunks",
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
        choice=TO_OWNERS,
    ),
    TrackTrigger(
        "t3-direct-dma",
        "T3-direct by DMA",
        "as t3-mca, DMA sends each tile straight to its owner: for full meshes and switches",
        TRACKED,
        COMPUTE_FIRST,
        choice=replace(TO_OWNERS, kernel="direct-dma"),
    ),
    TrackTrigger(
        "t3-nvls",
        "T3-NVLS",
        "as t3-direct, the switch adds up the tiles of all GPUs on their way to the owner",
        ("tracker", "near-memory update", "switch that adds stores"),
        choice=replace(TO_OWNERS, kernel="direct-summed"),
    ),
    TrackTrigger(
        "t3-two-level",
        "T3 on two levels",
        "as t3-mca, around a ring inside each node, then by DMA from node to node: for several nodes",
        TRACKED,
        COMPUTE_FIRST,
        choice=replace(TRIGGERED, kernel="two-level"),
    ),
    TrackTrigger(
        "t3-split-k",
        "T3-split-K",
        "as t3, K cut into parts that memory adds up: for outputs of few tiles",
        TRACKED,
        choice=IN_PARTS,
    ),
    LineByLine(
        "t3-all-gather",
        "T3-all-gather",
        "a GEMM behind an all-gather: its tiles begin as tile lines arrive, the GPU's own chunk first",
        ("tracker",),
    ),
    LoadsOfRows(
        "remote-loads",
        "Remote loads",
        "a GEMM behind an all-gather: its tiles load their rows from the GPUs that have them, which a switch may merge",
        ("cache of other GPUs' memory",),
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
