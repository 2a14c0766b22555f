"""Collectives that cross nodes: hops through the network, and the share of the network's rate that each node has.

A flat ring carries all of its bytes through every node's adapters. Trees, and rings within the nodes with one exchange
between them, carry less: of an all-reduce over h nodes 2(h-1)/h of the buffer.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from weft.collectives.fabric import Fabric
from weft.collectives.library import Algorithm, Protocol, steps, volume
from weft.hardware.libraries import Profile
from weft.predict.collective_forms import Parts, Ranks, pairwise, together
from weft.predict.collective_home import home_pair_figure, switch_limit
from weft.predict.prediction import FloatArray

_TREE_STAGES = 4
"""Times that a tree holds a chunk on its way: up and down, in one node and in the other."""

_TWO_STAGES = 3.0
"""Exponent at which the links inside a node and the network between nodes, stages of one pipeline, combine
[assumed; 1 is one after the other, infinity the slower alone]."""


def across(
    name: str,
    algorithm: Algorithm,
    protocol: Protocol,
    size: FloatArray,
    ranks: int,
    nodes: int,
    fabric: Fabric,
    profile: Profile,
) -> Parts:
    """A collective of `ranks` GPUs on `nodes` nodes."""
    local = ranks // nodes
    network = fabric.nic * local * profile.value("network.efficiency")
    if algorithm is Algorithm.PAIRWISE:
        return _pairwise(protocol, size, ranks, nodes, fabric, profile)
    if algorithm is Algorithm.NVLS_TREE:
        return _switched_tree(size, ranks, nodes, fabric, profile, network)
    if algorithm is Algorithm.TREE:
        return _tree(protocol, size, ranks, nodes, fabric, profile, network)
    return _ring(name, protocol, size, ranks, nodes, fabric, profile, network)


def _hop(fabric: Fabric, profile: Profile) -> float:
    return fabric.nic_latency + profile.value("network.step")


def _launch(fabric: Fabric, profile: Profile) -> float:
    return fabric.nic_launch + profile.value("network.launch")


def _local_hop(table: str, protocol: Protocol, profile: Profile) -> float:
    flagged = {Protocol.LL: "ring.ll_step", Protocol.LL128: "ring.ll128_step"}
    return profile.value(flagged.get(protocol, f"{table}.simple_step"))


def _combined(
    table: str, protocol: Protocol, hops: FloatArray, transfer: FloatArray, profile: Profile
) -> tuple[FloatArray, FloatArray]:
    """Hops and transfer: one after the other with flags; hidden as inside a node with fences, if they hide there.

    An exponent below 1, a slow start, was fitted on links and is not carried over to a network.
    """
    if protocol is not Protocol.SIMPLE:
        return hops, transfer
    return together(hops, transfer, max(profile.value(f"{table}.simple_overlap"), 1.0))


def _payload(protocol: Protocol) -> float:
    return {Protocol.LL: 0.5, Protocol.LL128: 0.9375}.get(protocol, 1.0)


def _tree(
    protocol: Protocol,
    size: FloatArray,
    ranks: int,
    nodes: int,
    fabric: Fabric,
    profile: Profile,
    network: float,
) -> Parts:
    """Up and down a chain in each node and a double binary tree between them; long messages fill a pipeline first."""
    local = ranks // nodes
    between = 2 * np.ceil(np.log2(nodes))
    hops = 2 * (local - 1) * _local_hop("all_reduce", protocol, profile) + between * _hop(fabric, profile)
    rate = network * _payload(protocol)
    inside = (
        fabric.figure(max(local, 2)) * profile.value("all_reduce.simple_efficiency") * _payload(protocol) / 2
    )
    fill = profile.value("network.fill")
    carried = size * 2 * (nodes - 1) / nodes
    filling = fill * -np.expm1(-_TREE_STAGES * size / rate / fill)
    limit = np.maximum(carried / rate, size / inside if local > 1 else 0.0)
    latency, moving = _combined("all_reduce", protocol, np.full_like(size, hops), limit, profile)
    return {
        "launch": np.full_like(size, _launch(fabric, profile)),
        "latency": latency + filling,
        "network": moving,
    }


def _switched_tree(
    size: FloatArray, ranks: int, nodes: int, fabric: Fabric, profile: Profile, network: float
) -> Parts:
    """The switch reduces in each node, a tree joins the nodes (NVLS-Tree)."""
    local = ranks // nodes
    hops = 2 * np.ceil(np.log2(nodes)) * _hop(fabric, profile)
    start = np.full_like(size, _launch(fabric, profile) + hops)
    inside = size * volume("all_reduce", local) / (profile.value("nvls.efficiency") * fabric.figure(local))
    outside = size * 2 * (nodes - 1) / nodes / network
    both = np.sum(together(inside, outside, _TWO_STAGES), axis=0)
    latency, transfer = together(start, both, profile.value("nvls.overlap"))
    transfer = np.maximum(transfer, size * (1 + 1 / local) / switch_limit(local, fabric, profile) - latency)
    return {"latency": latency, **_side(transfer, outside > inside)}


def _side(transfer: FloatArray, outside: npt.NDArray[np.bool_]) -> Parts:
    return {"network": np.where(outside, transfer, 0.0), "link": np.where(outside, 0.0, transfer)}


def _ring(
    name: str,
    protocol: Protocol,
    size: FloatArray,
    ranks: int,
    nodes: int,
    fabric: Fabric,
    profile: Profile,
    network: float,
) -> Parts:
    table = name if name in ("all_reduce", "reduce_scatter") else "all_gather"
    local, hops = ranks // nodes, steps(name, ranks)
    between = hops // (ranks - 1) * (nodes - 1) if ranks > 1 else 0
    latency = (hops - between) * _local_hop(table, protocol, profile) + between * _hop(fabric, profile)
    inside = fabric.figure(max(local, 2)) * profile.value(f"{table}.simple_efficiency") * _payload(protocol)
    rate = min(inside, network * _payload(protocol)) if local > 1 else network * _payload(protocol)
    transfer = size * volume(name, ranks) / rate
    side = np.full(size.shape, rate < inside or local == 1)
    waiting, moving = _combined(table, protocol, np.full_like(size, latency), transfer, profile)
    return {
        "launch": np.full_like(size, _launch(fabric, profile)),
        "latency": waiting,
        **_side(moving, side),
    }


def _pairwise(
    protocol: Protocol, size: FloatArray, ranks: int, nodes: int, fabric: Fabric, profile: Profile
) -> Parts:
    """All pairs at once: what leaves the node shares each GPU's adapter, the rest the links within."""
    local = ranks // nodes
    outside = size * (ranks - local) / ranks / (fabric.nic * profile.value("network.efficiency"))
    hop = _launch(fabric, profile) + _hop(fabric, profile)
    if local < 2:
        return {"launch": np.full_like(size, hop), "network": outside}
    inside = pairwise(protocol, size * local / ranks, pairs(local, fabric, profile), profile)
    lacking = np.maximum(outside - inside["link"], 0)
    return {**inside, "latency": inside["latency"] + hop, "network": lacking}


def pairs(ranks: int, fabric: Fabric, profile: Profile) -> Ranks:
    """Ranks of one node that all send to each other."""
    home = home_pair_figure(ranks, fabric, profile)
    return Ranks(ranks, fabric.pair_figure(ranks), fabric.workgroups(ranks), home)
