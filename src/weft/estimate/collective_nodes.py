"""Collectives across nodes: hops through the network, and each node's share of the network's rate.

A flat ring carries all of its bytes through every node's adapters. Trees, and rings within nodes joined by one
exchange, carry less: 2(h-1)/h of the buffer for an all-reduce over h nodes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from weft.estimate.answer import FloatArray, Parts
from weft.estimate.collective_forms import Group, pairwise, switch_limit, together
from weft.kernels.library.collectives import PAYLOAD, Algorithm, Protocol, volume

_TREE_STAGES = 4
"""Stages in which a tree holds a chunk: up and down, in one node and in the other."""

_TWO_STAGES = 3.0
"""Exponent at which the links inside a node and the network between nodes, stages of one pipeline, combine
[assumed; 1 is one after the other, infinity the slower alone]."""


def across(algorithm: Algorithm, protocol: Protocol, size: FloatArray, group: Group) -> Parts:
    """A collective of ranks on several nodes."""
    if algorithm is Algorithm.PAIRWISE:
        return _pairwise(protocol, size, group)
    if algorithm is Algorithm.NVLS_TREE:
        return _switched_tree(size, group)
    return (_tree if algorithm is Algorithm.TREE else _ring)(protocol, size, group)


def _network(group: Group) -> float:
    """Rate of all network adapters of a node [bytes/s]."""
    return group.fabric.nic * group.per_node * group.value("network.efficiency")


def _hop(group: Group) -> float:
    return group.fabric.nic_latency + group.value("network.step")


def _launch(group: Group) -> float:
    return group.fabric.nic_launch + group.value("network.launch")


def _local_hop(protocol: Protocol, group: Group) -> float:
    flagged = {Protocol.LL: "ring.ll_step", Protocol.LL128: "ring.ll128_step"}
    return group.value(flagged.get(protocol, "simple_step"))


def _combined(
    protocol: Protocol, hops: FloatArray, transfer: FloatArray, group: Group
) -> tuple[FloatArray, FloatArray]:
    """Combine hops and transfer: in sequence for protocols with flags, overlapped as inside a node for Simple.

    An exponent below 1, a slow start, was fitted on links and is not carried over to a network.
    """
    if protocol is not Protocol.SIMPLE:
        return hops, transfer
    return together(hops, transfer, max(group.value("simple_overlap"), 1.0))


def _inside(protocol: Protocol, group: Group) -> float:
    """Rate of a ring through one node [bytes/s]."""
    figure = group.fabric.figure(max(group.per_node, 2))
    return figure * group.value("simple_efficiency") * PAYLOAD[protocol]


def _tree(protocol: Protocol, size: FloatArray, group: Group) -> Parts:
    """A chain in each node and a double binary tree between nodes, up and down; long messages first fill a pipeline."""
    local, nodes = group.per_node, group.nodes
    between = 2 * np.ceil(np.log2(nodes))
    hops = 2 * (local - 1) * _local_hop(protocol, group) + between * _hop(group)
    rate = _network(group) * PAYLOAD[protocol]
    fill = group.value("network.fill")
    carried = size * 2 * (nodes - 1) / nodes
    filling = fill * -np.expm1(-_TREE_STAGES * size / rate / fill)
    limit = np.maximum(carried / rate, size / (_inside(protocol, group) / 2) if local > 1 else 0.0)
    latency, moving = _combined(protocol, np.full_like(size, hops), limit, group)
    return {"launch": np.full_like(size, _launch(group)), "latency": latency + filling, "network": moving}


def _switched_tree(size: FloatArray, group: Group) -> Parts:
    """The switch reduces in each node, a tree joins the nodes (NVLS-Tree)."""
    local, nodes = group.per_node, group.nodes
    hops = 2 * np.ceil(np.log2(nodes)) * _hop(group)
    start = np.full_like(size, _launch(group) + hops)
    inside = size * volume("all_reduce", local) / (group.value("nvls.efficiency") * group.fabric.figure(local))
    outside = size * 2 * (nodes - 1) / nodes / _network(group)
    both = np.sum(together(inside, outside, _TWO_STAGES), axis=0)
    latency, transfer = together(start, both, group.value("nvls.overlap"))
    most = switch_limit(local, group)
    transfer = np.maximum(transfer, size * (1 + 1 / local) / most - latency)
    return {"latency": latency, **_side(transfer, outside > inside)}


def _side(transfer: FloatArray, outside: npt.NDArray[np.bool_]) -> Parts:
    return {"network": np.where(outside, transfer, 0.0), "link": np.where(outside, 0.0, transfer)}


def _ring(protocol: Protocol, size: FloatArray, group: Group) -> Parts:
    local, nodes, ranks, hops = group.per_node, group.nodes, group.ranks, group.hops
    between = hops // (ranks - 1) * (nodes - 1) if ranks > 1 else 0
    latency = (hops - between) * _local_hop(protocol, group) + between * _hop(group)
    inside, outside = _inside(protocol, group), _network(group) * PAYLOAD[protocol]
    rate = min(inside, outside) if local > 1 else outside
    side = np.full(size.shape, rate < inside or local == 1)
    transfer = size * group.volume / rate
    waiting, moving = _combined(protocol, np.full_like(size, latency), transfer, group)
    return {"launch": np.full_like(size, _launch(group)), "latency": waiting, **_side(moving, side)}


def _pairwise(protocol: Protocol, size: FloatArray, group: Group) -> Parts:
    """All pairs at once: traffic between nodes shares each GPU's adapter, traffic inside a node the links."""
    local, ranks = group.per_node, group.ranks
    outside = size * (ranks - local) / ranks / (group.fabric.nic * group.value("network.efficiency"))
    if begins := group.fabric.nic_exchange:
        outside = outside - begins * np.expm1(-outside / begins)
    hop = _launch(group) + _hop(group)
    if local < 2:
        return {"launch": np.full_like(size, hop), "network": outside}
    inside = pairwise(protocol, size * local / ranks, replace(group.pairs(local), name="all_to_all"))
    lacking = np.maximum(outside - inside["link"], 0)
    return {**inside, "latency": inside["latency"] + hop, "network": lacking}
