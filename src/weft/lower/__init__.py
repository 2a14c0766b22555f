"""From a graph to a plan: which kernels run on which buffers, under which address map."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, assert_never, get_args

import numpy as np

from weft.errors import InputError
from weft.estimate.target import check_held
from weft.graph import Collective, Convolution, Gemm, Graph, GroupedGemm, Node, Op, Recurrent
from weft.graph.choice import (
    FusedChunks,
    FusedTiles,
    InSubLayer,
    LibraryCollective,
    MoEExchange,
    NearMemoryRing,
    OfRows,
    PaperRing,
    RemoteLoads,
    TiledGemm,
    TrackedArrivals,
    TrackedDirect,
    TrackedMoEExchange,
    TrackedRing,
)
from weft.graph.graph import check_choice
from weft.graph.moe import MoELayer, moe_layer
from weft.hardware import Gpu, GpuLink, System
from weft.kernels import GemmTiling
from weft.kernels.channels import ChannelTiling
from weft.kernels.copies import DmaGather
from weft.kernels.execution_kernel import PlanKernel
from weft.kernels.ring import WholeRing
from weft.library.software import SPLITS, costs
from weft.lower.collectives import CollectiveKernel, collective_kernel, cu_collective
from weft.lower.experts import ExpertLayer, on_all_units
from weft.lower.fit import parts_of_k, tiling_for
from weft.lower.fused import (
    ChunkedGather,
    ChunkedScatter,
    GatherFirst,
    GatherGemm,
    GemmScatter,
    LoadingGemm,
    fitting,
)
from weft.lower.independent import lower_independent
from weft.lower.machine import fabric_of, nodes_among, of_levels, ring_link
from weft.lower.operators import lower_operators
from weft.lower.per_rank import PerRankLayer, channels_of
from weft.lower.sublayer import RingSubLayer
from weft.options import RunOptions
from weft.program import Plan

MOST_NODES = 4096
"""Most operators of one run, every iteration of a loop counted."""
EXPLICIT_LIMIT = 64
"""Most GPUs of an explicit run."""


@dataclass(frozen=True)
class Lowered:
    """A plan, the graph with all kernels chosen, and the system as its kernels see it.

    The link of `system` has the rate that stores of the graph's collectives reach. `gpus` is the number of GPUs
    simulated: one that represents all, those of a node or row, or each.
    """

    graph: Graph
    plan: Plan
    system: System
    gpus: int

    @property
    def group(self) -> int:
        """The number of GPUs that share the graph, where more are simulated, or some that represent it; else 0."""
        return self.graph.ranks if self.gpus not in (1, self.graph.ranks) else 0


def lower(graph: Graph, system: System, options: RunOptions) -> Lowered:
    """Lower a graph on a system to a plan; the mode of the options decides how many GPUs are simulated.

    A GEMM and a collective that depend on each other take one of the joined forms, whose kernels share buffers; other
    operators have buffers of their own. Raises InputError for operators without a kernel, and for a mode that the graph
    or the system does not allow.
    """
    if len(graph) > MOST_NODES:
        raise InputError(f"{len(graph)} operators are queued; a run holds between 1 and {MOST_NODES}")
    _check_masks(graph, system)
    if is_program(graph):
        for node in graph:
            check_choice(node, (TiledGemm,) if _is_product(node.op) else (), _PLACED, f"a {node.op.kind}")
        settled, plan = lower_operators(graph, system.gpu, options)
        return Lowered(settled, plan, system, _simulated(graph, system, options))
    if (layer := moe_layer(graph)) is not None:
        return _lower_experts(graph, layer, system, options)
    check_operators(graph)
    if is_joined(graph):
        return _joined(graph, system, options)
    if _grouped(graph, system):
        raise InputError(
            f"the system has {system.gpus} GPUs, {system.gpus // graph.ranks} groups of {graph.ranks}, but only groups "
            "that share a GEMM and the collective of its output, by tiles or around a ring, are simulated together; "
            f"choose a system of {graph.ranks}"
        )
    for node in graph.gemms:
        check_choice(node, (TiledGemm,), _PLACED, "a GEMM")
    moved = {node.name: collective_kernel(node, system) for node in graph.collectives}
    gpus = _simulated(graph, system, options, uneven=_uneven(moved.values()))
    settled = graph.map(lambda node: _settled(node, system, options, moved))
    plan = lower_independent(settled, system.gpu, options, moved)
    return Lowered(settled, plan, paced(system, moved.values()), gpus)


_PLACED = ("compute_units", "priority", "launches_before")
"""The placement that every kernel on compute units uses."""


def _is_product(op: Op) -> bool:
    return isinstance(op, Gemm | Convolution | Recurrent) or bool(getattr(op, "products", ()))


def _lower_experts(graph: Graph, moe: MoELayer, system: System, options: RunOptions) -> Lowered:
    """The plan of an MoE layer: one step after the other or, where DMA engines dispatch, joined by T3."""
    for node in graph:
        moves = isinstance(node.op, Collective)
        check_choice(node, (MoEExchange, TrackedMoEExchange) if moves else (TiledGemm,), (), "a layer of experts")
    layer, system = expert_layer(graph, system, options)
    kernel = moe.dispatch.choice.kernel
    plan = (
        layer.track_and_trigger()
        if isinstance(kernel, TrackedMoEExchange)
        else layer.plan()
        if isinstance(layer, PerRankLayer)
        else layer.sequential()
    )

    def cut(node: Node) -> Node:
        return replace(node, choice=node.choice.with_tiling(layer.tiling)) if isinstance(node.op, GroupedGemm) else node

    return Lowered(graph.map(cut), plan, system, layer.gpus)


def expert_layer(graph: Graph, system: System, options: RunOptions) -> tuple[ExpertLayer, System]:
    """The kernels of an MoE layer, and the system as its exchanges see it."""
    layer = moe_layer(graph)
    assert layer is not None
    routing, kernel = layer.routing, layer.dispatch.choice.kernel
    if routing.ranks != graph.ranks:
        raise InputError(
            f"the routing is among {routing.ranks} GPUs, but the graph runs on {graph.ranks}; give both one number"
        )
    if layer.combine.choice.kernel != kernel:
        raise InputError("dispatch and combine of the layer of experts have different kernels; give both the same one")
    _check_adjacent(system, graph.ranks, "a layer of experts sends tokens straight to the GPU of each expert")
    up, down, moved = (node.op for node in (layer.up, layer.down, layer.dispatch))
    assert isinstance(up, GroupedGemm)
    assert isinstance(down, GroupedGemm)
    assert isinstance(moved, Collective)
    for op in (up, down, moved):
        check_held(op, system.gpu)
    uneven = "" if routing.even else "their experts get different numbers of tokens"
    gpus = _simulated(graph, system, options, uneven=uneven)
    exchange = on_all_units(system.gpu)
    combining = None
    if isinstance(kernel, MoEExchange) and kernel.dispatcher is not None:
        exchange, combining = (channels_of(kernel.dispatcher, name, system.gpu) for name in ("dispatch", "combine"))
        system = _slowed(system, min(exchange.link, combining.link))
    elif isinstance(kernel, MoEExchange) and system.gpu.vendor != "none":
        moves = cu_collective(moved.name, moved.bytes, graph.ranks, system, moved.dtype, kernel.channels)
        assert isinstance(moves.tiling, ChannelTiling)
        exchange, system = moves.tiling, _slowed(system, moves.tiling.link)
    tiling = layer.up.choice.tiling or tiling_for(Gemm(up.rows, up.n, up.k, up.dtype), system.gpu, options)
    parts = routing, up, down, tiling, exchange, system.gpu, gpus, options
    return ExpertLayer(*parts) if combining is None else PerRankLayer(*parts, combining), system


def is_program(graph: Graph) -> bool:
    """Whether a graph runs operator by operator on its own tensors: one without collectives, but with other operators
    than single GEMMs, or with dependencies.
    """
    if graph.collectives or is_joined(graph):
        return False
    return any(node.edges or not isinstance(node.op, Gemm) or np.any(np.asarray(node.op.batch) > 1) for node in graph)


def check_operators(graph: Graph) -> None:
    """Raise InputError for an operator that the engine has no kernel for."""
    ask = "ask weft.estimate for a closed form"
    for node in graph:
        op = node.op
        if not isinstance(op, Gemm | Collective):
            raise InputError(
                f"the engine has no kernel for '{node.id}' ({op.kind}); it runs GEMMs and collectives: {ask}"
            )
        sizes = (op.m, op.n, op.k, op.batch) if isinstance(op, Gemm) else (op.bytes, op.ranks)
        if not all(isinstance(size, int) for size in sizes):
            raise InputError(f"the dimensions of '{node.id}' are arrays; a run takes a whole number for each, or {ask}")
        if isinstance(op, Gemm) and op.batch > 1:
            raise InputError(
                f"'{node.id}' is a batch of {op.batch} GEMMs; the engine has kernels for single ones: {ask}"
            )


def _check_masks(graph: Graph, system: System) -> None:
    """Raise InputError for a mask without a compute unit, or with one that the GPU lacks."""
    gpu, units = system.gpu, system.gpu.compute.compute_units
    for node in graph:
        mask = node.choice.compute_units
        if mask is not None and (not mask or not 0 <= min(mask) <= max(mask) < units):
            has = f"has compute unit {max(mask)}" if mask else "has no compute unit"
            raise InputError(
                f"the mask of '{node.id}' {has}; {gpu.name} has 0 to {units - 1}: give one or more of these, or None"
            )


def _uneven(kernels: Iterable[CollectiveKernel]) -> str:
    """Why one GPU cannot represent all that run some kernels; empty if it can."""
    unequal = any(isinstance(kernel, PlanKernel) and not kernel.symmetric for kernel in kernels)
    return "the steps of the plan's ranks differ" if unequal else ""


def _simulated(graph: Graph, system: System, options: RunOptions, *, uneven: str = "") -> int:
    """The number of simulated GPUs: one if all are alike and nothing is `uneven`, unless the options say otherwise.

    Mirrored runs of a fabric whose nodes or rows are alike simulate one of them. Raises InputError for a mode that the
    graph or the system does not allow.
    """
    several = _grouped(graph, system)
    least = 0 if several or any(node.rank is not None for node in graph) else system.representatives
    if options.mode == "mirrored" or (options.mode == "auto" and least == 1 and not uneven):
        if not least or uneven:
            groups = f"they form {system.gpus // graph.ranks} groups" if several else "they differ"
            why = uneven if least else groups
            raise InputError(f"one GPU cannot represent all {system.gpus}, because {why}; choose mode 'explicit'")
        gpus = least
    else:
        gpus = system.gpus if several else graph.ranks
    if gpus > EXPLICIT_LIMIT:
        fewer = "fewer groups" if several else "mode 'mirrored' or a smaller TP"
        raise InputError(f"{gpus} GPUs are too many to simulate each (the most is {EXPLICIT_LIMIT}); choose {fewer}")
    if gpus not in (1, graph.ranks) and options.updates:
        raise InputError(
            f"updates record the tiles of {graph.ranks} GPUs, but {gpus} are simulated; leave updates out, or choose a "
            f"system of {graph.ranks} and mode 'explicit'"
        )
    return gpus


def _grouped(graph: Graph, system: System) -> bool:
    """Whether the GPUs of the system form several groups, each of which shares the graph: neighbouring ranks."""
    return bool(graph.collectives) and system.gpus > graph.ranks


def is_joined(graph: Graph) -> bool:
    """Whether operators of the graph share buffers: tile by tile, or in steps of the paper's ring."""
    by_tiles = any(edge.by == "tile" for node in graph for edge in node.edges)
    return by_tiles or any(_is_step(node) for node in graph)


def _is_step(node: Node) -> bool:
    return isinstance(node.choice.kernel, PaperRing | NearMemoryRing)


def _settled(node: Node, system: System, options: RunOptions, moved: dict[str, CollectiveKernel]) -> Node:
    """The node with the tiling of its GEMM or the algorithm of its collective filled in."""
    choice = node.choice
    if isinstance(node.op, Gemm):
        tiling = choice.tiling or tiling_for(node.op, system.gpu, options, split=True)
        return replace(node, choice=choice.with_tiling(tiling))
    kernel = moved[node.name]
    if isinstance(kernel, WholeRing | DmaGather | PlanKernel):
        return node
    stated = choice.kernel if isinstance(choice.kernel, LibraryCollective) else LibraryCollective()
    return replace(node, choice=replace(choice, kernel=replace(stated, algorithm=kernel.algorithm)))


def paced(system: System, kernels: Iterable[CollectiveKernel]) -> System:
    """The system with its link's rate reduced to what stores of kernels reach."""
    return _slowed(
        system, min((1.0 if isinstance(kernel, DmaGather) else kernel.tiling.link for kernel in kernels), default=1.0)
    )


def _storing_tiles(system: System) -> System:
    """The system as fused kernels of one node see it, which store tiles at their owners and go on with the next tile.

    The loop of stores limits their rate, whatever the links (`flux.store_rate` in `library/software.toml`). No such
    software exists for a machine without a vendor.
    """
    if system.nodes > 1 or system.gpu.vendor == "none":
        return system
    link = ring_link(system)
    slower = _slowed(system, min(costs()["flux.store_rate"] / (link.bandwidth * link.kernel_efficiency), 1.0))
    return _linked(slower, lambda own: {"store_buffer": UNLIMITED})


UNLIMITED = 1 << 50
"""A store buffer that never fills [bytes]: the rate of the software's stores stands for all that holds them up."""


def _slowed(system: System, share: float) -> System:
    """The system whose links carry stores of kernels at a share of their rate."""
    return _linked(system, lambda own: {"kernel_efficiency": own.kernel_efficiency * share})


def _linked(system: System, values: Callable[[GpuLink], dict[str, Any]]) -> System:
    """The system with other values of the link of every GPU, of those that differ, too."""

    def linked(gpu: Gpu) -> Gpu:
        return gpu.model_copy(update={"link": gpu.link.model_copy(update=values(gpu.link))})

    found = system.with_gpu(linked(system.gpu))
    return found.varied({rank: linked(gpu) for rank, gpu in system.variants.items()}) if system.variants else found


class _SubLayer(NamedTuple):
    """The nodes of a GEMM and of the collectives that share its buffers, as far as the graph has them."""

    gemm: Node | None
    reduce: Node | None
    gather: Node | None


def _sub_layer(graph: Graph) -> _SubLayer:
    """The nodes of a sub-layer; InputError for a graph with others, or with two of a kind."""
    kinds = ["gemm" if isinstance(node.op, Gemm) else getattr(node.op, "name", "") for node in graph]
    found = dict(zip(kinds, graph, strict=True))
    nodes = _SubLayer(*(found.get(kind) for kind in ("gemm", "reduce_scatter", "all_gather")))
    consumes = nodes.gemm and nodes.gather and any(edge.node == nodes.gather.id for edge in nodes.gemm.edges)
    named = kinds == [node.id for node in graph]  # as the buffers and traffic of the plan are
    if not named or set(found) - {"gemm", "reduce_scatter", "all_gather"} or (nodes.reduce is None and not consumes):
        raise InputError(
            "tiles and steps of a ring join one 'gemm', its 'reduce_scatter' and its 'all_gather', or an 'all_gather' "
            f"with the GEMM behind it; {', '.join(node.id for node in graph)} are others: leave the kernels of their "
            "collectives to the library"
        )
    return nodes


def _joined(graph: Graph, system: System, options: RunOptions) -> Lowered:
    """The plan of a graph whose GEMM and collectives share buffers."""
    nodes = _sub_layer(graph)
    for node in graph:
        moves = isinstance(node.op, Collective)
        check_choice(node, get_args(InSubLayer | OfRows) if moves else (TiledGemm,), (), "a joined GEMM and collective")
    if nodes.reduce is not None:
        lowered = _scattered(graph, nodes, system, options)
    else:
        assert nodes.gemm is not None
        assert nodes.gather is not None
        lowered = _gathered(graph, nodes.gemm, nodes.gather, system, options)
    tiling, plan, system, gpus = lowered
    return Lowered(graph.with_tiling(tiling), plan, system, gpus)


class _Joined(NamedTuple):
    """The tiling of a GEMM, the plan that joins it with collectives, the system as kernels see it, simulated GPUs."""

    tiling: GemmTiling
    plan: Plan
    system: System
    gpus: int


_TO_OWNERS = "a direct reduce-scatter stores every tile at its owner"


def _check_adjacent(system: System, ranks: int, what: str = _TO_OWNERS) -> None:
    """Raise InputError, which says `what` needs links, for GPUs of a group joined through other GPUs or networks."""
    node, fabric = system.node, system.fabric
    if fabric is None and (system.nodes > 1 or (node is not None and node.topology not in ("switch", "mesh"))):
        joined = f"{system.nodes} nodes" if system.nodes > 1 else f"a node joined by '{node and node.topology}'"
    elif fabric is not None and not fabric.adjacent(ranks):
        joined = f"the fabric '{fabric.name}'"
    else:
        return
    otherwise = ", or send tiles around the ring, like 't3'" if what == _TO_OWNERS else ""
    raise InputError(
        f"{what}, but in {joined} not every GPU reaches every other one by a link or a switch; choose a full mesh or a "
        f"switch{otherwise}"
    )


def _gathered(graph: Graph, gemm: Node, gather: Node, system: System, options: RunOptions) -> _Joined:
    """An all-gather before its GEMM: in sequence, or the GEMM's tiles wait for rows or load them, or by chunks."""
    product, gpu, ranks, kernel = gemm.op, system.gpu, graph.ranks, gather.choice.kernel
    assert isinstance(product, Gemm)
    fabric = fabric_of(system)
    merged = isinstance(kernel, RemoteLoads) and fabric.merges
    uneven = "the switch merges what their loads ask for at the same time" if merged else ""
    gpus = _simulated(graph, system, options, uneven=uneven)
    if isinstance(kernel, PaperRing) and any(edge.by == "tile" for edge in gemm.edges):
        raise InputError(f"'{gemm.id}' waits for tiles of '{gather.id}', a step of a ring; let it wait by kernel")
    cut = replace(product, m=product.m // ranks) if isinstance(kernel, FusedChunks) else product
    tiling = fitting(product, gemm.choice.tiling or tiling_for(cut, gpu, options), ranks)
    match kernel:
        case PaperRing():
            plan = GatherFirst(product, tiling, ranks, options).plan(gpu)
        case RemoteLoads():
            _check_adjacent(system, ranks, "tiles load rows from the GPUs that have them")
            plan = LoadingGemm(product, tiling, ranks, options, fabric.merges).plan(gpu, gpus)
        case FusedTiles():
            plan = GatherGemm(product, tiling, ranks, options, bool(fabric.striped)).plan(gpu)
        case TrackedArrivals(tile_rows):
            striped, passed_on = bool(fabric.striped), not fabric.adjacent(ranks)
            plan = GatherGemm(product, tiling, ranks, options, striped, tile_rows, passed_on).plan(gpu)
        case FusedChunks():
            plan = ChunkedGather(product, tiling, ranks, options).plan(gpu)
        case _:
            raise _not_joined(gather)
    return _Joined(tiling, plan, system, gpus)


def _scattered(graph: Graph, nodes: _SubLayer, system: System, options: RunOptions) -> _Joined:
    """A reduce-scatter after its GEMM: around a ring, by T3, fused tile by tile, or part by part."""
    reduce, ranks = nodes.reduce, graph.ranks
    assert reduce is not None
    kernel = reduce.choice.kernel
    if isinstance(kernel, NearMemoryRing):
        own = kernel.tiling or tiling_for(kernel.gemm, system.gpu, options, ranks)
        ring = RingSubLayer(kernel.gemm, ranks, system.gpu, own, options)
        gpus = _simulated_ring(graph, system, options, ring)
        return _Joined(own, ring.near_memory_scatter(gpus), system, gpus)
    if nodes.gemm is None:
        raise _not_joined(reduce)
    product, given = nodes.gemm.op, nodes.gemm.choice.tiling
    assert isinstance(product, Gemm)
    match kernel:
        case FusedTiles():
            gpus, gathers = _simulated(graph, system, options), nodes.gather is not None
            tiling = fitting(product, given or tiling_for(product, system.gpu, options), ranks)
            plan = GemmScatter(product, tiling, ranks, options, gathers).plan(system.gpu)
            return _Joined(tiling, plan, system if gathers else _storing_tiles(system), gpus)
        case FusedChunks():
            gpus, part = _simulated(graph, system, options), replace(product, m=-(-product.m // SPLITS))
            tiling = given or tiling_for(part, system.gpu, options)
            return _Joined(tiling, ChunkedScatter(product, tiling, ranks, options).plan(system.gpu), system, gpus)
        case PaperRing() | TrackedRing() | TrackedDirect():
            return _around_ring(graph, product, given, kernel, system, options)
        case _:
            raise _not_joined(reduce)


def _around_ring(
    graph: Graph,
    product: Gemm,
    given: GemmTiling | None,
    kernel: PaperRing | TrackedRing | TrackedDirect,
    system: System,
    options: RunOptions,
) -> _Joined:
    """A reduce-scatter after its GEMM in steps of the paper's ring, or as T3 makes it."""
    tiling, nodes, merges = given or tiling_for(product, system.gpu, options, graph.ranks), 1, False
    if isinstance(kernel, TrackedRing):
        if given is None and kernel.split_k:
            tiling = replace(tiling, splits=parts_of_k(product, tiling, system.gpu, options))
        if kernel.two_level:
            system = of_levels(system)
            nodes = nodes_among(system, graph.ranks)
    elif isinstance(kernel, TrackedDirect):
        merges = kernel.in_switch and fabric_of(system).merges
    ring = RingSubLayer(product, graph.ranks, system.gpu, tiling, options, nodes, merges)
    gpus = _simulated_ring(graph, system, options, ring)
    match kernel:
        case PaperRing():
            return _Joined(tiling, ring.sequential(graph, gpus), system, gpus)
        case TrackedRing():
            return _Joined(tiling, ring.track_and_trigger(graph, kernel, gpus), system, gpus)
        case TrackedDirect():
            _check_adjacent(system, graph.ranks)
            if kernel.in_switch and not fabric_of(system).reduces:
                raise InputError(
                    f"{system.name} has no switch that adds what passes it, as tiles of all GPUs on their way to an "
                    "owner need; choose a node like dgx-h100, a fabric that adds, or 't3-direct'"
                )
            return _Joined(tiling, ring.track_and_trigger(graph, kernel, gpus), system, gpus)
        case _:
            assert_never(kernel)


def _simulated_ring(graph: Graph, system: System, options: RunOptions, ring: RingSubLayer) -> int:
    uneven = "" if ring.even else "their chunks differ in size"
    uneven = "the switch merges what their stores bring at the same time" if ring.merges else uneven
    return _simulated(graph, system, options, uneven=uneven)


def _not_joined(node: Node) -> InputError:
    """The error for a collective whose kernel shares no buffer with a GEMM, or whose GEMM is missing."""
    kernel = node.choice.kernel
    asks = "is left to the library" if kernel is None else f"is a {type(kernel).__name__}"
    return InputError(
        f"'{node.id}' shares buffers with a GEMM, but its kernel {asks}, which does not join it with one; choose "
        "PaperRing, FusedTiles or another kernel that does, or let nodes wait by kernel"
    )
