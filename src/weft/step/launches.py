"""Layers of experts whose kernels the host launches one by one: no graph holds what depends on counts of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from weft.graph import EXCHANGES, GroupedGemm, Node, TokenExchange
from weft.graph.op import Role
from weft.kernels.library.dispatchers import shipped_values
from weft.models.block import PREDICTION
from weft.models.parallel.framework import Framework
from weft.step.result.step import LAUNCH_GAPS, Pass

FULL_ITERATION = "full_iteration"
"""What a framework's `graphs` name where they hold the passes of whole steps."""
_ROUTING = (Role.MLP_NORM, Role.MLP_POST_NORM, Role.ROUTER, Role.TOP_K)
_HOLDS: dict[str, Callable[[Node], bool]] = {
    "attn": lambda node: node.module == "attention",
    "mamba": lambda node: node.module == "mamba",
    "mlp": lambda node: node.module == "mlp",
    "moe_router": lambda node: node.role in _ROUTING and node.module != PREDICTION,
    "moe_preprocess": lambda node: False,  # counts tokens on the host's behalf: no operator here
    FULL_ITERATION: lambda node: True,
}
"""Which nodes CUDA graphs hold, by a module of a layer."""


def in_graphs(node: Node, graphs: Iterable[str]) -> bool:
    """Return whether CUDA graphs of these modules hold a node."""
    return any(_HOLDS[module](node) for module in graphs)


def add_launch_gaps(alone: Pass, framework: Framework, far: bool, syncs: bool = False) -> Pass:
    """Return a pass over a layer of experts with the GPU's waits for the host.

    The host spends `framework.launch_experts` on each operator that no graph holds, on GEMMs of single experts also
    `framework.launch_each` on each, on a dispatch or combine that leaves the node (`far`) also what the library takes
    of it, and is ahead of the GPU. It is not where it `syncs`: it waits for the counts of tokens before it launches
    their dispatch, and, where it launches each expert's GEMM on tokens that the receiver sorts, again before the first.
    The GPU has then run out of work.
    """
    if alone.graph is None or not framework.launch_experts:
        return alone
    own = shipped_values()

    def host(node: Node) -> float:
        if in_graphs(node, framework.graphs):
            return 0.0
        if isinstance(node.op, GroupedGemm) and not node.op.fused:
            return framework.launch_experts + framework.launch_each * node.op.groups
        waits = own.get(f"{node.op.library}.host", 0.0) if isinstance(node.op, TokenExchange) and far else 0.0
        return framework.launch_experts + waits

    nodes = sorted(alone.graph, key=lambda node: alone.times[node.id][1])
    ends = [0.0, *accumulate((alone.times[node.id][1] for node in nodes), max)]
    work = [(host(node), end - begin) for node, begin, end in zip(nodes, ends, ends[1:], strict=False)]
    issuing = sum(one for one, _ in work)
    gap = issuing - alone.seconds
    if syncs and issuing:
        sorted_here = any(isinstance(node.op, TokenExchange) and EXCHANGES[node.op.library] == "rank" for node in nodes)
        waits = [_waits(node, framework.style.each_expert and sorted_here) for node in nodes]
        gap = max(gap, _period(work, waits) - ends[-1])
    return replace(alone + Pass(gap, {LAUNCH_GAPS: gap}), graph=alone.graph, times=alone.times) if gap > 0 else alone


_ROUNDS = 3
"""Passes over layers; the last gives the time of each, when the host's lead is steady."""


def _period(work: Sequence[tuple[float, float]], waits: Sequence[bool]) -> float:
    """Return how long one of many passes takes, each of that many launches by the host and kernels [s, s].

    Before some launches it `waits` for the kernels before them.
    """
    host = gpu = begin = 0.0
    for _ in range(_ROUNDS):
        begin = gpu
        for (launch, seconds), waiting in zip(work, waits, strict=True):
            host = (max(host, gpu) if waiting else host) + launch
            gpu = max(gpu, host) + seconds
    return gpu - begin


def _waits(node: Node, again: bool) -> bool:
    """Return whether the host waits before it launches an operator: a dispatch, or `again` the first GEMM of experts.

    Megatron Core: token_dispatcher.py (counts of DeepEP's tokens by a mask, of HybridEP's by a sum), experts.py
    (tokens_per_expert.tolist()).
    """
    if isinstance(node.op, TokenExchange):
        return node.op.operation == "dispatch"
    return again and node.role is Role.EXPERT_UP and node.phase in ("forward", "recompute")
