"""From a graph to a plan: which kernels run on which buffers, under which address map."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.errors import InputError, UnknownNameError
from weft.estimate.target import check_held
from weft.graph import Collective, Convolution, Gemm, Graph, GroupedGemm, Node, Op, Recurrent
from weft.graph.graph import check_choice
from weft.graph.routing import Routing, routing_of
from weft.hardware import Gpu, GpuLink, System
from weft.kernels import GemmTiling
from weft.kernels.channels import ChannelTiling
from weft.kernels.copies import DmaGather
from weft.kernels.execution_kernel import PlanKernel
from weft.library.dispatchers import dispatchers
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
    RemoteLoads,
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
            check_choice(node, (*_PLACED, *(("tiling",) if _is_product(node.op) else ())), f"a {node.op.kind}")
        settled, plan = lower_operators(graph, system.gpu, options)
        return Lowered(settled, plan, system, _simulated(graph, system, options))
    if (routing := routing_of(graph)) is not None:
        return _routed(graph, routing, system, options)
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
        check_choice(node, (*_PLACED, "tiling"), "a GEMM")
    moved = {node.name: collective_kernel(node, system) for node in graph.collectives}
    gpus = _simulated(graph, system, options, uneven=_uneven(moved.values()))
    settled = graph.map(lambda node: _settled(node, system, options, moved))
    plan = lower_independent(settled, system.gpu, options, moved)
    return Lowered(settled, plan, paced(system, moved.values()), gpus)


_PLACED = ("compute_units", "priority", "launches_before")
"""What every kernel on compute units uses of a choice."""
_JOINED = ("driver", "kernel", "near_memory", "tiles_of", "tiling", "copies")
"""What a collective uses of its choice that shares buffers with a GEMM."""


def _is_product(op: Op) -> bool:
    return isinstance(op, Gemm | Convolution | Recurrent) or bool(getattr(op, "products", ()))


def _routed(graph: Graph, routing: Routing, system: System, options: RunOptions) -> Lowered:
    """The plan of a layer of experts: one step after the other or, where DMA engines dispatch, joined by T3."""
    exchange = ("routing", "driver", "kernel", "near_memory", "channels")
    for node in graph:
        moves = isinstance(node.op, Collective)
        check_choice(node, exchange if moves else ("tiling",), "a layer of experts")
        if moves and node.choice.kernel not in ("library", *dispatchers()):
            raise UnknownNameError("library that exchanges tokens", node.choice.kernel, ["library", *dispatchers()])
    layer, system = expert_layer(graph, routing, system, options)
    tracked = graph["dispatch"].choice.driver == "dma"
    plan = (
        layer.track_and_trigger()
        if tracked
        else layer.plan()
        if isinstance(layer, PerRankLayer)
        else layer.sequential()
    )

    def cut(node: Node) -> Node:
        grouped = isinstance(node.op, GroupedGemm)
        return replace(node, choice=replace(node.choice, tiling=layer.tiling)) if grouped else node

    return Lowered(graph.map(cut), plan, system, layer.gpus)


def expert_layer(graph: Graph, routing: Routing, system: System, options: RunOptions) -> tuple[ExpertLayer, System]:
    """The kernels of a layer of experts, and the system as its exchanges see it."""
    if routing.ranks != graph.ranks:
        raise InputError(
            f"the routing is among {routing.ranks} GPUs, but the graph runs on {graph.ranks}; give both one number"
        )
    _check_adjacent(system, graph.ranks, "a layer of experts sends tokens straight to the GPU of each expert")
    up, down, moved = (graph[name].op for name in ("up", "down", "dispatch"))
    assert isinstance(up, GroupedGemm)
    assert isinstance(down, GroupedGemm)
    assert isinstance(moved, Collective)
    for op in (up, down, moved):
        check_held(op, system.gpu)
    uneven = "" if routing.even else "their experts get different numbers of tokens"
    gpus = _simulated(graph, system, options, uneven=uneven)
    tracked = graph["dispatch"].choice.driver == "dma"
    library = graph["dispatch"].choice.kernel
    exchange = combining = on_all_units(system.gpu)
    if library in dispatchers():
        exchange, combining = (channels_of(library, name, system.gpu) for name in ("dispatch", "combine"))
        system = _slowed(system, min(exchange.link, combining.link))
    elif not tracked and system.gpu.vendor != "none":
        channels = graph["dispatch"].choice.channels
        moves = cu_collective(moved.name, moved.bytes, graph.ranks, system, moved.dtype, channels)
        assert isinstance(moves.tiling, ChannelTiling)
        exchange, system = moves.tiling, _slowed(system, moves.tiling.link)
    tiling = graph["up"].choice.tiling or tiling_for(Gemm(up.rows, up.n, up.k, up.dtype), system.gpu, options)
    parts = routing, up, down, tiling, exchange, system.gpu, gpus, options
    return PerRankLayer(*parts, combining) if library in dispatchers() else ExpertLayer(*parts), system


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
    if not isinstance(node.op, Collective) or node.op.name == "all_reduce":
        return False
    return node.choice.kernel == "plain-ring" and node.choice.in_flight is None


def _settled(node: Node, system: System, options: RunOptions, moved: dict[str, CollectiveKernel]) -> Node:
    """The node with the tiling of its GEMM or the algorithm of its collective filled in."""
    choice = node.choice
    if isinstance(node.op, Gemm):
        tiling = choice.tiling or tiling_for(node.op, system.gpu, options, split=True)
        return replace(node, choice=replace(choice, tiling=tiling))
    return replace(node, choice=replace(choice, kernel=moved[node.name].algorithm))


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


def _joined(graph: Graph, system: System, options: RunOptions) -> Lowered:
    """The plan of a graph whose GEMM and collectives share buffers."""
    for node in graph:
        moves = isinstance(node.op, Collective)
        check_choice(node, _JOINED if moves else ("tiling",), "a joined GEMM and collective")
    ops, names = {node.id: node for node in graph}, ("reduce_scatter", "all_gather", "gemm")
    reduce, gather, gemm = map(ops.get, names)
    consumes = gemm is not None and gather is not None and any(edge.node == gather.id for edge in gemm.edges)
    if not set(ops) <= set(names) or (reduce is None and not consumes):
        raise InputError(
            "tiles and steps of a ring join one 'gemm', its 'reduce_scatter' and its 'all_gather', or an 'all_gather' "
            f"with the GEMM behind it; {', '.join(ops)} are others: give their collectives the kernel 'library'"
        )
    tiling: GemmTiling
    if gemm is not None and gather is not None and reduce is None:
        merged = gather.choice.kernel == "loads" and fabric_of(system).merges
        uneven = "the switch merges what their loads ask for at the same time" if merged else ""
        gpus = _simulated(graph, system, options, uneven=uneven)
        tiling, plan = _gathered(gemm, gather, system, options, graph.ranks, gpus)
    elif gemm is not None and reduce is not None and reduce.choice.driver == "tiles":
        gpus = _simulated(graph, system, options)
        tiling, plan = _scattered(graph, system, options)
        if reduce.choice.kernel == "tiles" and gather is None:
            system = _storing_tiles(system)
    else:
        assert reduce is not None
        product = reduce.choice.tiles_of if gemm is None else gemm.op
        assert isinstance(product, Gemm)
        given = (reduce if gemm is None else gemm).choice.tiling
        tiling = given or tiling_for(product, system.gpu, options, graph.ranks)
        if given is None and reduce.choice.kernel == "split-k":
            tiling = replace(tiling, splits=parts_of_k(product, tiling, system.gpu, options))
        nodes = 1
        if reduce.choice.kernel == "two-level":
            system = of_levels(system)
            nodes = nodes_among(system, graph.ranks)
        merges = reduce.choice.kernel == "direct-summed" and fabric_of(system).merges
        ring = RingSubLayer(product, graph.ranks, system.gpu, tiling, options, nodes, merges)
        uneven = "" if ring.even else "their chunks differ in size"
        uneven = "the switch merges what their stores bring at the same time" if merges else uneven
        gpus = _simulated(graph, system, options, uneven=uneven)
        if gemm is None:
            plan = ring.near_memory_scatter(gpus)
        else:
            if reduce.choice.to_owners:
                _check_adjacent(system, graph.ranks)
            if reduce.choice.kernel == "direct-summed" and not fabric_of(system).reduces:
                raise InputError(
                    f"{system.name} has no switch that adds what passes it, as tiles of all GPUs on their way to an "
                    "owner need; choose a node like dgx-h100, a fabric that adds, or 't3-direct'"
                )
            plan = (ring.track_and_trigger if reduce.choice.driver == "tracker" else ring.sequential)(graph, gpus)
    settled = graph.map(
        lambda node: replace(node, choice=replace(node.choice, tiling=tiling)) if isinstance(node.op, Gemm) else node
    )
    return Lowered(settled, plan, system, gpus)


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


def _gathered(
    gemm: Node, gather: Node, system: System, options: RunOptions, ranks: int, gpus: int
) -> tuple[GemmTiling, Plan]:
    """Tiling and plan, for `gpus` simulated ones, of an all-gather before its GEMM.

    It runs in sequence, the GEMM's tiles wait for it or load their rows, or each chunk has a GEMM.
    """
    product, gpu, choice = gemm.op, system.gpu, gather.choice
    assert isinstance(product, Gemm)
    sequence, by_tile = choice.driver == "cu", any(edge.by == "tile" for edge in gemm.edges)
    if sequence and by_tile:
        raise InputError(f"'{gemm.id}' waits for tiles of '{gather.id}', a step of a ring; let it wait by kernel")
    whole = sequence or choice.kernel in ("tiles", "loads")
    cut = product if whole else replace(product, m=product.m // ranks)
    tiling = fitting(product, gemm.choice.tiling or tiling_for(cut, gpu, options), ranks)
    if sequence:
        return tiling, GatherFirst(product, tiling, ranks, options).plan(gpu)
    if choice.kernel == "loads":
        _check_adjacent(system, ranks, "tiles load rows from the GPUs that have them")
        return tiling, RemoteLoads(product, tiling, ranks, options, fabric_of(system).merges).plan(gpu, gpus)
    if whole:
        fabric, lines = fabric_of(system), int(dict(choice.copies).get("lines", 0))
        passed_on = lines > 0 and not fabric.adjacent(ranks)
        return tiling, GatherGemm(product, tiling, ranks, options, bool(fabric.striped), lines, passed_on).plan(gpu)
    return tiling, ChunkedGather(product, tiling, ranks, options).plan(gpu)


def _scattered(graph: Graph, system: System, options: RunOptions) -> tuple[GemmTiling, Plan]:
    """Tiling and plan of a reduce-scatter after its GEMM: tiles are stored at their owners, or part by part."""
    gemm, reduce, gpu, ranks = graph["gemm"], graph["reduce_scatter"], system.gpu, graph.ranks
    product, gathers = gemm.op, "all_gather" in graph.operators
    assert isinstance(product, Gemm)
    if reduce.choice.kernel == "tiles":
        tiling = fitting(product, gemm.choice.tiling or tiling_for(product, gpu, options), ranks)
        return tiling, GemmScatter(product, tiling, ranks, options, gathers).plan(gpu)
    part = replace(product, m=-(-product.m // SPLITS))
    tiling = gemm.choice.tiling or tiling_for(part, gpu, options)
    return tiling, ChunkedScatter(product, tiling, ranks, options).plan(gpu)
