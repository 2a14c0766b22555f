"""Nodes joined by network adapters: inside a node a switch; between nodes rails, or a fat tree."""

from __future__ import annotations

from weft.errors import InputError
from weft.hardware.fabric.base import Fabric, Link, pairs

NETWORK_PAYLOAD = 0.92
"""Payload share of the network between nodes, whoever sends (assumed; 0.85 to 0.97)."""


def nodes(
    gpus: int,
    bandwidth: float,
    latency: float,
    each: int = 8,
    adapter: float = 50e9,
    adapter_latency: float = 2e-6,
    oversubscription: float | None = None,
) -> Fabric:
    """`gpus` GPUs in nodes of `each`, `bandwidth` [bytes/s] and `latency` [s] inside, an `adapter` [bytes/s] per GPU.

    Rail-optimised, the adapters of GPUs with the same place in their nodes share a switch, and data for another place
    changes GPU inside its own node first. With `oversubscription` a fat tree instead: a leaf switch per node, with
    that many times less bandwidth upwards than its adapters have. Raises InputError for GPUs that fill no whole nodes.
    """
    if gpus % each:
        raise InputError(f"{gpus} GPUs do not fill nodes of {each}; choose a multiple of {each}")
    count, every = gpus // each, range(gpus)
    tree = oversubscription is not None
    # Vertices behind the GPUs: a switch in each node, then one for each place (rails) or a leaf for each node.
    inside, outside = (
        [gpus + g // each for g in every],
        [gpus + count + (g // each if tree else g % each) for g in every],
    )
    links = [
        *(Link("egress", g, g, inside[g], bandwidth) for g in every),
        *(Link("ingress", g, inside[g], g, bandwidth, latency) for g in every),
        *(Link("adapter out", g, g, outside[g], adapter, payload=NETWORK_PAYLOAD) for g in every),
        *(Link("adapter in", g, outside[g], g, adapter, adapter_latency, payload=NETWORK_PAYLOAD) for g in every),
    ]
    if oversubscription is not None:
        spine, up = gpus + 2 * count, each * adapter / oversubscription
        links += [Link("up", n, gpus + count + n, spine, up, payload=NETWORK_PAYLOAD) for n in range(count)]
        links += [Link("down", n, spine, gpus + count + n, up, payload=NETWORK_PAYLOAD) for n in range(count)]

    def route(source: int, target: int) -> tuple[int, ...]:
        if source // each == target // each:
            return source, gpus + target
        if tree:
            up, down = 4 * gpus + source // each, 4 * gpus + count + target // each
            return 2 * gpus + source, up, down, 3 * gpus + target
        mate = source // each * each + target % each
        change = () if mate == source else (source, gpus + mate)
        return *change, 2 * gpus + mate, 3 * gpus + target

    return Fabric("nodes", gpus, tuple(links), {(s, t): route(s, t) for s, t in pairs(gpus)})
