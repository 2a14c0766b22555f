"""The ring that a sub-layer's GPUs form in a machine: within a node by its links, through nodes by its network, too."""

from __future__ import annotations

from weft.errors import UnknownNameError
from weft.hardware import Gpu, Machine, Provenance, System, SystemMatch, find_gpu, find_system
from weft.units import format_rate, format_time


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
    slower of the two paces: bandwidth = min(links, adapters of a node). A piece meets one adapter per node on
    its way: latency = the mean over the hops of a node.
    """
    machine, each = match.machine, match.gpus_per_node
    inside = machine.bandwidth_among(each) if each > 1 else 0.0
    if match.nodes == 1:
        bandwidth, latency = inside, machine.gpu.link.latency
        how = f"ring of {match.gpus} of the {machine.gpus_per_node} GPUs of {machine.name}"
    else:
        out = each * match.network.bandwidth
        bandwidth = min(inside, out) if each > 1 else out
        latency = ((each - 1) * machine.gpu.link.latency + match.network.latency) / each
        how = (
            f"ring of {match.gpus} GPUs through {match.nodes} nodes of {machine.name}: {format_rate(inside)} of link a "
            f"GPU, {each} x {format_rate(match.network.bandwidth)} of network a node"
        )
    return System(gpu=_with_link(machine.gpu, bandwidth, latency, how), gpus=match.gpus)


def ring_note(system: System) -> str:
    """What the ring makes of the link of a GPU, in words; empty where it is the GPU's own."""
    found = system.gpu.provenance.get("link.bandwidth")
    return found.source if found is not None and found.source.startswith("ring of ") else ""


def _with_link(gpu: Gpu, bandwidth: float, latency: float, how: str) -> Gpu:
    """The GPU with what the ring gives it for a link; unchanged where that is its own."""
    if (bandwidth, latency) == (gpu.link.bandwidth, gpu.link.latency):
        return gpu
    link = gpu.link.model_copy(update={"bandwidth": bandwidth, "latency": latency})
    shown = {"link.bandwidth": format_rate(bandwidth), "link.latency": format_time(latency)}
    derived = {path: Provenance(text=text, kind="derived", source=how) for path, text in shown.items()}
    return gpu.model_copy(update={"link": link, "provenance": {**gpu.provenance, **derived}})
