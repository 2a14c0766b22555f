"""From a graph to a plan: which kernels run on which buffers, under which address map."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from weft.errors import InputError
from weft.graph import Collective, Gemm, Graph, Node
from weft.hardware import System
from weft.kernels import GemmTiling
from weft.lower.chunked import SPLITS, ChunkedGather, ChunkedScatter
from weft.lower.collectives import CollectiveKernel, algorithm_of, collective_kernel, link_share
from weft.lower.flux import GatherGemm, GemmScatter, fitting
from weft.lower.independent import lower_independent
from weft.lower.nodes import fabric_of
from weft.lower.problem import Problem
from weft.lower.sublayer import near_memory_scatter, sequential, track_and_trigger
from weft.lower.tile import tiling_for
from weft.options import RunOptions
from weft.program import Plan

MOST_NODES = 4096
"""Operators that one run may hold, the iterations of loops counted each."""


@dataclass(frozen=True)
class Lowered:
    """A plan, the graph with every choice settled that it carries out, and the system as its kernels see it.

    `system` has a link at the rate that the stores of the graph's collectives reach.
    """

    graph: Graph
    plan: Plan
    system: System


def lower(graph: Graph, system: System, options: RunOptions, simulated: int = 1) -> Lowered:
    """The plan of a graph on the first `simulated` GPUs of a system (1: one stands for all).

    A GEMM and a collective that depend on each other become one of the joined forms, whose kernels share buffers;
    other operators have buffers of their own. Raises InputError for what no kernel carries out.
    """
    check_operators(graph)
    if len(graph) > MOST_NODES:
        raise InputError(f"{len(graph)} operators are queued; a run holds between 1 and {MOST_NODES}")
    if is_joined(graph):
        return _joined(graph, system, options, simulated)
    moved = {node.name: collective_kernel(node, system) for node in graph.collectives}
    settled = graph.map(lambda node: _settled(node, system, options, moved))
    plan = lower_independent(settled, system.gpu, options, moved, simulated)
    return Lowered(settled, plan, paced(system, moved.values()))


def check_operators(graph: Graph) -> None:
    """Raise InputError for an operator that the engine has no kernel for."""
    for node in graph:
        if not isinstance(node.op, Gemm | Collective):
            raise InputError(
                f"the engine has no kernel for '{node.id}' ({node.op.kind}); it runs GEMMs and collectives: "
                "ask weft.estimate for a closed form"
            )


def is_joined(graph: Graph) -> bool:
    """Whether operators of the graph work on each other's data: by tiles, or by steps of the paper's ring."""
    by_tiles = any(edge.by == "tile" for node in graph for edge in node.edges)
    return by_tiles or any(_is_step(node) for node in graph)


def _is_step(node: Node) -> bool:
    if not isinstance(node.op, Collective) or node.op.name == "all_reduce":
        return False
    return node.choice.kernel == "plain-ring" and node.choice.in_flight is None


def _settled(node: Node, system: System, options: RunOptions, moved: dict[str, CollectiveKernel]) -> Node:
    """The node with its tile, or with the algorithm and the workgroups of its collective."""
    choice = node.choice
    if isinstance(node.op, Gemm):
        tiling = choice.tiling or tiling_for(node.op, system.gpu, options, split=True)
        return replace(node, choice=replace(choice, tiling=tiling))
    return replace(node, choice=replace(choice, kernel=algorithm_of(moved[node.name])))


def paced(system: System, kernels: Iterable[CollectiveKernel]) -> System:
    """The system with a link at the rate that the stores of kernels reach."""
    share = min((link_share(kernel) for kernel in kernels), default=1.0)
    link = system.gpu.link
    slower = link.model_copy(update={"kernel_efficiency": link.kernel_efficiency * share})
    return system.with_gpu(system.gpu.model_copy(update={"link": slower}))


def _joined(graph: Graph, system: System, options: RunOptions, simulated: int) -> Lowered:
    ops = {node.id: node for node in graph}
    reduce, gather, gemm = (ops.get(name) for name in ("reduce_scatter", "all_gather", "gemm"))
    others = [name for name in ops if name not in ("reduce_scatter", "all_gather", "gemm")]
    if others or (reduce is None and (gemm is None or gather is None or gather.choice.driver != "dma")):
        raise InputError(
            "tiles and steps of a ring join one 'gemm', its 'reduce_scatter' and its 'all_gather', or copies with the "
            f"GEMM behind them; {', '.join(ops)} are others: give their collectives the kernel 'library'"
        )
    tiling: GemmTiling | None
    if gather is not None and reduce is None and gemm is not None:
        tiling, plan = _gathered(gemm, gather, system, options, simulated)
    elif gemm is not None and reduce is not None and reduce.choice.driver == "tiles":
        tiling, plan = _scattered(gemm, reduce, gather is not None, system, options, simulated)
    else:
        assert reduce is not None
        problem = problem_of(graph, system, options, simulated)
        tiling = problem.tiling
        if gemm is None:
            plan = near_memory_scatter(problem)
        else:
            plan = (track_and_trigger if reduce.choice.driver == "tracker" else sequential)(problem, graph)
    settled = graph.map(
        lambda node: replace(node, choice=replace(node.choice, tiling=tiling)) if isinstance(node.op, Gemm) else node
    )
    return Lowered(settled, plan, system)


def problem_of(graph: Graph, system: System, options: RunOptions, simulated: int = 1) -> Problem:
    """The GEMM of a joined graph, as the GPUs that reduce its output share it."""
    reduce = graph["reduce_scatter"]
    gemm = reduce.choice.tiles_of or graph["gemm"].op
    given = (reduce if reduce.choice.tiles_of else graph["gemm"]).choice.tiling
    assert isinstance(gemm, Gemm)
    tiling = given or tiling_for(gemm, system.gpu, options, graph.ranks)
    return Problem(gemm, graph.ranks, system.gpu, tiling, simulated, options=options)


def _gathered(gemm: Node, gather: Node, system: System, options: RunOptions, gpus: int) -> tuple[GemmTiling, Plan]:
    """An all-gather before its GEMM: tiles wait for their chunk of rows, or every chunk has a GEMM of its own."""
    product, gpu, ranks = gemm.op, system.gpu, system.gpus
    assert isinstance(product, Gemm)
    whole = gather.choice.kernel == "tiles"
    cut = product if whole else replace(product, m=product.m // ranks)
    tiling = fitting(product, gemm.choice.tiling or tiling_for(cut, gpu, options), ranks)
    if whole:
        at_once = bool(fabric_of(system).striped)
        return tiling, GatherGemm(product, tiling, ranks, options, at_once=at_once).plan(gpu, gpus)
    return tiling, ChunkedGather(product, tiling, ranks, options).plan(gpu, gpus)


def _scattered(
    gemm: Node, reduce: Node, gathers: bool, system: System, options: RunOptions, gpus: int
) -> tuple[GemmTiling, Plan]:
    """A reduce-scatter behind its GEMM: tiles are stored at their owners, or parts are sent on one by one."""
    product, gpu, ranks = gemm.op, system.gpu, system.gpus
    assert isinstance(product, Gemm)
    if reduce.choice.kernel == "tiles":
        tiling = fitting(product, gemm.choice.tiling or tiling_for(product, gpu, options), ranks)
        return tiling, GemmScatter(product, tiling, ranks, options, gathers).plan(gpu, gpus)
    part = replace(product, m=-(-product.m // SPLITS))
    tiling = gemm.choice.tiling or tiling_for(part, gpu, options)
    return tiling, ChunkedScatter(product, tiling, ranks, options).plan(gpu, gpus)
