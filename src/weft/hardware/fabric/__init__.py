"""How GPUs are joined: fabrics of links and routes, each built by one file under one name.

A new fabric is a file with a builder `(gpus, bandwidth, latency, ...) -> Fabric` and a line in `FABRICS`; the contract
tests run on every name there.
"""

from collections.abc import Callable, Mapping

from weft.hardware.fabric.base import EVERY_PEER, Fabric, Link
from weft.hardware.fabric.full import full
from weft.hardware.fabric.nodes import nodes
from weft.hardware.fabric.ring import ring
from weft.hardware.fabric.switch import switch
from weft.hardware.fabric.torus import torus

FABRICS: Mapping[str, Callable[..., Fabric]] = {
    "ring": ring,
    "full": full,
    "switch": switch,
    "torus": torus,
    "nodes": nodes,
}
"""Builders by name; each takes the number of GPUs, a link's bandwidth [bytes/s] and its latency [s]."""

__all__ = ["EVERY_PEER", "FABRICS", "Fabric", "Link", "full", "nodes", "ring", "switch", "torus"]
