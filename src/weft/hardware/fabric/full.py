"""A full mesh: a link from each GPU to each other one."""

from __future__ import annotations

from weft.hardware.fabric.base import EVERY_PEER, Fabric, Link, pairs


def full(
    gpus: int, bandwidth: float, latency: float, egress: float | None = None, striped: float | None = None
) -> Fabric:
    """`gpus` GPUs with `bandwidth` [bytes/s] to each peer.

    All links of a GPU together send at most `egress` and receive at most as much; data cut over all of them moves at
    `striped` (both by default the sum of the links) [bytes/s].
    """
    together = (gpus - 1) * bandwidth
    egress, striped = egress or together, striped or together
    out = [Link("egress", g, g, EVERY_PEER, egress) for g in range(gpus)]
    into = [Link("ingress", g, gpus + g, g, egress, latency) for g in range(gpus)]
    rings = [Link("striped", g, g, EVERY_PEER, striped, bundle=g) for g in range(gpus)]
    peers = [
        Link(f"peer {distance}", g, g, gpus + (g - distance) % gpus, bandwidth, bundle=g, to_peer=True)
        for g in range(gpus)
        for distance in range(1, gpus)
    ]
    first = 3 * gpus
    return Fabric(
        "full",
        gpus,
        (*out, *into, *rings, *peers),
        {(s, t): (first + s * (gpus - 1) + (s - t) % gpus - 1, gpus + t) for s, t in pairs(gpus)},
        {(s, t): (2 * gpus + s, gpus + t) for s, t in pairs(gpus)},
        symmetric=True,
    )
