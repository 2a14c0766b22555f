"""A switch: each GPU has a port, which sends to any other port."""

from __future__ import annotations

from weft.hardware.fabric.base import Fabric, Link, pairs


def switch(gpus: int, bandwidth: float, latency: float, *, reduces: bool = False) -> Fabric:
    """`gpus` GPUs that send and receive at `bandwidth` [bytes/s] each, whoever the peer is."""
    out = [Link("egress", g, g, gpus, bandwidth) for g in range(gpus)]
    into = [Link("ingress", g, gpus, g, bandwidth, latency) for g in range(gpus)]
    routes = {(s, t): (s, gpus + t) for s, t in pairs(gpus)}
    return Fabric("switch", gpus, (*out, *into), routes, symmetric=True, reduces=reduces)
