"""From a graph to a plan: by the method that lowers the kernel which joins the nodes, or by kernels of their own."""

from __future__ import annotations

from itertools import chain

from weft.core.errors import InputError, join_or
from weft.core.options import RunOptions
from weft.graph import Graph
from weft.graph.choice import Kernel
from weft.graph.moe import moe_layer
from weft.hardware import System
from weft.overlaps.base import OverlapMethod
from weft.overlaps.joined import find_joined, not_joined
from weft.overlaps.lower import Lowered, check_masks, check_operators, is_joined, is_program, lower_apart
from weft.overlaps.registry import BUILT_IN


def lower(graph: Graph, system: System, options: RunOptions, method: OverlapMethod | None = None) -> Lowered:
    """Lower a graph on a system to a plan; the mode of the options decides how many GPUs are simulated.

    Where a kernel joins the nodes of the graph, the method that `lowers` it makes the plan: the given one, else one of
    Weft. Other operators have buffers of their own. Raises InputError for operators without a kernel, and for a mode
    that the graph or the system does not allow.
    """
    check_masks(graph, system)
    if is_program(graph):
        return lower_apart(graph, system, options)
    layer = moe_layer(graph)
    if layer is not None:
        return _lowers(layer.dispatch.choice.kernel, method).lower_joined(graph, system, options)
    check_operators(graph)
    if not is_joined(graph):
        return lower_apart(graph, system, options)
    nodes = find_joined(graph)
    try:
        joins = _lowers(nodes.kernel, method)
    except LookupError:
        raise not_joined(nodes.joining) from None
    return joins.lower_joined(graph, system, options)


def lower_under(method: OverlapMethod, graph: Graph, system: System, options: RunOptions) -> Lowered:
    """Lower a graph under a method: by kernels of its own, or by those that it chooses for the nodes."""
    resolved = method.resolve(graph, system, options)
    own = resolved.lower(graph, system, options)
    if own is not None:
        return own
    applied = resolved.apply(graph, system.gpu)
    odd = sorted({node.name for node in applied.gemms} - {node.name for node in graph.gemms})
    if odd:
        known = join_or(sorted({node.name for node in graph.gemms}))
        raise InputError(
            f"'{method.name}' runs a GEMM '{odd[0]}' that the graph does not have; times are looked up by name: give "
            f"every piece of a GEMM the name of the whole, {known}, and an iteration of its own"
        )
    return lower(applied, system, options, resolved)


def _lowers(kernel: Kernel | None, first: OverlapMethod | None) -> OverlapMethod:
    """Return the method that lowers a kernel; LookupError if none does."""
    for method in chain([first] if first else [], BUILT_IN):
        if method.lowers(kernel):
            return method
    raise LookupError
