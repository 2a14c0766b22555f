"""Lower operators that do not exchange data while they run: each has kernels and buffers of its own.

Kernels of one stream run one after another; between streams only dependencies, the dispatcher, memory and links order
them. Iterations of an operator share its buffers; different operators have different buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.core.units import to_fs
from weft.engine import layout as y
from weft.engine.program import Buffer, Kernel, PlacedKernel, Plan
from weft.engine.program.plan import CACHED_STORE, Work, renamed, renamed_aside, renamed_buffer
from weft.graph import Collective, Gemm, Graph, Node
from weft.hardware import Gpu
from weft.kernels import (
    GemmTiling,
    adding_kernel,
    gemm_kernel,
    operands,
    over_dies,
    stored_sizes,
    tile_table,
)
from weft.kernels.compute_units import Placement
from weft.kernels.execution_kernel import PlanKernel
from weft.overlaps.lower.collectives import CollectiveKernel
from weft.overlaps.lower.fit import MOST_TILES, check_tile, occupancy


@dataclass(frozen=True)
class _Product:
    """A GEMM operator: its tiles, numbered as in the run's tile table, and its kernels."""

    gemm: Gemm
    tiling: GemmTiling
    work: Work
    kernels: tuple[Kernel, ...]


def lower_independent(graph: Graph, gpu: Gpu, options: RunOptions, moved: Mapping[str, CollectiveKernel]) -> Plan:
    """Lower a graph whose operators share only the machine; `moved` holds the kernel of every collective.

    Raises InputError for a tile that the GPU cannot hold and for more tiles than a run can hold.
    """
    products = _products(graph, gpu, options, _held(graph, gpu, moved))
    stored = tuple(size for one in products.values() for size in stored_sizes(one.gemm, one.tiling))
    output = [Buffer("output", (stored,), (CACHED_STORE,) * len(stored))] if products else []
    return Plan(
        kernels=in_order(graph, gpu, lambda node: _kernels(node, gpu, options, products, moved)),
        buffers=(
            *(buffer for name, one in products.items() for buffer in operands(one.gemm, one.tiling, f"{name} ")),
            *output,
            *(
                Buffer(f"{name} sums", ((one.gemm.output_bytes,),), (CACHED_STORE,))
                for name, one in products.items()
                if one.tiling.splits > 1
            ),
            *(
                renamed_buffer(buffer, _prefix(name, moved))
                for name, kernel in moved.items()
                for buffer in kernel.buffers()
            ),
        ),
        work=(np.concatenate([one.work for one in products.values()]),) if products else (),
        wavefronts=max((one.tiling.wavefronts(gpu) for one in products.values()), default=1),
    )


def _held(graph: Graph, gpu: Gpu, moved: Mapping[str, CollectiveKernel]) -> int:
    """Return how many compute units the collective with the most workgroups holds, each on one while there are any."""
    most = 0
    for node in graph.collectives:
        kernel, mask = moved[node.name].kernel(gpu, node.id, node.iteration), node.choice.compute_units
        if kernel.exchanges:
            units = gpu.compute.compute_units if mask is None else len(mask)
            most = max(most, min(kernel.workgroups, units))
    return most


def _products(graph: Graph, gpu: Gpu, options: RunOptions, held: int) -> dict[str, _Product]:
    made: dict[str, _Product] = {}
    tiles = chunks = 0
    for node in graph.gemms:
        gemm, tiling, name = node.op, node.choice.tiling, node.name
        assert isinstance(gemm, Gemm)
        assert tiling is not None
        check_tile(gemm, tiling, gpu)
        work = over_dies(tile_table(gemm, tiling, 1), gpu)
        work[:, y.WORK_TILE] += tiles
        work[:, y.WORK_REGION] += chunks
        main = gemm_kernel(gemm, gpu, tiling, options, name, f"{name} ")
        on = Placement(node.choice.compute_units, occupancy(main, gpu), tiling.persistent)
        main = replace(
            main,
            part=(tiles, tiles + len(work)),
            clock=on.clock_gain(len(work), gpu, options),
            corun_clock=on.clock_gain(len(work), gpu, options, held),
            shaders=on.shaders(gpu),
            grid=tiling.persistent,
        )
        kernels = [main]
        if tiling.splits > 1:
            kernels.append(adding_kernel(gemm, gpu, tiling, name, chunks, f"{name} sums"))
        made[name] = _Product(gemm, tiling, work, tuple(kernels))
        tiles += len(work)
        chunks += len(stored_sizes(gemm, tiling))
    if tiles > MOST_TILES:
        raise InputError(
            f"the outputs of {len(made)} GEMMs have {tiles} tiles, more than the {MOST_TILES} that a run can hold; "
            "choose larger tiles or fewer GEMMs"
        )
    return made


def in_order(graph: Graph, gpu: Gpu, kernels: Callable[[Node], list[PlacedKernel]]) -> tuple[PlacedKernel, ...]:
    """Return the kernels of every node of a graph in order, each with predecessors, priority and compute units.

    A node's first kernel runs after the nodes that it depends on and after the previous one of its stream, delayed by
    the host's earlier launches.
    """
    launch = to_fs(gpu.compute.launch_latency)
    placed: list[PlacedKernel] = []
    last: dict[str, int] = {}
    of_stream: dict[str, int] = {}
    for node in graph:
        before = {last[edge.node] for edge in node.edges} | {of_stream[s] for s in (node.stream,) if s in of_stream}
        delay, main = node.choice.launches_before * launch, 0
        for one in kernels(node):
            placed.append(
                replace(
                    one,
                    after=tuple(sorted(before)),
                    priority=node.choice.priority,
                    compute_units=node.choice.compute_units,
                    delay_fs=one.delay_fs if one.aside else delay,
                    stream=graph.streams.index(node.stream),
                    operator=node.name,
                    iteration=node.iteration,
                )
            )
            if not one.aside:
                main = len(placed) - 1
                before, delay = {main}, 0
        last[node.id] = of_stream[node.stream] = main
    return tuple(placed)


def _kernels(
    node: Node,
    gpu: Gpu,
    options: RunOptions,
    products: Mapping[str, _Product],
    moved: Mapping[str, CollectiveKernel],
) -> list[PlacedKernel]:
    """Return the kernels of a node in launch order."""
    if isinstance(node.op, Collective):
        moves, prefix = moved[node.name], _prefix(node.name, moved)
        kernel = PlacedKernel(renamed(moves.kernel(gpu, node.id, node.iteration), prefix))
        if options.clock == "short":  # no GEMM runs long enough to lower the clock
            kernel = replace(kernel, kernel=replace(kernel.kernel, acknowledge_busy_fs=None))
        if not isinstance(moves, PlanKernel):
            return [kernel]
        return [*(renamed_aside(one, prefix) for one in moves.aside(gpu, node.id, node.iteration)), kernel]
    main, *adding = products[node.name].kernels
    # Dies with separate caches share only the memory: partial sums are written back before they are added.
    return [
        PlacedKernel(replace(main, name=node.id), release=bool(adding) and gpu.dies > 1),
        *(PlacedKernel(replace(kernel, name=f"{node.id} sum")) for kernel in adding),
    ]


def _prefix(name: str, moved: Mapping[str, CollectiveKernel]) -> str:
    """Return a name prefix for a collective's buffers; empty for an only collective."""
    return f"{name} " if len(moved) > 1 else ""
