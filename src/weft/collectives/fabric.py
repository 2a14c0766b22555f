"""What a collective library sees of a machine: how many ranks, over which links, at what rate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from weft.errors import UnknownNameError
from weft.hardware import Gpu, load, names
from weft.hardware.finding import SystemMatch, find_system
from weft.hardware.machine import Machine
from weft.hardware.parts import Dma

Topology = Literal["ring", "switch", "mesh", "hybrid", "pcie"]

# The speed of one ring that NCCL's search settles on (src/graph/search.cc), [bytes/s]; rings = figure / speed.
_RING_SPEED = {"ampere": 20e9, "hopper": 30e9, "blackwell": 45e9}
_CTAS_PER_RING = 2
_MESH_CTAS = {2: 32, 4: 24, 8: 56}


@dataclass(frozen=True)
class Fabric:
    """The links between the GPUs of a machine, as a library's cost model sees them.

    `link_figure` is what the library counts on per link and direction [bytes/s]: the line rate less headers and flow
    control, which leave the share `payload` of it; `links` is how many a GPU has. `nic` is the network's rate per GPU
    and direction [bytes/s], `nic_latency` what a message through it takes [s], `nic_launch` what it adds to a
    launch. `multicast` says whether the switch reduces (NVLS), `lanes` how many links wide the rings are from a number
    of ranks on, where the topology is irregular; `copy_rate` is what a GPU copies in its own memory [bytes/s], `dma`
    its copy engines (None: it has none), which reach `dma_efficiency` of the line rate, `clock` that of the compute
    units [hertz], `hop` what a store takes over a link [s]. `bridge` is the number of links that join pairs of GPUs of
    a PCIe machine, and the library's figure of each [bytes/s].
    """

    vendor: str
    architecture: str
    gpus_per_node: int
    links: int
    link_figure: float
    topology: Topology
    payload: float = 0.8
    multicast: bool = False
    nic: float = 0.0
    nic_latency: float = 0.0
    nic_launch: float = 0.0
    copy_rate: float = 0.0
    dma: Dma | None = None
    dma_efficiency: float = 0.9
    lanes: tuple[tuple[int, float], ...] = ()
    gpu: str = ""
    clock: float = 1.98e9
    hop: float = 500e-9
    bridge: tuple[int, float] = (0, 0.0)

    def among(self, ranks: int) -> Fabric:
        """The fabric that `ranks` GPUs of one node see: two of a PCIe machine take the bridge that joins them."""
        links, figure = self.bridge
        if self.topology != "pcie" or ranks != 2 or not links:
            return self
        return replace(self, topology="switch", links=links, link_figure=figure)

    def width(self, ranks: int) -> float:
        """How many links of each GPU a collective of `ranks` GPUs of one node keeps busy."""
        if self.topology == "mesh":
            return max(1, self.links * (min(ranks, self.gpus_per_node) - 1) / (self.gpus_per_node - 1))
        if self.topology == "hybrid":
            below = [wide for size, wide in self.lanes if size <= ranks]
            return below[-1] if below else 1
        return self.links

    def pair_figure(self, ranks: int) -> float:
        """Rate per GPU and direction when every GPU sends to all others at once [bytes/s].

        On a mesh, each peer is reached over the links between the two; where the graph is irregular, over one.
        """
        if self.topology == "hybrid":
            return self.link_figure * (min(ranks, self.gpus_per_node) - 1)
        return self.figure(ranks)

    def figure(self, ranks: int) -> float:
        """Rate per GPU and direction that `ranks` GPUs of one node get, as the library counts it [bytes/s]."""
        if self.topology == "pcie":
            return self.link_figure
        return self.link_figure * self.width(ranks)

    def rings(self, ranks: int) -> int:
        """How many rings the library lays through one node."""
        if self.topology == "pcie":
            return 1
        speed = _RING_SPEED.get(self.architecture, self.link_figure)
        return max(1, int(self.figure(ranks) / speed + 1e-9))

    def ring_rate(self, ranks: int) -> float:
        """Rate of all rings together, per direction, in the library's cost model [bytes/s]."""
        speed = _RING_SPEED.get(self.architecture, self.link_figure)
        return self.figure(ranks) if self.topology == "pcie" else self.rings(ranks) * speed

    def workgroups(self, ranks: int) -> int:
        """Workgroups that a ring collective occupies: two per ring; on a full mesh of AMD GPUs RCCL's own counts."""
        if self.vendor == "amd" and self.topology == "mesh":
            known = [count for size, count in _MESH_CTAS.items() if size <= ranks]
            return known[-1] if known else _MESH_CTAS[2]
        if self.vendor == "amd":
            return 4 * self.rings(ranks)
        return _CTAS_PER_RING * self.rings(ranks)


# Where RCCL lays fewer rings over MI200's graph than it has room for, in links: a GCD reaches its sister over four
# links at 120 GB/s (the pass mark of Azure's node check), that is 3.33 at RCCL's 36 GB/s; two modules share one
# ring and four modules two, by what microsoft/nnscaler measured.
_MI200_LANES = {2: 3.33, 4: 1.0, 8: 2.0}
_COPY_SHARE = 2  # a copy reads and writes


def fabric_of(system: str | Gpu | Machine | SystemMatch | Fabric) -> Fabric:
    """The fabric of a machine, or of the one that a GPU is usually sold in, by description or name.

    Raises UnknownNameError for a name that neither a system nor a GPU has.
    """
    if isinstance(system, Fabric):
        return system
    if isinstance(system, Machine):
        return _of_machine(system)
    if isinstance(system, SystemMatch):
        return _of_machine(system.machine)
    return _of_gpu(system) if isinstance(system, Gpu) else fabric_of(_named(system))


def _named(text: str) -> SystemMatch | Gpu:
    try:
        return find_system(text)
    except UnknownNameError:
        if text in names():
            return load(text)
        raise


def _of_gpu(gpu: Gpu) -> Fabric:
    if gpu.vendor == "none":
        return _joined(gpu, 64, "ring", 1, gpu.link.bandwidth)
    return replace(_of_machine(find_system(gpu.name).machine.with_gpu(gpu)), gpu=gpu.name)


def _of_machine(machine: Machine) -> Fabric:
    gpu, links, rate = machine.gpu, machine.gpu.link.links, machine.link_bandwidth
    if machine.topology == "pcie":
        links, rate = 1, gpu.host.bandwidth
    elif machine.topology == "mesh":
        links = machine.links_per_pair * (machine.gpus_per_node - 1)
    fabric = _joined(gpu, machine.gpus_per_node, machine.topology, max(links, 1), rate)
    lanes = {size: float(wide) for size, wide in machine.lanes}
    if gpu.architecture == "cdna2" and lanes:
        lanes |= _MI200_LANES
    return replace(
        fabric,
        multicast=machine.switch_reduces,
        bridge=_bridge(machine),
        nic=machine.network.bandwidth,
        nic_latency=machine.network.latency,
        nic_launch=machine.network.launch,
        lanes=tuple(sorted(lanes.items())),
    )


def _bridge(machine: Machine) -> tuple[int, float]:
    if machine.topology != "pcie" or machine.gpus_per_node < 2:
        return 0, 0.0
    return machine.links_between(0, 1), machine.link_bandwidth * machine.gpu.link.kernel_efficiency


def _joined(gpu: Gpu, count: int, topology: Topology, links: int, rate: float) -> Fabric:
    return Fabric(
        vendor=gpu.vendor,
        architecture=gpu.architecture,
        gpus_per_node=count,
        links=links,
        link_figure=rate * gpu.link.kernel_efficiency,
        topology=topology,
        payload=gpu.link.kernel_efficiency,
        copy_rate=gpu.memory.bandwidth * gpu.memory.copy_efficiency / _COPY_SHARE,
        dma=gpu.dma,
        dma_efficiency=gpu.link.dma_efficiency,
        gpu=gpu.name,
        clock=gpu.compute.clock,
        hop=gpu.link.latency,
    )
