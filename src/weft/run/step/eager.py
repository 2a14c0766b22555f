"""Layers of experts whose kernels the host launches one by one: no graph holds what depends on counts of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

from weft.graph import Node, TokenExchange
from weft.library.dispatchers import shipped
from weft.parallel.framework import Framework
from weft.result.step import LAUNCH_GAPS, Pass

_ROUTER = ("norm2", "router", "top_k")
"""Operators of the router, which graphs hold together with what prepares the dispatch."""
_HELD: dict[str, Callable[[Node], bool]] = {
    "": lambda node: False,
    "router": lambda node: node.name.startswith(_ROUTER),
    "attention": lambda node: node.module == "attention" or node.name.startswith(_ROUTER),
    "step": lambda node: True,
}
"""Which nodes of a layer graphs hold, by what a framework captures."""


def launched(alone: Pass, framework: Framework, far: bool, syncs: bool = False) -> Pass:
    """A pass over a layer of experts with the GPU's waits for the host.

    The host spends `framework.launch_experts` on each operator that no graph holds, on an exchange of tokens that
    leaves the node (`far`) also what the library takes of it, and is ahead of the GPU. It is not where it `syncs`, that
    is waits for the counts of tokens before it launches their dispatch: the GPU has then run out of work, and starts
    each operator when it is launched.
    """
    if alone.graph is None or not framework.launch_experts:
        return alone
    held, own = _HELD[framework.graphs], shipped()

    def host(node: Node) -> float:
        if held(node):
            return 0.0
        waits = own.get(f"{node.op.library}.host", 0.0) if isinstance(node.op, TokenExchange) and far else 0.0
        return framework.launch_experts + waits

    nodes = sorted(alone.graph, key=lambda node: alone.times[node.id][1])
    ends = [0.0, *accumulate((alone.times[node.id][1] for node in nodes), max)]
    work = [(host(node), end - begin) for node, begin, end in zip(nodes, ends, ends[1:], strict=False)]
    issuing, gpu = sum(one for one, _ in work), 0.0
    sends = [number for number, node in enumerate(nodes) if _dispatches(node)] if syncs else []
    if sends:
        issued = 0.0
        for launch, seconds in work[sends[0] :] + work[: sends[0]]:
            issued += launch
            gpu = max(gpu, issued) + seconds
    gap = max(issuing, gpu) - alone.seconds
    return replace(alone + Pass(gap, {LAUNCH_GAPS: gap}), graph=alone.graph, times=alone.times) if gap > 0 else alone


def _dispatches(node: Node) -> bool:
    return isinstance(node.op, TokenExchange) and node.op.operation == "dispatch"
