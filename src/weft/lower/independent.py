"""Operators that do not exchange data while they run: GEMMs and collectives, each with kernels and buffers of its own.

Kernels of one stream follow each other; between streams only dependencies, the dispatcher, memory and links decide.
Iterations of an operator share its buffers; different operators have buffers of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from weft.engine import layout as y
from weft.errors import InputError
from weft.graph import Collective, Gemm, Graph, Node
from weft.hardware import Gpu
from weft.kernels import (
    GemmTiling,
    adding_kernel,
    gemm_kernel,
    operands,
    over_dies,
    stored_sizes,
    sums,
    tile_table,
)
from weft.lower.collectives import CollectiveKernel
from weft.lower.fit import MOST_TILES, check_tile
from weft.options import RunOptions
from weft.program import Buffer, Kernel, PlacedKernel, Plan
from weft.program.plan import CACHED_STORE, Work, renamed, renamed_buffer
from weft.units import to_fs


@dataclass(frozen=True)
class _Product:
    """A GEMM operator: its tiles in the run's table, its chunks of the buffer of outputs, its kernels."""

    name: str
    gemm: Gemm
    tiling: GemmTiling
    work: Work
    first_chunk: int
    kernels: tuple[Kernel, ...]


def lower_independent(
    graph: Graph, gpu: Gpu, options: RunOptions, moved: Mapping[str, CollectiveKernel], gpus: int = 1
) -> Plan:
    """The plan of a graph whose operators share only the machine; `moved` holds the kernel of every collective.

    Raises InputError for a tile that the GPU cannot hold and for more tiles than a run can hold.
    """
    products = _products(graph, gpu, options)
    stored = tuple(size for one in products.values() for size in stored_sizes(one.gemm, one.tiling))
    inputs = [buffer for p in products.values() for buffer in operands(p.gemm, p.tiling, gpus, f"{p.name} ")]
    output = [Buffer("output", (stored,) * gpus, (CACHED_STORE,) * len(stored))] if products else []
    added = [sums(p.gemm, f"{p.name} sums", gpus) for p in products.values() if p.tiling.splits > 1]
    arrivals = [
        renamed_buffer(buffer, _prefix(name, moved))
        for name, kernel in moved.items()
        for buffer in kernel.buffers(gpus)
    ]
    return Plan(
        kernels=_placed(graph, gpu, products, moved),
        buffers=(*inputs, *output, *added, *arrivals),
        work=(_numbered(products),) * gpus if products else (),
        wavefronts=max((one.tiling.wavefronts(gpu) for one in products.values()), default=1),
    )


def _products(graph: Graph, gpu: Gpu, options: RunOptions) -> dict[str, _Product]:
    made: dict[str, _Product] = {}
    tiles = chunks = 0
    for node in graph.gemms:
        gemm, tiling = node.op, node.choice.tiling
        assert isinstance(gemm, Gemm)
        check_tile(gemm, tiling, gpu)
        work = over_dies(tile_table(gemm, tiling, 1), gpu)
        main = _owned(gemm_kernel(gemm, gpu, tiling, options), node.name, f"{node.name} ")
        kernels = [replace(main, part=(tiles, tiles + len(work)))]
        if tiling.splits > 1:
            adding = adding_kernel(gemm, gpu, tiling, "sum", chunks, f"{node.name} sums")
            kernels.append(_owned(adding, node.name))
        made[node.name] = _Product(node.name, gemm, tiling, work, chunks, tuple(kernels))
        tiles += len(work)
        chunks += len(stored_sizes(gemm, tiling))
    if tiles > MOST_TILES:
        raise InputError(
            f"the outputs of {len(made)} GEMMs have {tiles} tiles, more than the {MOST_TILES} that a run can hold; "
            "choose larger tiles or fewer GEMMs"
        )
    return made


def _owned(kernel: Kernel, operator: str, prefix: str = "") -> Kernel:
    """The kernel with all its traffic on an operator's account, and `prefix` before the buffers that it reads."""
    phases = tuple(
        replace(
            phase,
            loads=tuple(replace(load, operator=operator, buffer=prefix + load.buffer) for load in phase.loads),
            store=phase.store and replace(phase.store, operator=operator),
        )
        for phase in kernel.phases
    )
    return replace(kernel, phases=phases)


def _placed(
    graph: Graph, gpu: Gpu, products: Mapping[str, _Product], moved: Mapping[str, CollectiveKernel]
) -> tuple[PlacedKernel, ...]:
    """Every node's kernels, behind those of the node before it in its stream and of those that it waits for."""
    launch = to_fs(gpu.compute.launch_latency)
    placed: list[PlacedKernel] = []
    last: dict[str, int] = {}
    of_stream: dict[str, int] = {}
    lanes = {stream: number for number, stream in enumerate(graph.streams)}
    for node in graph:
        before = [last[edge.node] for edge in node.edges]
        if node.stream in of_stream:
            before.append(of_stream[node.stream])
        delay = node.choice.launches_before * launch
        for number, (kernel, release) in enumerate(_kernels(node, gpu, products, moved)):
            after = tuple(sorted(set(before))) if number == 0 else (len(placed) - 1,)
            placed.append(
                PlacedKernel(
                    kernel,
                    after=after,
                    priority=node.choice.priority,
                    release=release,
                    compute_units=node.choice.compute_units,
                    delay_fs=delay if number == 0 else 0,
                    stream=lanes[node.stream],
                    operator=node.name,
                    iteration=node.iteration,
                )
            )
        last[node.id] = of_stream[node.stream] = len(placed) - 1
    return tuple(placed)


def _kernels(
    node: Node, gpu: Gpu, products: Mapping[str, _Product], moved: Mapping[str, CollectiveKernel]
) -> list[tuple[Kernel, bool]]:
    """The kernels of a node in order, and whether each releases what it wrote to other readers."""
    if isinstance(node.op, Collective):
        kernel = moved[node.name].kernel(gpu, node.id, node.iteration)
        return [(renamed(kernel, _prefix(node.name, moved)), False)]
    main, *adding = products[node.name].kernels
    # Dies with caches of their own meet in memory: there partial sums are written back before they are added.
    return [
        (replace(main, name=node.id), bool(adding) and gpu.dies > 1),
        *((replace(kernel, name=f"{node.id} sum"), False) for kernel in adding),
    ]


def _prefix(name: str, moved: Mapping[str, CollectiveKernel]) -> str:
    """What tells the buffers of one collective from another's."""
    return f"{name} " if len(moved) > 1 else ""


def _numbered(products: Mapping[str, _Product]) -> Work:
    """The tiles of all GEMMs in one table."""
    work = np.concatenate([one.work for one in products.values()])
    counts = [len(one.work) for one in products.values()]
    work[:, y.WORK_REGION] += np.repeat([one.first_chunk for one in products.values()], counts)
    work[:, y.WORK_TILE] = np.arange(len(work))
    return work
