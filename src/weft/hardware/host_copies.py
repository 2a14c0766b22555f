"""Copies between host and GPU that run beside a collective: which links both use, and what is left of them."""

from __future__ import annotations

from typing import NamedTuple

from weft.core.errors import InputError
from weft.hardware.systems import System

_GB = 1e9
_ON_PACKAGE = 200e9
"""Rate above which a GPU's path to its host is no PCIe, but a link of its own (NVLink-C2C) [bytes/s]."""


class BesideCopies(NamedTuple):
    """A `system` with what copies leave of its links and its memory, and `why` in words."""

    system: System
    why: str


def beside_host_copies(system: System, rate: float, ranks: int, nodes: int) -> BesideCopies:
    """Return what host copies of `rate` bytes per second, in one direction of each GPU, leave to a collective.

    Copies and adapter, or peer of a node that is connected by PCIe, share the GPU's PCIe port in that direction: fair
    arbitration, so that neither falls below its demand or half of the port (max-min fairness; assumed). NVLink and
    Infinity Fabric carry none of the copies. The memory serves both. Raises InputError for a rate that the port
    cannot carry.
    """
    port, memory = system.gpu.host.bandwidth, system.gpu.memory.bandwidth
    if not 0 < rate <= port:
        raise InputError(
            f"host copies of {rate / _GB:.3g} GB/s are beyond what {system.gpu.name} has to its host, {port / _GB:.3g} "
            "GB/s in one direction; give a rate above zero, up to that"
        )
    left = {"memory.bandwidth": memory - rate}
    node, why = system.node, "no link carries both"
    if node is not None and nodes == 1 and node.topology == "pcie" and node.bandwidth_among(ranks) == port:
        wanted = port * node.path_share(ranks)
        got = _fair(port, wanted, rate)
        left["host.bandwidth"] = got / node.path_share(ranks)
        why = f"copies and the peers' data share each GPU's PCIe port, {_got(port, got, wanted)}"
    elif node is not None and nodes > 1 and port < _ON_PACKAGE:
        wanted = node.network.bandwidth
        left["network.bandwidth"] = got = _fair(port, wanted, rate)
        why = f"copies and the adapter share each GPU's PCIe port, {_got(port, got, wanted)}"
    why += f"; the copies take {rate / memory:.1%} of the memory's bandwidth"
    return BesideCopies(system.replace({path: f"{value / _GB:.9g} GB/s" for path, value in left.items()}), why)


def _fair(port: float, wanted: float, rate: float) -> float:
    """Return what a flow that wants a rate gets beside another one on a port [bytes/s]."""
    return min(wanted, max(port - rate, port / 2))


def _got(port: float, rate: float, wanted: float) -> str:
    left = "which carries both" if rate >= wanted else f"of which the collective gets {rate / _GB:.3g}"
    return f"{port / _GB:.3g} GB/s, {left} ({wanted / _GB:.3g} GB/s alone)"
