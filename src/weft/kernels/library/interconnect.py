"""The links of a system in a collective library's cost model: their number, topology and rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from weft import hardware
from weft.core.catalog import Quantity
from weft.core.errors import InputError
from weft.core.files import packaged_toml
from weft.core.units import Dimension
from weft.hardware import Cpu, Gpu, RingKernels, System, Topology

_VALUES = packaged_toml("weft.kernels.library", "interconnect.toml")
_RATE = Quantity(Dimension.BYTES_PER_SECOND)
_RING_SPEED = {architecture: _RATE.parse(text) for architecture, text in _VALUES["ring_speed"].items()}
"""The speed of one ring [bytes/s] by architecture."""
_MESH_WORKGROUPS: dict[int, int] = {int(size): count for size, count in _VALUES["mesh_workgroups"].items()}


Pattern = Literal["ring", "tree", "exchange"]
"""How traffic goes from node to node: to the next one, along a tree, or to all others."""
_TREE_CROSSINGS = 1.5
"""Traffic that leaves a leaf switch along a double binary tree, by that of a node [assumed, 1 to 2: of a block of nodes
of each tree one edge goes up, and one of the first node's to a child in the block before]."""


@dataclass(frozen=True)
class Interconnect:
    """The links between the GPUs of a system, as a library's cost model sees them.

    `link_figure` is the rate that the library assumes per link and direction [bytes/s]: the line rate less headers
    and flow control. `links` is how many a GPU has. `nic` is the network's rate per GPU and direction [bytes/s],
    `nic_latency` the latency of a message through it [s], `nic_launch` what it adds to a launch [s]. `cpu` is the
    vendor of a node's CPUs. `multicast` says whether the switch reduces (NVLS). For irregular topologies, `lanes` maps
    a minimum number of ranks to the width of the rings [links]. `bridge` is the number of links that join pairs of
    GPUs of a PCIe machine, and the rate that the library assumes for each [bytes/s]. `kernels` are the costs of the
    library's kernels. The nodes of a group share leaf switches by `leaf`, whose uplinks have `oversubscription` times
    less bandwidth than their adapters. Where rates were changed, `sold` are those of the catalogue's system of that
    name, of a link and of the network [bytes/s].
    """

    gpu: Gpu
    kernels: RingKernels
    gpus_per_node: int
    links: int
    link_figure: float
    topology: Topology
    multicast: bool = False
    nic: float = 0.0
    nic_latency: float = 0.0
    nic_launch: float = 0.0
    cpu: Cpu = "intel"
    lanes: tuple[tuple[int, float], ...] = ()
    bridge: tuple[int, float] = (0, 0.0)
    sold: tuple[float, float] | None = None
    oversubscription: float = 1.0
    leaf: int = 1

    def adapter(self, nodes: int, pattern: Pattern) -> float:
        """Rate of the network per GPU and direction for a collective over `nodes` nodes [bytes/s].

        Nodes under one leaf switch send to each other at the rate of their adapters. Where a group has several leaves,
        what leaves them shares uplinks: of a ring one node's traffic for each leaf, of a tree one and a half (a block
        of nodes has an edge up, and one to each neighbour that is a parent or a child), and of an exchange what goes to
        nodes of other leaves. All groups that pass through a leaf send at once.
        """
        if nodes <= self.leaf:
            return self.nic
        crossing = {
            "ring": 1 / self.leaf,
            "tree": min(_TREE_CROSSINGS / self.leaf, 1.0),
            "exchange": (nodes - self.leaf) / (nodes - 1),
        }[pattern]
        return self.nic / max(self.oversubscription * crossing, 1.0)

    @property
    def sold_links(self) -> Interconnect:
        """The links for which the library chooses: those of the system that is sold, whatever they are changed to.

        A choice made for the changed rates could be a worse one, so that a faster link would take longer.
        """
        return replace(self, link_figure=self.sold[0], nic=self.sold[1], sold=None) if self.sold else self

    def among(self, ranks: int) -> Interconnect:
        """Return the links among `ranks` GPUs of one node; two ranks of a PCIe machine use the bridge between them."""
        links, figure = self.bridge
        if self.topology != "pcie" or ranks != 2 or not links:
            return self
        return replace(self, topology="switch", links=links, link_figure=figure, sold=None)

    def width(self, ranks: int) -> float:
        """Return how many links of each GPU a collective of `ranks` GPUs of one node keeps busy."""
        if self.topology == "mesh":
            return max(1, self.links * (min(ranks, self.gpus_per_node) - 1) / (self.gpus_per_node - 1))
        if self.topology == "hybrid":
            below = [wide for size, wide in self.lanes if size <= ranks]
            return below[-1] if below else 1
        return self.links

    def figure(self, ranks: int, paired: bool = False) -> float:
        """Rate per GPU and direction among `ranks` GPUs of one node in the library's cost model [bytes/s].

        `paired` ranks all send to all others at once: in an irregular graph, to each peer over one link.
        """
        if self.topology == "hybrid" and paired:
            return self.link_figure * (min(ranks, self.gpus_per_node) - 1)
        return self.link_figure if self.topology == "pcie" else self.link_figure * self.width(ranks)

    def rings(self, ranks: int) -> int:
        """Return the number of rings that the library builds in one node."""
        if self.topology == "pcie":
            return 1
        speed = _RING_SPEED.get(self.gpu.architecture, self.link_figure)
        return max(1, int(self.figure(ranks) / speed + 1e-9))

    def ring_rate(self, ranks: int) -> float:
        """Rate of all rings together, per direction, in the library's cost model [bytes/s]."""
        speed = _RING_SPEED.get(self.gpu.architecture, self.link_figure)
        return self.figure(ranks) if self.topology == "pcie" else self.rings(ranks) * speed

    def workgroups(self, ranks: int) -> int:
        """Workgroups of a ring collective: two per ring; on a full mesh of AMD GPUs RCCL's own number.

        No library has more than its largest number of channels, whatever its links carry.
        """
        if self.gpu.vendor == "amd" and self.topology == "mesh":
            known = [count for size, count in _MESH_WORKGROUPS.items() if size <= ranks]
            return known[-1] if known else _MESH_WORKGROUPS[2]
        amd = self.gpu.vendor == "amd"
        return min((4 if amd else 2) * self.rings(ranks), MOST_CHANNELS["amd" if amd else "nvidia"])


MOST_CHANNELS: Mapping[str, int] = {"nvidia": 64, "amd": 128}
"""Most channels of a communicator in one node, by vendor (NCCL and RCCL src/include/device.h, MAXCHANNELS)."""
_UNBOUNDED = 64
"""Number of GPUs of a ring that belongs to no node."""


def interconnect(system: System) -> Interconnect:
    """The links of a system in the cost model of its GPUs' library; a system without a node is a ring of links."""
    found = _links(system)
    sold = _find_interconnect(system.name, system.gpu.name)
    changed = sold and (sold.link_figure, sold.nic) != (found.link_figure, found.nic)
    return replace(found, sold=(sold.link_figure, sold.nic)) if sold and changed else found


@lru_cache
def _find_interconnect(name: str, gpu: str) -> Interconnect | None:
    """Return the links of the catalogue's system of that name and GPU; None for one of the user's own."""
    try:
        found = hardware.system(name)
    except InputError:
        return None
    return _links(found) if found.gpu.name == gpu and found.name == name else None


def _links(system: System) -> Interconnect:
    node, gpu, payload = system.node, system.gpu, system.gpu.link.kernel_efficiency
    if node is None:
        return Interconnect(gpu, system.library, _UNBOUNDED, 1, gpu.link.bandwidth * payload, "ring")
    links, rate, bridge = gpu.link.links, node.link_bandwidth, (0, 0.0)
    if node.topology == "pcie":
        links, rate = 1, gpu.host.bandwidth * node.host_path
        if node.gpus_per_node > 1:
            bridge = node.links_between(0, 1), node.link_bandwidth * payload
    elif node.topology == "mesh":
        links = node.links_per_pair * (node.gpus_per_node - 1)
    lanes = {size: float(wide) for size, wide in node.lanes}
    if lanes:
        lanes |= {int(size): wide for size, wide in _VALUES["lanes"].get(gpu.architecture, {}).items()}
    return Interconnect(
        gpu,
        system.library,
        node.gpus_per_node,
        max(links, 1),
        rate * payload,
        node.topology,
        multicast=node.switch_reduces,
        nic=node.network.bandwidth,
        nic_latency=node.network.latency,
        nic_launch=node.network.launch,
        cpu=node.cpu,
        oversubscription=node.network.oversubscription,
        leaf=node.network.leaf,
        lanes=tuple(sorted(lanes.items())),
        bridge=bridge,
    )
