"""Lower operators that share only the GPU to kernels and buffers, and a system to the integers of the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.engine.program import Plan
from weft.graph import Collective, Convolution, Gemm, Graph, Node, Op, Recurrent
from weft.graph.choice import LibraryCollective, NearMemoryRing, PaperRing, TiledGemm
from weft.graph.graph import check_alike, check_choice, two_kinds
from weft.hardware import System
from weft.kernels.copies import DmaGather
from weft.kernels.execution_kernel import PlanKernel
from weft.kernels.ring import WholeRing
from weft.overlaps.lower.collectives import CollectiveKernel, collective_kernel
from weft.overlaps.lower.fit import tiling_for
from weft.overlaps.lower.gpus import count_simulated, is_grouped, pace_links, why_uneven
from weft.overlaps.lower.independent import lower_independent
from weft.overlaps.lower.operators import lower_operators

MOST_NODES = 4096
"""Most operators of one run, every iteration of a loop counted."""


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


def lower_apart(graph: Graph, system: System, options: RunOptions) -> Lowered:
    """Lower a program, or GEMMs and collectives that share no buffer, to a plan.

    Raises InputError for operators without a kernel, and for a mode that the graph or the system does not allow.
    """
    firsts = {node.name for node in graph if node.iteration == 0}
    for node in graph:
        if node.name not in firsts and isinstance(node.op, Gemm | Collective):
            raise InputError(f"'{node.id}' is iteration {node.iteration} of a node that has no iteration 0; add it")
    if is_program(graph):
        for node in graph:
            check_choice(node, (TiledGemm,) if _is_product(node.op) else (), _PLACED, f"a {node.op.kind}")
        resolved, plan = lower_operators(graph, system.gpu, options)
        return Lowered(resolved, plan, system, count_simulated(graph, system, options))
    if is_grouped(graph, system):
        raise InputError(
            f"the system has {system.gpus} GPUs, {system.gpus // graph.ranks} groups of {graph.ranks}, but only groups "
            "that share a GEMM and the collective of its output, by tiles or around a ring, are simulated together; "
            f"choose a system of {graph.ranks}"
        )
    for node in graph.gemms:
        check_choice(node, (TiledGemm,), _PLACED, "a GEMM")
    moved = {node.name: collective_kernel(node, system) for node in graph.collectives}
    _check_iterations(graph, system, moved)
    gpus = count_simulated(graph, system, options, uneven=why_uneven(moved.values()))
    resolved = graph.map(partial(_resolve, system=system, options=options, moved=moved))
    plan = lower_independent(resolved, system.gpu, options, moved)
    return Lowered(resolved, plan, _paced(system, list(moved.values()), gpus), gpus)


def _paced(system: System, kernels: list[CollectiveKernel], gpus: int) -> System:
    """Return the system as kernels see it; InputError where copies over nodes meet what sees their network otherwise.

    Copies over nodes use the links of one node, rings over nodes a link that is the slower of links and adapters.
    """
    if system.nodes == 1 or not any(isinstance(kernel, DmaGather) for kernel in kernels):
        return pace_links(system, kernels)
    if gpus > 1 or not all(isinstance(kernel, DmaGather) for kernel in kernels):
        raise InputError(
            "copies by DMA engines over several nodes are simulated on one GPU, without rings beside them; choose mode "
            "'mirrored', and leave every collective to DMA engines"
        )
    return pace_links(system.with_gpus(system.gpus_per_node, 1), kernels)


def _check_iterations(graph: Graph, system: System, moved: dict[str, CollectiveKernel]) -> None:
    """Raise InputError where iterations of one name differ in what all take from the first: operator and kernel."""
    first = {node.name: node for node in graph if node.iteration == 0}
    for node in graph:
        one = first[node.name]
        moves = isinstance(node.op, Collective)
        check_alike(one, node, kernels=not moves)
        if moves and node.choice != one.choice and collective_kernel(node, system) != moved[node.name]:
            raise two_kinds(one, node, "kernel")


_PLACED = ("compute_units", "priority", "launches_before")
"""The placement that every kernel on compute units uses."""


def _is_product(op: Op) -> bool:
    return isinstance(op, Gemm | Convolution | Recurrent) or bool(getattr(op, "products", ()))


def is_program(graph: Graph) -> bool:
    """Return whether a graph runs operator by operator on its own tensors: one without collectives, but with other
    operators than single GEMMs, or with dependencies.
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


def check_masks(graph: Graph, system: System) -> None:
    """Raise InputError for too many nodes, a mask without a compute unit, or with one that the GPU lacks."""
    if len(graph) > MOST_NODES:
        raise InputError(f"{len(graph)} operators are queued; a run holds between 1 and {MOST_NODES}")
    gpu, units = system.gpu, system.gpu.compute.compute_units
    for node in graph:
        mask = node.choice.compute_units
        if mask is not None and (not mask or not 0 <= min(mask) <= max(mask) < units):
            has = f"has compute unit {max(mask)}" if mask else "has no compute unit"
            raise InputError(
                f"the mask of '{node.id}' {has}; {gpu.name} has 0 to {units - 1}: give one or more of these, or None"
            )


def is_joined(graph: Graph) -> bool:
    """Return whether operators of the graph share buffers: tile by tile, or in steps of the paper's ring."""
    by_tiles = any(edge.by == "tile" for node in graph for edge in node.edges)
    return by_tiles or any(_is_step(node) for node in graph)


def _is_step(node: Node) -> bool:
    return isinstance(node.choice.kernel, PaperRing | NearMemoryRing)


def _resolve(node: Node, system: System, options: RunOptions, moved: dict[str, CollectiveKernel]) -> Node:
    """Return the node with the tiling of its GEMM or the algorithm of its collective filled in."""
    choice = node.choice
    if isinstance(node.op, Gemm):
        tiling = choice.tiling or tiling_for(node.op, system.gpu, options, split=True)
        return replace(node, choice=choice.with_tiling(tiling))
    kernel = moved[node.name]
    if isinstance(kernel, WholeRing | DmaGather | PlanKernel):
        return node
    stated = choice.kernel if isinstance(choice.kernel, LibraryCollective) else LibraryCollective()
    return replace(node, choice=replace(choice, kernel=replace(stated, algorithm=kernel.algorithm)))
