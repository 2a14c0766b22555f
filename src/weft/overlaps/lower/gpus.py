"""How many GPUs a run simulates, how they are joined, and their links as kernels see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from weft.core.errors import InputError
from weft.core.options import RunOptions
from weft.graph import Graph
from weft.hardware import Gpu, GpuLink, System
from weft.kernels.copies import DmaGather
from weft.kernels.execution_kernel import PlanKernel
from weft.overlaps.lower.collectives import CollectiveKernel

_EXPLICIT_LIMIT = 64
"""Most GPUs of an explicit run."""


def why_uneven(kernels: Iterable[CollectiveKernel]) -> str:
    """Return why one GPU cannot represent all that run some kernels; empty if it can."""
    unequal = any(isinstance(kernel, PlanKernel) and not kernel.symmetric for kernel in kernels)
    return "the steps of the plan's ranks differ" if unequal else ""


def count_simulated(graph: Graph, system: System, options: RunOptions, *, uneven: str = "") -> int:
    """The number of simulated GPUs: one if all are alike and nothing is `uneven`, unless the options say otherwise.

    Mirrored runs of a fabric whose nodes or rows are alike simulate one of them. Raises InputError for a mode that the
    graph or the system does not allow.
    """
    several = is_grouped(graph, system)
    least = 0 if several or any(node.rank is not None for node in graph) else system.representatives
    if options.mode == "mirrored" or (options.mode == "auto" and least == 1 and not uneven):
        if not least or uneven:
            groups = f"they form {system.gpus // graph.ranks} groups" if several else "they differ"
            why = uneven if least else groups
            raise InputError(f"one GPU cannot represent all {system.gpus}, because {why}; choose mode 'explicit'")
        gpus = least
    else:
        gpus = system.gpus if several else graph.ranks
    if gpus > _EXPLICIT_LIMIT:
        fewer = "fewer groups" if several else "mode 'mirrored' or a smaller TP"
        raise InputError(f"{gpus} GPUs are too many to simulate each (the most is {_EXPLICIT_LIMIT}); choose {fewer}")
    if gpus not in (1, graph.ranks) and options.updates:
        raise InputError(
            f"updates record the tiles of {graph.ranks} GPUs, but {gpus} are simulated; leave updates out, or choose a "
            f"system of {graph.ranks} and mode 'explicit'"
        )
    return gpus


def is_grouped(graph: Graph, system: System) -> bool:
    """Return whether the GPUs of the system form several groups of neighbouring ranks that each share the graph."""
    return bool(graph.collectives) and system.gpus > graph.ranks


def pace_links(system: System, kernels: Iterable[CollectiveKernel]) -> System:
    """Return the system with its link's rate reduced to what stores of kernels reach."""
    return slow_links(
        system, min((1.0 if isinstance(kernel, DmaGather) else kernel.tiling.link for kernel in kernels), default=1.0)
    )


def slow_links(system: System, share: float) -> System:
    """Return the system whose links carry stores of kernels at a share of their rate."""
    return change_links(system, lambda own: {"kernel_efficiency": own.kernel_efficiency * share})


def change_links(system: System, values: Callable[[GpuLink], dict[str, Any]]) -> System:
    """Return the system with other values of the link of every GPU, of those that differ, too."""

    def linked(gpu: Gpu) -> Gpu:
        return gpu.model_copy(update={"link": gpu.link.model_copy(update=values(gpu.link))})

    found = system.with_gpu(linked(system.gpu))
    return (
        found.with_variants({rank: linked(gpu) for rank, gpu in system.variants.items()}) if system.variants else found
    )


def check_adjacent(system: System, ranks: int, what: str, otherwise: str = "") -> None:
    """Raise InputError, which says `what` needs links, for GPUs of a group joined through other GPUs or networks."""
    node, fabric = system.node, system.fabric
    if fabric is None and (system.nodes > 1 or (node is not None and node.topology not in ("switch", "mesh"))):
        joined = f"{system.nodes} nodes" if system.nodes > 1 else f"a node joined by '{node and node.topology}'"
    elif fabric is not None and not fabric.adjacent(ranks):
        joined = f"the fabric '{fabric.name}'"
    else:
        return
    raise InputError(
        f"{what}, but in {joined} not every GPU reaches every other one by a link or a switch; choose a full mesh or a "
        f"switch{otherwise}"
    )
