"""A GEMM and the ring collectives of its own output: kernel by kernel, or joined by T3's tracker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.errors import InputError
from weft.graph import Graph
from weft.kernels import gather_kernel, near_memory_reduce_kernel, reduce_kernel
from weft.lower.problem import Problem
from weft.program import Buffer, PlacedKernel, Plan, Wait


def sequential(problem: Problem, graph: Graph) -> Plan:
    """The graph's steps, each behind what it waits for and what is before it in its stream.

    The output is stored through the cache and written back before others read it. Raises InputError for a step that
    waits for tiles.
    """
    chunks, gpu, ring = problem.chunks, problem.gpu, problem.ring
    reduce = reduce_kernel(chunks, gpu, problem.ring_tiling, problem.gemm.output_element_bytes)
    gather = gather_kernel(chunks, gpu, problem.ring_tiling, own=("result", 0))
    steps = {
        # AMD's caches are written back at a kernel's end; NVIDIA's L2, where all SMs meet, keeps its lines.
        "gemm": PlacedKernel(problem.product, release=gpu.vendor != "nvidia", operator="gemm"),
        "reduce_scatter": PlacedKernel(reduce, operator="reduce_scatter"),
        "all_gather": PlacedKernel(gather, operator="all_gather"),
    }
    return Plan(
        kernels=_placed(steps, graph),
        buffers=(
            *problem.operands(),
            problem.output(ring.stored_output()),
            Buffer("received", problem.chunk_bytes, ring.received()),
            Buffer("result", tuple((sizes[-1],) for sizes in problem.chunk_bytes)),
            *_gathered(problem, graph),
        ),
        work=problem.work,
        wavefronts=problem.tiling.wavefronts(gpu),
    )


def _placed(steps: Mapping[str, PlacedKernel], graph: Graph) -> tuple[PlacedKernel, ...]:
    """The kernels of a graph's nodes in its order, with the order and the shares that it gives them."""
    rows = {node.id: row for row, node in enumerate(graph)}
    streams, placed = graph.streams, []
    last: dict[str, int] = {}
    for row, node in enumerate(graph):
        tiles = [edge.node for edge in node.edges if edge.by == "tile"]
        if tiles:
            raise InputError(f"'{node.id}', a step of a ring, waits for '{tiles[0]}' by tile; let it wait by kernel")
        after = {rows[edge.node] for edge in node.edges} | {last[s] for s in (node.stream,) if s in last}
        choice = node.choice
        placed.append(
            replace(
                steps[node.id],
                after=tuple(sorted(after)),
                priority=choice.priority,
                compute_units=choice.compute_units,
                stream=streams.index(node.stream),
            )
        )
        last[node.stream] = row
    return tuple(placed)


def _gathered(problem: Problem, graph: Graph) -> tuple[Buffer, ...]:
    return (problem.gathered(),) if "all_gather" in graph.operators else ()


def near_memory_scatter(problem: Problem) -> Plan:
    """One kernel that sends each chunk on, as updates, when it has been fully updated."""
    kernel = near_memory_reduce_kernel(problem.chunks, problem.gpu, problem.ring_tiling)
    return Plan(
        kernels=(PlacedKernel(kernel, operator="reduce_scatter"),),
        buffers=(Buffer("output", problem.chunk_bytes, problem.ring.updated_output()),),
        work=(),
    )


def track_and_trigger(problem: Problem, graph: Graph) -> Plan:
    """T3 (ASPLOS 2024, arXiv:2401.16677): the reduce-scatter is in the address map; the others are left."""
    chunks, gpu, ring = problem.chunks, problem.gpu, problem.ring
    gather = gather_kernel(chunks, gpu, problem.ring_tiling, own=("output", chunks - 1))
    # The reduce-scatter is over on a GPU when its own chunk is reduced and the last one for others has left.
    over = [Wait("output", chunks - 1)]
    if chunks > 2:
        over.append(Wait("output", chunks - 2, sent=True))
    kernels = (
        PlacedKernel(problem.product, monitor=True, operator="gemm"),
        PlacedKernel(gather, after=(0,), after_chunks=tuple(over), operator="all_gather"),
    )
    return Plan(
        kernels=tuple(kernel for kernel in kernels if kernel.operator in graph.operators),
        buffers=(*problem.operands(), problem.output(ring.fused_reduce_scatter()), *_gathered(problem, graph)),
        work=problem.work,
        wavefronts=problem.tiling.wavefronts(gpu),
    )
