"""A GEMM and the collective of its own output: one after the other, joined tile by tile, or ideal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from weft.errors import InputError
from weft.graph import Collective, Edge, Graph, KernelChoice, Node
from weft.graph.graph import Granularity
from weft.hardware import Gpu
from weft.schedule.arbiters import COMPUTE_FIRST, CRITICAL_FIRST
from weft.schedule.base import Ideal, Pass

TRACKED = ("tracker", "near-memory update", "triggered DMA")
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
class Sequential(_OfSubLayer):
    """GEMM with cached stores, cache write-back, then ring reduce-scatter and all-gather on compute units.

    `choice` is the kernel choice of the reduce-scatter, which waits for the GEMM `by` kernel or by tile.
    """

    choice: KernelChoice = PLAIN
    by: Granularity = "kernel"

    def apply(self, graph: Graph, gpu: Gpu) -> Graph:
        """The GEMM, the reduce-scatter, then the all-gather."""
        return scattered(graph, self.choice, self.by)


@dataclass(frozen=True)
class TrackTrigger(Sequential):
    """T3 (ASPLOS 2024, arXiv:2401.16677): the GEMM's stores trigger the reduce-scatter without a kernel.

    Stores are near-memory updates, the tracker counts them, and DMA sends complete tiles. The all-gather begins when
    the GPU's part of the reduce-scatter ends.
    """

    choice: KernelChoice = TRIGGERED
    by: Granularity = "tile"


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
        "t3-split-k",
        "T3-split-K",
        "as t3, K cut into parts that memory adds up: for outputs of few tiles",
        TRACKED,
        choice=IN_PARTS,
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
