"""From a graph to a plan: which kernels run on which buffers, under which address map."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from weft.errors import InputError
from weft.graph import Collective, Gemm, Graph, Node
from weft.hardware import System
from weft.kernels import GemmTiling
from weft.kernels.copies import DmaGather
from weft.library.software import SPLITS, costs
from weft.lower.collectives import CollectiveKernel, collective_kernel
from weft.lower.fit import parts_of_k, tiling_for
from weft.lower.fused import ChunkedGather, ChunkedScatter, GatherGemm, GemmScatter, fitting
from weft.lower.independent import lower_independent
from weft.lower.machine import fabric_of, ring_link
from weft.lower.operators import lower_operators
from weft.lower.sublayer import RingSubLayer
from weft.options import RunOptions
from weft.program import Plan

MOST_NODES = 4096
"""Most operators of one run, every iteration of a loop counted."""
EXPLICIT_LIMIT = 16
"""Most GPUs of an explicit run."""


@dataclass(frozen=True)
class Lowered:
    """A plan, the graph with all kernels chosen, and the system as its kernels see it.

    The link of `system` has the rate that stores of the graph's collectives reach. `gpus` is the number of GPUs
    simulated: one that represents all, or each.
    """

    graph: Graph
    plan: Plan
    system: System
    gpus: int


def lower(graph: Graph, system: System, options: RunOptions) -> Lowered:
    """Lower a graph on a system to a plan; the mode of the options decides how many GPUs are simulated.

    A GEMM and a collective that depend on each other take one of the joined forms, whose kernels share buffers; other
    operators have buffers of their own. Raises InputError for operators without a kernel, and for a mode that the graph
    or the system does not allow.
    """
    if len(graph) > MOST_NODES:
        raise InputError(f"{len(graph)} operators are queued; a run holds between 1 and {MOST_NODES}")
    if is_program(graph):
        settled, plan = lower_operators(graph, system.gpu, options)
        return Lowered(settled, plan, system, _simulated(graph, system, options))
    check_operators(graph)
    if is_joined(graph):
        return _joined(graph, system, options)
    _check_masks(graph, system)
    gpus = _simulated(graph, system, options)
    moved = {node.name: collective_kernel(node, system) for node in graph.collectives}
    settled = graph.map(lambda node: _settled(node, system, options, moved))
    plan = lower_independent(settled, system.gpu, options, moved)
    return Lowered(settled, plan, paced(system, moved.values()), gpus)


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


def _simulated(graph: Graph, system: System, options: RunOptions, *, even: bool = True) -> int:
    """The number of simulated GPUs: one if all are alike and chunks `even`, unless the options say otherwise.

    Raises InputError for a mode that the graph or the system does not allow.
    """
    alike = system.uniform and all(node.rank is None for node in graph)
    if options.mode == "mirrored" or (options.mode == "auto" and alike and even):
        if alike and even:
            return 1
        why = "their chunks differ in size" if alike else "they differ"
        raise InputError(f"one GPU cannot represent all {system.gpus}, because {why}; choose mode 'explicit'")
    if graph.ranks > EXPLICIT_LIMIT:
        raise InputError(
            f"{graph.ranks} GPUs are too many to simulate each (the most is {EXPLICIT_LIMIT}); "
            "choose mode 'mirrored' or a smaller TP"
        )
    return graph.ranks


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
    posted = slower.gpu.link.model_copy(update={"posted_stores": 1})
    return slower.with_gpu(slower.gpu.model_copy(update={"link": posted}))


def _slowed(system: System, share: float) -> System:
    """The system whose links carry stores of kernels at a share of their rate."""
    link = system.gpu.link
    slower = link.model_copy(update={"kernel_efficiency": link.kernel_efficiency * share})
    return system.with_gpu(system.gpu.model_copy(update={"link": slower}))


def _joined(graph: Graph, system: System, options: RunOptions) -> Lowered:
    """The plan of a graph whose GEMM and collectives share buffers."""
    ops, names = {node.id: node for node in graph}, ("reduce_scatter", "all_gather", "gemm")
    reduce, gather, gemm = map(ops.get, names)
    copied = gemm is not None and gather is not None and gather.choice.driver == "dma"
    if not set(ops) <= set(names) or (reduce is None and not copied):
        raise InputError(
            "tiles and steps of a ring join one 'gemm', its 'reduce_scatter' and its 'all_gather', or copies with the "
            f"GEMM behind them; {', '.join(ops)} are others: give their collectives the kernel 'library'"
        )
    tiling: GemmTiling
    if gemm is not None and gather is not None and reduce is None:
        gpus = _simulated(graph, system, options)
        tiling, plan = _gathered(gemm, gather, system, options)
    elif gemm is not None and reduce is not None and reduce.choice.driver == "tiles":
        gpus = _simulated(graph, system, options)
        tiling, plan = _scattered(gemm, reduce, gather is not None, system, options)
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
        ring = RingSubLayer(product, graph.ranks, system.gpu, tiling, options)
        gpus = _simulated(graph, system, options, even=ring.even)
        if gemm is None:
            plan = ring.near_memory_scatter(gpus)
        else:
            if reduce.choice.to_owners:
                _check_adjacent(system)
            plan = (ring.track_and_trigger if reduce.choice.driver == "tracker" else ring.sequential)(graph, gpus)
    settled = graph.map(
        lambda node: replace(node, choice=replace(node.choice, tiling=tiling)) if isinstance(node.op, Gemm) else node
    )
    return Lowered(settled, plan, system, gpus)


def _check_adjacent(system: System) -> None:
    """Raise InputError for GPUs that reach each other through other GPUs, hosts or networks."""
    node, fabric = system.node, system.fabric
    if fabric is None and (system.nodes > 1 or (node is not None and node.topology not in ("switch", "mesh"))):
        joined = f"{system.nodes} nodes" if system.nodes > 1 else f"a node joined by '{node and node.topology}'"
    elif fabric is not None and not fabric.adjacent:
        joined = f"the fabric '{fabric.name}'"
    else:
        return
    raise InputError(
        f"a direct reduce-scatter stores every tile at its owner, but in {joined} not every GPU reaches every other "
        "one by a link or a switch; choose a full mesh or a switch, or send tiles around the ring, like 't3'"
    )


def _gathered(gemm: Node, gather: Node, system: System, options: RunOptions) -> tuple[GemmTiling, Plan]:
    """Tiling and plan of an all-gather before its GEMM: tiles wait for their chunk, or each chunk has its own GEMM."""
    product, gpu, ranks = gemm.op, system.gpu, system.gpus
    assert isinstance(product, Gemm)
    whole = gather.choice.kernel == "tiles"
    cut = product if whole else replace(product, m=product.m // ranks)
    tiling = fitting(product, gemm.choice.tiling or tiling_for(cut, gpu, options), ranks)
    if whole:
        at_once = bool(fabric_of(system).striped)
        return tiling, GatherGemm(product, tiling, ranks, options, at_once=at_once).plan(gpu)
    return tiling, ChunkedGather(product, tiling, ranks, options).plan(gpu)


def _scattered(gemm: Node, reduce: Node, gathers: bool, system: System, options: RunOptions) -> tuple[GemmTiling, Plan]:
    """Tiling and plan of a reduce-scatter after its GEMM: tiles are stored at their owners, or part by part."""
    product, gpu, ranks = gemm.op, system.gpu, system.gpus
    assert isinstance(product, Gemm)
    if reduce.choice.kernel == "tiles":
        tiling = fitting(product, gemm.choice.tiling or tiling_for(product, gpu, options), ranks)
        return tiling, GemmScatter(product, tiling, ranks, options, gathers).plan(gpu)
    part = replace(product, m=-(-product.m // SPLITS))
    tiling = gemm.choice.tiling or tiling_for(part, gpu, options)
    return tiling, ChunkedScatter(product, tiling, ranks, options).plan(gpu)
