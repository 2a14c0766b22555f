"""How the GPUs of a system are joined, and the ring that they form: within a node by its links, else by its network."""

from __future__ import annotations

from weft.hardware import Fabric, Gpu, Link, System
from weft.hardware.fabric import full, switch
from weft.hardware.fabric.nodes import NETWORK_PAYLOAD
from weft.units import format_rate


def ring_link(system: System, gpu: Gpu | None = None) -> Link:
    """What one GPU (None: the system's) sees of the ring, as the bandwidth and latency of its link.

    Collective libraries run as many rings at once as a node has adapters, and let each leave the node at another GPU.
    So of what a GPU sends, one ring's share leaves by its adapter and the rest by its links, side by side, and the
    slower of the two paces: bandwidth = min(links, adapters of a node), each with its own share of payload. A piece
    meets one adapter per node on its way: latency = the mean over the hops of a node.
    """
    gpu = gpu or system.gpu
    link, each = gpu.link, system.gpus_per_node
    if system.node is None:
        return link
    inside = system.node.with_gpu(gpu).bandwidth_among(each) if each > 1 else float("inf")
    if system.nodes == 1:
        return link.model_copy(update={"bandwidth": inside}) if each > 1 else link
    network = system.node.network
    out = each * network.bandwidth
    bandwidth = min(inside, out)
    values = {
        "bandwidth": bandwidth,
        "latency": ((each - 1) * link.latency + network.latency) / each,
        "kernel_efficiency": min(inside * link.kernel_efficiency, out * NETWORK_PAYLOAD) / bandwidth,
        "dma_efficiency": min(inside * link.dma_efficiency, out * NETWORK_PAYLOAD) / bandwidth,
    }
    return link.model_copy(update=values)


def fabric_of(system: System) -> Fabric:
    """The fabric of a system: its own, a full mesh where its node is one, else a switch with what a ring has of it."""
    if system.fabric is not None:
        return system.fabric
    ring = ring_link(system)
    if system.peer_bandwidth:
        whole = system.gpu.link.bandwidth  # also of the links to GPUs that take no part
        return full(system.gpus, system.peer_bandwidth, ring.latency, whole, ring.bandwidth)
    return switch(system.gpus, ring.bandwidth, ring.latency)


def ring_note(system: System) -> str:
    """What the ring makes of the link of a GPU, in words; empty where it is the GPU's own."""
    if system.node is None or ring_link(system) == system.gpu.link:
        return ""
    if system.nodes == 1:
        return f"ring of {system.gpus} of the {system.node.gpus_per_node} GPUs of {system.name}"
    return (
        f"ring of {system.gpus} GPUs through {system.nodes} nodes of {system.name}: {system.gpus_per_node} x "
        f"{format_rate(system.node.network.bandwidth)} of network a node"
    )
