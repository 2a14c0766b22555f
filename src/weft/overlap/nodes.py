"""The ring that a sub-layer's GPUs form in a machine: within a node by its links, through nodes by its network, too."""

from __future__ import annotations

from collections.abc import Mapping

from weft.errors import UnknownNameError
from weft.hardware import Gpu, Machine, Provenance, System, SystemMatch, find_gpu, find_system
from weft.units import format_rate

NETWORK_EFFICIENCY = 0.92
"""Payload share of the network between nodes, whoever sends (assumed; 0.85 to 0.97)."""


def system_for(machine: Gpu | Machine | str, gpus: int) -> System:
    """`gpus` GPUs in a ring on a GPU, a machine, or what `find_gpu` or `find_system` knows by name.

    A GPU stands for the machine that it is usually sold in; one without (the paper's, or a user's own) forms
    a plain ring of its links. GPUs beyond a node spread over as few nodes as hold them: see `ring_over`.

    Raises UnknownNameError for an unknown name, InputError for GPUs that cannot be spread evenly over nodes.
    """
    if isinstance(machine, str):
        machine = _named(machine)
    if isinstance(machine, Machine):
        return ring_over(SystemMatch(machine, gpus, -(-gpus // machine.gpus_per_node)))
    usual = _usual(machine, gpus)
    return System(gpu=machine, gpus=gpus) if usual is None else ring_over(usual)


def _named(text: str) -> Gpu | Machine:
    try:
        return find_gpu(text)
    except UnknownNameError as unknown:
        try:
            return find_system(text).machine
        except UnknownNameError:
            raise unknown from None


def _usual(gpu: Gpu, gpus: int) -> SystemMatch | None:
    if gpu.vendor == "none":
        return None
    try:
        found = find_system(f"{gpus}x{gpu.name}")
    except UnknownNameError:  # a GPU of the user's own, with a name of its own
        return None
    return SystemMatch(found.machine.with_gpu(gpu), gpus, found.nodes)


def ring_over(match: SystemMatch) -> System:
    """What one of the GPUs sees of the ring, as the bandwidth and latency of its link.

    Collective libraries run as many rings at once as a node has adapters, and let each leave the node at another GPU.
    So of what a GPU sends, one ring's share leaves by its adapter and the rest by its links, side by side, and the
    slower of the two paces: bandwidth = min(links, adapters of a node), each with its own share of payload. A piece
    meets one adapter per node on its way: latency = the mean over the hops of a node.
    """
    machine, each = match.machine, match.gpus_per_node
    link, inside = machine.gpu.link, machine.bandwidth_among(each) if each > 1 else float("inf")
    if match.nodes == 1:
        how = f"ring of {match.gpus} of the {machine.gpus_per_node} GPUs of {machine.name}"
        return System(
            gpu=_with_link(machine.gpu, {"bandwidth": inside}, how),
            gpus=match.gpus,
            peer_bandwidth=machine.peer_bandwidth,
            egress=link.bandwidth if machine.peer_bandwidth else 0.0,
        )
    out = each * match.network.bandwidth
    bandwidth = min(inside, out)
    how = (
        f"ring of {match.gpus} GPUs through {match.nodes} nodes of {machine.name}: {each} x "
        f"{format_rate(match.network.bandwidth)} of network a node"
    )
    values = {
        "bandwidth": bandwidth,
        "latency": ((each - 1) * link.latency + match.network.latency) / each,
        "kernel_efficiency": min(inside * link.kernel_efficiency, out * NETWORK_EFFICIENCY) / bandwidth,
        "dma_efficiency": min(inside * link.dma_efficiency, out * NETWORK_EFFICIENCY) / bandwidth,
    }
    return System(gpu=_with_link(machine.gpu, values, how), gpus=match.gpus)


def ring_note(system: System) -> str:
    """What the ring makes of the link of a GPU, in words; empty where it is the GPU's own."""
    found = system.gpu.provenance.get("link.bandwidth")
    return found.source if found is not None and found.source.startswith("ring of ") else ""


def _with_link(gpu: Gpu, values: Mapping[str, float], how: str) -> Gpu:
    """The GPU with what the ring gives it for a link; unchanged where that is its own."""
    changed = {name: value for name, value in values.items() if value != getattr(gpu.link, name)}
    if not changed:
        return gpu
    new = gpu.model_copy(update={"link": gpu.link.model_copy(update=changed)})
    derived = {
        path: Provenance(text=new.text(path), kind="derived", source=how)
        for path in (f"link.{name}" for name in ("bandwidth", *changed))
    }
    return new.model_copy(update={"provenance": {**gpu.provenance, **derived}})
